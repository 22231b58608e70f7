"""The command as a process: its exit codes and what it prints."""

from __future__ import annotations

import subprocess
import sys

import jaxserve


def run(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "jaxserve.cli.main", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_version() -> None:
    done = run("--version")
    assert (done.returncode, done.stdout) == (0, f"jaxserve {jaxserve.__version__}\n")


def test_no_command_is_a_usage_error() -> None:
    done = run()
    assert done.returncode == 2
    assert "COMMAND" in done.stderr


def test_a_bad_setting_is_one_line_on_stderr() -> None:
    done = run("serve", "--block-size", "7")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("jaxserve: block_size must be a power of two")
    assert done.stderr.count("\n") == 1


def test_a_bad_sampling_setting_is_one_line_on_stderr() -> None:
    done = run("generate", "x", "--temperature", "9")
    assert done.returncode == 1
    assert done.stderr == "jaxserve: temperature must be between 0.0 and 2.0; it was 9.0\n"


def test_the_command_line_imports_nothing_heavy() -> None:
    heavy = {"jax", "numpy", "aiohttp", "tokenizers", "msgspec", "huggingface_hub", "zmq"}
    code = f"import sys, jaxserve.cli.main; print({heavy!r} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
