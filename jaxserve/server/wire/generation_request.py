"""Request fields that the endpoints which generate text share.

Every field of the API is in a struct, and is applied; or in an UNSUPPORTED table, with the values
that change nothing and are therefore accepted; or unknown. `validation.parse` refuses all other
values with a 400 that names the field.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from types import MappingProxyType
from typing import Any, Literal

import msgspec

from jaxserve.errors import InvalidRequestError
from jaxserve.sampling.params import BeamSearchParams, SamplingParams, StructuredOutputsParams
from jaxserve.server.wire.ignored_fields import ignore
from jaxserve.server.wire.structured_outputs import ResponseFormat, StructuredOutputs
from jaxserve.server.wire.validation import renaming

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
        """Raises InvalidRequestError for options that aren't supported or contradict each other."""
        if self.include_obfuscation:  # it would only pad events
            ignore("stream_options.include_obfuscation")
        if self.continuous_usage_stats and not self.include_usage:
            param = "stream_options.continuous_usage_stats"
            raise InvalidRequestError(f"{param} needs include_usage: true", param)


_CONSTRAINTS = ("json", "regex", "choice", "grammar")  # on the output; fields with "guided_" before
# Fields that SamplingParams has under the same name.
_SAMPLING_FIELDS = (
    *("n", "temperature", "top_p", "top_k", "min_p", "typical_p", "seed", "stop_token_ids"),
    *("presence_penalty", "frequency_penalty", "repetition_penalty", "logit_bias", "min_tokens"),
    *("bad_words", "allowed_token_ids", "ignore_eos", "include_stop_str_in_output"),
    *("skip_special_tokens", "truncate_prompt_tokens", "prompt_logprobs"),
)


class BaseGenerationRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What the handlers ask of every request for generated text.

    Args:
        model: a name of the model that is served.
        request_id: names the request in logs and in the response's header X-Request-Id; the
            request's own header of that name comes first.
    """

    model: str | None = None
    request_id: str | None = None

    @property
    def api_names(self) -> Mapping[str, str]:
        """Fields that the engine and the chat template name otherwise: their name to the API's."""
        return {}

    def naming_errors(self) -> AbstractContextManager[None]:
        """A context in which InvalidRequestErrors get the API's names of fields."""
        return renaming(self.api_names)

    @property
    def most_tokens(self) -> int | None:
        """A limit of output tokens that may be more than the context leaves."""
        return None

    def check(self) -> None:
        """Cross-field checks, which types can't express.

        Raises:
            InvalidRequestError: names the field.
        """

    def scheduling(self) -> dict[str, Any]:
        """Arguments of EngineClient.stream() about scheduling and caching."""
        return {}

    def to_sampling_params(self, defaults: Mapping[str, Any] = NO_DEFAULTS) -> SamplingParams:
        """The request's sampling parameters.

        Args:
            defaults: values of fields that the request leaves out.

        Raises:
            InvalidRequestError: a value is out of range.
        """
        raise NotImplementedError


class GenerationRequest(BaseGenerationRequest, kw_only=True, forbid_unknown_fields=True):
    """Fields of chat and text completions.

    `user`, `safety_identifier`, `prompt_cache_key` and `metadata` label a request for the caller's
    own records. They don't change the response.

    Args:
        priority: lower runs first, on a server that schedules by priority.
        cache_salt: only requests with the same salt share cached text.
        return_token_ids: add the token ids of the prompt and of each choice to the response.
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
                "prompt_logprobs can't be streamed: leave out prompt_logprobs or stream",
                "prompt_logprobs",
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

    def naming_errors(self) -> AbstractContextManager[None]:
        return renaming({**self.api_names, **self.constraint_names})

    @property
    def constraint_names(self) -> Mapping[str, str]:
        """The engine's name of the constraint on the output, to the field that has it."""
        guided = (f"guided_{name}" for name in _CONSTRAINTS)
        fields = [name for name in guided if getattr(self, name) is not None]
        if self.structured_outputs is not None:
            fields += [f"structured_outputs.{name}" for name in self.structured_outputs.given]
        if self.response_format is not None and self.response_format.json_schema is not None:
            fields.append("response_format.json_schema.schema")
        return {"structured_outputs": fields[0]} if len(fields) == 1 else {}

    @property
    def include_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)

    @property
    def continuous_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.continuous_usage_stats)

    def structured_params(self) -> StructuredOutputsParams | None:
        """The constraint on the output, from whichever of the alternative fields is set.

        Raises:
            InvalidRequestError: several are set.
        """
        guided = {
            name: value
            for name in _CONSTRAINTS
            if (value := getattr(self, f"guided_{name}")) is not None
        }
        alternatives = [
            self.response_format.structured_params() if self.response_format else None,
            self.structured_outputs.structured_params() if self.structured_outputs else None,
            StructuredOutputsParams(**guided) if guided else None,
        ]
        given = [params for params in alternatives if params is not None]
        if len(given) > 1:
            raise InvalidRequestError(
                "response_format, structured_outputs and guided_* all constrain the output: send "
                "one of them",
                "response_format",
            )
        return given[0] if given else None

    def beam_search(self, best_of: int | None) -> BeamSearchParams | None:
        """The beam search that is asked for; its width is `best_of` or, without it, n."""
        if self.use_beam_search:
            width = (1 if self.n is None else self.n) if best_of is None else best_of
            penalty = 1.0 if self.length_penalty is None else self.length_penalty
            with renaming({"beam_width": "n" if best_of is None else "best_of"}):
                return BeamSearchParams(width, penalty, self.early_stopping or False)
        for name, neutral in (("length_penalty", (None, 1)), ("early_stopping", (None, False))):
            if getattr(self, name) not in neutral:
                raise InvalidRequestError(f"{name} needs use_beam_search: true", name)
        return None

    def sampling_params(
        self,
        max_tokens: int | None,
        logprobs: int | None,
        defaults: Mapping[str, Any],
        best_of: int | None = None,
    ) -> SamplingParams:
        """The sampling parameters, with the fields that each endpoint reads differently.

        Args:
            defaults: values of fields that the request leaves out. They are ignored for a beam
                search, which doesn't sample.

        Raises:
            InvalidRequestError: a value is out of range.
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


# With the values that are accepted because they change nothing; null always is.
GENERATION_UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    # vLLM's extras
    "spaces_between_special_tokens": (True,),
    "guided_decoding_backend": (),
    "guided_whitespace_pattern": (),
    "structural_tag": (),
    "kv_transfer_params": (),
    "logits_processors": ([],),
    "vllm_xargs": ({},),
    "lora_request": (),
}


def check_scheduling(priority: int | None, cache_salt: str | None) -> None:
    """Raises InvalidRequestError for a value out of range."""
    if priority is not None and abs(priority) > MAX_PRIORITY:
        raise InvalidRequestError(
            f"priority must be between -{MAX_PRIORITY} and {MAX_PRIORITY}", "priority"
        )
    if cache_salt is not None and not 1 <= len(cache_salt) <= MAX_SALT:
        raise InvalidRequestError(f"cache_salt must have 1 to {MAX_SALT} characters", "cache_salt")


def prompt_list(given: str | list[str | int | list[int]], field: str) -> list[str | list[int]]:
    """A field that holds one prompt or several, each a string or token ids, as a list.

    Args:
        field: its name, for the error message.

    Raises:
        InvalidRequestError: it is empty, or mixes strings and token ids.
    """
    if isinstance(given, str):
        return [given]
    kinds = {type(item) for item in given}
    if kinds == {int}:
        return [given]  # type: ignore[list-item]
    if kinds in ({str}, {list}):
        return given  # type: ignore[return-value]
    raise InvalidRequestError(
        f"{field} must be a string, a list of strings, a list of token ids or a list of lists of "
        "token ids, and not empty",
        field,
    )
