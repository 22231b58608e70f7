"""Datasets: the texts of the prompts, and the length of each answer."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxserve.bench.random_text import random_text
from jaxserve.bench.settings import DatasetConfig
from jaxserve.errors import ConfigError

CountTokens = Callable[[str], int]

# vLLM's benchmark drops what is beyond these limits from ShareGPT.
FEWEST_TOKENS, MOST_INPUT, MOST_TOGETHER = 4, 1024, 2048


@dataclass(frozen=True, slots=True)
class Turn:
    """A prompt, and the number of tokens of its answer."""

    text: str
    output_tokens: int


Conversation = tuple[Turn, ...]  # a plain request has one turn


@dataclass(frozen=True, slots=True)
class Lengths:
    """Log-normal lengths of prompts and answers in tokens, within the limits of vLLM's benchmark.

    The medians are fitted so that the means are those of Kwon et al., "Efficient Memory
    Management for Large Language Model Serving with PagedAttention", 2023, figure 11; the spreads
    (sigma, of the logarithm) aren't given there and are ours.
    """

    input_median: float
    input_sigma: float
    output_median: float
    output_sigma: float

    def draw(self, draws: random.Random) -> tuple[int, int]:
        """Tokens of one prompt and its answer."""
        while True:
            prompt = round(self.input_median * math.exp(draws.gauss(0.0, self.input_sigma)))
            answer = round(self.output_median * math.exp(draws.gauss(0.0, self.output_sigma)))
            if _kept(prompt, answer):
                return prompt, answer


LENGTHS = {
    "sharegpt-like": Lengths(99.3, 1.2, 242.6, 0.9),  # means 161.31 and 337.99
    "alpaca-like": Lengths(16.04, 0.6, 35.01, 1.0),  # means 19.31 and 58.45
}


def make_dataset(
    config: DatasetConfig, count_tokens: CountTokens | None = None
) -> list[Conversation]:
    """Makes the conversations, in the order in which they are sent.

    Args:
        count_tokens: needed for sharegpt-file, for the lengths of its answers.

    Raises:
        ConfigError: the file can't be read, or there is no tokenizer for it.
    """
    draws = random.Random(f"dataset-{config.seed}")
    if config.dataset == "sharegpt-file":
        if count_tokens is None:
            raise ConfigError("the dataset sharegpt-file needs a tokenizer: give --tokenizer")
        assert config.dataset_path is not None
        return _sharegpt_file(Path(config.dataset_path), config.num_prompts, count_tokens, draws)
    if config.dataset == "shared-prefix":
        return _shared_prefix(config, draws)
    if config.dataset in LENGTHS:
        lengths = LENGTHS[config.dataset]
        return [
            (Turn(random_text(prompt, draws), answer),)
            for prompt, answer in (lengths.draw(draws) for _ in range(config.num_prompts))
        ]
    turns = config.turns if config.dataset == "multi-turn" else 1
    return [
        tuple(_random_turn(config, draws) for _ in range(turns)) for _ in range(config.num_prompts)
    ]


def _random_turn(config: DatasetConfig, draws: random.Random) -> Turn:
    prompt, answer = (
        _around(length, config.range_ratio, draws)
        for length in (config.input_tokens, config.output_tokens)
    )
    return Turn(random_text(prompt, draws), answer)


def _around(length: int, ratio: float, draws: random.Random) -> int:
    return max(1, draws.randint(math.floor(length * (1 - ratio)), math.ceil(length * (1 + ratio))))


def _shared_prefix(config: DatasetConfig, draws: random.Random) -> list[Conversation]:
    """Prompts of one length that begin with one of a few prefixes.

    The first prompt of each group finds nothing in the cache, so the shared part is made longer:
    over all prompts `hit_rate` of the tokens are cached, apart from rounding to whole blocks.
    """
    total, groups = config.num_prompts, config.prefix_groups
    shared = round(config.hit_rate * config.input_tokens * total / (total - groups))
    if shared >= config.input_tokens:
        raise ConfigError(
            f"{groups} prefixes in {total} prompts can't reach a hit rate of {config.hit_rate}: "
            "lower hit_rate or prefix_groups, or raise num_prompts"
        )
    prefixes = [random_text(shared, draws) for _ in range(groups)]
    order = [*range(groups), *draws.choices(range(groups), k=total - groups)]
    draws.shuffle(order)
    conversations: list[Conversation] = []
    for group in order:
        own = random_text(config.input_tokens - shared, draws)
        text = f"{prefixes[group]} {own}" if shared else own
        conversations.append((Turn(text, config.output_tokens),))
    return conversations


def _sharegpt_file(
    file: Path, count: int, count_tokens: CountTokens, draws: random.Random
) -> list[Conversation]:
    """The first questions of `count` of the file's conversations, in random order; repeated if the
    file has fewer."""
    try:
        entries = json.loads(file.read_text(encoding="utf-8"))
        pairs = list(_first_exchanges(entries))
    except (OSError, UnicodeDecodeError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise ConfigError(f"{file} can't be read as ShareGPT: {error!r}") from None
    draws.shuffle(pairs)
    kept: list[Conversation] = []
    for question, answer in pairs:
        if len(kept) == count:
            break
        output_tokens = count_tokens(answer)
        if _kept(count_tokens(question), output_tokens):
            kept.append((Turn(question, output_tokens),))
    if not kept:
        raise ConfigError(f"{file} has no conversation of a usable length")
    return [kept[i % len(kept)] for i in range(count)]


def _first_exchanges(entries: list[dict[str, Any]]) -> Iterator[tuple[str, str]]:
    for entry in entries:
        messages = entry["conversations"]
        if len(messages) >= 2:
            yield messages[0]["value"], messages[1]["value"]


def _kept(prompt: int, answer: int) -> bool:
    return (
        min(prompt, answer) >= FEWEST_TOKENS
        and prompt <= MOST_INPUT
        and prompt + answer <= MOST_TOGETHER
    )
