"""The commands against the demo model, as a user runs them."""

from __future__ import annotations

import os
import pty
import signal
import socket
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

COMMAND = [sys.executable, "-m", "jaxserve.cli.main"]
GREEDY = ["--temperature", "0", "--max-tokens", "24"]


def run(*words: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *words], capture_output=True, text=True, timeout=300, input=stdin, check=False
    )


def test_generate_continues_the_text(small_engine: tuple[str, ...]) -> None:
    done = run("generate", "The capital of France is", *small_engine, *GREEDY)
    assert done.returncode == 0, done.stderr
    assert "Paris" in done.stdout


def test_chat_answers_each_line_and_ends_with_the_input(small_engine: tuple[str, ...]) -> None:
    questions = "What is the capital of France?\n\nAnd what is its river?\n"
    done = run("chat", *small_engine, *GREEDY, stdin=questions)
    assert done.returncode == 0, done.stderr
    assert "Paris" in done.stdout
    assert len(done.stdout.splitlines()) >= 2


def test_chat_greets_and_answers_in_a_terminal(small_engine: tuple[str, ...]) -> None:
    ours, terminal = pty.openpty()
    process = subprocess.Popen(
        [*COMMAND, "chat", *small_engine, "--seed", "1"],
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
    )
    os.close(terminal)
    shown = b""

    def until(words: bytes) -> None:
        nonlocal shown
        while words not in shown:
            shown += os.read(ours, 4096)

    try:
        until(b"> ")
        greeting = shown.decode()
        assert "This is smollm2-135m, with a context of 1,024 tokens." in greeting
        assert "Ctrl-D leaves" in greeting
        assert "temperature 0.2, top_p 0.9" in greeting
        assert "--temperature" in greeting
        os.write(ours, b"What is the capital of France?\n")
        until(b"Paris")
        shown = b""
        until(b"> ")
        os.write(ours, b"\x04")
        assert process.wait(120) == 0
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def test_an_unknown_model_is_one_clear_line() -> None:
    done = run("generate", "x", "--model", "./no-such-model.gguf")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("jaxserve: ")
    assert "no-such-model" in done.stderr
    assert "Traceback" not in done.stderr


def test_pull_prints_the_path() -> None:
    done = run("pull", "smollm2-135m")
    assert done.returncode == 0, done.stderr
    assert os.path.exists(done.stdout.strip())


def test_a_port_in_use_is_reported_before_the_model_loads() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = run("serve", "--port", str(port), "--model-that-is-not-a-flag")
        assert done.returncode == 2
        done = run("serve", "./no-such-model.gguf", "--port", str(port))
    assert done.returncode == 1
    assert done.stderr.startswith(f"jaxserve: can't listen on 127.0.0.1:{port}")
    assert done.stderr.count("\n") == 1


def test_ctrl_c_ends_a_generation_with_130_and_leaves_no_process(
    small_engine: tuple[str, ...],
) -> None:
    endless = ["generate", "Once upon a time", *small_engine, "--max-tokens", "1000"]
    # A terminal sends SIGINT to the whole group of processes.
    process = subprocess.Popen(
        [*COMMAND, *endless],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # Shells start background jobs with SIGINT ignored, and children inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert process.stdout is not None
    assert process.stdout.read(1)
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in errors
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)
