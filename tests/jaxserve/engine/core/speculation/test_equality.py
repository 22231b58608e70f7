"""Guesses change no bit of any output, whatever they are."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import structs

from jaxserve.engine.core.protocol import Output, Submit
from jaxserve.engine.core.speculation.speculation import make_proposer
from jaxserve.engine.frontend.llm import LLM
from jaxserve.outputs import CompletionOutput
from jaxserve.sampling.params import BeamSearchParams, SamplingParams, StructuredOutputsParams
from scheduler import Sequence

pytestmark = pytest.mark.slow

KINDS: list[dict[str, Any]] = [
    {"temperature": 0, "max_tokens": 40, "logprobs": 2},
    {"temperature": 0, "max_tokens": 11, "prompt_logprobs": 1},
    {"seed": 1, "max_tokens": 37, "top_p": 0.9, "logprobs": 0},
    {"seed": 2, "max_tokens": 26, "presence_penalty": 1.0, "frequency_penalty": 0.5, "logprobs": 3},
    {"seed": 3, "max_tokens": 33, "repetition_penalty": 1.5, "n": 2, "logprobs": 1},
    {"seed": 4, "max_tokens": 21, "allowed_token_ids": tuple(range(60, 90)), "logprobs": 1},
    {"seed": 5, "max_tokens": 30, "logit_bias": {65: 5.0, 66: -5.0}},
    {"seed": 6, "max_tokens": 30, "min_tokens": 13, "stop_token_ids": tuple(range(0, 259, 3))},
    {"seed": 7, "max_tokens": 24, "structured_outputs": StructuredOutputsParams(regex="[a-c]{20}")},
    {
        "seed": 8,
        "max_tokens": 40,
        "structured_outputs": StructuredOutputsParams(json={"type": "array", "maxItems": 4}),
        "logprobs": 1,
    },
    {"temperature": 0, "max_tokens": 40, "stop": ("a",)},
    {"seed": 9, "max_tokens": 40, "bad_words": ("AB", "a")},
    {"max_tokens": 6, "beam_search": BeamSearchParams(beam_width=2)},
    {"seed": 10, "max_tokens": 34, "stop_token_ids": tuple(range(0, 259, 9)), "min_p": 0.02},
    {"seed": 11, "max_tokens": 30, "temperature": 1.4, "typical_p": 0.8, "top_k": 30},
]


def bits(output: CompletionOutput) -> tuple[Any, ...]:
    return (
        *(output.token_ids, output.text, output.logprobs),
        *(output.finish_reason, output.stop_reason),
    )


class Adversary:
    """Guesses what a function says of the known output and the true one."""

    def __init__(self, guess: Callable[[list[int], int], list[int]]) -> None:
        self._guess = guess
        self.truth: dict[tuple[int, ...], list[list[int]]] = {}

    def propose(self, sequence: Sequence, most: int) -> list[int]:
        known = sequence.output_token_ids
        outputs = self.truth.get(tuple(sequence.request.prompt_token_ids), [])
        true = next((t[len(known) :] for t in outputs if t[: len(known)] == known), [])
        return self._guess(true, most)

    def forget_ended(self) -> None:
        pass


def wrong(true: list[int], most: int) -> list[int]:
    return [(token + 1) % 256 for token in true[:most]] or [1] * most


def right(true: list[int], most: int) -> list[int]:
    return true[:most]


def mixed(true: list[int], most: int) -> list[int]:
    """Right up to a random place, or not at all, or of tokens that don't exist."""
    rng = random.Random(len(true))
    place = rng.randrange(most + 1)
    return [*true[:place], *(rng.choice((-1, 7, 70, 10**6)) for _ in range(most - place))]


def too_long(true: list[int], most: int) -> list[int]:
    return [*true, *range(100)]


PROPOSERS = {
    "ngram": None,
    "suffix": None,
    "wrong": wrong,
    "right": right,
    "mixed": mixed,
    "too_long": too_long,
}


@pytest.mark.parametrize("name", PROPOSERS)
@pytest.mark.parametrize("overlap", [True, False])
def test_outputs_are_those_without_guesses(
    engine: LLM,
    llm: LLM,
    prompts: list[list[int]],
    name: str,
    overlap: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(engine.core, "_overlap", overlap)
    kinds = [SamplingParams(**{"ignore_eos": True} | kind) for kind in KINDS]
    inputs = [prompts[i % len(prompts)] for i in range(len(kinds))]
    expected = llm.generate(inputs, kinds)
    if (guess := PROPOSERS[name]) is not None:
        adversary = Adversary(guess)
        for done in expected:
            adversary.truth.setdefault(done.prompt_token_ids, []).extend(
                list(output.token_ids) for output in done.outputs
            )
        monkeypatch.setattr(engine.core._speculation, "_proposer", adversary)
    elif name == "suffix":
        monkeypatch.setattr(engine.core._speculation, "_proposer", make_proposer(name))
    before, stats = engine.core.stats.preemptions, engine.core.report().speculation
    for found, wanted in zip(engine.generate(inputs, kinds), expected, strict=True):
        assert [*map(bits, found.outputs)] == [*map(bits, wanted.outputs)]
        assert found.prompt_logprobs == wanted.prompt_logprobs
    assert engine.core.stats.preemptions > before
    for prompt, kind, wanted in zip(inputs, kinds, expected, strict=True):
        (alone,) = engine.generate([prompt], kind)
        assert [*map(bits, alone.outputs)] == [*map(bits, wanted.outputs)]
    assert engine.core.stats.blocks_used == 0
    assert stats is not None
    now = engine.core.report().speculation
    guesses, accepted = (
        now.draft_tokens - stats.draft_tokens,
        now.accepted_tokens - stats.accepted_tokens,
    )
    assert guesses > 30
    if name == "wrong":
        assert accepted == 0
    elif name == "right":
        assert accepted > 0.9 * guesses
    else:
        assert 0 < accepted < guesses


class Chaos:
    """Guesses of any length, right up to any place, of any tokens, by what hypothesis draws."""

    def __init__(self, rng: random.Random, truth: dict[str, list[list[int]]]) -> None:
        self._rng, self._truth = rng, truth

    def propose(self, sequence: Sequence, most: int) -> list[int]:
        rng, known = self._rng, len(sequence.output_token_ids)
        true = self._truth[sequence.request.request_id][sequence.index][known:]
        right = true[: rng.choice((0, 1, most, most + 5))]
        return right + [rng.choice((-5, 3, 77, 258, 10**9)) for _ in range(rng.choice((0, 1, 9)))]

    def forget_ended(self) -> None:
        pass


@pytest.fixture(scope="module")
def references(llm: LLM, prompts: list[list[int]]) -> list[tuple[Submit, list[CompletionOutput]]]:
    """Requests, and their outputs without guesses."""
    kinds = [SamplingParams(**{"ignore_eos": True, "seed": 0} | kind) for kind in KINDS]
    # A stop string ends an output in the front end, which this test leaves out.
    kinds = [kind for kind in kinds if not (kind.stop or kind.beam_search)]
    inputs = [prompts[i % len(prompts)] for i in range(len(kinds))]
    return [
        (llm._validator.submission("", prompt, kind), list(done.outputs))
        for prompt, kind, done in zip(inputs, kinds, llm.generate(inputs, kinds), strict=True)
    ]


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    jobs=st.lists(st.integers(0, len(KINDS) - 3), min_size=1, max_size=10),
    seed=st.integers(0, 2**32),
    overlap=st.booleans(),
)
def test_whatever_is_guessed_and_whenever_requests_come_and_go(
    engine: LLM,
    references: list[tuple[Submit, list[CompletionOutput]]],
    jobs: list[int],
    seed: int,
    overlap: bool,
) -> None:
    core, rng = engine.core, random.Random(seed)
    waiting = {f"0/{i}": references[job] for i, job in enumerate(jobs)}
    expected = dict(waiting)
    truth = {n: [list(o.token_ids) for o in outputs] for n, (_, outputs) in expected.items()}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(core, "_overlap", overlap)
        patch.setattr(core._speculation, "_proposer", Chaos(rng, truth))
        found: dict[tuple[str, int], list[Output]] = {}
        aborted: set[str] = set()
        while waiting or core.has_work:
            if waiting and rng.random() < 0.4:
                name = rng.choice(list(waiting))
                assert core.submit(structs.replace(waiting.pop(name)[0], request_id=name)) is None
            if rng.random() < 0.02 and core.request_ids:
                aborted.add(name := rng.choice(core.request_ids))
                core.abort(name)
            for output in core.step():
                assert output.error is None
                found.setdefault((output.request_id, output.index), []).append(output)
    for name, (_, outputs) in expected.items():
        for wanted in outputs:
            pieces = found.get((name, wanted.index), [])
            tokens = tuple(token for piece in pieces for token in piece.token_ids)
            logprobs = [tuple(entry) for piece in pieces for entry in piece.logprobs or ()]
            reference = [(e.token_id, e.logprob, e.rank, e.top) for e in wanted.logprobs or ()]
            ends = [piece.finish_reason for piece in pieces if piece.finish_reason]
            assert tokens == wanted.token_ids[: len(tokens)]
            assert logprobs == reference[: len(tokens)]
            if name not in aborted:
                assert tokens == wanted.token_ids
                assert ends == [wanted.finish_reason]
    assert core.stats.blocks_used == core.stats.running == core.stats.waiting == 0
