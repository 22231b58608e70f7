"""Settings from the command line, from variables and from a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from jaxserve.cli import flags
from jaxserve.cli.main import main, make_parser
from jaxserve.config import GIB, EngineConfig, ServerConfig
from jaxserve.sampling.params import SamplingParams


def serve(*words: str) -> tuple[EngineConfig, ServerConfig]:
    args = make_parser().parse_args(["serve", *words])
    return flags.build(EngineConfig, args), flags.build(ServerConfig, args)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "settings.yaml"
    path.write_text(
        "model: of-file\n"
        "max-num-seqs: 4\n"
        "kv_cache_memory: 2GiB\n"
        "overlap: false\n"
        "served-model-name: [a, b]\n"
        "enable-auto-tool-choice: true\n"
        "seed: null\n"
    )
    return path


def test_a_file_sets_what_flags_set(file: Path) -> None:
    engine, server = serve("--config", str(file))
    assert engine == EngineConfig("of-file", max_num_seqs=4, kv_cache_memory=2 * GIB, overlap=False)
    assert server.served_model_names == ("a", "b")


def test_the_command_line_comes_first_then_variables_then_the_file(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAXSERVE_CONFIG", str(file))
    monkeypatch.setenv("JAXSERVE_MAX_NUM_SEQS", "5")
    monkeypatch.setenv("JAXSERVE_SERVED_MODEL_NAMES", "c, d")
    monkeypatch.setenv("JAXSERVE_PAGE", "off")
    monkeypatch.setenv("JAXSERVE_FORBID_COMPILE", "1")
    engine, server = serve()
    assert (engine.model, engine.max_num_seqs, engine.overlap) == ("of-file", 5, False)
    assert engine.forbid_compile is True
    assert (server.served_model_names, server.page) == (("c", "d"), False)
    engine, server = serve("mine", "--max-num-seqs", "6", "--overlap", "--served-model-name", "e")
    assert (engine.model, engine.max_num_seqs, engine.overlap) == ("mine", 6, True)
    assert server.served_model_names == ("e",)
    monkeypatch.setenv("JAXSERVE_MODEL", "of-variable")
    assert serve()[0].model == "of-variable"
    assert serve("--model", "mine")[0].model == "mine"


def test_a_file_may_have_the_settings_of_other_commands(file: Path) -> None:
    words = ["generate", "hello", "--config", str(file), "--temperature", "0"]
    args = make_parser().parse_args(words)
    assert flags.build(EngineConfig, args).model == "of-file"
    assert flags.build(SamplingParams, args).temperature == 0


def test_keys_and_what_kubernetes_sets_are_no_flags(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAXSERVE_API_KEY", "secret")  # which the server reads itself
    monkeypatch.setenv("JAXSERVE_PORT", "tcp://10.0.0.1:8000")
    monkeypatch.setenv("JAXSERVE_SERVICE_HOST", "10.0.0.1")
    assert serve()[1] == ServerConfig()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("port: x", "argument --port: invalid int value: 'x' (from port in "),
        ("overlap: maybe", "overlap in {file} must be true or false; it was 'maybe'"),
        ("max-num-seq: 4", "there is no flag --max-num-seq: is it --max-num-seqs?"),
        ("config: other.yaml", "{file} names another config file"),
    ],
)
def test_errors_say_where_a_bad_setting_is(
    text: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bad.yaml").write_text(text)
    with pytest.raises(SystemExit) as ended:
        serve("--config", str(tmp_path / "bad.yaml"))
    assert ended.value.code == 2
    assert message.format(file=tmp_path / "bad.yaml") in capsys.readouterr().err


@pytest.mark.parametrize("text", ["[1]", "a: {b: c}", "a: [", "1: 2"])
def test_a_file_that_is_no_mapping_of_settings(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bad.yaml").write_text(text)
    assert main(["serve", "--config", str(tmp_path / "bad.yaml")]) == 1
    assert "bad.yaml" in capsys.readouterr().err


def test_a_variable_that_is_nearly_a_flag_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("JAXSERVE_MAX_NUM_SEQ", "5")
    assert serve()[0] == EngineConfig()
    assert "is it JAXSERVE_MAX_NUM_SEQS?" in capsys.readouterr().err
