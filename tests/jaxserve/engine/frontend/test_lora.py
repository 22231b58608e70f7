"""Adapters from where a user stands: LLM.generate(..., lora=...)."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from jaxserve.engine.frontend.llm import LLM
from jaxserve.errors import CheckpointError, ConfigError, InvalidRequestError
from jaxserve.outputs import CompletionOutput
from jaxserve.sampling.params import BeamSearchParams, SamplingParams
from tests.adapter_folders import merge, write_adapter

NAMES = [f"a{i}" for i in range(6)]
GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, logprobs=3)


@pytest.fixture(scope="module")
def folders(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Adapters of several ranks and modules, and two on the tables."""
    root = tmp_path_factory.mktemp("adapters")
    modules = [("q_proj", "v_proj"), ("proj",), ("down_proj",), ("proj",), ("lm_head",), ("proj",)]
    return {
        name: write_adapter(root / name, tiny_llama, i, 1 + 3 * i, modules[i])
        for i, name in enumerate(NAMES)
    }


@pytest.fixture(scope="module")
def adapted(
    tiny_llama: Path, llm_settings: dict[str, Any], folders: dict[str, Path]
) -> Iterator[LLM]:
    named = tuple(f"{name}={folder}" for name, folder in folders.items())
    llm = LLM(
        str(tiny_llama), progress=False, lora=named, max_loras=2, max_cpu_loras=3, **llm_settings
    )
    yield llm
    assert llm.core.compiles == 0
    llm.core.close()


def bits(output: CompletionOutput) -> tuple[Any, ...]:
    return output.token_ids, output.logprobs, output.finish_reason


def test_adapters_give_what_the_merged_weights_give(
    adapted: LLM,
    folders: dict[str, Path],
    tiny_llama: Path,
    tmp_path: Path,
    llm_settings: dict[str, Any],
    prompts: list[list[int]],
) -> None:
    weights = load_file(tiny_llama / "model.safetensors")
    params = replace(GREEDY, prompt_logprobs=2)
    base = adapted.generate(prompts[0], params)[0].outputs[0]
    for name in ("a1", "a4"):
        folder = tmp_path / name
        shutil.copytree(tiny_llama, folder)
        save_file(merge(folders[name], weights), folder / "model.safetensors")
        merged = LLM(str(folder), progress=False, **llm_settings)
        for prompt in prompts:
            (want,), (got,) = (
                merged.generate(prompt, params),
                adapted.generate(prompt, params, lora=name),
            )
            assert got.outputs[0].token_ids == want.outputs[0].token_ids
            for one, other in zip(
                [*got.outputs[0].logprobs, *got.prompt_logprobs[1:]],
                [*want.outputs[0].logprobs, *want.prompt_logprobs[1:]],
                strict=True,
            ):
                assert one.logprob == pytest.approx(other.logprob, abs=1e-4)
        assert adapted.generate(prompts[0], params, lora=name)[0].outputs[0] != base
        merged.core.close()


def test_mixed_batches_give_the_bits_of_each_request_alone(
    adapted: LLM, llm: LLM, prompts: list[list[int]]
) -> None:
    """Six adapters and none over two slots; the base model's are those of an engine without
    adapters."""
    kinds = [
        GREEDY,
        replace(GREEDY, temperature=1.0, seed=1, top_p=0.9),
        replace(GREEDY, n=2, seed=7, temperature=0.8),
        replace(GREEDY, prompt_logprobs=1, max_tokens=5),
    ]
    names = [None, *NAMES]
    jobs = [(prompts[i % len(prompts)], kinds[i % 4], names[i % 7]) for i in range(28)]
    given, params_of, names_of = map(list, zip(*jobs, strict=True))
    together = adapted.generate(given, params_of, lora=names_of)
    for (prompt, params, name), shared in zip(jobs, together, strict=True):
        (alone,) = adapted.generate([prompt], params, lora=name)
        assert list(map(bits, shared.outputs)) == list(map(bits, alone.outputs))
        assert shared.prompt_logprobs == alone.prompt_logprobs
        if name is None:
            (plain,) = llm.generate([prompt], params)
            assert list(map(bits, shared.outputs)) == list(map(bits, plain.outputs))
            assert shared.prompt_logprobs == plain.prompt_logprobs


def test_beams_and_embeddings_have_the_adapter(adapted: LLM, prompts: list[list[int]]) -> None:
    beams = SamplingParams(max_tokens=4, beam_search=BeamSearchParams(beam_width=2), n=2)
    found = {
        name: adapted.generate([prompts[0]], beams, lora=name)[0].outputs
        for name in (None, "a1", "a3")
    }
    assert len({str(outputs) for outputs in found.values()}) == 3
    vectors = adapted.embed(prompts[:3], lora=[None, "a1", "a3"])
    for prompt, name, vector in zip(prompts, (None, "a1", "a3"), vectors, strict=False):
        np.testing.assert_array_equal(adapted.embed(prompt, lora=name)[0], vector)
    assert not np.array_equal(vectors[0], adapted.embed(prompts[0], lora="a1")[0])


def test_the_prefix_cache_knows_adapters_by_their_content(
    adapted: LLM, folders: dict[str, Path], tiny_llama: Path, tmp_path: Path
) -> None:
    prompt = list(range(3, 60))

    def hits(name: str | None) -> int:
        return adapted.generate([prompt], GREEDY, lora=name)[0].num_cached_tokens

    assert [hits(None), hits("a1"), hits("a3")] == [0, 0, 0]
    assert [hits(None), hits("a1"), hits("a3")] == [48, 48, 48]
    adapted.load_lora("again", str(shutil.copytree(folders["a1"], tmp_path / "again")))
    assert hits("again") == 48  # the same content under another name
    first = adapted.generate([prompt], GREEDY, lora="again")[0].outputs[0]
    write_adapter(tmp_path / "again", tiny_llama, seed=77)
    adapted.load_lora("again", str(tmp_path / "again"))
    assert hits("again") == 0  # other content under the same name
    assert adapted.generate([prompt], GREEDY, lora="again")[0].outputs[0] != first
    adapted.unload_lora("again")
    with pytest.raises(InvalidRequestError, match="no adapter 'again'"):
        hits("again")


def test_a_folder_may_be_named_itself(adapted: LLM, tiny_llama: Path, tmp_path: Path) -> None:
    folder = str(write_adapter(tmp_path / "own", tiny_llama, 99))
    adapted.generate("x", GREEDY, lora=folder)
    assert folder in adapted.loras
    adapted.unload_lora(folder)


def test_files_that_changed_behind_a_name_fail_its_requests_alone(
    adapted: LLM, tiny_llama: Path, tmp_path: Path, prompts: list[list[int]]
) -> None:
    folder = write_adapter(tmp_path / "own", tiny_llama, 5)
    adapted.load_lora("own", str(folder))
    write_adapter(folder, tiny_llama, 6)
    for name in NAMES[:4]:  # more than host memory holds
        adapted.generate(prompts[0], GREEDY, lora=name)
    with pytest.raises(Exception, match="its files have changed since it was loaded"):
        adapted.generate(prompts[0], GREEDY, lora="own")
    adapted.load_lora("own", str(folder))
    adapted.generate(prompts[0], GREEDY, lora="own")
    adapted.unload_lora("own")


def test_bad_adapters_and_names_are_refused(
    adapted: LLM, llm: LLM, tmp_path: Path, prompts: list[list[int]]
) -> None:
    with pytest.raises(InvalidRequestError, match="no adapter 'nobody'"):
        adapted.generate(prompts[0], GREEDY, lora="nobody")
    with pytest.raises(InvalidRequestError, match="started without adapters"):
        llm.generate(prompts[0], GREEDY, lora="a0")
    with pytest.raises(ConfigError, match="max_loras"):
        llm.load_lora("x", str(tmp_path))
    with pytest.raises(InvalidRequestError, match="2 prompts came with 1 adapters"):
        adapted.generate(prompts[:2], GREEDY, lora=["a0"])
    (tmp_path / "adapter_config.json").write_text("{")
    with pytest.raises(CheckpointError, match="not valid JSON"):
        adapted.load_lora("bad", str(tmp_path))
    assert "bad" not in adapted.loras


@pytest.mark.slow
def test_several_steps_in_one_dispatch_have_adapters_too(
    tiny_llama: Path,
    llm_settings: dict[str, Any],
    folders: dict[str, Path],
    adapted: LLM,
    prompts: list[list[int]],
) -> None:
    named = ("a1=" + str(folders["a1"]), "a4=" + str(folders["a4"]))
    several = LLM(str(tiny_llama), progress=False, lora=named, decode_steps=4, **llm_settings)
    names = [None, "a1", "a4"]
    params = replace(GREEDY, logprobs=None, max_tokens=20)
    jobs = [prompts[i % len(prompts)] for i in range(3)]
    for got, want in zip(
        several.generate(jobs, params, lora=names),
        adapted.generate(jobs, params, lora=names),
        strict=True,
    ):
        assert got.outputs[0].token_ids == want.outputs[0].token_ids
    assert several.core.compiles == 0
    several.core.close()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["int8", "fp8", "int4"])
def test_quantised_bases_take_float_adapters(
    kind: Any,
    tiny_llama: Path,
    llm_settings: dict[str, Any],
    folders: dict[str, Path],
    tmp_path: Path,
    prompts: list[list[int]],
) -> None:
    """The adapter comes on top of the numbers that the codes stand for."""
    from checkpoints import open_checkpoint
    from checkpoints.weight_map import sources

    checkpoint = open_checkpoint(tiny_llama, kind)
    weights = load_file(tiny_llama / "model.safetensors")
    stored = LLM(
        str(tiny_llama),
        progress=False,
        quantization=kind,
        weights="stored",
        lora=(f"a1={folders['a1']}",),
        **llm_settings,
    )
    widened = dict(weights)
    for path, source in sources(checkpoint.config).items():
        if checkpoint.form(path) is None:
            continue
        floats = np.asarray(checkpoint.parameter(path)).reshape(-1)
        whole = source.build(
            *(weights[name] * 0 + i for i, name in enumerate(source.tensors))
        ).reshape(-1)
        for i, name in enumerate(source.tensors):
            numbers = np.arange(weights[name].size).reshape(weights[name].shape)
            others = [
                np.full(weights[n].shape, -1) if n != name else numbers for n in source.tensors
            ]
            place = source.build(*others).reshape(-1)
            own = np.empty(weights[name].size, np.float32)
            own[place[place >= 0]] = floats[place >= 0]
            assert (whole[place >= 0] == i).all()
            widened[name] = own.reshape(weights[name].shape)
    folder = tmp_path / "merged"
    shutil.copytree(tiny_llama, folder)
    save_file(merge(folders["a1"], widened), folder / "model.safetensors")
    merged = LLM(str(folder), progress=False, **llm_settings)
    for prompt in prompts:
        (got,) = stored.generate(prompt, GREEDY, lora="a1")
        (want,) = merged.generate(prompt, GREEDY)
        assert got.outputs[0].token_ids == want.outputs[0].token_ids
        for one, other in zip(got.outputs[0].logprobs, want.outputs[0].logprobs, strict=True):
            assert one.logprob == pytest.approx(other.logprob, abs=1e-3)
    stored.core.close()
    merged.core.close()
