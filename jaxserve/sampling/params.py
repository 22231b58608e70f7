"""SamplingParams: how a request is sampled and ended; validated, with vLLM's names."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from operator import index
from typing import Any, Literal

from jaxserve.errors import InvalidRequestError

MAX_TOP_K = 2**31 - 1
MAX_STOP_STRINGS = 16
MAX_LOGPROBS = 20
MAX_LOGIT_BIAS = 300
MAX_BAD_WORDS = 300  # each is compared with the output at every token
MAX_BAD_WORD = 256  # characters
MAX_N = 128
REPETITION_RANGE = (1e-6, 1e6)  # beyond it the logits overflow
MAX_BEAM_WIDTH = 16  # leaves room for stop tokens in the MAX_LOGPROBS that a step reports


# Begins the names of terminals of a grammar that match any text: its numbers aren't bounded.
FREE_TEXT = "FREE_TEXT"


@dataclass(frozen=True, slots=True)
class StructuredOutputsParams:
    """What the output must match: exactly one of these.

    Args:
        json: a JSON schema, as text or as an object.
        regex: a regular expression that the whole output matches.
        choice: the output is one of these strings.
        grammar: a context-free grammar in Lark's notation, start symbol `start`.
        json_object: any JSON object.
        is_optional: if it doesn't compile, the output is unconstrained.

    Raises:
        InvalidRequestError: none is given, several are, or one is malformed. Whether a schema,
            an expression or a grammar compiles is checked by the engine.
    """

    json: str | dict[str, Any] | None = None
    regex: str | None = None
    choice: tuple[str, ...] | None = None
    grammar: str | None = None
    json_object: bool = False
    is_optional: bool = False

    def __post_init__(self) -> None:
        given = [n for n in ("json", "regex", "choice", "grammar") if getattr(self, n) is not None]
        given += ["json_object"] * bool(self.json_object)
        if len(given) != 1:
            raise InvalidRequestError(
                "structured_outputs takes exactly one of json, regex, choice, grammar and "
                f"json_object; it had {', '.join(given) or 'none'}",
                "structured_outputs",
            )
        if isinstance(self.json, Mapping):
            object.__setattr__(self, "json", json.dumps(self.json))
        elif self.json is not None:
            try:
                json.loads(self.json)
            except (ValueError, RecursionError) as error:
                raise InvalidRequestError(
                    f"the JSON schema isn't valid JSON: {error}", "structured_outputs"
                ) from None
        if self.choice is not None:
            object.__setattr__(self, "choice", tuple(self.choice))
            if not self.choice or not all(isinstance(c, str) and c for c in self.choice):
                raise InvalidRequestError("choice takes non-empty strings", "structured_outputs")

    @property
    def is_json(self) -> bool:
        """Whether the output is one JSON value."""
        return self.json is not None or self.json_object


@dataclass(frozen=True, slots=True)
class BeamSearchParams:
    """Beam search: the `beam_width` likeliest outputs so far are continued side by side.

    The order of the steps and the scores are those of transformers' generate(num_beams=beam_width):
    the score of an output that ends is the sum of its tokens' logprobs, divided by its length to
    the power of length_penalty.

    Args:
        beam_width: beams, and best ended outputs that are kept. Range [1, MAX_BEAM_WIDTH].
        length_penalty: above 0 favours long outputs, below 0 short ones. Range [-10, 10].
        early_stopping: True ends the search once beam_width outputs have ended; False when the
            best beam would score less than all of them if it ended now; "never" when it could
            not beat them at any length up to max_tokens.

    Raises:
        InvalidRequestError: names the field and its range.
    """

    beam_width: int
    length_penalty: float = 1.0
    early_stopping: bool | Literal["never"] = False

    def __post_init__(self) -> None:
        check_number("beam_width", self.beam_width, 1, MAX_BEAM_WIDTH, whole=True)
        check_number("length_penalty", self.length_penalty, -10.0, 10.0)
        if not (isinstance(self.early_stopping, bool) or self.early_stopping == "never"):
            raise InvalidRequestError(
                f'early_stopping is true, false or "never"; it was {self.early_stopping!r}',
                "early_stopping",
            )


# Fields that can't be used with beam search, which follows the model's own distribution.
NOT_WITH_BEAMS = (
    *("top_p", "top_k", "min_p", "typical_p", "presence_penalty", "frequency_penalty"),
    *("repetition_penalty", "min_tokens", "stop", "bad_words", "allowed_token_ids", "logit_bias"),
    "structured_outputs",
)


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the tokens of one request are chosen, and when its outputs end.

    They are applied in this order: allowed ids, bad words, min_tokens and logit_bias; penalties;
    temperature; min_p, top_k, top_p, typical_p; the draw. Logprobs are the model's own, before any
    of these.

    Args:
        n: outputs of the one prompt; output i draws as seed + i does. At most MAX_N.
        temperature: 0 is greedy; otherwise logits are divided by it. Range [0, 2] as OpenAI.
        top_p: keep the smallest set of tokens whose probability reaches top_p. Range (0, 1].
        top_k: keep the k likeliest tokens; 0 or -1 keeps all.
        min_p: keep tokens at least min_p times as likely as the likeliest. Range [0, 1].
        typical_p: keep the tokens whose surprise is closest to the expected one, until their
            probability reaches typical_p (Meister et al., 2023, section 3). Range (0, 1].
        presence_penalty: subtracted from the logit of each token in the output. Range [-2, 2].
        frequency_penalty: the same, times the token's count in the output. Range [-2, 2].
        repetition_penalty: divides positive logits, and multiplies others, of each token in the
            prompt or the output (Keskar et al., 2019, section 4.1). In REPETITION_RANGE.
        seed: makes the draws reproducible, whatever other requests run; None draws a new one.
        max_tokens: most tokens to generate; None means up to the model's context length.
        min_tokens: stop tokens, EOS included, can't be drawn before so many tokens, and stop
            strings that are complete with fewer are passed over.
        stop: strings that end the text; the text is cut before them. They may have special tokens
            in them, also if those aren't shown.
        stop_token_ids: ids that end the output, in addition to the model's own EOS ids.
        include_stop_str_in_output: cut after the stop string or token instead.
        bad_words: strings whose tokens may not appear one after another; at most MAX_BAD_WORDS, of
            MAX_BAD_WORD characters.
        allowed_token_ids: only these can be drawn; None allows all.
        logit_bias: added to the logits of token ids, each in [-100, 100].
        logprobs: how many of the likeliest tokens to report at each position, in addition to
            the one drawn; None reports nothing. Range [0, MAX_LOGPROBS].
        prompt_logprobs: the same for the prompt's tokens.
        ignore_eos: go on after the model's EOS ids (stop_token_ids still end it, and a structured
            output that is complete ends all the same).
        skip_special_tokens: leave special tokens out of the text.
        truncate_prompt_tokens: keep only this many tokens at the end of the prompt; -1 keeps as
            many as fit the context.
        structured_outputs: what the output must match.
        prediction: a text that the output may repeat in large parts, as a file to change. It
            changes no token; with EngineConfig.speculation they come sooner where it is right.
        beam_search: search for the likeliest outputs instead of drawing; the n best are returned,
            at the end. NOT_WITH_BEAMS lists the fields that are refused beside it, and so is a
            temperature other than 0 and 1. A seed is refused when a request is made.

    Raises:
        InvalidRequestError: names the field and its range.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    max_tokens: int | None = 16
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    n: int = 1
    typical_p: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    min_tokens: int = 0
    include_stop_str_in_output: bool = False
    bad_words: tuple[str, ...] = ()
    allowed_token_ids: tuple[int, ...] | None = None
    logit_bias: dict[int, float] = field(default_factory=dict)
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    truncate_prompt_tokens: int | None = None
    structured_outputs: StructuredOutputsParams | None = None
    beam_search: BeamSearchParams | None = None
    prediction: str | None = None

    def __post_init__(self) -> None:
        self._normalise()
        self._check_ranges()
        self._check_strings("stop", self.stop)
        self._check_strings("bad_words", self.bad_words)
        if len(self.stop) > MAX_STOP_STRINGS:
            raise InvalidRequestError(f"stop takes at most {MAX_STOP_STRINGS} strings", "stop")
        longest = max(map(len, self.bad_words), default=0)
        if len(self.bad_words) > MAX_BAD_WORDS or longest > MAX_BAD_WORD:
            raise InvalidRequestError(
                f"bad_words takes at most {MAX_BAD_WORDS} strings of {MAX_BAD_WORD} characters",
                "bad_words",
            )
        if self.allowed_token_ids == ():
            raise InvalidRequestError(
                "allowed_token_ids is empty: give at least one id", "allowed_token_ids"
            )
        if len(self.logit_bias) > MAX_LOGIT_BIAS:
            raise InvalidRequestError(
                f"logit_bias takes at most {MAX_LOGIT_BIAS} token ids; it had "
                f"{len(self.logit_bias)}",
                "logit_bias",
            )
        for value in self.logit_bias.values():
            check_number("logit_bias", value, -100.0, 100.0)
        if self.beam_search is not None:
            self._check_beams(self.beam_search)

    def _normalise(self) -> None:
        for name in ("stop", "stop_token_ids", "bad_words", "allowed_token_ids"):
            value = getattr(self, name)
            if isinstance(value, str):
                value = (value,)
            if value is not None:
                object.__setattr__(self, name, tuple(value))
            elif name != "allowed_token_ids":
                object.__setattr__(self, name, ())
        if self.top_k == -1:
            object.__setattr__(self, "top_k", 0)
        if self.logit_bias is None:
            object.__setattr__(self, "logit_bias", {})
        try:
            # Keys in JSON are strings.
            bias = {
                int(token) if isinstance(token, str) else index(token): value
                for token, value in self.logit_bias.items()
            }
        except (ValueError, TypeError, AttributeError):
            raise InvalidRequestError(
                "logit_bias maps token ids to numbers", "logit_bias"
            ) from None
        object.__setattr__(self, "logit_bias", bias)

    def _check_ranges(self) -> None:
        check_number("n", self.n, 1, MAX_N, whole=True)
        check_number("temperature", self.temperature, 0.0, 2.0)
        for name in ("top_p", "typical_p"):
            check_number(name, getattr(self, name), 0.0, 1.0)
            if getattr(self, name) == 0.0:
                raise InvalidRequestError(f"{name} must be greater than 0; it was 0", name)
        check_number("repetition_penalty", self.repetition_penalty, *REPETITION_RANGE)
        check_number("min_p", self.min_p, 0.0, 1.0)
        check_number("presence_penalty", self.presence_penalty, -2.0, 2.0)
        check_number("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        check_number("top_k", self.top_k, 0, MAX_TOP_K, whole=True)
        optional = {
            "seed": (-(2**63), 2**64 - 1),
            "max_tokens": (1, 2**31 - 1),
            "logprobs": (0, MAX_LOGPROBS),
            "prompt_logprobs": (0, MAX_LOGPROBS),
        }
        for name, (low, high) in optional.items():
            if getattr(self, name) is not None:
                check_number(name, getattr(self, name), low, high, whole=True)
        most = 2**31 - 1 if self.max_tokens is None else self.max_tokens
        check_number("min_tokens", self.min_tokens, 0, most, whole=True)
        if self.truncate_prompt_tokens not in (None, -1):
            check_number(
                "truncate_prompt_tokens", self.truncate_prompt_tokens, 1, 2**31 - 1, whole=True
            )

    @staticmethod
    def _check_strings(name: str, strings: tuple[str, ...]) -> None:
        if any(not isinstance(s, str) or not s for s in strings):
            raise InvalidRequestError(f"{name} takes non-empty strings", name)

    def _check_beams(self, search: BeamSearchParams) -> None:
        if self.n > search.beam_width:
            raise InvalidRequestError(
                f"n is {self.n}, but the search keeps {search.beam_width} outputs (beam_width): "
                "lower n",
                "n",
            )
        defaults = {f.name: f.default for f in fields(self)} | {"logit_bias": {}}
        for name in NOT_WITH_BEAMS:
            if getattr(self, name) != defaults[name]:
                raise InvalidRequestError(
                    f"beam search follows the model's own distribution: leave out {name}", name
                )
        if self.temperature not in (0, 1):  # which clients send for "no random draw" or by default
            raise InvalidRequestError(
                "beam search follows the model's own distribution: leave out temperature, or set "
                "it to 0 or 1",
                "temperature",
            )

    def check_vocabulary(self, vocab_size: int) -> None:
        """Refuses token ids that can't be drawn (XLA would silently clamp or drop them).

        Args:
            vocab_size: of the tokenizer; the model's may be padded beyond it.
        """
        fields: dict[str, Iterable[int]] = {
            "stop_token_ids": self.stop_token_ids,
            "allowed_token_ids": self.allowed_token_ids or (),
            "logit_bias": self.logit_bias,
        }
        for name, tokens in fields.items():
            for token in tokens:
                if not (isinstance(token, int) and 0 <= token < vocab_size):
                    raise InvalidRequestError(
                        f"{name} must hold ids from 0 to {vocab_size - 1}, the vocabulary's last; "
                        f"one was {token!r}",
                        name,
                    )


def check_number(name: str, value: Any, low: float, high: float, whole: bool = False) -> None:
    """Raises InvalidRequestError unless value is a number in [low, high], and not a bool."""
    kinds = (int,) if whole else (int, float)
    ok = isinstance(value, kinds) and low <= value <= high  # False for NaN
    if isinstance(value, bool) or not ok:
        kind = "a whole number " if whole else ""
        raise InvalidRequestError(
            f"{name} must be {kind}between {low} and {high}; it was {value!r}", name
        )
