"""What crosses the process boundary: small, typed, versioned messages, packed by msgspec.

Client to engine: one Submit a request, Abort, Shutdown. Engine to client: Ready or Failed once,
then batches of Outputs.
"""

from __future__ import annotations

import msgspec

from jaxserve import errors
from jaxserve.config import EngineConfig
from jaxserve.errors import EngineError, JaxserveError
from jaxserve.outputs import FinishReason, TokenLogprobs
from jaxserve.sampling.params import SamplingParams

PROTOCOL_VERSION = 2


class Message(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Base of all messages."""


class Start(Message, frozen=True):
    """First message to the engine: what to load, and the protocol the client speaks."""

    version: int
    config: EngineConfig
    model_path: str


class Submit(Message, frozen=True):
    """Registers and starts a request as one act.

    Args:
        request_id: chosen by the client process, never by a user.
        params: with max_tokens and seed filled in.
        bad_words: token ids of params.bad_words.
    """

    request_id: str
    prompt_token_ids: list[int]
    params: SamplingParams
    stop_token_ids: frozenset[int]
    bad_words: list[list[int]] = []


class Abort(Message, frozen=True):
    """Ends a request, or one choice of it; unknown ids are ignored, for it may just have ended."""

    request_id: str
    index: int | None = None


class Shutdown(Message, frozen=True):
    """Ends the engine process."""


class Ready(Message, frozen=True):
    """The engine is warm.

    Args:
        max_model_len: most tokens of a request, prompt and output; also bounded by the pool.
        vocab_size: rows of the model's embedding; token ids must be below.
        num_blocks: blocks in the KV pool.
        load_s, ready_s: seconds until the weights were loaded, and until all was ready.
    """

    max_model_len: int
    vocab_size: int
    num_blocks: int
    load_s: float
    ready_s: float


class Failed(Message, frozen=True):
    """The engine could not start; a message for the user."""

    message: str


class Output(Message, frozen=True):
    """News of one choice of a request.

    Args:
        index: which choice.
        logprobs: one entry a token id, if they were asked for.
        prompt_logprobs: entries of the prompt's tokens from `prompt_position` on.
        error: set when the engine refused or failed this request; the kind names the exception
            class in jaxserve.errors.
    """

    request_id: str
    token_ids: list[int]
    finish_reason: FinishReason | None = None
    stop_reason: int | None = None
    error: str | None = None
    error_kind: str | None = None
    index: int = 0
    logprobs: list[TokenLogprobs] | None = None
    prompt_position: int = 0
    prompt_logprobs: list[TokenLogprobs] | None = None


class Outputs(Message, frozen=True):
    """All news of one step.

    Args:
        compiles: compilations since ready; stays 0.
    """

    outputs: list[Output]
    compiles: int


def as_error(output: Output) -> JaxserveError:
    """The exception behind an output that reports one."""
    error: JaxserveError = getattr(errors, output.error_kind or "", EngineError)(output.error)
    return error


ToEngine = Start | Submit | Abort | Shutdown
ToClient = Ready | Failed | Outputs

encode = msgspec.msgpack.Encoder().encode
decode_to_engine = msgspec.msgpack.Decoder(ToEngine).decode
decode_to_client = msgspec.msgpack.Decoder(ToClient).decode
