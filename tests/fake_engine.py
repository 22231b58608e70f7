"""An engine process that computes nothing, for tests and for bench.server.frontend.

Speaks the engine's real protocol in place of jaxserve.engine.core.engine_process, so that only the
server's work is measured. Each token is "~", which the model's tokenizer must have. Environment:

    FAKE_STEPS_PER_S  steps a second, each one token of each request; 0 is as fast as it can
    FAKE_LOG          a file that gets, at the end, a JSON object: request id -> times of its
                      tokens (time.monotonic()), and of its abort
"""

from __future__ import annotations

import gc
import json
import os
import sys
import threading
import time
from pathlib import Path

import zmq

import checkpoints
from jaxserve.engine.core import protocol
from jaxserve.engine.core.client_sockets import ClientSockets
from jaxserve.text.tokenizer import load_tokenizer
from scheduler import SchedulerStats

MAX_MODEL_LEN = 8192


class FakeEngine:
    """Args: steps_per_s: 0 for no limit."""

    def __init__(self, inbox: zmq.Socket, sockets: ClientSockets, steps_per_s: float) -> None:
        self._inbox, self._sockets = inbox, sockets
        self._period = 1.0 / steps_per_s if steps_per_s else 0.0
        self._left: dict[str, tuple[int, int]] = {}  # tokens to come of each choice, choices
        self.sent: dict[str, list[float]] = {}
        self.aborted: dict[str, float] = {}

    def run(self) -> None:
        start = self._receive(wait=True)
        path = checkpoints.pull(start.config.model)
        fetched = protocol.Fetched(str(path), str(path))
        self._sockets.send(fetched)
        tokenizer = load_tokenizer(path)
        self._token = tokenizer.vocabulary.piece_id("~")
        ready = protocol.Ready(
            MAX_MODEL_LEN, tokenizer.num_ids, 64, 10_000, 0.0, 0.0, "", self._stats()
        )
        self._sockets.send(ready)
        due = time.monotonic()
        while True:
            while (message := self._receive(wait=not self._left)) is not None:
                if isinstance(message, protocol.Shutdown):
                    return
                if isinstance(message, protocol.Attach):
                    self._sockets.add(message.client)
                    self._sockets.send(fetched, message.client)
                    self._sockets.send(ready, message.client)
                self._take(message)
                if self._left and self._inbox.poll(0) == 0:
                    break
            now = time.monotonic()
            due = max(due + self._period, now - self._period)
            if due > now:
                time.sleep(due - now)
            self._step()

    def _take(self, message: protocol.ToEngine) -> None:
        if isinstance(message, protocol.Submit):
            self._left[message.request_id] = (message.params.max_tokens or 1, message.params.n)
            self.sent[message.request_id] = []
        elif isinstance(message, protocol.Abort) and message.request_id in self._left:
            del self._left[message.request_id]
            self.aborted[message.request_id] = time.monotonic()

    def _step(self) -> None:
        outputs = []
        stepped = list(self._left)
        for request_id in stepped:
            left, n = self._left[request_id]
            reason = "length" if left == 1 else None
            outputs += [
                protocol.Output(request_id, [self._token], reason, index=i) for i in range(n)
            ]
            if left == 1:
                del self._left[request_id]
            else:
                self._left[request_id] = (left - 1, n)
        now = time.monotonic()
        for request_id in stepped:
            self.sent[request_id].append(now)
        self._sockets.send_outputs(outputs, self._stats())

    def _stats(self) -> protocol.EngineStats:
        running = len(self._left)
        return protocol.EngineStats(
            SchedulerStats(running, 0, 9_999, running, 9_999 - running, 0, 0, 0, 0)
        )

    def _receive(self, wait: bool) -> protocol.ToEngine | None:
        if not wait and not self._inbox.poll(0):
            return None
        return protocol.decode_to_engine(self._inbox.recv())


def _exit_with_parent(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


def main(folder: str, parent: str) -> None:
    if cores := os.environ.get("FAKE_CORES"):
        os.sched_setaffinity(0, {int(core) for core in cores.split(",")})
    if os.sched_getscheduler(0) == os.SCHED_RR:
        # Clients of the same priority on its core would delay it; a real engine has its own core.
        level = os.sched_getparam(0).sched_priority + 1
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(level))
    gc.disable()  # so that its pauses don't count as the server's latency
    threading.Thread(target=_exit_with_parent, args=(int(parent),), daemon=True).start()
    context = zmq.Context()
    inbox = context.socket(zmq.PULL)
    inbox.bind(protocol.engine_address(folder))
    sockets = ClientSockets(context, Path(folder))
    engine = FakeEngine(inbox, sockets, float(os.environ.get("FAKE_STEPS_PER_S", "0")))
    engine.run()
    if log := os.environ.get("FAKE_LOG"):
        Path(log).write_text(json.dumps({"sent": engine.sent, "aborted": engine.aborted}))
    context.destroy(linger=1000)


if __name__ == "__main__":
    main(*sys.argv[1:])
