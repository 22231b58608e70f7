"""`jaxserve run-batch`: OpenAI's batch files, also when it is killed and started again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from jaxserve.cli.main import main
from jaxserve.errors import ConfigError
from jaxserve.server.processes.batch_file import OutputFile, check_requests

COMMAND = (sys.executable, "-m", "jaxserve.cli.main", "run-batch")


def line(custom_id: str, **body: Any) -> dict[str, Any]:
    body = {"temperature": 0, **body}
    return {"custom_id": custom_id, "method": "POST", "url": "/v1/completions", "body": body}


def engine_of(pid: int) -> int:
    (child,) = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(child)


def write_lines(file: Path, lines: list[Any]) -> Path:
    file.write_text("".join(json.dumps(entry) + "\n" for entry in lines))
    return file


def read_lines(file: Path) -> list[Any]:
    return list(map(json.loads, file.read_bytes().splitlines()))


@pytest.mark.slow
def test_after_a_kill_and_a_restart_nothing_is_lost_or_repeated(
    tiny_llama: Path, tmp_path: Path
) -> None:
    lengths = {f"r{i}": 20 + i % 7 for i in range(300)}
    lines = [
        line(name, model=tiny_llama.name, prompt=name, max_tokens=length, ignore_eos=True)
        for name, length in lengths.items()
    ]
    lines.append(line("bad", model=tiny_llama.name, prompt="x", max_tokens=0))
    source, target = write_lines(tmp_path / "in", lines), tmp_path / "out"
    command = [*COMMAND, "-i", str(source), "-o", str(target), "--model", str(tiny_llama)]
    command += ["--max-num-seqs", "8", "--max-num-batched-tokens", "32"]
    command += ["--kv-cache-memory", "1MiB"]
    for wanted in (30, 90):
        process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        deadline = time.monotonic() + 300
        while not target.exists() or len(target.read_bytes().splitlines()) < wanted:
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.02)
        if wanted == 30:
            process.kill()
            process.communicate()
        else:
            os.kill(engine_of(process.pid), signal.SIGKILL)
            _, errors = process.communicate(timeout=60)
            assert process.returncode == 1
            assert errors.splitlines()[-1].startswith("jaxserve: the engine process died")
    killed_at = len(target.read_bytes().splitlines())
    assert killed_at < len(lines)
    with target.open("a") as file:
        file.write('{"id": "cut sh')  # as a full disk would leave it
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    assert f"{killed_at} answered before" in done.stdout
    answers = {answer["custom_id"]: answer["response"] for answer in read_lines(target)}
    assert len(read_lines(target)) == len(answers) == len(lines)
    for name, length in lengths.items():
        assert answers[name]["status_code"] == 200
        assert answers[name]["body"]["usage"]["completion_tokens"] == length
    assert answers["bad"]["status_code"] == 400
    assert answers["bad"]["body"]["error"]["param"] == "max_tokens"
    again = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert "0 now" in again.stdout


@pytest.mark.parametrize(
    ("lines", "complaint"),
    [
        ([line("a"), {"custom_id": "b"}], "line 2"),
        ([line("a"), line("a")], "comes twice"),
        ([line("a") | {"method": "GET"}], "only POST"),
        ([line("a") | {"url": "/load"}], "only POST"),
        ([line("a", stream=True)], "stream"),
    ],
)
def test_a_malformed_file_is_refused_before_anything_runs(
    tmp_path: Path, lines: list[Any], complaint: str
) -> None:
    with pytest.raises(ConfigError, match=complaint):
        check_requests(write_lines(tmp_path / "in", lines))


def test_an_output_file_has_one_writer_and_only_answers(tmp_path: Path) -> None:
    target = tmp_path / "out"
    first = OutputFile(target)
    with pytest.raises(ConfigError, match="another process"):
        OutputFile(target)
    first.close()
    target.write_text("my diary\n")
    with pytest.raises(ConfigError, match="isn't the output of a batch"):
        OutputFile(target)
    assert target.read_text() == "my diary\n"


def test_no_requests_at_once_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = write_lines(tmp_path / "in", [line("a")])
    command = ["run-batch", "-i", str(source), "-o", str(tmp_path / "out"), "--max-in-flight", "0"]
    assert main(command) == 1
    assert "max_in_flight" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
