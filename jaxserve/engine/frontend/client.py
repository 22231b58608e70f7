"""EngineClient: the server's and the command line's only view of the engine. Imports no jax.

This process tokenizes and detokenizes; the engine process schedules and runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import zmq
import zmq.asyncio

import checkpoints
from jaxserve.config import EngineConfig
from jaxserve.engine.core import protocol
from jaxserve.engine.frontend.delta_queue import DeltaQueue
from jaxserve.engine.frontend.output_processor import OutputProcessor
from jaxserve.engine.frontend.request_observer import (
    ChoiceTimes,
    EndReason,
    RequestObserver,
    RequestTimes,
)
from jaxserve.engine.frontend.request_validation import Prompt, RequestValidator
from jaxserve.engine.frontend.sampling_defaults import sampling_defaults
from jaxserve.errors import (
    EngineDeadError,
    EngineError,
    InvalidRequestError,
    JaxserveError,
    ModelError,
)
from jaxserve.outputs import CompletionDelta
from jaxserve.sampling.params import SamplingParams
from jaxserve.text.tokenizer import Tokenizer, load_tokenizer

log = logging.getLogger(__name__)

# A write to a reader costs more than all else that is done for a token. After a turn of many
# outputs the next one waits for half as long as it took, so that where steps are short a write
# holds the tokens of several, and the loop has time for all else.
REST, MOST_REST_S, MANY_OUTPUTS = 0.5, 0.02, 32
READ_S = 0.005  # for which a turn reads on while there is more: no reader has its own meanwhile
SHUTDOWN_S = 10.0  # how long a closing client waits for the engine to end by itself


@dataclass(slots=True)
class _Stream:
    """One request between the engine's news and the reader."""

    choices: OutputProcessor
    times: RequestTimes
    mailbox: DeltaQueue
    ended: bool = False


class EngineClient:
    """Streams requests through an engine process. Use EngineClient.start(), or attach() to an
    engine that another process has started.

    sampling_defaults: values that the model asks for in SamplingParams' fields that a request
    leaves unset. Who makes the params applies them.

    Args:
        folder: where the engine's sockets are.
        number: this client's among the engine's.
        ended: waits for the engine's end; gives its exit status.
        process: the engine, if it is this client's to end.
    """

    def __init__(
        self,
        config: EngineConfig,
        folder: Path,
        number: int,
        ended: Callable[[], Awaitable[int]],
        process: asyncio.subprocess.Process | None = None,
    ) -> None:
        local = Path(config.model)
        # A hub name stays whole: it is what clients send.
        self.model_name = (
            local.resolve().name.removesuffix(".gguf") if local.exists() else config.model
        )
        self.config, self.folder = config, folder
        self._number, self._ended, self._process = number, ended, process
        context = zmq.asyncio.Context.instance()
        self._to_engine, self._from_engine = context.socket(zmq.PUSH), context.socket(zmq.PULL)
        self._to_engine.set(zmq.SNDHWM, 0)
        self._from_engine.set(zmq.RCVHWM, 0)
        self._streams: dict[str, _Stream] = {}
        self._ids, self._calls = protocol.RequestIds(number), itertools.count()
        self._dead = asyncio.Event()
        self._closing = False
        self.exit_status: int | None = None  # the engine's
        self._tasks: list[asyncio.Task[None]] = []
        self._asked: dict[int, asyncio.Future[protocol.Answer]] = {}
        self._heard = time.monotonic()  # when the engine last said something
        self.listeners: list[RequestObserver] = []
        self.tokenizer: Tokenizer
        self.sampling_defaults: dict[str, Any]  # what holds where a request says nothing
        self.ready: protocol.Ready
        self.stats: protocol.EngineStats  # the last reading
        self._validator: RequestValidator

    @classmethod
    async def start(
        cls, config: EngineConfig, module: str = "jaxserve.engine.core.engine_process"
    ) -> EngineClient:
        """Fetches the model, starts the engine process, and returns when it is ready.

        Args:
            module: what the engine process runs.

        Raises:
            ModelError: the model can't be had or served.
            EngineDeadError: the process ended without a word; its stderr says why.
        """
        checkpoints.check_name(config.model)  # a slip shows before a process has started
        folder = Path(tempfile.mkdtemp(prefix="jaxserve-"))  # mode 0700: ours alone
        process: asyncio.subprocess.Process | None = None
        try:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", module, str(folder), str(os.getpid())),
                start_new_session=True,  # so that it can be ended with all that it has started
            )
            client = cls(config, folder, 0, process.wait, process)
            await client._connect(protocol.Start(protocol.PROTOCOL_VERSION, config))
        except BaseException:
            if process is not None:
                _kill(process)
                await process.wait()
            shutil.rmtree(folder, ignore_errors=True)
            raise
        return client

    @classmethod
    async def attach(
        cls,
        config: EngineConfig,
        folder: Path,
        number: int,
        ended: Callable[[], Awaitable[int]],
    ) -> EngineClient:
        """A further client of an engine that is ready.

        Args:
            config: as the engine was started.
            folder: the first client's.
            number: from 1 on, no two alike.
            ended: as of the class.

        Raises:
            EngineDeadError: the engine has ended.
        """
        client = cls(config, folder, number, ended)
        await client._connect(protocol.Attach(number))
        return client

    async def _connect(self, greeting: protocol.Start | protocol.Attach) -> None:
        """Returns when the engine is ready."""
        try:
            self._from_engine.bind(protocol.from_engine(self.folder, self._number))
            self._to_engine.connect(protocol.to_engine(self.folder))
            self._post(greeting)
            fetched = await self._hear()
            assert isinstance(fetched, protocol.Fetched)
            # The engine loads and compiles while we read the tokenizer.
            path = Path(fetched.path)
            self.tokenizer = await asyncio.to_thread(load_tokenizer, path)
            self.sampling_defaults = sampling_defaults(self.config, path)
            ready = await self._hear()
            assert isinstance(ready, protocol.Ready)
            self._begin(ready)
        except BaseException:
            self._close_sockets()
            raise

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
        """Whether the engine process lives."""
        return not self._dead.is_set()

    @property
    def silent_s(self) -> float:
        """Seconds for which the engine has owed a sign of life; 0 while it has nothing to do.

        It gives one after each turn of its loop, and every second of a step.
        """
        return time.monotonic() - self._heard if self._owed else 0.0

    @property
    def _owed(self) -> bool:
        # Other clients' requests, of which its readings tell, have it give signs to all.
        busy = bool(self._asked) or self.stats.scheduler.running > 0
        return busy or any(not stream.ended for stream in self._streams.values())

    async def wait_dead(self) -> None:
        """Returns once the engine process has ended, for whatever reason."""
        await self._dead.wait()

    def prepare(
        self, prompt: Prompt, params: SamplingParams, add_special_tokens: bool = True
    ) -> list[int]:
        """Token ids of a prompt, validated but not submitted.

        Args:
            add_special_tokens: put BOS (and EOS) around a text where the model's files say so.

        Raises:
            InvalidRequestError: what generate() would refuse.
        """
        return self._validator.prompt_ids(prompt, params, add_special_tokens)

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
    ) -> AsyncGenerator[list[CompletionDelta], None]:
        """Streams several prompts to one reader: all that has come since it last asked.

        The choices of prompt i have the indices from i * params.n on. A reader that is slow gets
        larger deltas, not more of them. Closing the iterator early aborts what still runs, and so
        does the first failure.

        Args:
            request_id: for logs; the engine's own id is never a caller's.
            priority: lower runs first; only under the scheduling policy `priority`.
            cache_salt: only requests with the same salt share cached text.
            pool: give the prompts' embeddings; params.max_tokens must be 1.

        Raises:
            InvalidRequestError, OverloadedError, EngineDeadError: before the first delta.
            EngineError, EngineDeadError: afterwards.
        """
        if priority and self.config.scheduling_policy != "priority":
            raise InvalidRequestError(
                "priority needs a server with --scheduling-policy priority; leave it out",
                "priority",
            )
        several = [self._validator.prompt_ids(prompt, params) for prompt in prompts]
        if not self.healthy:
            raise EngineDeadError("the engine process has ended: restart the server")
        self._expect()
        mailbox = DeltaQueue(len(several))
        streams: dict[str, _Stream] = {}
        try:
            for i, ids in enumerate(several):
                own_id = self._ids.new(request_id or "request")
                choices = OutputProcessor(self.tokenizer, params, i * params.n)
                streams[own_id] = _Stream(
                    choices, RequestTimes(len(ids), params, request_id), mailbox
                )
                self._streams[own_id] = streams[own_id]
                self._post(
                    self._validator.submission(own_id, ids, params, priority, cache_salt, pool)
                )
            while mailbox.more:
                yield await mailbox.take()
        finally:
            for own_id, stream in streams.items():
                del self._streams[own_id]
                if not stream.ended:
                    self._abort(own_id)
                    self._tell_rest(stream, "abort")

    async def ask(self, wish: protocol.AdminCommand, argument: str = "") -> bool:
        """Has the engine do what an operator wishes, between two steps.

        Returns:
            Whether it was done; False if it can't be now.

        Raises:
            EngineError: it failed.
            EngineDeadError: the engine process has ended.
        """
        if not self.healthy:
            raise EngineDeadError("the engine process has ended: restart the server")
        self._expect()
        call_id = next(self._calls)
        self._asked[call_id] = asyncio.get_running_loop().create_future()
        try:
            self._post(protocol.Ask(call_id, wish, argument, self._number))
            answer = await self._asked[call_id]
        finally:
            del self._asked[call_id]
        if answer.error is not None:
            raise EngineError(answer.error)
        return answer.done

    def detach(self, number: int) -> None:
        """Tells the engine that a further client has died, so that it ends that one's requests."""
        if self.healthy:
            self._post(protocol.Detach(number))

    async def close(self) -> None:
        """Fails what still runs; ends the engine process, if this client has started it, and
        frees what belongs to it."""
        self._closing = True
        if self._process is not None and self.healthy:
            self._post(protocol.Shutdown())
            try:
                await asyncio.wait_for(self._process.wait(), SHUTDOWN_S)
            except TimeoutError:
                _kill(self._process)
                await self._process.wait()
        self._fail_all(EngineDeadError("the server is shutting down"))
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._close_sockets()
        if self._process is not None:
            shutil.rmtree(self.folder, ignore_errors=True)

    async def _hear(self) -> protocol.ToClient:
        """The engine's next message while it starts.

        Raises:
            ModelError: it says that it can't.
            EngineDeadError: it ended.
        """
        receive = asyncio.ensure_future(self._from_engine.recv())
        ended = asyncio.ensure_future(self._ended())
        await asyncio.wait({receive, ended}, return_when=asyncio.FIRST_COMPLETED)
        if not receive.done():
            with contextlib.suppress(TimeoutError):  # its last word may still be on the way
                await asyncio.wait_for(asyncio.shield(receive), 1.0)
        ended.cancel()
        if not receive.done():
            receive.cancel()
            raise EngineDeadError(
                f"the engine process ended with status {await self._ended()} before it was "
                "ready; its messages are above"
            )
        answer = protocol.decode_to_client(receive.result())
        if isinstance(answer, protocol.Failed):
            raise ModelError(answer.message)
        return answer

    def _begin(self, ready: protocol.Ready) -> None:
        self.ready, self.stats = ready, ready.stats
        seeds = random.Random(self.config.seed + self._number)
        self._validator = RequestValidator(
            self.tokenizer, ready.max_model_len, ready.vocab_size, seeds
        )
        self._tasks = [asyncio.create_task(self._read()), asyncio.create_task(self._watch())]

    async def _read(self) -> None:
        try:
            await self._read_news()
        except Exception:
            log.exception("the engine's news can't be read; the engine is ended")
            if self._process is not None:
                _kill(self._process)
            self._die(EngineDeadError("the engine's news can't be read; the log has why"))

    async def _read_news(self) -> None:
        """Turns the engine's news into deltas."""
        inbox: zmq.Socket[bytes] = zmq.Socket.shadow(self._from_engine)
        while True:
            data = await self._from_engine.recv()
            began = time.monotonic()
            outputs = self._take_news(data)
            # What else is there now comes in one turn, so that readers get it as one.
            with contextlib.suppress(zmq.Again):
                while time.monotonic() < began + READ_S:
                    outputs += self._take_news(inbox.recv(zmq.NOBLOCK))
            for output in protocol.join_tokens(outputs):
                self._deliver(output)
            # recv() doesn't wait while there is more; the readers must have their turn.
            await asyncio.sleep(0)
            if len(outputs) >= MANY_OUTPUTS:
                await asyncio.sleep(min(REST * (time.monotonic() - began), MOST_REST_S))

    def _take_news(self, data: bytes) -> list[protocol.Output]:
        """Takes one message in; returns what it says of requests."""
        message = protocol.decode_to_client(data)
        self._heard = time.monotonic()
        if isinstance(message, protocol.Answer):
            self._take_answer(message)
            return []
        assert isinstance(message, protocol.Outputs)
        self.stats = message.stats
        for listener in self.listeners:
            listener.on_turn(message.stats)
        return message.outputs

    def _take_answer(self, answer: protocol.Answer) -> None:
        asked = self._asked.get(answer.call_id)
        if asked is not None and not asked.done():
            asked.set_result(answer)

    def _deliver(self, output: protocol.Output) -> None:
        stream = self._streams.get(output.request_id)
        if stream is None or stream.ended:
            return
        if output.error is not None:
            self._end(stream, protocol.as_error(output))
            return
        if output.queue_s is not None:
            stream.times.queue_s = output.queue_s
        try:
            delta = stream.choices.take(output)
        except Exception as error:  # one request's text must not end all streams
            log.exception("request %s failed", output.request_id)
            self._end(stream, EngineError(f"its output could not be read: {error}"))
            self._abort(output.request_id)
            return
        if delta is None:
            return
        if delta.token_ids:
            self._time_tokens(stream.times, output.index, len(delta.token_ids))
        if delta.finish_reason == "abort":
            self._tell_end(stream, output.index, "abort")
            self._end(stream, EngineError("it was aborted"))
            return
        if delta.finish_reason is not None:
            self._tell_end(stream, output.index, delta.finish_reason)
            if not stream.choices.open:
                stream.ended = True
                stream.mailbox.running -= 1
            if output.finish_reason is None:  # a stop string: the engine doesn't know yet
                self._abort(output.request_id, output.index)
        stream.mailbox.put(delta)

    async def _watch(self) -> None:
        """Fails everything pending at once when the process dies."""
        status = self.exit_status = await self._ended()
        if self._closing:
            self._die(EngineDeadError("the server is shutting down"))
        else:
            self._die(EngineDeadError(f"the engine process ended with status {status}"))

    def _die(self, error: EngineDeadError) -> None:
        self._dead.set()
        self._fail_all(error)

    def _fail_all(self, error: EngineDeadError) -> None:
        for stream in self._streams.values():
            if not stream.ended:
                self._end(stream, error)
        for asked in self._asked.values():
            if not asked.done():
                asked.set_exception(error)

    def _end(self, stream: _Stream, error: JaxserveError) -> None:
        stream.ended = True
        stream.mailbox.running -= 1
        stream.mailbox.fail(error)
        self._tell_rest(stream, "error")

    def _tell_rest(self, stream: _Stream, reason: EndReason) -> None:
        for index in stream.choices.open:
            self._tell_end(stream, index, reason)

    def _tell_end(self, stream: _Stream, index: int, reason: EndReason) -> None:
        stream.times.ended += 1
        for listener in self.listeners:
            listener.on_end(stream.times, index, reason)

    def _time_tokens(self, times: RequestTimes, index: int, tokens: int) -> None:
        now = time.monotonic()
        choice = times.choices.get(index)
        if choice is None:
            times.choices[index] = ChoiceTimes(now, now, tokens)
            for listener in self.listeners:
                listener.on_first(times, now - times.arrived, tokens)
            return
        for listener in self.listeners:
            listener.on_next(now - choice.last, tokens)
        choice.last = now
        choice.tokens += tokens

    def _expect(self) -> None:
        """From now on, if not yet, the engine owes signs of life."""
        if not self._owed:
            self._heard = time.monotonic()

    def _abort(self, own_id: str, index: int | None = None) -> None:
        if self.healthy and not self._closing:
            self._post(protocol.Abort(own_id, index))

    def _post(self, message: protocol.ToEngine) -> None:
        # Not awaited: without a live peer it would wait for ever, and _watch tells the streams.
        self._to_engine.send(protocol.encode(message))

    def _close_sockets(self) -> None:
        self._to_engine.close(linger=0)
        self._from_engine.close(linger=0)


def _kill(process: asyncio.subprocess.Process) -> None:
    """Ends the engine process and all that it has started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
