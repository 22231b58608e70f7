"""RequestValidator: tokenizes and validates requests, and fills in defaults for the engine."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import index

from jaxserve.engine.core.protocol import Submit
from jaxserve.errors import InvalidRequestError
from jaxserve.sampling.params import SamplingParams
from jaxserve.text.tokenizer import Tokenizer

Prompt = str | Sequence[int]


class ValidatedPrompt(list[int]):
    """Token ids that RequestValidator.prompt_ids() has validated, and needn't validate again."""


@dataclass(frozen=True, slots=True)
class RequestValidator:
    """Validates requests against one engine's limits.

    Args:
        max_model_len: tokens of prompt and output together.
        vocab_size: the model's, which may exceed the tokenizer's; token ids must be less.
        seeds: draws seeds for requests that have none.
    """

    tokenizer: Tokenizer
    max_model_len: int
    vocab_size: int
    seeds: random.Random

    def prompt_ids(
        self,
        prompt: Prompt,
        params: SamplingParams,
        add_special_tokens: bool = True,
        generates: bool = True,
        default_max_tokens: int | None = None,
    ) -> ValidatedPrompt:
        """Token ids of a prompt that the engine can serve with these params.

        Args:
            prompt: what was validated before is returned as it is.
            add_special_tokens: as of Tokenizer.encode(); only for text.
            generates: whether output tokens are wanted; without, a prompt may fill the context.
            default_max_tokens: output tokens for which truncation leaves room, if the params have
                no limit.

        Raises:
            InvalidRequestError: the prompt is empty or too long, or has ids outside the vocabulary.
        """
        if isinstance(prompt, ValidatedPrompt):
            return prompt
        if params.beam_search is not None and params.seed is not None:
            raise InvalidRequestError(
                "beam search draws nothing, so a seed has no effect: leave it out", "seed"
            )
        if isinstance(prompt, str):
            self._check_length(prompt, params)
            tokens: Sequence[int] = self.tokenizer.encode(prompt, add_special_tokens)
        else:
            tokens = prompt
        if (keep := params.truncate_prompt_tokens) is not None:
            output = params.max_tokens or default_max_tokens or 1
            tokens = tokens[-(self.max_model_len - output if keep == -1 else keep) :]
        # Before each id is looked at, which takes long for a million.
        if len(tokens) > self.max_model_len - generates:
            needs = ", and the output needs one" if generates else ""
            raise self._too_long(f"the prompt has {len(tokens)}{needs}: shorten the prompt")
        ids = _whole(tokens)
        if not ids:
            raise InvalidRequestError("the prompt is empty: give at least one token", "prompt")
        bad = next((i for i in ids if not 0 <= i < self.vocab_size), None)
        if bad is not None:
            raise InvalidRequestError(
                f"the prompt holds token id {bad}; ids must be from 0 to {self.vocab_size - 1}",
                "prompt",
            )
        wanted = params.max_tokens if generates else None
        if wanted is not None and len(ids) + wanted > self.max_model_len:
            raise self._too_long(
                f"the prompt has {len(ids)} and max_tokens is {wanted}: shorten the "
                "prompt or lower max_tokens",
                "max_tokens",
            )
        params.check_vocabulary(min(self.vocab_size, self.tokenizer.num_ids))
        return ValidatedPrompt(ids)

    def _check_length(self, text: str, params: SamplingParams) -> None:
        """Refuses, before it is tokenized, a text that is too long even in the longest tokens."""
        most = self.max_model_len * self.tokenizer.longest_piece
        if len(text) > most and params.truncate_prompt_tokens is None:
            raise self._too_long(
                f"which are never more than {most} characters, and the prompt has {len(text)}: "
                "shorten the prompt"
            )

    def _too_long(self, why: str, param: str = "prompt") -> InvalidRequestError:
        """The error, with the code and the words by which client libraries recognise it."""
        return InvalidRequestError(
            f"This model's maximum context length is {self.max_model_len} tokens; {why}",
            param,
            "context_length_exceeded",
        )

    def limited(
        self, params: SamplingParams, ids: Sequence[int], default: int | None
    ) -> SamplingParams:
        """The params with a limit of output tokens for a prompt, if they have none: the default,
        but never more than the context leaves.

        Raises:
            InvalidRequestError: that is less than min_tokens.
        """
        if params.max_tokens is not None or default is None:
            return params
        return replace(params, max_tokens=min(default, self.max_model_len - len(ids)))

    def submission(
        self,
        request_id: str,
        ids: list[int],
        params: SamplingParams,
        priority: int = 0,
        cache_salt: str | None = None,
        pool: bool = False,
        adapter: str | None = None,
    ) -> Submit:
        """The message to the engine for a prompt that prompt_ids() has validated."""
        # With a grammar EOS must end the output: once it is complete, no other token is allowed.
        ignored = params.ignore_eos and params.structured_outputs is None
        eos = () if ignored else self.tokenizer.eos_token_ids
        max_tokens, seed = params.max_tokens, params.seed
        filled = replace(
            params,
            max_tokens=self.max_model_len - len(ids) if max_tokens is None else max_tokens,
            seed=self.seeds.getrandbits(63) if seed is None else seed,
        )
        bad_words = [ids for word in params.bad_words for ids in self._spellings(word)]
        stop = frozenset(params.stop_token_ids) | frozenset(eos)
        prediction: list[int] = []
        if params.prediction:
            # Only its beginning can be of use, and a token has a character at least.
            most = (self.max_model_len - len(ids)) * self.tokenizer.longest_piece
            text = params.prediction[:most]
            prediction = self.tokenizer.encode(text, add_special_tokens=False)
        return Submit(
            request_id,
            ids,
            filled,
            stop,
            bad_words,
            priority,
            cache_salt,
            pool,
            prediction,
            adapter,
        )

    def _spellings(self, word: str) -> list[list[int]]:
        """Token ids of a bad word, at the start of a text and after a space."""
        bare = word.lstrip() or word
        first, spaced = (
            self.tokenizer.encode(text, add_special_tokens=False) for text in (bare, f" {bare}")
        )
        # If the space is a token of its own, the word's tokens are the same.
        return [first] if len(spaced) > len(first) else [first, spaced]


def _whole(ids: Sequence[int]) -> list[int]:
    try:
        return [index(i) for i in ids]
    except TypeError:
        raise InvalidRequestError("a prompt is text or a list of token ids", "prompt") from None
