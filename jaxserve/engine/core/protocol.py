"""The messages between clients and the engine process: small, typed, versioned, packed by msgspec.

Client to engine: one Submit a request, Abort, RunAdminCommand, LoadAdapter, UnloadAdapter, Watch,
Shutdown. Engine to client: Fetched and Ready (or Failed), then Outputs after each turn of its loop
and once a second in a long one, an AdminResult for each command, Adapters after a change of them,
and Snapshots to those that watch. The first client
starts the engine. Further ones may attach to it, each under a number of its own.
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
from scheduler import Changes, SchedulerStats

PROTOCOL_VERSION = 9

AdminCommand = Literal["reset_prefix_cache", "start_profile", "stop_profile"]


class Message(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Base of all messages."""


class Start(Message, frozen=True):
    """First message to the engine: what to load, and the protocol the client speaks."""

    version: int
    config: EngineConfig


class Attach(Message, frozen=True):
    """A further client has come. It gets Fetched and Ready, as the first one did."""

    client: int


class Detach(Message, frozen=True):
    """A further client has died: its requests are aborted. Its own last messages may come after
    this one, so its number is never used again."""

    client: int


class Fetched(Message, frozen=True):
    """The engine has fetched the model's files, and begins to load them.

    Args:
        tokenizer: where the tokenizer's files are.
    """

    path: str
    tokenizer: str


class Submit(Message, frozen=True):
    """Registers and starts a request.

    Args:
        request_id: chosen by the client process (RequestIds), never by a user.
        params: with max_tokens and seed filled in.
        bad_words: token ids of params.bad_words.
        priority: lower runs first, under the scheduling policy `priority`.
        cache_salt: only requests with the same salt share cached blocks.
        pool: the prompt's embedding is wanted; max_tokens is 1, and that token isn't reported.
        prediction: token ids of params.prediction.
        adapter: the name of an adapter; None is the base model.
    """

    request_id: str
    prompt_token_ids: list[int]
    params: SamplingParams
    stop_token_ids: frozenset[int]
    bad_words: list[list[int]] = []
    priority: int = 0
    cache_salt: str | None = None
    pool: bool = False
    prediction: list[int] = []
    adapter: str | None = None


class Abort(Message, frozen=True):
    """Ends a request, or one choice of it. Unknown ids are ignored: it may just have ended."""

    request_id: str
    index: int | None = None


class RunAdminCommand(Message, frozen=True):
    """Runs an operator's command; an AdminResult with the same call_id follows.

    Args:
        argument: the folder to write to (start_profile).
        client: the one that gets the result.
    """

    call_id: int
    command: AdminCommand
    argument: str = ""
    client: int = 0


class LoadAdapter(Message, frozen=True):
    """Loads an adapter under a name; an AdminResult with the same call_id follows.

    Args:
        folder: on the engine's machine.
        replace: in place of the adapter that has the name, if there is one.
        client: the one that gets the result.
    """

    call_id: int
    name: str
    folder: str
    replace: bool = False
    client: int = 0


class UnloadAdapter(Message, frozen=True):
    """Takes an adapter's name away; an AdminResult with the same call_id follows."""

    call_id: int
    name: str
    client: int = 0


class Watch(Message, frozen=True):
    """A client wants Snapshots from now on, or no more of them. When one begins, all that watch
    get a first snapshot again."""

    client: int
    on: bool


class Shutdown(Message, frozen=True):
    """Ends the engine process."""


class SpeculationStats(Message, frozen=True):
    """Counters of guesses.

    Args:
        drafts: times that a step verified guesses of a sequence.
        draft_tokens: the guesses.
        accepted_tokens: those that were taken.
        accepted_per_position: of those, how many were the first guess of their draft, the second,
            and so on.
    """

    drafts: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0
    accepted_per_position: tuple[int, ...] = ()


class EngineStats(Message, frozen=True):
    """The engine's figures after a turn of its loop.

    Args:
        scheduler: the scheduler's.
        compiles: compilations since ready; stays 0.
        idle_s: see StepClock.
        step_s, step_tokens: the seconds that the step took whose results this turn has read, and
            the tokens that it computed; None and 0 if there was none. Only one client gets them.
        busy_s: seconds for which the device has been computing its oldest step; 0 if it has none.
        speculation: None without speculation.
    """

    scheduler: SchedulerStats
    compiles: int = 0
    idle_s: float = 0.0
    step_s: float | None = None
    step_tokens: int = 0
    busy_s: float = 0.0
    speculation: SpeculationStats | None = None


class AdapterInfo(msgspec.Struct, frozen=True, array_like=True):
    """An adapter that requests may name.

    Args:
        path: its folder.
        digest: of its content, in hexadecimal.
        rank: its largest.
    """

    name: str
    path: str
    digest: str
    rank: int


class Ready(Message, frozen=True):
    """The engine is warm.

    Args:
        max_model_len: most tokens of a request, prompt and output; also bounded by the pool.
        vocab_size: rows of the model's embedding; token ids must be below.
        embedding_size: elements of a prompt's embedding.
        num_blocks: blocks in the KV pool.
        cache: one line that describes the KV pool.
        load_s, ready_s: seconds until the weights were loaded, and until all was ready.
        stats: the figures at that time.
        max_num_batched_tokens: token budget of a step.
        max_num_seqs: most sequences that run at once.
        windows: of the cache groups, in tokens; None where a token attends to all before it.
        adapters: those that requests may name.
        adapter_slots: adapters on the device at once; 0: the engine takes none.
    """

    max_model_len: int
    vocab_size: int
    embedding_size: int
    num_blocks: int
    load_s: float
    ready_s: float
    cache: str
    stats: EngineStats
    max_num_batched_tokens: int = 0
    max_num_seqs: int = 0
    windows: tuple[int | None, ...] = (None,)
    adapters: tuple[AdapterInfo, ...] = ()
    adapter_slots: int = 0


class Adapters(Message, frozen=True):
    """The adapters that requests may name from now on, after a change."""

    adapters: tuple[AdapterInfo, ...]


class Failed(Message, frozen=True):
    """The engine can't start.

    Args:
        message: why, for the user.
    """

    message: str


class Output(Message, frozen=True, gc=False):
    """What a turn brought for one choice of a request. There are many of them and none is in a
    reference cycle, so the garbage collector doesn't track them (gc=False).

    Args:
        index: which choice.
        cached_tokens: tokens of the prompt that the prefix cache had, with the first token of the
            first choice.
        accepted_guesses, rejected_guesses: of the guesses that were verified for these tokens.
        logprobs: one entry a token id, if they were asked for.
        embedding: of the prompt, [E] float32 of length 1.
        prompt_logprobs: entries of the prompt's tokens from `prompt_position` on.
        queue_s: set once, when the request is first admitted: seconds in the scheduler's queue.
        error: set when the engine refused or failed this request; the kind names the exception
            class in jaxserve.errors.
        error_param: the field at fault, of an InvalidRequestError.
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
    error_param: str | None = None
    accepted_guesses: int = 0
    rejected_guesses: int = 0

    @property
    def has_only_tokens(self) -> bool:
        """Whether nothing but token ids is set."""
        return (
            self.finish_reason is None
            and self.error is None
            and self.logprobs is None
            and self.prompt_logprobs is None
            and self.queue_s is None
            and self.embedding is None
            and self.cached_tokens is None
            and not (self.accepted_guesses or self.rejected_guesses)
        )


class Outputs(Message, frozen=True):
    """All outputs of one turn."""

    outputs: list[Output]
    stats: EngineStats


class AdminResult(Message, frozen=True):
    """The result of a RunAdminCommand.

    Args:
        done: whether it was done; False if it couldn't be done now.
        error: why it failed; the kind names the exception class in jaxserve.errors.
    """

    call_id: int
    done: bool
    error: str | None = None
    error_kind: str = EngineError.__name__


class StepRecord(Message, frozen=True):
    """A step whose results are on the host.

    Args:
        decodes: tokens of rows that decode: one each, and their guesses.
        prompts: (key, tokens) of each chunk; the keys are those of Changes.
        padded: tokens that the device computed for it, padding included.
        device_s: as EngineStats.step_s; shared evenly by the steps of one dispatch.
        host_s: seconds for planning, dispatching, and taking the results in; shared as device_s.
        copies: (from, to) blocks that were copied before it (copy-on-write).
    """

    step: int
    decodes: int
    prompts: list[tuple[int, int]]
    padded: int
    device_s: float
    host_s: float
    copies: list[tuple[int, int]] = []


class Snapshot(Message, frozen=True):
    """What has changed in the engine since the last snapshot; at most one every 0.1 s."""

    changes: Changes
    steps: list[StepRecord]


def as_error(output: Output) -> JaxserveError:
    """The exception behind an output that reports one."""
    return exception(output.error or "", output.error_kind or "", output.error_param)


def exception(message: str, kind: str, param: str | None = None) -> JaxserveError:
    """The exception of a class of jaxserve.errors; of any other kind an EngineError."""
    found: type[JaxserveError] = getattr(errors, kind, EngineError)
    if issubclass(found, errors.InvalidRequestError):
        return found(message, param)
    return found(message)


def join_tokens(outputs: Iterable[Output]) -> list[Output]:
    """The same in fewer outputs: one that has only tokens is appended, in place, to the output of
    the same choice before it, if that has only tokens, too."""
    joined: list[Output] = []
    last: dict[tuple[str, int], Output] = {}
    for output in outputs:
        choice = output.request_id, output.index
        before = last.get(choice)
        if before is not None and before.has_only_tokens and output.has_only_tokens:
            before.token_ids.extend(output.token_ids)
        else:
            last[choice] = output
            joined.append(output)
    return joined


ToEngine = (
    Start
    | Attach
    | Detach
    | Submit
    | Abort
    | RunAdminCommand
    | LoadAdapter
    | UnloadAdapter
    | Watch
    | Shutdown
)
ToClient = Fetched | Ready | Failed | Outputs | AdminResult | Adapters | Snapshot


class RequestIds:
    """Makes ids for one client's requests, from which client_of() gets its number."""

    def __init__(self, client: int) -> None:
        self._client, self._counter = client, itertools.count()

    def new(self, name: str) -> str:
        """A new id.

        Args:
            name: part of the id, for logs.
        """
        return f"{self._client}/{next(self._counter)}-{name}"


def client_of(request_id: str) -> int:
    """The number of the client whose request it is."""
    return int(request_id.partition("/")[0])


def engine_address(folder: str | Path) -> str:
    """Address of the socket on which the engine receives, in a folder for this user alone. The
    engine binds it."""
    return f"ipc://{folder}/to-engine"


def client_address(folder: str | Path, client: int) -> str:
    """Address of the socket on which a client receives. The client binds it."""
    return f"ipc://{folder}/from-engine-{client}"


encode = msgspec.msgpack.Encoder().encode
decode_to_engine = msgspec.msgpack.Decoder(ToEngine).decode
decode_to_client = msgspec.msgpack.Decoder(ToClient).decode
