"""The process that tries grammars: what its end means, and that it ends with its owner."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from jaxserve.errors import EngineError, InvalidRequestError
from jaxserve.sampling.grammar_trial import OUT_OF_MEMORY, GrammarTrial
from jaxserve.sampling.params import StructuredOutputsParams
from jaxserve.text.tokenizer import load_tokenizer

GOOD = StructuredOutputsParams(regex="a*")


@pytest.fixture
def trial(tiny_llama: Path) -> GrammarTrial:
    tokenizer = load_tokenizer(tiny_llama)
    return GrammarTrial(
        lambda: (tokenizer.backend.to_str(), tokenizer.num_ids, tokenizer.eos_token_ids)
    )


def test_a_closed_trial_starts_no_process(trial: GrammarTrial) -> None:
    trial.close()
    with pytest.raises(EngineError, match="the engine ends"):
        trial.check(GOOD)
    assert trial._process is None


@pytest.mark.slow
def test_a_process_that_was_killed_is_no_fault_of_the_request(trial: GrammarTrial) -> None:
    trial.check(GOOD)
    assert trial._process is not None
    trial._process.kill()
    with pytest.raises(EngineError, match=f"status -{signal.SIGKILL:d}"):
        raise trial._end()
    trial.check(GOOD)  # by another process
    with pytest.raises(InvalidRequestError, match="regex"):
        trial.check(StructuredOutputsParams(regex="("))
    trial.close()
    assert trial._process.poll() is not None


def test_an_end_by_memory_is_the_requests(trial: GrammarTrial) -> None:
    for end in (f"import os; os._exit({OUT_OF_MEMORY})", "import os; os.abort()"):
        trial._process = subprocess.Popen([sys.executable, "-c", end])
        assert isinstance(trial._end(), InvalidRequestError)
