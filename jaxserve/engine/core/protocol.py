"""What crosses the process boundary: small, typed, versioned messages, packed by msgspec.

Client to engine: one Submit a request, Abort, Ask, Shutdown. Engine to client: Fetched and
Ready (or Failed), then Outputs after each turn of its loop and once a second in a long one, and
Answers. The first client starts the engine, and further ones may attach to it, each under a number
of its own.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

import msgspec

from jaxserve import errors
from jaxserve.config import EngineConfig
from jaxserve.errors import EngineError, JaxserveError
from jaxserve.outputs import FinishReason, TokenLogprobs
from jaxserve.sampling.params import SamplingParams
from scheduler import SchedulerStats

PROTOCOL_VERSION = 5


AdminCommand = Literal["reset_prefix_cache", "start_profile", "stop_profile"]


class Message(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Base of all messages."""


class Start(Message, frozen=True):
    """First message to the engine: what to load, and the protocol the client speaks."""

    version: int
    config: EngineConfig


class Attach(Message, frozen=True):
    """A further client is there. It is told what the first one was: Fetched, and Ready."""

    client: int


class Detach(Message, frozen=True):
    """A further client has died: what it asked for is aborted. It may be heard before that one's
    last messages, so its number is never used again."""

    client: int


class Fetched(Message, frozen=True):
    """The engine has the model's files, and begins to load them."""

    path: str


class Submit(Message, frozen=True):
    """Registers and starts a request as one act.

    Args:
        request_id: chosen by the client process (RequestIds), never by a user.
        params: with max_tokens and seed filled in.
        bad_words: token ids of params.bad_words.
        priority: lower runs first, under the scheduling policy `priority`.
        cache_salt: only requests with the same salt share cached blocks.
        pool: the prompt's embedding is wanted; max_tokens is 1, and that token isn't reported.
    """

    request_id: str
    prompt_token_ids: list[int]
    params: SamplingParams
    stop_token_ids: frozenset[int]
    bad_words: list[list[int]] = []
    priority: int = 0
    cache_salt: str | None = None
    pool: bool = False


class Abort(Message, frozen=True):
    """Ends a request, or one choice of it; unknown ids are ignored, for it may just have ended."""

    request_id: str
    index: int | None = None


class Ask(Message, frozen=True):
    """An operator's wish; an Answer with the same call_id follows.

    Args:
        client: who asks.
        argument: the folder to write to (start_profile).
    """

    call_id: int
    wish: AdminCommand
    argument: str = ""
    client: int = 0


class Shutdown(Message, frozen=True):
    """Ends the engine process."""


class EngineStats(Message, frozen=True):
    """A reading after a turn of the engine's loop.

    Args:
        scheduler: memory and order.
        compiles: compilations since ready; stays 0.
        idle_s: see StepClock.
        step_s, step_tokens: of the step whose results this turn brought, the seconds it took and
            the tokens it computed; None and 0 if there was none. One client alone is told.
        busy_s: seconds that the device has been at its oldest step so far; 0 if it has none.
    """

    scheduler: SchedulerStats
    compiles: int = 0
    idle_s: float = 0.0
    step_s: float | None = None
    step_tokens: int = 0
    busy_s: float = 0.0


class Ready(Message, frozen=True):
    """The engine is warm.

    Args:
        max_model_len: most tokens of a request, prompt and output; also bounded by the pool.
        vocab_size: rows of the model's embedding; token ids must be below.
        embedding_size: numbers of a prompt's embedding.
        num_blocks: blocks in the KV pool.
        cache: the KV pool in words.
        load_s, ready_s: seconds until the weights were loaded, and until all was ready.
        stats: the first reading.
    """

    max_model_len: int
    vocab_size: int
    embedding_size: int
    num_blocks: int
    load_s: float
    ready_s: float
    cache: str
    stats: EngineStats


class Failed(Message, frozen=True):
    """The engine could not start; a message for the user."""

    message: str


class Output(Message, frozen=True, gc=False):
    """News of one choice of a request. There are many, and none is in a cycle, so the garbage
    collector needn't know them.

    Args:
        index: which choice.
        cached_tokens: tokens of the prompt that the prefix cache had, with the first token of the
            first choice.
        logprobs: one entry a token id, if they were asked for.
        embedding: of the prompt, [E] float32 of length 1.
        prompt_logprobs: entries of the prompt's tokens from `prompt_position` on.
        queue_s: in the news that the request has been admitted: seconds in the scheduler's queue.
        error: set when the engine refused or failed this request; the kind names the exception
            class in jaxserve.errors.
    """

    request_id: str
    token_ids: list[int]
    finish_reason: FinishReason | None = None
    stop_reason: int | None = None
    index: int = 0
    cached_tokens: int | None = None
    logprobs: list[TokenLogprobs] | None = None
    embedding: bytes | None = None
    prompt_position: int = 0
    prompt_logprobs: list[TokenLogprobs] | None = None
    queue_s: float | None = None
    error: str | None = None
    error_kind: str | None = None

    @property
    def is_bare(self) -> bool:
        """Whether it has nothing but tokens."""
        return (
            self.finish_reason is None
            and self.error is None
            and self.logprobs is None
            and self.prompt_logprobs is None
            and self.queue_s is None
            and self.embedding is None
            and self.cached_tokens is None
        )


class Outputs(Message, frozen=True):
    """All news of one turn."""

    outputs: list[Output]
    stats: EngineStats


class Answer(Message, frozen=True):
    """To an Ask.

    Args:
        done: whether it was done; False if it couldn't be now.
        error: why it failed.
    """

    call_id: int
    done: bool
    error: str | None = None


def as_error(output: Output) -> JaxserveError:
    """The exception behind an output that reports one."""
    error: JaxserveError = getattr(errors, output.error_kind or "", EngineError)(output.error)
    return error


def join_tokens(outputs: Iterable[Output]) -> list[Output]:
    """The same news in fewer outputs: what only adds tokens to a choice's last output is put on to
    it, in place."""
    joined: list[Output] = []
    last: dict[tuple[str, int], Output] = {}
    for output in outputs:
        choice = output.request_id, output.index
        before = last.get(choice)
        if before is not None and before.is_bare and output.is_bare:
            before.token_ids.extend(output.token_ids)
        else:
            last[choice] = output
            joined.append(output)
    return joined


ToEngine = Start | Attach | Detach | Submit | Abort | Ask | Shutdown
ToClient = Fetched | Ready | Failed | Outputs | Answer


class RequestIds:
    """Ids of one client's requests, which tell whose they are."""

    def __init__(self, client: int) -> None:
        self._client, self._counter = client, itertools.count()

    def new(self, name: str) -> str:
        """Args: name: for logs."""
        return f"{self._client}/{next(self._counter)}-{name}"


def client_of(request_id: str) -> int:
    """Whose request it is."""
    return int(request_id.partition("/")[0])


def to_engine(folder: str | Path) -> str:
    """Address of the socket to the engine, which the engine binds, in a folder that is ours
    alone."""
    return f"ipc://{folder}/to-engine"


def from_engine(folder: str | Path, client: int) -> str:
    """Address of the socket to a client, which the client binds."""
    return f"ipc://{folder}/from-engine-{client}"


encode = msgspec.msgpack.Encoder().encode
decode_to_engine = msgspec.msgpack.Decoder(ToEngine).decode
decode_to_client = msgspec.msgpack.Decoder(ToClient).decode
