"""A converted model gives what the original gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax.numpy as jnp
import pytest

from checkpoints import open_checkpoint
from checkpoints.convert import convert
from jaxserve.config import EngineConfig, Quantization
from jaxserve.engine.frontend.llm import LLM
from jaxserve.engine.startup.device_info import DeviceInfo
from jaxserve.engine.startup.stored_forms import planned_model
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


@pytest.mark.parametrize("kind", ["int4", pytest.param("fp8", marks=pytest.mark.slow)])
def test_stored_and_widened_weights_serve_the_same(
    tiny_llama: Path, llm_settings: dict[str, Any], prompts: Any, kind: Quantization
) -> None:
    params = SamplingParams(temperature=0, max_tokens=24, logprobs=2, ignore_eos=True)
    made = {}
    for weights in ("stored", "widened"):
        engine = LLM(
            str(tiny_llama), progress=False, quantization=kind, weights=weights, **llm_settings
        )
        made[weights] = [output.outputs for output in engine.generate(prompts, params)]
        assert engine.core.compiles == 0
        engine.core.close()
    assert made["stored"] == made["widened"]


def test_16_bit_floats_stay_so_in_memory_with_the_numbers_of_float32(
    tiny_llama: Path, tmp_path: Path, llm_settings: dict[str, Any], prompts: Any
) -> None:
    folder = tmp_path / "bfloat16"
    convert(tiny_llama, folder, jnp.dtype(jnp.bfloat16))
    params = SamplingParams(temperature=0, max_tokens=12, logprobs=2, ignore_eos=True)
    made, nbytes = [], []
    for weights in ("auto", "widened"):
        config = EngineConfig(str(folder), weights=weights)  # type: ignore[arg-type]
        model = planned_model(config, open_checkpoint(folder), DeviceInfo.here(config))
        nbytes.append(model.nbytes)
        engine = LLM(str(folder), progress=False, weights=weights, **llm_settings)
        made.append([output.outputs for output in engine.generate(prompts, params)])
        engine.core.close()
    assert made[0] == made[1]
    assert nbytes[0] < 0.6 * nbytes[1]


def test_an_fp8_cache_holds_four_times_the_tokens_of_float32(
    tiny_llama: Path, llm: LLM, llm_settings: dict[str, Any], prompts: Any
) -> None:
    params = SamplingParams(temperature=0, max_tokens=8, logprobs=1, ignore_eos=True)
    engine = LLM(str(tiny_llama), progress=False, kv_cache_dtype="fp8_e4m3", **llm_settings)
    assert engine.core.ready.num_blocks == 4 * llm.core.ready.num_blocks
    first, again = (engine.generate(prompts, params) for _ in range(2))
    for ours, cached, exact in zip(first, again, llm.generate(prompts, params), strict=True):
        # A prompt that is found in the cache gives what it gave.
        assert ours.outputs[0].token_ids == cached.outputs[0].token_ids
        mine, theirs = ours.outputs[0].logprobs, exact.outputs[0].logprobs
        assert mine is not None
        assert theirs is not None
        found, wanted = mine[0].logprob, theirs[0].logprob
        assert found == pytest.approx(wanted, abs=0.1)
        assert found != wanted
    assert engine.core.compiles == 0
    engine.core.close()
