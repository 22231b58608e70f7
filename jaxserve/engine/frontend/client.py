"""EngineClient: the server's and the command line's view of the engine. Imports no jax.

This process tokenizes and detokenizes; the engine process schedules and runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import random
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import checkpoints
from jaxserve.config import EngineConfig
from jaxserve.engine.core import protocol
from jaxserve.engine.frontend.delta_queue import DeltaQueue
from jaxserve.engine.frontend.engine_connection import ENGINE_MODULE, EngineConnection
from jaxserve.engine.frontend.output_processor import OutputProcessor
from jaxserve.engine.frontend.request_observer import RequestObserver, RequestTimes
from jaxserve.engine.frontend.request_stream import RequestStream
from jaxserve.engine.frontend.request_validation import Prompt, RequestValidator
from jaxserve.engine.frontend.sampling_defaults import sampling_defaults
from jaxserve.errors import (
    EngineDeadError,
    InvalidRequestError,
    JaxserveError,
    ShuttingDownError,
)
from jaxserve.outputs import CompletionDelta
from jaxserve.sampling.params import SamplingParams
from jaxserve.text.tokenizer import Tokenizer, load_tokenizer

log = logging.getLogger(__name__)

# To write to a reader costs more than all else that is done for a token. After a batch of many
# outputs the client pauses for half as long as the batch took, so that where steps are short one
# write has the tokens of several steps, and the event loop has time for everything else.
PAUSE_RATIO, MAX_PAUSE_S, MANY_OUTPUTS = 0.5, 0.02, 32
MAX_READ_S = 0.005  # of messages in one batch; no reader runs meanwhile


class EngineClient:
    """Streams requests through an engine process. Made by EngineClient.start(), or by attach() for
    an engine that another process has started.

    sampling_defaults: values that the model asks for in SamplingParams' fields that a request
        leaves unset. Whoever makes the params applies them.
    exit_status: the engine's, once it has ended.
    ready: what the engine reported when it was ready.
    stats: the engine's last figures.
    observers: called when something happens to a request.
    adapters: those that requests may name, by name.
    """

    def __init__(
        self,
        config: EngineConfig,
        connection: EngineConnection,
        tokenizer: Tokenizer,
        sampling_defaults: dict[str, Any],
        ready: protocol.Ready,
    ) -> None:
        local = Path(config.model)
        # Clients send a hub name as it is.
        self.model_name = (
            local.resolve().name.removesuffix(".gguf") if local.exists() else config.model
        )
        self.config, self.tokenizer = config, tokenizer
        self.sampling_defaults = sampling_defaults
        self.ready, self.stats = ready, ready.stats
        self.exit_status: int | None = None
        self.observers: list[RequestObserver] = []
        self.adapters = {info.name: info for info in ready.adapters}
        self._watcher: Callable[[protocol.Snapshot], None] | None = None
        self._connection = connection
        self._streams: dict[str, RequestStream] = {}
        self._ids, self._calls = protocol.RequestIds(connection.number), itertools.count()
        self._admin_calls: dict[int, asyncio.Future[protocol.AdminResult]] = {}
        self._dead, self._closing = asyncio.Event(), False
        self._received_at = time.monotonic()  # when the engine's last message came
        seeds = random.Random(config.seed + connection.number)
        self._validator = RequestValidator(tokenizer, ready.max_model_len, ready.vocab_size, seeds)
        self._tasks = [
            asyncio.create_task(self._read_messages()),
            asyncio.create_task(self._watch_process()),
        ]

    @classmethod
    async def start(cls, config: EngineConfig, module: str = ENGINE_MODULE) -> EngineClient:
        """Starts an engine process, which fetches the model, and returns when it is ready.

        Args:
            module: what the engine process runs.

        Raises:
            ModelError: the model can't be fetched or served.
            EngineDeadError: the process ended without a message; its stderr says why.
        """
        for name in filter(None, (config.model, config.tokenizer)):
            checkpoints.check_name(name)  # before a process is started
        connection = await EngineConnection.start_process(module)
        start = protocol.Start(protocol.PROTOCOL_VERSION, config)
        return await cls._connect(config, connection, start)

    @classmethod
    async def attach(
        cls,
        config: EngineConfig,
        folder: Path,
        number: int,
        wait_ended: Callable[[], Awaitable[int]],
    ) -> EngineClient:
        """A further client of an engine that is ready.

        Args:
            config: the settings that the engine was started with.
            folder: that of the client that started the engine.
            number: from 1 on, no two alike.
            wait_ended: waits for the engine's end; gives its exit status.

        Raises:
            EngineDeadError: the engine has ended.
        """
        connection = EngineConnection(folder, number, wait_ended)
        return await cls._connect(config, connection, protocol.Attach(number))

    @classmethod
    async def _connect(
        cls,
        config: EngineConfig,
        connection: EngineConnection,
        greeting: protocol.Start | protocol.Attach,
    ) -> EngineClient:
        """Returns when the engine is ready."""
        try:
            connection.open()
            connection.send(greeting)
            fetched = await connection.receive_at_start()
            assert isinstance(fetched, protocol.Fetched)
            # The engine loads and compiles while this process reads the tokenizer.
            path = Path(fetched.path)
            tokenizer = await asyncio.to_thread(load_tokenizer, Path(fetched.tokenizer))
            defaults = sampling_defaults(config, path)
            ready = await connection.receive_at_start()
            assert isinstance(ready, protocol.Ready)
            return cls(config, connection, tokenizer, defaults, ready)
        except BaseException:
            await connection.abandon()
            raise

    @property
    def folder(self) -> Path:
        """Where the engine's sockets are; for attach()."""
        return self._connection.folder

    @property
    def max_model_len(self) -> int:
        """Most tokens of a request, prompt and output together."""
        return self.ready.max_model_len

    @property
    def vocab_size(self) -> int:
        """Rows of the model's embedding."""
        return self.ready.vocab_size

    @property
    def healthy(self) -> bool:
        """Whether the engine process is alive."""
        return not self._dead.is_set()

    @property
    def silent_s(self) -> float:
        """Seconds since the engine's last message, if it has work; 0 if it has none.

        It sends one after each turn of its loop, and every second during a step.
        """
        return time.monotonic() - self._received_at if self._expects_messages else 0.0

    @property
    def _expects_messages(self) -> bool:
        # Its figures count all clients' requests, and it sends messages to all clients.
        busy = bool(self._admin_calls) or self.stats.scheduler.running > 0
        return busy or any(not stream.ended for stream in self._streams.values())

    async def wait_dead(self) -> None:
        """Returns once the engine process has ended, for whatever reason."""
        await self._dead.wait()

    def prepare(
        self,
        prompt: Prompt,
        params: SamplingParams,
        add_special_tokens: bool = True,
        generates: bool = True,
        default_max_tokens: int | None = None,
    ) -> list[int]:
        """Token ids of a prompt, validated but not submitted. stream() takes them as they are.

        Args:
            add_special_tokens: put BOS (and EOS) around a text where the model's files say so.
            generates: whether output tokens are wanted; without, a prompt may fill the context.
            default_max_tokens: as of stream().

        Raises:
            InvalidRequestError: what generate() would refuse.
        """
        return self._validator.prompt_ids(
            prompt, params, add_special_tokens, generates, default_max_tokens
        )

    async def generate(
        self,
        prompt: Prompt,
        params: SamplingParams,
        *,
        request_id: str | None = None,
        priority: int = 0,
        cache_salt: str | None = None,
    ) -> AsyncGenerator[CompletionDelta, None]:
        """Streams one request, its n choices mixed. Closing the iterator early aborts it.

        Args and errors as stream()'s.
        """
        batches = self.stream(
            [prompt], params, request_id=request_id, priority=priority, cache_salt=cache_salt
        )
        async with contextlib.aclosing(batches):
            async for batch in batches:
                for delta in batch:
                    yield delta

    async def stream(
        self,
        prompts: Sequence[Prompt],
        params: SamplingParams,
        *,
        request_id: str | None = None,
        priority: int = 0,
        cache_salt: str | None = None,
        pool: bool = False,
        default_max_tokens: int | None = None,
        echoes_prompt: bool = False,
        adapter: str | None = None,
    ) -> AsyncGenerator[list[CompletionDelta], None]:
        """Streams several prompts to one reader: each time all deltas since the last time.

        The choices of prompt i have the indices from i * params.n on. A reader that is slow gets
        larger deltas, not more of them. Closing the iterator early aborts the requests that haven't
        ended, and so does the first failure.

        Args:
            request_id: for logs, where several prompts add their numbers to it; the engine's own
                id is never a caller's.
            priority: lower runs first; only under the scheduling policy `priority`.
            cache_salt: only requests with the same salt share cached text.
            pool: give the prompts' embeddings; params.max_tokens must be 1.
            default_max_tokens: the limit of params without max_tokens, if a prompt leaves room for
                so many; None is what the context leaves.
            echoes_prompt: Tokenizer.decode_echo() is shown before the text; an unfinished character
                at the prompt's end then comes with the text.
            adapter: the name of an adapter; None is the base model.

        Raises:
            InvalidRequestError, OverloadedError, EngineDeadError: before the first delta.
            EngineError, EngineDeadError: afterwards.
            ShuttingDownError: close() was called before the end.
        """
        if priority and self.config.scheduling_policy != "priority":
            raise InvalidRequestError(
                "priority needs a server with --scheduling-policy priority; leave it out",
                "priority",
            )
        several = [
            self._validator.prompt_ids(prompt, params, generates=not pool) for prompt in prompts
        ]
        self._check_alive()
        self._expect_messages()
        queue = DeltaQueue(len(several))
        streams: dict[str, RequestStream] = {}
        try:
            for i, ids in enumerate(several):
                own = self._validator.limited(params, ids, default_max_tokens)
                name = request_id or "request"
                own_id = self._ids.new(name if len(several) == 1 else f"{name}.{i}")
                streams[own_id] = self._streams[own_id] = RequestStream(
                    OutputProcessor(self.tokenizer, params, ids, i * params.n, echoes_prompt),
                    RequestTimes(len(ids), own, request_id),
                    queue,
                    self.observers,
                )
                self._connection.send(
                    self._validator.submission(
                        own_id, ids, own, priority, cache_salt, pool, adapter
                    )
                )
            while queue.has_more:
                yield await queue.take()
        finally:
            for own_id, stream in streams.items():
                del self._streams[own_id]
                if not stream.ended:
                    self._abort(protocol.Abort(own_id))
                    stream.end_open_choices("abort")

    async def run_admin_command(self, command: protocol.AdminCommand, argument: str = "") -> bool:
        """Has the engine run an operator's command between two steps.

        Args:
            argument: of start_profile: the folder to write to.

        Returns:
            Whether it was done; False if it can't be done now.

        Raises:
            EngineError: it failed.
            EngineDeadError: the engine process has ended.
        """
        client = self._connection.number
        result = await self._call(
            lambda call_id: protocol.RunAdminCommand(call_id, command, argument, client)
        )
        return result.done

    async def load_adapter(self, name: str, folder: str, replace: bool = False) -> None:
        """Has the engine read an adapter, which requests may name afterwards.

        Args:
            folder: on the engine's machine.
            replace: in place of the adapter that has the name, if there is one.

        Raises:
            ModelError: it can't be read, or isn't one of this model's.
            InvalidRequestError: the name is taken, or the engine takes no adapters.
            EngineError, EngineDeadError: as run_admin_command().
        """
        client = self._connection.number
        await self._call(
            lambda call_id: protocol.LoadAdapter(call_id, name, folder, replace, client)
        )

    async def unload_adapter(self, name: str) -> None:
        """Takes an adapter's name away; requests that have it go on.

        Raises:
            InvalidRequestError: there is no such adapter.
            EngineDeadError: as run_admin_command().
        """
        client = self._connection.number
        await self._call(lambda call_id: protocol.UnloadAdapter(call_id, name, client))

    async def _call(self, message: Callable[[int], protocol.ToEngine]) -> protocol.AdminResult:
        """Sends a command, made from the number of the call, and waits for its result."""
        self._check_alive()
        self._expect_messages()
        call_id = next(self._calls)
        self._admin_calls[call_id] = asyncio.get_running_loop().create_future()
        try:
            self._connection.send(message(call_id))
            result = await self._admin_calls[call_id]
        finally:
            del self._admin_calls[call_id]
        if result.error is not None:
            raise protocol.exception(result.error, result.error_kind)
        return result

    def watch(self, watcher: Callable[[protocol.Snapshot], None] | None) -> None:
        """Has `watcher` called with snapshots of the engine, in place of the one before; None ends
        that.

        The first snapshot has all that there is, the others have what has changed since, at most
        every 0.1 s. It is called in the event loop, so it must be quick.
        """
        self._watcher = watcher
        if self.healthy and not self._closing:
            self._connection.send(protocol.Watch(self._connection.number, watcher is not None))

    def detach(self, number: int) -> None:
        """Tells the engine that a further client has died, so that it ends that one's requests."""
        if self.healthy:
            self._connection.send(protocol.Detach(number))

    async def close(self) -> None:
        """Fails the requests that haven't ended, and closes the connection. Ends the engine
        process, if this client has started it."""
        self._closing = True
        if self.healthy:
            await self._connection.shut_down()
        self._fail_all(ShuttingDownError("the server is shutting down"))
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._connection.close()

    async def _read_messages(self) -> None:
        try:
            while True:
                await self._read_batch()
        except Exception:
            log.exception("the engine's messages can't be read; the engine is ended")
            self._connection.kill()
            self._die(EngineDeadError("the engine's messages can't be read; the log has why"))

    async def _read_batch(self) -> None:
        """Waits for the engine's next message, and handles it with those that have come since, so
        that each reader gets their tokens as one delta."""
        message: protocol.ToClient | None = await self._connection.receive()
        began, outputs = time.monotonic(), list[protocol.Output]()
        while message is not None:
            outputs += self._take_message(message)
            in_time = time.monotonic() < began + MAX_READ_S
            message = self._connection.receive_now() if in_time else None
        for output in protocol.join_tokens(outputs):
            stream = self._streams.get(output.request_id)
            if stream is not None and (abort := stream.take(output)) is not None:
                self._abort(abort)
        # receive() doesn't yield to the event loop while messages are there; the readers must run.
        await asyncio.sleep(0)
        if len(outputs) >= MANY_OUTPUTS:
            await asyncio.sleep(min(PAUSE_RATIO * (time.monotonic() - began), MAX_PAUSE_S))

    def _take_message(self, message: protocol.ToClient) -> list[protocol.Output]:
        """Handles one message; returns its outputs of requests."""
        self._received_at = time.monotonic()
        if isinstance(message, protocol.AdminResult):
            waiting = self._admin_calls.get(message.call_id)
            if waiting is not None and not waiting.done():
                waiting.set_result(message)
            return []
        if isinstance(message, protocol.Adapters):
            self.adapters = {info.name: info for info in message.adapters}
            return []
        if isinstance(message, protocol.Snapshot):
            if self._watcher is not None:
                self._watcher(message)
            return []
        assert isinstance(message, protocol.Outputs)
        self.stats = message.stats
        for observer in self.observers:
            observer.on_stats(message.stats)
        return message.outputs

    async def _watch_process(self) -> None:
        """Fails everything that is pending as soon as the engine process ends."""
        status = self.exit_status = await self._connection.wait_ended()
        if self._closing:
            self._die(ShuttingDownError("the server is shutting down"))
        else:
            self._die(EngineDeadError(f"the engine process ended with status {status}"))

    def _die(self, error: JaxserveError) -> None:
        self._dead.set()
        self._fail_all(error)

    def _fail_all(self, error: JaxserveError) -> None:
        for stream in self._streams.values():
            stream.fail(error)
        for waiting in self._admin_calls.values():
            if not waiting.done():
                waiting.set_exception(error)

    def _check_alive(self) -> None:
        if not self.healthy:
            raise EngineDeadError("the engine process has ended: restart the server")

    def _expect_messages(self) -> None:
        """From now on the engine has work: silent_s counts from here, if it had none before."""
        if not self._expects_messages:
            self._received_at = time.monotonic()

    def _abort(self, abort: protocol.Abort) -> None:
        if self.healthy and not self._closing:
            self._connection.send(abort)
