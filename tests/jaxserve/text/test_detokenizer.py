from __future__ import annotations

from collections.abc import Sequence

import pytest
import tokenizers
from hypothesis import example, given
from hypothesis import strategies as st

from jaxserve.outputs import CompletionDelta
from jaxserve.sampling.params import SamplingParams
from jaxserve.text.detokenizer import Detokenizer
from jaxserve.text.tokenizer import Tokenizer

VOCAB = 400
REPLACEMENT = "\ufffd"

id_lists = st.lists(st.integers(0, VOCAB + 5), max_size=40)
cuts = st.lists(st.integers(1, 5), max_size=60)


def chunks(ids: Sequence[int], sizes: Sequence[int]) -> list[Sequence[int]]:
    out, at = [], 0
    for size in sizes:
        out.append(ids[at : at + size])
        at += size
    return [c for c in [*out, ids[at:]] if c]


def characters(data: bytes) -> str:
    """UTF-8 as sentencepiece decodes it: each byte that belongs to no character is U+FFFD."""
    text, at = "", 0
    while at < len(data):
        for size in range(1, 5):
            try:
                text += data[at : at + size].decode()
            except UnicodeDecodeError:
                continue
            at += size
            break
        else:
            text, at = text + REPLACEMENT, at + 1
    return text


def stream(
    tokenizer: Tokenizer, parts: Sequence[Sequence[int]], params: SamplingParams
) -> list[CompletionDelta]:
    """All parts, then the end by length."""
    detokenizer = Detokenizer(tokenizer, params)
    return [*(detokenizer.add(part) for part in parts), detokenizer.add((), "length")]


def whole(deltas: Sequence[CompletionDelta]) -> tuple[str, tuple[int, ...], object, object]:
    """What a client puts together; exactly one delta ends the choice."""
    (last,) = [d for d in deltas if d.finish_reason is not None]
    ids = tuple(i for d in deltas for i in d.token_ids)
    return "".join(d.text for d in deltas), ids, last.finish_reason, last.stop_reason


def cut_at_first_stop(
    text: str, stop: Sequence[str], hidden: str = "", passed: int = 0
) -> tuple[str, str | None]:
    """The definition: read until a stop string is complete, and cut before the longest. Characters
    of `hidden` aren't shown; stop strings that end within the first `passed` characters are passed
    over."""

    def shown(part: str) -> str:
        return "".join(c for c in part if c not in hidden)

    for end in range(passed + 1, len(text) + 1):
        complete = [s for s in stop if text[:end].endswith(s)]
        if complete:
            longest = max(complete, key=len)
            return shown(text[: end - len(longest)]), longest
    return shown(text), None


@given(id_lists, cuts, st.booleans())
@example([0xE6], [], False)
def test_any_chunking_gives_the_text_of_the_library(
    backend: tokenizers.Tokenizer,
    byte_level: Tokenizer,
    ids: list[int],
    sizes: list[int],
    skip: bool,
) -> None:
    params = SamplingParams(skip_special_tokens=skip)
    text, out, reason, _ = whole(stream(byte_level, chunks(ids, sizes), params))
    assert text == backend.decode(ids, skip_special_tokens=skip)
    assert (out, reason) == (tuple(ids), "length")


@given(st.text(st.sampled_from("the cats 東京🚀é\n"), max_size=30), cuts)
def test_byte_fallback_gives_the_text_that_was_encoded(
    byte_fallback: Tokenizer, text: str, sizes: list[int]
) -> None:
    ids = byte_fallback.encode(text)
    deltas = stream(byte_fallback, chunks(ids, sizes), SamplingParams())
    assert whole(deltas)[0] == text
    assert not any(REPLACEMENT in d.text for d in deltas)


@given(st.lists(st.integers(0, 268), max_size=40), cuts)
@example([98, 232, 157, 179], [1, 1])
def test_byte_fallback_in_any_chunks_gives_the_text_of_its_bytes(
    byte_fallback: Tokenizer, ids: list[int], sizes: list[int]
) -> None:
    """Bytes that are no characters among them. (The tokenizers library decodes each run of bytes
    alone, and finds no character in a run with a wrong byte.)"""
    words = [" ", " the", " a", "cat", "s", "t", "a", "h", "e", "c"]
    data = b"".join(
        bytes([i - 3]) if i < 259 else words[i - 259].encode() for i in ids if 3 <= i < 269
    )
    right = characters(data).removeprefix(" ")
    stop = ("t", "\ufffd\ufffd")
    params = SamplingParams(stop=stop)
    text, out, _, stop_reason = whole(stream(byte_fallback, chunks(ids, sizes), params))
    assert (text, stop_reason) == cut_at_first_stop(right, stop)
    assert out == tuple(ids[: len(out)])


@given(
    st.lists(st.sampled_from([*"abc", "東"]), max_size=30).map("".join),
    st.lists(st.text("abc東", min_size=1, max_size=4), min_size=1, max_size=4),
    cuts,
)
@example("aab", ["ab"], [1, 1, 1])
@example("abcabd", ["abd"], [1, 1, 1, 1, 1, 1])
@example("abc", ["c", "bc", "abc"], [])
def test_stop_strings_equal_their_definition(
    backend: tokenizers.Tokenizer,
    byte_level: Tokenizer,
    text: str,
    stop: list[str],
    sizes: list[int],
) -> None:
    ids = [i for c in text for i in byte_level.encode(c)]
    params = SamplingParams(stop=tuple(stop))
    deltas = stream(byte_level, chunks(ids, sizes), params)
    got, out, reason, stop_reason = whole(deltas)
    expected, matched = cut_at_first_stop(text, stop)
    assert (got, stop_reason) == (expected, matched)
    assert reason == ("length" if matched is None else "stop")
    assert out == tuple(ids[: len(out)])
    if matched is None:
        assert len(out) == len(ids)
    else:  # ids end with the token that completed the stop string
        assert backend.decode(list(out)).startswith(expected + matched)
        assert not backend.decode(list(out[:-1])).startswith(expected + matched)


@given(
    st.lists(st.sampled_from("abc"), max_size=20).map("".join),
    st.lists(st.text("abc", min_size=1, max_size=4), min_size=1, max_size=4),
    cuts,
    st.integers(0, 12),
)
@example("xab", ["ab", "xabc"], [], 3)
def test_stop_strings_before_min_tokens_are_passed_over(
    byte_level: Tokenizer, text: str, stop: list[str], sizes: list[int], min_tokens: int
) -> None:
    """Here each character is a token; the one that completes a stop string counts."""
    ids = [i for c in text for i in byte_level.encode(c)]
    params = SamplingParams(stop=tuple(stop), min_tokens=min_tokens, max_tokens=50)
    got, out, _, stop_reason = whole(stream(byte_level, chunks(ids, sizes), params))
    assert (got, stop_reason) == cut_at_first_stop(text, stop, passed=min_tokens - 1)
    assert stop_reason is None or len(out) >= min_tokens


# Two special tokens in the definition's texts, as single characters.
MARKS = {"\u0001": "<|user|>", "\u0002": "<|bot|>"}


@given(
    st.text("ab\u0001\u0002", max_size=20),
    st.lists(st.text("ab\u0001", min_size=1, max_size=3), min_size=1, max_size=3),
    cuts,
)
@example("\u0001a", ["\u0001a"], [1])
@example("a\u0001b", ["ab", "\u0001\u0001"], [1])
def test_stop_strings_with_special_tokens(
    byte_level: Tokenizer, text: str, stop: list[str], sizes: list[int]
) -> None:
    """The names of special tokens that aren't shown are searched if a stop string has them; other
    special tokens don't interrupt a stop string."""

    def written(part: str) -> str:
        return "".join(MARKS.get(c, c) for c in part)

    ids = [i for c in text for i in byte_level.encode(written(c), add_special_tokens=False)]
    assert len(ids) == len(text)
    searched = "\u0001" if "\u0001" in "".join(stop) else ""
    seen = "".join(c for c in text if c in "ab" + searched)
    params = SamplingParams(stop=tuple(map(written, stop)))
    got, _, _, stop_reason = whole(stream(byte_level, chunks(ids, sizes), params))
    expected, matched = cut_at_first_stop(seen, stop, hidden="\u0001")
    assert got == expected
    assert stop_reason == (None if matched is None else written(matched))


def test_a_stop_string_that_is_a_special_token_can_be_included(byte_level: Tokenizer) -> None:
    params = SamplingParams(stop=("<|user|>",), include_stop_str_in_output=True)
    a = byte_level.encode("a")[0]
    delta = Detokenizer(byte_level, params).add([a, 2, 1, a])
    assert delta == CompletionDelta(0, "a<|user|>", (a, 2, 1), "stop", "<|user|>")


def test_a_split_character_is_held_back(byte_level: Tokenizer) -> None:
    first, *rest = byte_level.encode("🦜")  # not in the training text
    assert rest
    detokenizer = Detokenizer(byte_level, SamplingParams())
    assert detokenizer.add([first]).text == ""
    assert detokenizer.add(rest).text == "🦜"
    assert detokenizer.add([first]).text == ""
    assert detokenizer.add((), "length").text == REPLACEMENT


def test_text_is_held_back_only_while_it_can_match(byte_level: Tokenizer) -> None:
    detokenizer = Detokenizer(byte_level, SamplingParams(stop=("xyz",)))
    texts = [detokenizer.add(byte_level.encode(c)).text for c in "axybxy"]
    assert texts == ["a", "", "", "xyb", "", ""]
    assert detokenizer.add((), "length").text == "xy"


def test_ids_after_the_stop_are_dropped(byte_level: Tokenizer) -> None:
    ids = [byte_level.encode(c)[0] for c in "abcd"]
    detokenizer = Detokenizer(byte_level, SamplingParams(stop=("b",)), index=2)
    delta = detokenizer.add(ids, "length")
    assert delta == CompletionDelta(2, "a", tuple(ids[:2]), "stop", "b")
    assert detokenizer.finished
    assert detokenizer.add(ids) == CompletionDelta(2, "")


@pytest.mark.parametrize("skip", [True, False])
def test_the_token_that_ended_the_output_is_not_in_the_text(
    byte_level: Tokenizer, skip: bool
) -> None:
    a, b = byte_level.encode("a")[0], byte_level.encode("b")[0]
    params = SamplingParams(skip_special_tokens=skip, stop_token_ids=(b,))
    eos = Detokenizer(byte_level, params).add([a, 0], "stop")
    assert eos == CompletionDelta(0, "a", (a, 0), "stop", None)
    stop = Detokenizer(byte_level, params).add([a, b], "stop", b)
    assert stop == CompletionDelta(0, "a", (a, b), "stop", b)


def test_special_tokens_show_when_asked(byte_level: Tokenizer) -> None:
    a = byte_level.encode("a")[0]
    for skip, text in ((True, "aa"), (False, "a<|user|>a")):
        detokenizer = Detokenizer(byte_level, SamplingParams(skip_special_tokens=skip))
        assert detokenizer.add([a, 1, a], "length").text == text


def test_the_window_stays_short(byte_fallback: Tokenizer) -> None:
    """Endless invalid bytes are returned with a bounded delay, not held back until the end."""
    detokenizer = Detokenizer(byte_fallback, SamplingParams())
    invalid = 3 + 0xFF
    for _ in range(50):
        assert detokenizer.add([invalid] * 4).text
