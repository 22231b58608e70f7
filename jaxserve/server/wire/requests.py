"""Request bodies: OpenAI's fields and vLLM's extras, each honoured here or refused by a table.

A field is in a struct (honoured), or in an UNSUPPORTED table with the values that ask for nothing
(accepted), or it is unknown: `bodies.parse` refuses the rest with a 400 that names the field.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Literal

import msgspec

from jaxserve.errors import InvalidRequestError
from jaxserve.sampling.params import BeamSearchParams, SamplingParams, StructuredOutputsParams
from jaxserve.server.wire.tools import NamedChoice, Tool, ToolUse
from jaxserve.server.wire.validation import renaming

DEFAULT_COMPLETION_TOKENS = 16
MAX_PRIORITY = 2**31 - 1
MAX_SALT = 1024  # characters
NO_DEFAULTS: Mapping[str, Any] = MappingProxyType({})


class StreamOptions(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Args:
    include_usage: end the stream with a chunk that holds the token counts.
    continuous_usage_stats: give each chunk the counts so far, of all choices together.
    """

    include_usage: bool | None = None
    include_obfuscation: bool | None = None
    continuous_usage_stats: bool | None = None

    def check(self) -> None:
        if self.include_obfuscation:
            param = "stream_options.include_obfuscation"
            raise InvalidRequestError(f"{param} isn't supported; leave it out", param)
        if self.continuous_usage_stats and not self.include_usage:
            param = "stream_options.continuous_usage_stats"
            raise InvalidRequestError(f"{param} needs include_usage: true", param)


class JsonSchema(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """OpenAI's json_schema; `strict` is always so, `name` and `description` are for the caller."""

    name: str | None = None
    description: str | None = None
    schema: dict[str, Any]
    strict: bool | None = None


class ResponseFormat(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """OpenAI's response_format."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None

    def structured(self) -> StructuredOutputsParams | None:
        if self.type == "json_object":
            return StructuredOutputsParams(json_object=True)
        if self.type == "text":
            return None
        if self.json_schema is None:
            param = "response_format.json_schema"
            raise InvalidRequestError(f"you must provide {param}", param)
        return StructuredOutputsParams(json=self.json_schema.schema)


class StructuredOutputs(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """vLLM's structured_outputs."""

    json: str | dict[str, Any] | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None

    def structured(self) -> StructuredOutputsParams:
        choice = None if self.choice is None else tuple(self.choice)
        return StructuredOutputsParams(
            self.json, self.regex, choice, self.grammar, bool(self.json_object)
        )


# Fields that SamplingParams has under the same name.
_SAMPLING_FIELDS = (
    *("n", "temperature", "top_p", "top_k", "min_p", "typical_p", "seed", "stop_token_ids"),
    *("presence_penalty", "frequency_penalty", "repetition_penalty", "logit_bias", "min_tokens"),
    *("bad_words", "allowed_token_ids", "ignore_eos", "include_stop_str_in_output"),
    *("skip_special_tokens", "truncate_prompt_tokens", "prompt_logprobs"),
)


class EngineRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What every request for generated text can tell of itself."""

    model: str

    @property
    def names(self) -> Mapping[str, str]:
        """What the engine and the chat template call otherwise, each with the request's name."""
        return {}

    def check(self) -> None:
        """Refuses what no type can tell.

        Raises:
            InvalidRequestError: names the field.
        """

    def scheduling(self) -> dict[str, Any]:
        """What the engine is told beside the prompts and the sampling parameters."""
        return {}

    def to_sampling_params(self, defaults: Mapping[str, Any] = NO_DEFAULTS) -> SamplingParams:
        """How to draw.

        Args:
            defaults: of the fields that the request leaves out.

        Raises:
            InvalidRequestError: a value is out of range.
        """
        raise NotImplementedError


class GenerationRequest(EngineRequest, kw_only=True, forbid_unknown_fields=True):
    """What chat and text completions share.

    `user`, `safety_identifier`, `prompt_cache_key` and `metadata` label a request for the caller's
    own records; they change nothing in an answer.

    Args:
        priority: lower runs first, on a server that schedules by priority.
        cache_salt: only requests with the same salt share cached text.
        return_token_ids: also answer with the token ids of the prompt and of each choice.
        return_tokens_as_token_ids: write tokens in logprobs as "token_id:17".
    """

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    max_tokens: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    n: int | None = None
    typical_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    min_tokens: int | None = None
    bad_words: list[str] | None = None
    allowed_token_ids: list[int] | None = None
    include_stop_str_in_output: bool | None = None
    truncate_prompt_tokens: int | None = None
    prompt_logprobs: int | None = None
    priority: int | None = None
    cache_salt: str | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: str | dict[str, Any] | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    use_beam_search: bool | None = None
    length_penalty: float | None = None
    early_stopping: bool | Literal["never"] | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    add_special_tokens: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    metadata: dict[str, str] | None = None

    def check(self) -> None:
        check_scheduling(self.priority, self.cache_salt)
        if self.stream and self.prompt_logprobs is not None:
            raise InvalidRequestError(
                "prompt_logprobs can't be streamed: leave out one", "prompt_logprobs"
            )
        if self.stream_options is None:
            return
        if not self.stream:
            raise InvalidRequestError(
                "stream_options is only allowed with stream: true", "stream_options"
            )
        self.stream_options.check()

    def scheduling(self) -> dict[str, Any]:
        return {"priority": self.priority or 0, "cache_salt": self.cache_salt}

    @property
    def include_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)

    @property
    def continuous_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.continuous_usage_stats)

    def structured_params(self) -> StructuredOutputsParams | None:
        """What the output must match, by whichever of the spellings was used.

        Raises:
            InvalidRequestError: several were.
        """
        guided = {
            name: value
            for name in ("json", "regex", "choice", "grammar")
            if (value := getattr(self, f"guided_{name}")) is not None
        }
        given = [
            self.response_format.structured() if self.response_format else None,
            self.structured_outputs.structured() if self.structured_outputs else None,
            StructuredOutputsParams(**guided) if guided else None,
        ]
        wanted = [params for params in given if params is not None]
        if len(wanted) > 1:
            raise InvalidRequestError(
                "response_format, structured_outputs and guided_* ask for the same: send one",
                "response_format",
            )
        return wanted[0] if wanted else None

    def beam_search(self, best_of: int | None) -> BeamSearchParams | None:
        """A search as wide as `best_of` or, without it, n."""
        if self.use_beam_search:
            width = (1 if self.n is None else self.n) if best_of is None else best_of
            penalty = 1.0 if self.length_penalty is None else self.length_penalty
            with renaming({"beam_width": "n" if best_of is None else "best_of"}):
                return BeamSearchParams(width, penalty, self.early_stopping or False)
        for name, nothing in (("length_penalty", (None, 1)), ("early_stopping", (None, False))):
            if getattr(self, name) not in nothing:
                raise InvalidRequestError(f"{name} needs use_beam_search: true", name)
        return None

    def sampling_params(
        self,
        max_tokens: int | None,
        logprobs: int | None,
        defaults: Mapping[str, Any],
        best_of: int | None = None,
    ) -> SamplingParams:
        """Raises InvalidRequestError for a value out of range.

        Args:
            defaults: of the fields that the request leaves out; a beam search draws nothing, and
                so has none.
        """
        if self.use_beam_search:
            defaults = NO_DEFAULTS
        given = {name: getattr(self, name) for name in _SAMPLING_FIELDS}
        given = {name: value for name, value in given.items() if value is not None}
        return SamplingParams(
            max_tokens=max_tokens,
            logprobs=logprobs,
            stop=(self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ()),
            structured_outputs=self.structured_params(),
            beam_search=self.beam_search(best_of),
            **{**defaults, **given},
        )


class ChatCompletionRequest(GenerationRequest, kw_only=True, forbid_unknown_fields=True):
    """POST /v1/chat/completions.

    Args:
        messages: ChatMessages, parsed one by one so that errors name their place.
        continue_final_message: the answer goes on from the last message's text.
        chat_template_kwargs, documents, reasoning_effort: for the model's chat template; refused
            if it doesn't know them.
        include_reasoning: False leaves the reasoning out of the answer.
    """

    messages: list[dict[str, Any]]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tools: list[Tool] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedChoice | None = None
    parallel_tool_calls: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    documents: list[dict[str, Any]] | None = None
    reasoning_effort: str | None = None
    include_reasoning: bool | None = None

    def tool_use(self) -> ToolUse:
        """Raises InvalidRequestError for tools or a tool_choice that can't be."""
        functions = [tool.function for tool in self.tools or ()]
        asked = self.tool_choice
        choice = asked.function if isinstance(asked, NamedChoice) else asked
        return ToolUse.of(functions, choice, self.parallel_tool_calls)

    def structured_params(self) -> StructuredOutputsParams | None:
        own, forced = super().structured_params(), self.tool_use().structured()
        if own and forced:
            raise InvalidRequestError(
                "tool_choice requires a call, which leaves no room for response_format, "
                "structured_outputs or guided_*: send one",
                "tool_choice",
            )
        return own or forced

    def to_sampling_params(self, defaults: Mapping[str, Any] = NO_DEFAULTS) -> SamplingParams:
        """max_completion_tokens wins over max_tokens; without either, up to the context limit."""
        limit = self.max_completion_tokens
        if self.top_logprobs is not None and not self.logprobs:
            raise InvalidRequestError("top_logprobs needs logprobs: true", "top_logprobs")
        top = (self.top_logprobs or 0) if self.logprobs else None
        with renaming({"logprobs": "top_logprobs"}):
            limit = self.max_tokens if limit is None else limit
            return self.sampling_params(limit, top, defaults)

    @property
    def names(self) -> Mapping[str, str]:
        limit = "max_tokens" if self.max_completion_tokens is None else "max_completion_tokens"
        return {"prompt": "messages", "max_tokens": limit, "logprobs": "top_logprobs"}


class CompletionRequest(GenerationRequest, kw_only=True, forbid_unknown_fields=True):
    """POST /v1/completions.

    Args:
        echo: the text begins with the prompt, and logprobs with its tokens'. max_tokens may then
            be 0.
    """

    prompt: str | list[str | int | list[int]]
    logprobs: int | None = None
    best_of: int | None = None
    echo: bool | None = None

    @property
    def only_echo(self) -> bool:
        return bool(self.echo) and self.max_tokens == 0

    @property
    def returned(self) -> int:
        """Choices a prompt, of the `best_of` that are made."""
        return 1 if self.n is None else self.n

    def prompts(self) -> list[str | list[int]]:
        """The prompts, one a choice; raises InvalidRequestError as texts() does."""
        return texts(self.prompt, "prompt")

    def to_sampling_params(self, defaults: Mapping[str, Any] = NO_DEFAULTS) -> SamplingParams:
        """max_tokens is 16 unless given, as in OpenAI's API."""
        absent = self.max_tokens is None
        limit = DEFAULT_COMPLETION_TOKENS if absent else self.max_tokens
        if self.only_echo:
            limit = 1  # the engine's least; it isn't shown
        if self.best_of is None or (self.best_of == self.returned and not self.use_beam_search):
            params = self.sampling_params(limit, self.logprobs, defaults)
            if self.echo and self.logprobs is not None and self.prompt_logprobs is None:
                params = replace(params, prompt_logprobs=self.logprobs)
            return params
        if self.echo:
            raise InvalidRequestError("best_of can't be echoed: leave out one", "best_of")
        if self.best_of < self.returned:
            raise InvalidRequestError("best_of must be at least n", "best_of")
        if self.use_beam_search:
            return self.sampling_params(limit, self.logprobs, defaults, self.best_of)
        if self.stream:
            raise InvalidRequestError("best_of can't be streamed: leave out one", "best_of")
        # The best are told by the logprobs of their tokens.
        params = self.sampling_params(limit, self.logprobs or 0, defaults)
        with renaming({"n": "best_of"}):
            return replace(params, n=self.best_of)


def check_scheduling(priority: int | None, cache_salt: str | None) -> None:
    """Raises InvalidRequestError for what is out of range."""
    if priority is not None and abs(priority) > MAX_PRIORITY:
        raise InvalidRequestError(
            f"priority must be between -{MAX_PRIORITY} and {MAX_PRIORITY}", "priority"
        )
    if cache_salt is not None and not 1 <= len(cache_salt) <= MAX_SALT:
        raise InvalidRequestError(f"cache_salt must have 1 to {MAX_SALT} characters", "cache_salt")


def texts(given: str | list[str | int | list[int]], name: str) -> list[str | list[int]]:
    """One text or several, each a string or token ids, as a list.

    Raises:
        InvalidRequestError: none, or strings and ids mixed; says so of the field `name`.
    """
    if isinstance(given, str):
        return [given]
    kinds = {type(item) for item in given}
    if kinds == {int}:
        return [given]  # type: ignore[list-item]
    if kinds in ({str}, {list}):
        return given  # type: ignore[return-value]
    raise InvalidRequestError(
        f"{name} must be a string, a list of strings, a list of token ids or a list of lists of "
        "token ids, and not empty",
        name,
    )


# Values that ask for nothing; null always does.
_UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    # vLLM's extras
    "spaces_between_special_tokens": (True,),
    "guided_decoding_backend": (),
    "guided_whitespace_pattern": (),
    "structural_tag": (),
    "request_id": (),
    "kv_transfer_params": (),
    "logits_processors": ([],),
    "vllm_xargs": ({},),
    "lora_request": (),
}

CHAT_UNSUPPORTED: dict[str, tuple[Any, ...]] = _UNSUPPORTED | {
    "functions": ([],),
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
    "audio": (),
    "prediction": (),
    "verbosity": ("medium",),
    "web_search_options": (),
    "moderation": (),
    "service_tier": ("auto", "default"),
    "store": (False,),
    "prompt_cache_retention": (),
    "prompt_cache_options": (),
    # vLLM's extras
    "echo": (False,),
    "chat_template": (),
    "mm_processor_kwargs": (),
    "media_io_kwargs": (),
    "thinking_token_budget": (),
}

COMPLETION_UNSUPPORTED: dict[str, tuple[Any, ...]] = _UNSUPPORTED | {
    "suffix": ("",),
    # vLLM's extras
    "prompt_embeds": (),
}
