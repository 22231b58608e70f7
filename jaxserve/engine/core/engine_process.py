"""The engine process: a loop around EngineCore that talks to the client over two sockets."""

from __future__ import annotations

import gc
import logging
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import jax
import zmq

import checkpoints
from jaxserve.engine.core import protocol
from jaxserve.engine.core.client_sockets import ClientSockets
from jaxserve.engine.core.engine_core import EngineCore
from jaxserve.errors import JaxserveError
from jaxserve.text.tokenizer import load_tokenizer

log = logging.getLogger(__name__)

PARENT_CHECK_S = 0.5
POLL_MS = 1  # between looks at the device while it is busy
BEAT_S = 1.0  # between signs of life while a step runs


class EngineProcess:
    """Serves its clients until the first one says Shutdown or dies."""

    def __init__(self, inbox: zmq.Socket[bytes], outboxes: ClientSockets) -> None:
        self._inbox, self._outboxes = inbox, outboxes
        self._refusals: list[protocol.Output] = []  # still to be told
        self._told = 0.0  # when the clients last had news
        self._ending = False

    def run(self) -> int:
        """Returns the exit status."""
        start = self._receive()
        if not isinstance(start, protocol.Start):
            return 0
        if start.version != protocol.PROTOCOL_VERSION:
            return self._fail(
                f"the client speaks protocol {start.version}, the engine "
                f"{protocol.PROTOCOL_VERSION}: install one version of jaxserve"
            )
        try:
            path = checkpoints.pull(start.config.model)
            self._fetched = protocol.Fetched(str(path))
            self._outboxes.send(self._fetched)
            core = EngineCore(start.config, path, load_tokenizer(path), sys.stderr.isatty())
        except JaxserveError as error:
            return self._fail(str(error))
        ready = core.ready
        log.info("loaded in %.1f s, ready in %.1f s", ready.load_s, ready.ready_s)
        log.info("context of %d tokens; KV cache %s", ready.max_model_len, ready.cache)
        self._outboxes.send(ready)
        core.prepare_grammars()
        try:
            return self._serve(core)
        finally:
            core.close()

    def _serve(self, core: EngineCore) -> int:
        # What was built until now stays, and no step shall wait for a search of it for garbage.
        gc.collect()
        gc.freeze()
        while not self._ending:
            if not core.has_work:
                self._inbox.poll()
            self._take_messages(core)
            outputs = core.step(partial(self._meanwhile, core)) if core.has_work else []
            news, self._refusals = self._refusals + outputs, []
            self._tell(core, news)
        return 0

    def _meanwhile(self, core: EngineCore) -> None:
        """While the device is busy: a client that leaves needn't wait for the step's end."""
        if self._inbox.poll(POLL_MS):
            self._take_messages(core)
        if time.monotonic() - self._told > BEAT_S:
            self._tell(core)

    def _take_messages(self, core: EngineCore) -> None:
        freed = False
        while self._inbox.poll(0):
            match message := self._receive():
                case protocol.Shutdown():
                    self._ending = True
                case protocol.Attach(client):
                    self._outboxes.add(client)
                    if client in self._outboxes:
                        self._outboxes.send(self._fetched, client)
                        self._outboxes.send(core.ready, client)
                case protocol.Detach(client):
                    self._outboxes.remove(client)
                    theirs = [i for i in core.request_ids if protocol.client_of(i) == client]
                    for own_id in theirs:
                        core.abort(own_id)
                    log.info("client %d has left; aborted %d requests", client, len(theirs))
                    freed = True
                case protocol.Ask(client=client) if client in self._outboxes:
                    self._outboxes.send(_grant(core, message), client)
                case protocol.Submit() if protocol.client_of(message.request_id) in self._outboxes:
                    if refusal := core.submit(message):
                        self._refusals.append(refusal)
                case protocol.Abort():
                    core.abort(message.request_id, message.index)
                    freed = True
        if freed:  # what is free now needn't wait for the step to be known
            self._tell(core)

    def _receive(self) -> protocol.ToEngine:
        return protocol.decode_to_engine(self._inbox.recv())

    def _tell(self, core: EngineCore, news: Sequence[protocol.Output] = ()) -> None:
        self._told = time.monotonic()
        self._outboxes.tell(news, core.report())

    def _fail(self, reason: str) -> int:
        self._outboxes.send(protocol.Failed(reason))
        return 1


def _grant(core: EngineCore, ask: protocol.Ask) -> protocol.Answer:
    try:
        match ask.wish:
            case "reset_prefix_cache":
                return protocol.Answer(ask.call_id, core.reset_prefix_cache())
            case "start_profile":
                jax.profiler.start_trace(ask.argument)
            case "stop_profile":
                jax.profiler.stop_trace()
    except (RuntimeError, OSError) as error:
        return protocol.Answer(ask.call_id, False, str(error))
    return protocol.Answer(ask.call_id, True)


def _end_with(parent: int, folder: Path) -> None:
    """Ends this process when its parent has died, whatever it is busy with, and what it has
    started (a download); removes the sockets' folder, which the parent no longer can."""
    while os.getppid() == parent:
        time.sleep(PARENT_CHECK_S)
    shutil.rmtree(folder, ignore_errors=True)
    os.killpg(0, signal.SIGKILL)


def main(folder: str, parent: str) -> int:
    """Entry of the process, which leads its group; its first client is process `parent`, and the
    sockets are in `folder`."""
    # Ctrl-C and a service manager's SIGTERM reach the whole process group; the client decides
    # when the engine ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s: %(message)s")
    logging.getLogger("jax").setLevel(logging.WARNING)
    threading.Thread(target=_end_with, args=(int(parent), Path(folder)), daemon=True).start()
    context = zmq.Context()
    inbox = context.socket(zmq.PULL)
    inbox.bind(protocol.to_engine(folder))
    try:
        return EngineProcess(inbox, ClientSockets(context, Path(folder))).run()
    finally:
        context.destroy(linger=1000)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
