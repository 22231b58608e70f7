"""A converted model serves what the one it was made of does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from checkpoints.convert import convert
from jaxserve.engine.frontend.llm import LLM
from jaxserve.sampling.params import SamplingParams


@pytest.mark.slow
def test_orbax_serves_the_same_bits(
    tiny_llama: Path, tmp_path: Path, llm: LLM, llm_settings: dict[str, Any], prompts: Any
) -> None:
    convert(tiny_llama, tmp_path / "orbax", None)
    converted = LLM(str(tmp_path / "orbax"), progress=False, **llm_settings)
    assert llm.core.reset_prefix_cache()  # what is cached decides what is computed together
    for params in (
        SamplingParams(temperature=0, max_tokens=24, logprobs=5, ignore_eos=True),
        SamplingParams(seed=3, max_tokens=24, prompt_logprobs=2, ignore_eos=True),
    ):
        for ours, theirs in zip(
            converted.generate(prompts, params), llm.generate(prompts, params), strict=True
        ):
            assert ours.outputs == theirs.outputs
            assert ours.prompt_logprobs == theirs.prompt_logprobs
    assert converted.chat([{"role": "user", "content": "hi"}], params)[0].prompt_token_ids == (
        llm.chat([{"role": "user", "content": "hi"}], params)[0].prompt_token_ids
    )
    converted.core.close()
