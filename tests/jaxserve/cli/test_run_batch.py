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
from jaxserve.server.processes.batch_file import BadLine, BatchRequest, OutputFile, check_ids
from jaxserve.server.processes.batch_file import read_lines as parsed_lines

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
    finished = {answer["custom_id"] for answer in read_lines(target)}
    assert len(finished) < len(lines)
    with target.open("a") as file:
        file.write('{"id": "cut sh')  # as a full disk would leave it
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 1  # one request has failed
    assert f"{len(finished - {'bad'})} succeeded before" in done.stdout
    answers = {answer["custom_id"]: answer["response"] for answer in read_lines(target)}
    assert len(read_lines(target)) == len(answers) == len(lines)
    for name, length in lengths.items():
        assert answers[name]["status_code"] == 200
        assert answers[name]["body"]["usage"]["completion_tokens"] == length
    assert answers["bad"]["status_code"] == 400
    assert answers["bad"]["body"]["error"]["param"] == "max_tokens"
    succeeded = [line for line in target.read_bytes().splitlines() if b'"bad"' not in line]
    write_lines(source, [*lines[:-1], line("bad", model=tiny_llama.name, prompt="x")])
    again = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    assert "300 succeeded before, 1 run now, 0 of them with an error" in again.stdout
    assert target.read_bytes().splitlines()[:-1] == succeeded
    assert read_lines(target)[-1]["response"]["status_code"] == 200
    idle = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert "0 run now" in idle.stdout


@pytest.mark.slow
def test_bad_lines_get_an_error_and_the_settings_of_a_server_count(
    tiny_llama: Path, tmp_path: Path
) -> None:
    template = tmp_path / "template.jinja"
    template.write_text("{% for m in messages %}{{ m.content }}{% endfor %}")
    chat = {"messages": [{"role": "user", "content": "abc"}], "max_tokens": 2, "temperature": 0}
    chat |= {"model": "mine", "ignore_eos": True}
    lines = [
        line("good", model="mine", prompt="abc", max_tokens=2, ignore_eos=True, logprobs=None),
        line("chat") | {"url": "/v1/chat/completions", "body": chat},
        {"custom_id": "bare"},
        line("get") | {"method": "GET"},
        line("load") | {"url": "/load"},
        line("stream", model="mine", prompt="x", stream=True),
        line("long", model="mine", prompt="x", max_tokens=3),
    ]
    source, target = write_lines(tmp_path / "in", lines), tmp_path / "out"
    # Numbers that nobody can hold: the server refuses them, and the other lines go on.
    numbers = {"infinite": "1e400", "long number": "9" * 5000, "negative": "-" + "9" * 400}
    with source.open("a") as file:
        for name, number in numbers.items():
            huge = json.dumps(line(name, model="mine", prompt="x", seed="NUMBER"))
            file.write(huge.replace('"NUMBER"', number) + "\n")
    with source.open("ab") as file:
        file.write(b'{"custom_id": "cut\n\n' + b"[" * 100_000 + b"\n")
    command = [*COMMAND, "-i", str(source), "-o", str(target), "--model", str(tiny_llama)]
    command += ["--kv-cache-memory", "1MiB", "--served-model-names", "mine"]
    command += ["--chat-template", str(template), "--max-output-tokens", "2"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 1
    assert "12 requests: 0 succeeded before, 12 run now, 10 of them with an error" in done.stdout
    results = read_lines(target)
    assert len(results) == len(lines) + 5
    named = {result["custom_id"]: result for result in results}
    good, answer = (named[name]["response"]["body"] for name in ("good", "chat"))
    assert answer["choices"][0]["message"]["content"] == good["choices"][0]["text"]
    assert answer["usage"]["prompt_tokens"] == good["usage"]["prompt_tokens"]
    assert named["long"]["response"]["status_code"] == 400
    for name in numbers:
        assert named[name]["response"]["status_code"] == 400
        assert named[name]["response"]["body"]["error"]["message"]
    messages = {name: named[name]["error"]["message"] for name in ("bare", "get", "load", "stream")}
    assert "line 3" in messages["bare"]
    assert "line 4: only POST" in messages["get"]
    assert "line 5: only POST" in messages["load"]
    assert "line 6" in messages["stream"]
    nameless = [result["error"]["message"] for result in results if result["custom_id"] is None]
    assert sorted(message[:7] for message in nameless) == ["line 11", "line 13"]


@pytest.mark.parametrize(
    "url",
    [
        "/load",
        "/v1/../metrics",
        "/v1/models",
        "/v1/chat/completions/",
        "/v1/",
        "",
        "//v1/responses",
    ],
)
def test_urls_that_cannot_be_batched(tmp_path: Path, url: str) -> None:
    source = write_lines(tmp_path / "in", [line("a"), line("b") | {"url": url}])
    good, bad = parsed_lines(source)
    assert isinstance(good, BatchRequest)
    assert isinstance(bad, BadLine)
    assert bad.custom_id == "b"
    supported = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/embeddings")
    assert all(name in bad.error.message for name in supported)
    assert bad.error.message.endswith(f"POST to {url}")


@pytest.mark.parametrize("body", ["[]", "1", "null", '"x"'])
def test_a_body_that_is_no_object(tmp_path: Path, body: str) -> None:
    (tmp_path / "in").write_text(json.dumps(line("a") | {"body": json.loads(body)}) + "\n")
    (bad,) = parsed_lines(tmp_path / "in")
    assert isinstance(bad, BadLine)
    assert bad.custom_id == "a"


def test_ids_that_come_twice_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="comes twice"):
        check_ids(write_lines(tmp_path / "in", [line("a"), {"custom_id": "a"}]))


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
