"""Flags of `vllm serve` before our parser, which does what docs/migrating-from-vllm.md says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from jaxserve.cli import flags, vllm_flags
from jaxserve.cli.main import make_parser
from jaxserve.config import EngineConfig, ServerConfig

PAGE = Path(__file__).parents[3] / "docs" / "migrating-from-vllm.md"
ROW = re.compile(r"^\| `(?P<flag>-\S+)` \| (?P<becomes>.+) \|$", re.MULTILINE)
ROWS = dict(ROW.findall(PAGE.read_text().partition("## Flags")[2]))
# A value that each of our flags takes, by its type.
VALUES = {
    "--device": "cuda",
    "--quantization": "fp8",
    "--kv-cache-dtype": "fp8_e5m2",
    "--dtype": "float32",
    "--scheduling-policy": "priority",
    "--generation-config": "none",
    "--gpu-memory-utilization": "0.5",
    "--tool-call-parser": "hermes",
    "--reasoning-parser": "qwen3",
    "--root-path": "/a",
    "--ssl-keyfile": "k --ssl-certfile c",
    "--ssl-ca-certs": "a --ssl-certfile c",
    "--config": "/dev/null",
    "--allow-credentials": "",
    "--lora": "name=folder",
    "--enable-prefix-caching": "",
}


def serve(*words: str) -> tuple[EngineConfig, ServerConfig]:
    args = make_parser().parse_args(["serve", *words])
    return flags.build(EngineConfig, args), flags.build(ServerConfig, args)


def test_the_page_has_every_flag_that_the_parser_knows() -> None:
    assert list(ROWS) == [*vllm_flags.SAME, *vllm_flags.OTHERS]


@pytest.mark.parametrize("flag", [f for f, becomes in ROWS.items() if "the same" in becomes])
def test_a_flag_that_both_have(flag: str) -> None:
    serve(flag, *VALUES.get(flag, "8").split())


@pytest.mark.parametrize("flag", [f for f, becomes in ROWS.items() if becomes.startswith("`--")])
def test_a_flag_with_another_name_sets_what_ours_sets(flag: str) -> None:
    ours = ROWS[flag].strip("`")
    value = VALUES.get(ours, "8" if vllm_flags.OTHERS[flag].takes_value else "").split()
    assert serve(flag, *value) == serve(ours, *value)
    assert ours in ("--overlap",) or serve(flag, *value) != serve()


@pytest.mark.parametrize("flag", [f for f, becomes in ROWS.items() if "no effect" in becomes])
def test_a_flag_without_effect_says_why(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    value = ["8"] if vllm_flags.OTHERS[flag].takes_value else []
    assert serve(flag, *value, "--block-size", "32") == serve("--block-size", "32")
    why = ROWS[flag].removeprefix("no effect: ")
    assert capsys.readouterr().err == f"jaxserve: {flag} has no effect: {why}\n"


@pytest.mark.parametrize("flag", [f for f, becomes in ROWS.items() if "refused" in becomes])
def test_a_flag_that_we_lack_is_an_error_that_says_what_to_do(
    flag: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        serve(flag, *(["8"] if vllm_flags.OTHERS[flag].takes_value else []))
    assert ended.value.code == 2
    assert ROWS[flag].partition(": ")[2] in capsys.readouterr().err
    for neutral in vllm_flags.OTHERS[flag].neutral:
        assert serve(flag, neutral) == serve()


def test_a_line_of_vllm_serve() -> None:
    line = (
        "org/name --served-model-name a b --max_model_len 32k --tensor-parallel-size 1 "
        "--enable-auto-tool-choice --tool-call-parser hermes --disable-log-requests "
        "--dtype=half --kv-cache-dtype fp8 --swap-space 4 --no-enable-prefix-caching --port 9"
    )
    engine, server = serve(*line.split(), "--allowed-origins", '["*"]')
    assert engine == EngineConfig(
        "org/name",
        max_model_len=32_000,
        dtype="float16",
        kv_cache_dtype="fp8_e4m3",
        enable_prefix_caching=False,
    )
    assert server == ServerConfig(
        port=9,
        served_model_names=("a", "b"),
        tool_call_parser="hermes",
        allowed_origins=("*",),
    )


def test_negated_and_nested_flags(capsys: pytest.CaptureFixture[str]) -> None:
    engine, _ = serve("--no-async-scheduling", "--no-enable-chunked-prefill")
    assert engine.overlap is False
    with pytest.raises(SystemExit):
        serve("--speculative-config.method", "ngram")
    assert "--speculation" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flag", "nearest"),
    [("--max-num-seq", "--max-num-seqs"), ("--served-model-nam", "--served-model-name")],
)
def test_an_unknown_flag_names_the_nearest(
    flag: str, nearest: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        serve(flag, "8")
    assert ended.value.code == 2
    assert f"there is no flag {flag}: is it {nearest}" in capsys.readouterr().err
