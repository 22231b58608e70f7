from __future__ import annotations

import argparse
import dataclasses

import pytest

from jaxserve.cli import flags
from jaxserve.cli.main import main
from jaxserve.config import GIB, EngineConfig, ServerConfig
from jaxserve.sampling.params import SamplingParams


def parse(settings: type, *words: str) -> object:
    parser = argparse.ArgumentParser()
    flags.add_flags(parser, settings)
    return flags.build(settings, parser.parse_args(words))


@pytest.mark.parametrize("settings", [EngineConfig, ServerConfig])
def test_no_flags_give_the_defaults(settings: type) -> None:
    assert parse(settings) == settings()


def test_every_setting_has_help_and_no_help_is_stale() -> None:
    fields = {f.name for s in (EngineConfig, ServerConfig) for f in dataclasses.fields(s)}
    sampling = {f.name for f in dataclasses.fields(SamplingParams)}
    assert fields <= set(flags.HELP) <= fields | sampling


def test_flags_of_each_kind() -> None:
    assert parse(
        EngineConfig,
        *["--model", "x", "--max-num-seqs", "4", "--kv-cache-memory", "2GiB"],
        *["--gpu-memory-utilization", "0.5", "--no-overlap"],
    ) == EngineConfig(
        model="x",
        max_num_seqs=4,
        kv_cache_memory=2 * GIB,
        gpu_memory_utilization=0.5,
        overlap=False,
    )
    assert parse(ServerConfig, "--served-model-names", "a", "b") == ServerConfig(
        served_model_names=("a", "b")
    )
    names = ("--served-model-names", "a", "--served-model-names", "b")
    assert parse(ServerConfig, *names).served_model_names == ("a", "b")


def test_a_model_after_a_key_is_no_key() -> None:
    parser = argparse.ArgumentParser()
    flags.add_model(parser, EngineConfig)
    flags.add_flags(parser, ServerConfig)
    args = parser.parse_args(["--api-key", "one", "--api-key", "two", "model"])
    assert flags.build(ServerConfig, args).api_key == ("one", "two")
    assert flags.build(EngineConfig, args).model == "model"


def test_a_flag_belongs_to_one_class() -> None:
    parser = argparse.ArgumentParser()
    flags.add_model(parser, EngineConfig)
    flags.add_flags(parser, SamplingParams, only=["seed", "max_tokens"], max_tokens=9)
    args = parser.parse_args(["there", "--seed", "5"])
    assert flags.build(EngineConfig, args) == EngineConfig(model="there")
    assert flags.build(SamplingParams, args) == SamplingParams(seed=5, max_tokens=9)


def test_an_unset_field_takes_its_default_from_elsewhere() -> None:
    parser = argparse.ArgumentParser()
    flags.add_flags(parser, SamplingParams, only=["top_p", "top_k"], unset=["top_p", "top_k"])
    args = parser.parse_args(["--top-p", "1"])
    assert flags.build(SamplingParams, args, top_p=0.9, top_k=5) == SamplingParams(top_k=5)


@pytest.mark.parametrize(
    ("text", "size"),
    [("4096", 4096), ("2GiB", 2**31), ("1.5g", 3 * 2**29), ("512 MB", 2**29), ("8k", 8192)],
)
def test_sizes(text: str, size: int) -> None:
    assert flags.parse_size(text) == size


@pytest.mark.parametrize("text", ["", "big", "2XB", "-1GiB", "GiB"])
def test_not_sizes(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="512MiB"):
        flags.parse_size(text)


@pytest.mark.parametrize("size", [0, 1, 1000, 1024, 3 * 2**19, 2**23, 2**40, 5 * 2**50])
def test_formatted_sizes_read_back(size: int) -> None:
    assert flags.parse_size(flags.format_size(size)) == size


@pytest.mark.parametrize(
    "command", ["serve", "generate", "chat", "pull", "run-batch", "bench", "bench serve"]
)
def test_help_of_each_command(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main([*command.split(), "--help"])
    assert exit_.value.code == 0
    assert "usage: jaxserve " + command in capsys.readouterr().out


def test_words_give_the_settings_back() -> None:
    for settings in (
        EngineConfig(),
        EngineConfig("x", max_num_seqs=4, kv_cache_memory=GIB, overlap=False, forbid_compile=True),
        ServerConfig(served_model_names=("a", "b"), drain_timeout=2.5),
    ):
        assert parse(type(settings), *flags.words(settings)) == settings
