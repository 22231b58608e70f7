"""The process that compiles grammars first: what its end means, and that it ends with its owner."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from jaxserve.errors import EngineError, InvalidRequestError, OverloadedError
from jaxserve.sampling import grammar_trial
from jaxserve.sampling.grammar_trial import OUT_OF_MEMORY, GrammarTrial, TooCostlyError
from jaxserve.sampling.params import StructuredOutputsParams
from jaxserve.text.tokenizer import load_tokenizer

GOOD = StructuredOutputsParams(regex="a*")
LARGE = StructuredOutputsParams(json='{"type": "integer", "multipleOf": 9991}')  # once compiled
LONG = StructuredOutputsParams(regex="a" * 2**18)  # more than a pipe holds


def wanted() -> bool:
    return True


def unwanted() -> bool:
    return False


@pytest.fixture
def trial(tiny_llama: Path) -> GrammarTrial:
    tokenizer = load_tokenizer(tiny_llama)
    return GrammarTrial(lambda: tokenizer.grammar_vocabulary(tokenizer.num_ids), 10)


def test_a_closed_trial_starts_no_process(trial: GrammarTrial) -> None:
    trial.close()
    with pytest.raises(EngineError, match="the engine shuts down"):
        trial.check(GOOD, wanted)
    assert trial._process is None


@pytest.mark.slow
def test_a_process_that_was_killed_is_an_engine_error(trial: GrammarTrial) -> None:
    trial.check(GOOD, wanted)
    assert trial._process is not None
    trial._process.kill()
    with pytest.raises(EngineError, match=f"status -{signal.SIGKILL:d}"):
        raise trial._end()
    trial.check(GOOD, wanted)  # by another process
    assert trial.check(LARGE, wanted) > 2**20 > trial.check(GOOD, wanted) > 0
    with pytest.raises(InvalidRequestError, match="regex"):
        trial.check(StructuredOutputsParams(regex="("), wanted)
    trial.close()
    assert trial._process.poll() is not None


def test_a_process_out_of_memory_is_a_request_error(trial: GrammarTrial) -> None:
    for end in (f"import os; os._exit({OUT_OF_MEMORY})", "import os; os.abort()"):
        trial._process = subprocess.Popen([sys.executable, "-c", end])
        assert isinstance(trial._end(), TooCostlyError)


@pytest.mark.parametrize("params", [GOOD, LONG])
def test_a_process_that_does_nothing_is_ended(
    trial: GrammarTrial, monkeypatch: pytest.MonkeyPatch, params: StructuredOutputsParams
) -> None:
    """After its timeout, or when the grammar isn't needed any more, whether or not it reads."""
    monkeypatch.setattr(grammar_trial, "POLL_S", 0.01)
    for asks, error in ((unwanted, EngineError), (wanted, OverloadedError)):
        trial._launch("-c", "import time; time.sleep(1000)")
        with pytest.raises(error):
            trial.check(params, asks)
        assert trial._process is not None
        assert trial._process.poll() == -signal.SIGKILL
        monkeypatch.setattr(grammar_trial, "TIMEOUT_S", 0.1)
