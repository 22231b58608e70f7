"""Which grammars are cached, and for how long."""

from __future__ import annotations

import math
from concurrent.futures import Future
from pathlib import Path

import pytest

from jaxserve.engine.core.grammar_cache import (
    MAX_BYTES,
    MAX_ENTRIES,
    MAX_GRAMMAR_BYTES,
    GrammarCache,
)
from jaxserve.errors import InvalidRequestError
from jaxserve.sampling.grammar import GROWTH, Grammar, GrammarCompiler
from jaxserve.sampling.grammar_trial import TooSlowError
from jaxserve.sampling.params import StructuredOutputsParams
from jaxserve.text.tokenizer import load_tokenizer


def params_of(n: int) -> StructuredOutputsParams:
    return StructuredOutputsParams(regex=f"a{{{n + 1}}}")


def done(outcome: Grammar | Exception) -> Future[Grammar]:
    future: Future[Grammar] = Future()
    if isinstance(outcome, Grammar):
        future.set_result(outcome)
    else:
        future.set_exception(outcome)
    return future


@pytest.fixture(scope="module")
def compiler(tiny_llama: Path) -> GrammarCompiler:
    tokenizer = load_tokenizer(tiny_llama)
    return GrammarCompiler(tokenizer.grammar_vocabulary(tokenizer.num_ids))


def test_the_least_recently_used_and_the_too_large_are_dropped(compiler: GrammarCompiler) -> None:
    cache = GrammarCache()
    grammars = [compiler.compile(params_of(n)) for n in range(MAX_ENTRIES + 1)]
    for n, grammar in enumerate(grammars):
        cache.put(params_of(n), done(grammar))
    known = [cache.get(params_of(n)) for n in range(MAX_ENTRIES + 1)]
    assert known[0] is None
    assert [future.result() for future in known[1:] if future] == grammars[1:]

    for grammar in grammars[-9:]:  # they have grown with use
        grammar.used_s = MAX_GRAMMAR_BYTES / GROWTH
    assert cache.get(params_of(MAX_ENTRIES)) is not None
    assert cache.get(params_of(MAX_ENTRIES - 8)) is None
    assert 0.8 * MAX_BYTES < cache.size < MAX_BYTES


def test_a_grammar_that_has_grown_too_large_is_dropped(compiler: GrammarCompiler) -> None:
    cache = GrammarCache()
    for new_bytes, used_s in (
        (MAX_GRAMMAR_BYTES + 1, 0.0),
        (0, 2 * MAX_GRAMMAR_BYTES / GROWTH),
        (0, math.inf),
    ):
        grammar = compiler.compile(params_of(0))
        cache.put(params_of(0), done(grammar))
        assert cache.get(params_of(0)) is not None
        grammar.new_bytes, grammar.used_s = new_bytes, used_s
        assert cache.get(params_of(0)) is None


def test_a_refusal_is_kept_if_it_was_costly(compiler: GrammarCompiler) -> None:
    cache = GrammarCache()
    cache.put(params_of(0), done(TooSlowError("too slow")))
    cache.put(params_of(1), done(InvalidRequestError("no grammar")))
    known = cache.get(params_of(0))
    assert known is not None
    with pytest.raises(InvalidRequestError, match="too slow"):
        known.result()
    assert cache.get(params_of(1)) is None


def test_one_that_grew_without_limit_drops_no_other(compiler: GrammarCompiler) -> None:
    cache = GrammarCache()
    for n in range(3):
        cache.put(params_of(n), done(compiler.compile(params_of(n))))
    grown = cache.get(params_of(2))
    assert grown is not None
    grown.result().used_s = math.inf  # it has met a limit
    assert [cache.get(params_of(n)) is None for n in range(3)] == [False, False, True]
