"""What each of several clients of an engine receives."""

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
        inbox.bind(protocol.client_address(tmp_path, client))
    sockets = ClientSockets(context, tmp_path)
    for client in (1, 2):
        sockets.add(client)
    ids = [protocol.RequestIds(client).new("me/2-x") for client in (2, 0, 2)]
    outputs = [protocol.Output(own_id, [n]) for n, own_id in enumerate(ids)]
    reading = SchedulerStats(*range(9))
    sockets.send_outputs(outputs, protocol.EngineStats(reading, 3, 0.5, 0.25, 7, 1.5))

    received = [protocol.decode_to_client(inbox.recv()) for inbox in inboxes]
    assert all(isinstance(message, protocol.Outputs) for message in received)
    assert [[o.token_ids for o in message.outputs] for message in received] == [
        [[1]],
        [],
        [[0], [2]],
    ]
    assert [message.stats.step_s for message in received] == [0.25, None, None]
    assert [message.stats.step_tokens for message in received] == [7, 0, 0]
    assert {(message.stats.compiles, message.stats.busy_s) for message in received} == {(3, 1.5)}
    context.destroy(linger=0)
