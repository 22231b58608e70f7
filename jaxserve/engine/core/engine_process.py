"""The engine process: receives its clients' messages, runs EngineCore, and sends its outputs."""

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
from concurrent.futures import Future
from functools import partial
from pathlib import Path

import jax
import zmq
from msgspec import structs

import checkpoints
from jaxserve.engine.core import protocol
from jaxserve.engine.core.adapter_store import AdapterStore
from jaxserve.engine.core.client_sockets import ClientSockets
from jaxserve.engine.core.engine_core import EngineCore
from jaxserve.engine.device.adapters.slot_writer import HostAdapter
from jaxserve.engine.startup.cpu_threads import load_kernels_meanwhile
from jaxserve.errors import InvalidRequestError, JaxserveError
from jaxserve.text.tokenizer import load_tokenizer

log = logging.getLogger(__name__)

PARENT_CHECK_S = 0.5
POLL_MS = 1  # between checks whether the device is done
LOAD_MS = 5  # between checks whether an adapter is read, while there is no work
WATCH_MS = 100  # between checks whether there is a snapshot to send, while there is no work
REPORT_S = 1.0  # between reports while a step runs, which show that the engine is alive


class EngineProcess:
    """Serves its clients until the first one sends Shutdown or dies."""

    def __init__(self, inbox: zmq.Socket[bytes], clients: ClientSockets) -> None:
        self._inbox, self._clients = inbox, clients
        self._refusals: list[protocol.Output] = []  # not yet sent
        self._sent_at = 0.0  # when the clients last got outputs
        self._ending = False
        self._loads: list[tuple[protocol.LoadAdapter, Future[HostAdapter]]] = []
        self._adapters_version = 0  # that the clients know
        self._watching: set[int] = set()  # clients

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
        load_kernels_meanwhile(start.config)
        try:
            path, tokenizer = checkpoints.pull_with_tokenizer(start.config)
            self._fetched = protocol.Fetched(str(path), str(tokenizer))
            self._clients.send(self._fetched)
            core = EngineCore(start.config, path, load_tokenizer(tokenizer), sys.stderr.isatty())
        except JaxserveError as error:
            return self._fail(str(error))
        ready = core.ready
        log.info("loaded in %.1f s, ready in %.1f s", ready.load_s, ready.ready_s)
        log.info("context of %d tokens; KV cache %s", ready.max_model_len, ready.cache)
        self._clients.send(ready)
        if core.adapters is not None:
            self._adapters_version = core.adapters.version
        core.prepare_grammars()
        try:
            return self._serve(core)
        finally:
            core.close()

    def _serve(self, core: EngineCore) -> int:
        # What exists now stays, so the garbage collector needn't search it during a step.
        gc.collect()
        gc.freeze()
        while not self._ending:
            if not core.has_work:
                self._inbox.poll(self._idle_ms(core))
            self._take_messages(core)
            self._follow_adapters(core)
            outputs = core.step(partial(self._meanwhile, core)) if core.has_work else []
            outputs, self._refusals = self._refusals + outputs, []
            self._send_outputs(core, outputs)
            self._send_snapshot(core)
        return 0

    def _idle_ms(self, core: EngineCore) -> int | None:
        """Milliseconds without work after which something may be there besides messages; None:
        nothing comes but messages."""
        if self._loads:
            return LOAD_MS
        unsettled = core.watch is not None and not core.watch.settled
        return WATCH_MS if unsettled or core.adapter_folder is not None else None

    def _follow_adapters(self, core: EngineCore) -> None:
        """Takes in adapters that were read, and tells all clients of changes. Whoever asked for one
        gets the result after that."""
        store = core.adapters
        if store is None:
            return
        if core.adapter_folder is not None:
            core.adapter_folder.poll()
        done = [(message, read) for message, read in self._loads if read.done()]
        self._loads = [(message, read) for message, read in self._loads if not read.done()]
        results = [(message.client, _finish_load(store, message, read)) for message, read in done]
        if store.version != self._adapters_version:
            self._adapters_version = store.version
            self._clients.send_to_all(protocol.Adapters(store.infos))
        for client, result in results:
            if client in self._clients:
                self._clients.send(result, client)

    def _begin_load(self, core: EngineCore, message: protocol.LoadAdapter) -> None:
        try:
            if core.adapters is None:
                raise InvalidRequestError("the engine was started without adapters: set max_loras")
            _check_name(core.adapters, message)
            self._loads.append((message, core.adapters.read(Path(message.folder))))
        except JaxserveError as error:
            self._clients.send(_failed(message.call_id, error), message.client)

    def _unload(self, core: EngineCore, message: protocol.UnloadAdapter) -> None:
        result = protocol.AdminResult(message.call_id, True)
        try:
            if core.adapters is None:
                raise InvalidRequestError(f"there is no adapter {message.name!r}", "lora_name")
            core.adapters.remove(message.name)
        except JaxserveError as error:
            result = _failed(message.call_id, error)
        self._follow_adapters(core)
        self._clients.send(result, message.client)

    def _meanwhile(self, core: EngineCore) -> None:
        """Handles messages while the device is busy, so that an abort takes effect before the step
        ends."""
        if self._inbox.poll(POLL_MS):
            self._take_messages(core)
        if time.monotonic() - self._sent_at > REPORT_S:
            self._send_outputs(core)
        self._send_snapshot(core)

    def _send_snapshot(self, core: EngineCore) -> None:
        """Sends the clients that watch a snapshot, if it is time and there is news."""
        if core.watch is not None and (snapshot := core.watch.take()) is not None:
            self._clients.send_several(snapshot, self._watching)

    def _watch(self, core: EngineCore, client: int, on: bool) -> None:
        if on and client in self._clients:
            self._watching.add(client)
            core.set_watch(True)
        elif not on and client in self._watching:
            self._watching.remove(client)
            if not self._watching:
                core.set_watch(False)

    def _take_messages(self, core: EngineCore) -> None:
        freed = False
        while self._inbox.poll(0):
            match message := self._receive():
                case protocol.Shutdown():
                    self._ending = True
                case protocol.Attach(client):
                    self._clients.add(client)
                    if client in self._clients:
                        self._clients.send(self._fetched, client)
                        self._clients.send(_ready_now(core), client)
                case protocol.Detach(client):
                    self._watch(core, client, on=False)
                    self._clients.remove(client)
                    theirs = [i for i in core.request_ids if protocol.client_of(i) == client]
                    for own_id in theirs:
                        core.abort(own_id)
                    log.info("client %d has left; aborted %d requests", client, len(theirs))
                    freed = True
                case protocol.Watch(client, on):
                    self._watch(core, client, on)
                case protocol.RunAdminCommand(client=client) if client in self._clients:
                    self._clients.send(_run_admin_command(core, message), client)
                case protocol.LoadAdapter(client=client) if client in self._clients:
                    self._begin_load(core, message)
                case protocol.UnloadAdapter(client=client) if client in self._clients:
                    self._unload(core, message)
                case protocol.Submit() if protocol.client_of(message.request_id) in self._clients:
                    if refusal := core.submit(message):
                        self._refusals.append(refusal)
                case protocol.Abort():
                    core.abort(message.request_id, message.index)
                    freed = True
        if freed:  # clients learn of the free blocks before the step ends
            self._send_outputs(core)

    def _receive(self) -> protocol.ToEngine:
        return protocol.decode_to_engine(self._inbox.recv())

    def _send_outputs(self, core: EngineCore, outputs: Sequence[protocol.Output] = ()) -> None:
        self._sent_at = time.monotonic()
        self._clients.send_outputs(outputs, core.report())

    def _fail(self, reason: str) -> int:
        self._clients.send(protocol.Failed(reason))
        return 1


def _ready_now(core: EngineCore) -> protocol.Ready:
    """What a client that comes later gets."""
    if core.adapters is None:
        return core.ready
    return structs.replace(core.ready, adapters=core.adapters.infos)


def _check_name(store: AdapterStore, message: protocol.LoadAdapter) -> None:
    if message.name in store and not message.replace:
        raise InvalidRequestError(
            f"there is an adapter {message.name!r} already: unload it, or set load_inplace",
            "lora_name",
        )


def _finish_load(
    store: AdapterStore, message: protocol.LoadAdapter, read: Future[HostAdapter]
) -> protocol.AdminResult:
    try:
        adapter = read.result()
        _check_name(store, message)
        store.add(message.name, Path(message.folder), adapter)
    except Exception as error:  # whatever it is, it concerns this adapter alone
        if not isinstance(error, JaxserveError):
            log.exception("the adapter %s can't be loaded", message.name)
        return _failed(message.call_id, error)
    return protocol.AdminResult(message.call_id, True)


def _failed(call_id: int, error: Exception) -> protocol.AdminResult:
    return protocol.AdminResult(call_id, False, str(error), type(error).__name__)


def _run_admin_command(core: EngineCore, message: protocol.RunAdminCommand) -> protocol.AdminResult:
    try:
        match message.command:
            case "reset_prefix_cache":
                return protocol.AdminResult(message.call_id, core.reset_prefix_cache())
            case "start_profile":
                jax.profiler.start_trace(message.argument)
            case "stop_profile":
                jax.profiler.stop_trace()
    except (RuntimeError, OSError) as error:
        return protocol.AdminResult(message.call_id, False, str(error))
    return protocol.AdminResult(message.call_id, True)


def _exit_with_parent(parent: int, folder: Path) -> None:
    """Waits until the parent process has died. Then kills this process, whatever it computes, with
    the processes that it has started (a download), and removes the sockets' folder."""
    while os.getppid() == parent:
        time.sleep(PARENT_CHECK_S)
    shutil.rmtree(folder, ignore_errors=True)
    os.killpg(0, signal.SIGKILL)


def main(folder: str, parent: str) -> int:
    """Runs the engine process, which leads its process group.

    Args:
        folder: where the sockets are.
        parent: process id of the first client.
    """
    # Ctrl-C and a service manager's SIGTERM reach this process, too, but the client decides when
    # the engine ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s: %(message)s")
    logging.getLogger("jax").setLevel(logging.WARNING)
    threading.Thread(
        target=_exit_with_parent, args=(int(parent), Path(folder)), daemon=True
    ).start()
    context = zmq.Context()
    inbox = context.socket(zmq.PULL)
    inbox.bind(protocol.engine_address(folder))
    try:
        return EngineProcess(inbox, ClientSockets(context, Path(folder))).run()
    finally:
        context.destroy(linger=1000)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
