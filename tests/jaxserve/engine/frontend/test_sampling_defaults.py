"""generation_config.json applies where a request leaves a setting unset, and is logged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from jaxserve.config import EngineConfig
from jaxserve.engine.frontend.llm import LLM
from jaxserve.engine.frontend.sampling_defaults import sampling_defaults
from jaxserve.errors import ConfigError
from jaxserve.sampling.params import SamplingParams


@pytest.fixture
def folder(tiny_llama: Path, tmp_path: Path) -> Path:
    for file in tiny_llama.iterdir():
        (tmp_path / file.name).symlink_to(file)
    settings = {"temperature": 0.0, "top_p": 0.9, "do_sample": True, "max_new_tokens": 7}
    (tmp_path / "generation_config.json").write_text(json.dumps(settings))
    return tmp_path


def test_the_file_is_read_and_logged_unless_it_is_left_aside(
    folder: Path, tiny_llama: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert sampling_defaults(EngineConfig(), folder) == {"temperature": 0.0, "top_p": 0.9}
    assert "temperature=0.0, top_p=0.9" in caplog.text
    caplog.clear()
    assert sampling_defaults(EngineConfig(generation_config="none"), folder) == {}
    assert sampling_defaults(EngineConfig(model=str(tiny_llama)), tiny_llama) == {}
    assert not caplog.records
    with pytest.raises(ConfigError, match="generation_config must be auto or none"):
        EngineConfig(generation_config="folder")


def test_the_demo_model_is_sampled_as_its_card_says(
    demo_model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """HuggingFaceTB/SmolLM2-135M-Instruct: temperature=0.2, top_p=0.9."""
    assert sampling_defaults(EngineConfig(), demo_model) == {"temperature": 0.2, "top_p": 0.9}
    assert "temperature=0.2, top_p=0.9, from the model's card" in caplog.text
    # A file that only looks like it has no card.
    assert sampling_defaults(EngineConfig(model=str(demo_model)), demo_model) == {}
    assert sampling_defaults(EngineConfig(generation_config="none"), demo_model) == {}


def test_what_holds_without_any_is_logged(
    tiny_llama: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO"):
        sampling_defaults(EngineConfig(model=str(tiny_llama)), tiny_llama)
    assert "temperature=1.0, top_p=1.0, jaxserve's own" in caplog.text


def test_prompts_without_params_are_sampled_as_the_model_says(
    folder: Path, llm: LLM, llm_settings: dict[str, Any], prompts: list[list[int]]
) -> None:
    own = LLM(str(folder), progress=False, **llm_settings)
    assert own.default_sampling_params() == SamplingParams(temperature=0.0, top_p=0.9)
    assert llm.default_sampling_params() == SamplingParams()

    def texts(llm: LLM, params: SamplingParams | None) -> list[str]:
        return [done.outputs[0].text for done in llm.generate(prompts, params)]

    greedy = texts(llm, SamplingParams(temperature=0))
    assert texts(own, None) == greedy
    hot = SamplingParams(temperature=2.0, seed=1)
    assert texts(own, hot) == texts(llm, hot) != greedy
    own.core.close()
