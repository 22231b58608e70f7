"""What the core records of its steps for clients that watch, and how it reaches them."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import zmq

from jaxserve.engine.core import protocol, watch
from jaxserve.engine.core.client_sockets import ClientSockets
from jaxserve.engine.core.engine_process import EngineProcess
from jaxserve.engine.frontend.engine_view import EngineView, name_of
from jaxserve.engine.frontend.llm import LLM
from jaxserve.sampling.params import SamplingParams

PARAMS = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)


@pytest.fixture
def every_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """Snapshots as often as somebody looks."""
    monkeypatch.setattr(watch, "PERIOD_S", 0.0)
    monkeypatch.setattr(watch, "MOST_SHARE", math.inf)


def test_steps_are_told_with_their_rows_and_times(llm: LLM, every_look: None) -> None:
    assert llm.core.reset_prefix_cache()  # which other tests may have filled with these prompts
    llm.core.set_watch(True)
    view, steps = EngineView(llm.core.ready.num_blocks), []
    prompts = [[65 + i] * 20 for i in range(3)]
    for i, prompt in enumerate(prompts):
        llm.core.submit(llm._validator.submission(f"0/{i}-name {i}", prompt, PARAMS))
    keys: dict[int, str] = {}
    while llm.core.has_work:
        llm.core.step()
        assert llm.core.watch is not None
        if (snapshot := llm.core.watch.take()) is not None:
            keys |= {s.key: name_of(s.request_id) for s in snapshot.changes.started}
            view.take(snapshot.changes)
            steps += snapshot.steps
    assert [step.step for step in steps] == list(range(steps[0].step, steps[-1].step + 1))
    computed = {f"name {i}": 0 for i in range(3)}
    for step in steps:
        for key, tokens in step.prompts:
            computed[keys[key]] += tokens
        assert step.decodes + sum(tokens for _, tokens in step.prompts) <= step.padded
        assert step.device_s > 0
        assert step.host_s > 0
    assert computed == {f"name {i}": 20 for i in range(3)}
    assert sum(step.decodes for step in steps) >= 3 * 19  # one more where an end came late
    assert view.sequences == {}
    assert set(view.blocks[1:]) == {-1, 0}
    llm.core.set_watch(False)
    assert llm.core.watch is None


def test_snapshots_reach_those_that_watch(llm: LLM, tmp_path: Path, every_look: None) -> None:
    context = zmq.Context()
    inbox, client = context.socket(zmq.PULL), context.socket(zmq.PUSH)
    inbox.bind(protocol.engine_address(tmp_path))
    client.connect(protocol.engine_address(tmp_path))
    news = []
    for number in range(3):
        news.append(context.socket(zmq.PULL))
        news[-1].bind(protocol.client_address(tmp_path, number))
    outboxes = ClientSockets(context, tmp_path)
    outboxes.add(1)
    outboxes.add(2)
    engine = EngineProcess(inbox, outboxes)

    def take(message: protocol.ToEngine) -> None:
        client.send(protocol.encode(message))
        assert inbox.poll(60_000)
        engine._take_messages(llm.core)

    def snapshots(number: int) -> list[protocol.Snapshot]:
        """All that a client has; the last message before is an AdminResult."""
        take(protocol.RunAdminCommand(1, "reset_prefix_cache", client=number))
        found = []
        while not isinstance(
            message := protocol.decode_to_client(news[number].recv()), protocol.AdminResult
        ):
            found += [message] if isinstance(message, protocol.Snapshot) else []
        return found

    try:
        engine._send_snapshot(llm.core)
        take(protocol.Watch(1, True))
        engine._send_snapshot(llm.core)
        assert [len(snapshots(number)) for number in range(3)] == [0, 1, 0]
        take(protocol.Watch(2, True))  # it needs all from the beginning, so both get it
        engine._send_snapshot(llm.core)
        first, second = snapshots(1), snapshots(2)
        assert first == second
        assert [s.changes.first for s in first] == [True]
        take(protocol.Watch(1, False))
        take(protocol.Submit("0/1-a", [65, 66], PARAMS, frozenset()))
        engine._send_snapshot(llm.core)
        assert [len(snapshots(number)) for number in range(3)] == [0, 0, 1]
        take(protocol.Detach(2))
        assert llm.core.watch is None
        llm.core.abort("0/1-a")
    finally:
        llm.core.set_watch(False)
        context.destroy(linger=0)
