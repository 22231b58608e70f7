"""The index finds what a scan of the text finds."""

from __future__ import annotations

import random

from jaxserve.engine.core.speculation.prompt_lookup import SIZES, NgramIndex


def scanned(text: list[int], most: int) -> list[int]:
    """What followed the last n-gram's occurrence before, the longest size first."""
    for size in SIZES:
        for end in range(len(text) - 1, size - 1, -1):
            if text[end - size : end] == text[-size:]:
                guess: list[int] = []
                while len(guess) < most:
                    guess += text[end:]
                return guess[:most]
    return []


def test_guesses_are_those_of_a_scan() -> None:
    rng = random.Random(0)
    found = 0
    for start in (0, 1, 3, 20):
        text = [rng.randrange(4) for _ in range(start)]
        index = NgramIndex(text)
        for _ in range(60):
            more = [rng.randrange(4) for _ in range(rng.randrange(1, 4))]
            index.extend(more)
            text += more
            guess = index.continuation(5)
            assert guess == scanned(text, 5)
            found += bool(guess)
    assert found > 100


def test_a_text_that_repeats_nothing_has_no_guess() -> None:
    index = NgramIndex(range(100))
    index.extend(range(100, 200))
    assert index.continuation(4) == []


def test_a_prediction_is_followed_from_its_beginning_and_found_again() -> None:
    index = NgramIndex([1, 2, 3, 4], prediction=[10, 11, 12, 13, 14, 15, 16])
    assert len(index) == 4
    assert index.continuation(3) == [10, 11, 12]
    index.extend([10, 11])
    assert index.continuation(3) == [12, 13, 14]
    index.extend([99])  # another token than predicted
    assert index.continuation(3) == []
    index.extend([13, 14])
    assert index.continuation(2) == [15, 16]
    assert len(index) == 9
