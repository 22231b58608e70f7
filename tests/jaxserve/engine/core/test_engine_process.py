"""What the engine process does with its clients' messages."""

from __future__ import annotations

from pathlib import Path

import zmq

from jaxserve.engine.core import protocol
from jaxserve.engine.core.client_sockets import ClientSockets
from jaxserve.engine.core.engine_process import EngineProcess
from jaxserve.engine.frontend.llm import LLM
from jaxserve.sampling.params import SamplingParams, StructuredOutputsParams

PARAMS = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
GRAMMAR = SamplingParams(max_tokens=4, structured_outputs=StructuredOutputsParams(regex="[0-9]{9}"))


def test_the_requests_of_a_client_that_has_died_are_aborted(llm: LLM, tmp_path: Path) -> None:
    """Those that run, wait, or wait for a grammar, and those that come later."""
    context = zmq.Context()
    inbox, client = context.socket(zmq.PULL), context.socket(zmq.PUSH)
    inbox.bind(protocol.engine_address(tmp_path))
    client.connect(protocol.engine_address(tmp_path))
    sockets = ClientSockets(context, tmp_path)
    sockets.add(1)
    engine = EngineProcess(inbox, sockets)

    def take(*several: protocol.ToEngine) -> None:
        for message in several:
            client.send(protocol.encode(message))
            assert inbox.poll(60_000)
            engine._take_messages(llm.core)

    def submit(number: int, name: str, params: SamplingParams = PARAMS) -> protocol.Submit:
        return llm._validator.submission(f"{number}/{name}", [65, 66], params)

    try:
        take(submit(0, "a"), submit(1, "runs"), submit(1, "compiles", GRAMMAR))
        llm.core.step()
        llm.core.step()
        take(submit(1, "waits"), submit(0, "b"))
        assert len(llm.core.request_ids) == 5
        take(protocol.Detach(1), submit(1, "too late"), protocol.Attach(1), submit(1, "later"))
        assert sorted(llm.core.request_ids) == ["0/a", "0/b"]
        ends = []
        while llm.core.has_work:
            outputs = llm.core.step()
            engine._send_outputs(llm.core, outputs)
            ends += [o.request_id for o in outputs if o.finish_reason]
        assert sorted(ends) == ["0/a", "0/b"]
        assert llm.core.stats.blocks_used == 0
    finally:
        context.destroy(linger=0)
