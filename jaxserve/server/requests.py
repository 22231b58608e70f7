"""Request bodies: OpenAI's fields and vLLM's extras, each honoured here or refused by a table.

A field is in a struct (honoured), or in an UNSUPPORTED table with the values that ask for nothing
(accepted), or it is unknown: `bodies.parse` refuses the rest with a 400 that names the field.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from jaxserve.errors import InvalidRequestError
from jaxserve.sampling.params import SamplingParams

DEFAULT_COMPLETION_TOKENS = 16


class StreamOptions(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Args: include_usage: end the stream with a chunk that holds the token counts."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None
    continuous_usage_stats: bool | None = None

    def check(self) -> None:
        for name in ("include_obfuscation", "continuous_usage_stats"):
            if getattr(self, name):
                param = f"stream_options.{name}"
                raise InvalidRequestError(f"{param} isn't supported; leave it out", param)


class GenerationRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What chat and text completions share.

    `user`, `safety_identifier`, `prompt_cache_key` and `metadata` label a request for the caller's
    own records; they change nothing in an answer.
    """

    model: str
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    max_tokens: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    add_special_tokens: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    metadata: dict[str, str] | None = None

    def check_stream_options(self) -> None:
        if self.stream_options is None:
            return
        if not self.stream:
            raise InvalidRequestError(
                "stream_options is only allowed with stream: true", "stream_options"
            )
        self.stream_options.check()

    @property
    def include_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)

    def sampling_params(self, max_tokens: int | None) -> SamplingParams:
        """Raises InvalidRequestError for a value out of range."""
        stop = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())
        given = {
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": self.top_k,
            "min_p": self.min_p,
            "seed": self.seed,
            "ignore_eos": self.ignore_eos,
            "skip_special_tokens": self.skip_special_tokens,
        }
        return SamplingParams(
            max_tokens=max_tokens,
            stop=stop,
            stop_token_ids=tuple(self.stop_token_ids or ()),
            **{name: value for name, value in given.items() if value is not None},  # type: ignore[arg-type]
        )


class ChatCompletionRequest(GenerationRequest, kw_only=True, forbid_unknown_fields=True):
    """POST /v1/chat/completions. `messages` hold ChatMessages, parsed one by one so that errors
    name their place."""

    messages: list[dict[str, Any]]
    max_completion_tokens: int | None = None
    add_generation_prompt: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    def to_sampling_params(self) -> SamplingParams:
        """max_completion_tokens wins over max_tokens; without either, up to the context limit."""
        limit = self.max_completion_tokens
        return self.sampling_params(self.max_tokens if limit is None else limit)

    @contextmanager
    def errors_in_its_words(self) -> Iterator[None]:
        """Renames in InvalidRequestErrors what a chat spells otherwise than the engine."""
        try:
            yield
        except InvalidRequestError as error:
            message, param = str(error), error.param
            if param == "prompt":
                param = "messages"
            elif param == "max_tokens" and self.max_completion_tokens is not None:
                param = "max_completion_tokens"
                message = message.replace("max_tokens", param)
            raise InvalidRequestError(message, param) from None


class ChatMessage(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """One message; `name` is handed to the chat template."""

    role: str
    content: str | list[dict[str, Any]] | None = None
    name: str | None = None


class CompletionRequest(GenerationRequest, kw_only=True, forbid_unknown_fields=True):
    """POST /v1/completions."""

    prompt: str | list[str | int | list[int]]

    def prompts(self) -> list[str | list[int]]:
        """The prompts, one a choice: a string, or token ids.

        Raises:
            InvalidRequestError: no prompt, or strings and ids mixed.
        """
        if isinstance(self.prompt, str):
            return [self.prompt]
        kinds = {type(item) for item in self.prompt}
        if kinds == {int}:
            return [self.prompt]  # type: ignore[list-item]
        if kinds in ({str}, {list}):
            return self.prompt  # type: ignore[return-value]
        raise InvalidRequestError(
            "prompt must be a string, a list of strings, a list of token ids or a list of lists of "
            "token ids, and not empty",
            "prompt",
        )

    def to_sampling_params(self) -> SamplingParams:
        """max_tokens is 16 unless given, as in OpenAI's API."""
        absent = self.max_tokens is None
        return self.sampling_params(DEFAULT_COMPLETION_TOKENS if absent else self.max_tokens)


# Values that ask for nothing; null always does.
_UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "n": (1,),
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "repetition_penalty": (1,),
    "logit_bias": ({},),
    "echo": (False,),
    # vLLM's extras
    "use_beam_search": (False,),
    "length_penalty": (1,),
    "include_stop_str_in_output": (False,),
    "min_tokens": (0,),
    "spaces_between_special_tokens": (True,),
    "truncate_prompt_tokens": (),
    "prompt_logprobs": (),
    "allowed_token_ids": (),
    "bad_words": ([],),
    "structured_outputs": (),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
    "guided_decoding_backend": (),
    "guided_whitespace_pattern": (),
    "structural_tag": (),
    "response_format": ({"type": "text"},),
    "priority": (0,),
    "request_id": (),
    "cache_salt": (),
    "return_tokens_as_token_ids": (False,),
    "return_token_ids": (False,),
    "kv_transfer_params": (),
    "logits_processors": ([],),
    "vllm_xargs": ({},),
    "lora_request": (),
}

CHAT_UNSUPPORTED: dict[str, tuple[Any, ...]] = _UNSUPPORTED | {
    "logprobs": (False,),
    "top_logprobs": (0,),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "parallel_tool_calls": (True, False),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
    "audio": (),
    "prediction": (),
    "reasoning_effort": (),
    "verbosity": (),
    "web_search_options": (),
    "moderation": (),
    "service_tier": ("auto", "default"),
    "store": (False,),
    "prompt_cache_retention": (),
    "prompt_cache_options": (),
    # vLLM's extras
    "continue_final_message": (False,),
    "chat_template": (),
    "documents": ([],),
    "mm_processor_kwargs": (),
    "media_io_kwargs": (),
    "include_reasoning": (True,),
    "thinking_token_budget": (),
}

COMPLETION_UNSUPPORTED: dict[str, tuple[Any, ...]] = _UNSUPPORTED | {
    "logprobs": (),
    "best_of": (1,),
    "suffix": ("",),
    # vLLM's extras
    "prompt_embeds": (),
}

MESSAGE_UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "tool_calls": ([],),
    "tool_call_id": (),
    "function_call": (),
    "refusal": ("",),
    "audio": (),
    "annotations": ([],),
    # what vLLM and others put into an answer, which clients send back
    "reasoning": ("",),
    "reasoning_content": ("",),
}
