from __future__ import annotations

import json
import statistics
from pathlib import Path

import pytest

from jaxserve.bench.datasets import LENGTHS, Turn, make_dataset
from jaxserve.bench.random_text import WORDS
from jaxserve.bench.settings import DatasetConfig
from jaxserve.errors import ConfigError
from jaxserve.text.tokenizer import load_tokenizer


def words(text: str) -> int:
    return len(text.split())


def alike(one: list[str], other: list[str]) -> int:
    """Number of words at the beginning that they share."""
    pairs = zip(one, other, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


def singles(config: DatasetConfig) -> list[Turn]:
    return [turn for (turn,) in make_dataset(config)]


def test_random_lengths_stay_in_their_range() -> None:
    turns = singles(DatasetConfig(num_prompts=300, input_tokens=40, range_ratio=0.5))
    lengths = [words(turn.text) for turn in turns]
    assert (min(lengths), max(lengths)) == (20, 60)
    outputs = [turn.output_tokens for turn in turns]
    assert (min(outputs), max(outputs)) == (64, 192)
    assert len({turn.text for turn in turns}) == 300


@pytest.mark.parametrize(
    "config",
    [
        DatasetConfig(num_prompts=5),
        DatasetConfig("sharegpt-like", num_prompts=5),
        DatasetConfig("shared-prefix", num_prompts=5, prefix_groups=2, hit_rate=0.3),
        DatasetConfig("multi-turn", num_prompts=5),
    ],
    ids=lambda config: config.dataset,
)
def test_a_seed_reproduces(config: DatasetConfig) -> None:
    other = DatasetConfig(config.dataset, num_prompts=5, seed=1)
    assert make_dataset(config) == make_dataset(config)
    assert make_dataset(config) != make_dataset(other)


@pytest.mark.parametrize(
    ("name", "means"), [("sharegpt-like", (161.31, 337.99)), ("alpaca-like", (19.31, 58.45))]
)
def test_lengths_have_the_papers_means(name: str, means: tuple[float, float]) -> None:
    """The means are those of the PagedAttention paper's figure 11."""
    assert name in LENGTHS
    turns = singles(DatasetConfig(name, num_prompts=8000))  # type: ignore[arg-type]
    prompts, outputs = [words(t.text) for t in turns], [t.output_tokens for t in turns]
    assert statistics.fmean(prompts) == pytest.approx(means[0], rel=0.05)
    assert statistics.fmean(outputs) == pytest.approx(means[1], rel=0.05)
    assert max(map(sum, zip(prompts, outputs, strict=True))) <= 2048


@pytest.mark.parametrize(("hit_rate", "groups"), [(0.0, 1), (0.5, 1), (0.5, 20), (0.9, 3)])
def test_a_perfect_cache_would_have_the_hit_rate(hit_rate: float, groups: int) -> None:
    config = DatasetConfig(
        "shared-prefix", num_prompts=100, input_tokens=200, hit_rate=hit_rate, prefix_groups=groups
    )
    seen: list[list[str]] = []
    hits = total = 0
    for turn in singles(config):
        tokens = turn.text.split()
        total += len(tokens)
        hits += max((alike(tokens, old) for old in seen), default=0)
        seen.append(tokens)
    assert total == 100 * 200
    assert hits / total == pytest.approx(hit_rate, abs=0.01)


def test_an_impossible_hit_rate_is_refused() -> None:
    with pytest.raises(ConfigError, match="can't reach a hit rate"):
        make_dataset(DatasetConfig("shared-prefix", num_prompts=4, prefix_groups=3))


def test_conversations_have_their_turns() -> None:
    conversations = make_dataset(DatasetConfig("multi-turn", num_prompts=3, turns=5))
    assert [len(conversation) for conversation in conversations] == [5, 5, 5]


def test_a_sharegpt_file_gives_questions_and_the_lengths_of_their_answers(tmp_path: Path) -> None:
    def entry(*texts: str) -> dict[str, object]:
        return {"conversations": [{"from": "x", "value": text} for text in texts]}

    good = {f"question {i} of a file": f"{'so ' * (i + 4)}".strip() for i in range(3)}
    entries = [entry(*pair, "and more") for pair in good.items()]
    entries += [entry("alone and without answer"), entry("hi", "too short a question it was")]
    entries += [entry("far too long " * 400, "a good answer it was")]
    file = tmp_path / "sharegpt.json"
    file.write_text(json.dumps(entries))
    config = DatasetConfig("sharegpt-file", dataset_path=str(file), num_prompts=6)
    turns = [turn for (turn,) in make_dataset(config, words)]
    assert turns[:3] == turns[3:]  # used again once all are used
    assert {turn.text: turn.output_tokens for turn in turns} == {
        question: words(answer) for question, answer in good.items()
    }
    with pytest.raises(ConfigError, match="--tokenizer"):
        make_dataset(config)
    file.write_text('{"no": "list"}')
    with pytest.raises(ConfigError, match="can't be read as ShareGPT"):
        make_dataset(config, words)


def test_words_are_single_tokens(demo_model: Path) -> None:
    tokenizer = load_tokenizer(demo_model)
    text = " ".join(WORDS)
    assert len(tokenizer.encode(text, add_special_tokens=False)) == len(WORDS) == len(set(WORDS))
