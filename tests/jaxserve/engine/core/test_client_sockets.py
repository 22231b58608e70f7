"""News of an engine with several clients."""

from __future__ import annotations

from pathlib import Path

import zmq

from jaxserve.engine.core import protocol
from jaxserve.engine.core.client_sockets import ClientSockets
from scheduler import SchedulerStats

WAIT_MS = 10_000  # a hang guard


def test_each_client_gets_its_own_and_one_of_them_the_step(tmp_path: Path) -> None:
    context = zmq.Context()
    inboxes = [context.socket(zmq.PULL) for _ in range(3)]
    for client, inbox in enumerate(inboxes):
        inbox.set(zmq.RCVTIMEO, WAIT_MS)
        inbox.bind(protocol.from_engine(tmp_path, client))
    outboxes = ClientSockets(context, tmp_path)
    for client in (1, 2):
        outboxes.add(client)
    ids = [protocol.RequestIds(client).new("me/2-x") for client in (2, 0, 2)]
    outputs = [protocol.Output(own_id, [n]) for n, own_id in enumerate(ids)]
    reading = SchedulerStats(*range(9))
    outboxes.tell(outputs, protocol.EngineStats(reading, 3, 0.5, 0.25, 7, 1.5))

    told = [protocol.decode_to_client(inbox.recv()) for inbox in inboxes]
    assert all(isinstance(news, protocol.Outputs) for news in told)
    assert [[o.token_ids for o in news.outputs] for news in told] == [[[1]], [], [[0], [2]]]
    assert [news.stats.step_s for news in told] == [0.25, None, None]
    assert [news.stats.step_tokens for news in told] == [7, 0, 0]
    assert {(news.stats.compiles, news.stats.busy_s) for news in told} == {(3, 1.5)}
    context.destroy(linger=0)
