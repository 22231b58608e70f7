"""What one request has put out is guessed for the next, under the same salt alone."""

from __future__ import annotations

import pytest

from jaxserve.config import EngineConfig
from jaxserve.engine.core.speculation.speculation import make_proposer
from jaxserve.engine.core.speculation.suffix_cache import SIZE, RecentOutputs, SuffixCache
from jaxserve.engine.device.sampling_state import SamplingRequest
from jaxserve.sampling.params import SamplingParams
from scheduler import Request, Sequence

PROMPT = list(range(20))
OUTPUT = list(range(50, 80))


def sequence(salt: str | None = None, adapter: bytes | None = None) -> Sequence:
    payload = SamplingRequest(SamplingParams())
    return Sequence(
        Request("a", PROMPT, 100, cache_salt=salt, adapter=adapter, payload=payload), limit=100
    )


def generate(cache: SuffixCache, one: Sequence) -> list[list[int]]:
    """The guesses before each token of OUTPUT."""
    guesses = []
    for token in OUTPUT:
        guesses.append(cache.propose(one, 3))
        one.output_token_ids.append(token)
    cache.propose(one, 3)
    return guesses


def test_an_output_is_guessed_from_its_first_token_on() -> None:
    cache = SuffixCache()
    first = sequence()
    assert not any(generate(cache, first))
    first.finish_reason = "length"
    cache.forget_ended()
    assert generate(cache, sequence()) == [OUTPUT[i : i + 3] for i in range(len(OUTPUT))]


@pytest.mark.parametrize(("salt", "adapter"), [("a", None), (None, b"a"), ("a", b"a")])
def test_other_salts_and_adapters_see_nothing(salt: str | None, adapter: bytes | None) -> None:
    cache = SuffixCache()
    generate(cache, sequence("b"))
    generate(cache, sequence(None, b"b"))
    generate(cache, sequence())
    assert not any(generate(cache, sequence(salt, adapter)))


def test_memory_is_bounded() -> None:
    recent, output = RecentOutputs(kept_tokens=20), list(range(100))
    for place in range(SIZE, 100):
        recent.add((None, None), tuple(output[place - SIZE : place]), (output, place))
    found = [
        place
        for place in range(SIZE, 100)
        if recent.find((None, None), tuple(output[place - SIZE : place])) is not None
    ]
    assert found == list(range(found[0], 100))  # the last ones
    assert 10 <= len(found) <= 20


def test_the_setting_names_it() -> None:
    assert isinstance(make_proposer(EngineConfig(speculation="suffix").speculation), SuffixCache)
