"""A real server as a process."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import pytest

READY_SECONDS = 300
EXIT_SECONDS = 60
READY_LINE = re.compile(
    r"ready: (?P<url>(http://|unix:)\S+) serving (?P<model>\S+) \(start-up [\d.]+ s\)\n"
)


def jaxserve_command(*words: str) -> list[str]:
    return [sys.executable, "-m", "jaxserve.cli.main", *words]


def children_of(pid: int) -> list[int]:
    """Pids of the process's descendants."""
    found = []
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, children.read_text().split()):
            found += [child, *children_of(child)]
    return found


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def resident_pages(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1])


@dataclass
class ServerProcess:
    """`jaxserve serve` in a process of its own."""

    process: subprocess.Popen[str]
    stderr: IO[str]
    url: str = ""
    model: str = ""
    example: str = ""
    family: list[int] = field(default_factory=list)

    @classmethod
    def launch(cls, *flags: str) -> ServerProcess:
        stderr = tempfile.TemporaryFile("w+")  # noqa: SIM115 - lives as long as the process
        command = jaxserve_command("serve", "--port", "0", *flags)
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True)
        return cls(process, stderr)

    def wait_ready(self) -> None:
        assert self.process.stdout is not None
        watchdog = signal.signal(signal.SIGALRM, _too_slow)
        signal.alarm(READY_SECONDS)
        try:
            line, self.example = (self.process.stdout.readline() for _ in range(2))
        finally:
            signal.alarm(0)
            signal.signal(signal.SIGALRM, watchdog)
        ready = READY_LINE.fullmatch(line)
        assert ready, f"no ready line but {line!r}; stderr:\n{self.errors()}"
        self.url, self.model = ready["url"], ready["model"]
        self.find_family()

    def find_family(self) -> list[int]:
        """Pids of the processes that it has started so far."""
        self.family = children_of(self.process.pid)
        return self.family

    @property
    def engine_pid(self) -> int:
        """The engine is the child that holds the model."""
        return max(self.family, key=resident_pages)

    def errors(self) -> str:
        self.stderr.seek(0)
        return self.stderr.read()

    def wait(self) -> int:
        """The exit code, once it and all it started have ended."""
        code = self.process.wait(EXIT_SECONDS)
        deadline = time.monotonic() + EXIT_SECONDS
        while any(map(alive, self.family)):
            assert time.monotonic() < deadline, f"left behind: {self.family}"
            time.sleep(0.05)
        return code

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(EXIT_SECONDS)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        for pid in filter(alive, self.family):
            os.kill(pid, signal.SIGKILL)
        if self.process.stdout is not None:
            self.process.stdout.close()
        self.stderr.close()


def _too_slow(*_: object) -> None:
    raise TimeoutError(f"the server wasn't ready within {READY_SECONDS} s")


@pytest.fixture(scope="session")
def server(
    small_engine: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerProcess]:
    """One server that tests share; they must not change its state."""
    profiles = str(tmp_path_factory.mktemp("profiles"))
    admin = ("--enable-dev-endpoints", "--profile-dir", profiles)
    shared = ServerProcess.launch(*small_engine, *admin)
    try:
        shared.wait_ready()
        yield shared
    finally:
        shared.stop()


# Uses tools and reasoning, and renders all of its arguments, so that tests find them in prompts.
TEMPLATE = (
    "{% for t in tools or [] %}<tool>{{ t.function | tojson }}{% endfor %}"
    "{% for d in documents or [] %}<doc>{{ d.text }}{% endfor %}"
    "{% if reasoning_effort %}<effort>{{ reasoning_effort }}{% endif %}"
    "{% for m in messages %}{{ bos_token + m.role + ': ' }}"
    "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}"
    "{{ m.content }}"
    "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}"
    "{{ '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant: ' }}{% if deep %}<think>{% endif %}{% endif %}"
)


@pytest.fixture(scope="session")
def tiny_flags(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """Flags of a server of the tiny Llama, whose tokens are bytes, with the template above and a
    context of 1,024 tokens."""
    folder = tmp_path_factory.mktemp("tiny") / "tiny_llama"
    shutil.copytree(tiny_llama, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 1024}))
    template = folder / "other.jinja"
    template.write_text(TEMPLATE)
    return (
        str(folder),
        *("--served-model-names", "tiny", "--chat-template", str(template)),
        *("--max-num-seqs", "8", "--max-num-batched-tokens", "32", "--kv-cache-memory", "1MiB"),
        *("--scheduling-policy", "priority"),
    )


@pytest.fixture(scope="session")
def tiny_server(tiny_flags: tuple[str, ...]) -> Iterator[ServerProcess]:
    shared = ServerProcess.launch(*tiny_flags)
    try:
        shared.wait_ready()
        yield shared
    finally:
        shared.stop()


# In ChatML, with tools and calls in hermes' format.
SPM_TEMPLATE = (
    "{% if tools %}<|im_start|>system\nTools: {{ tools | tojson }}<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@pytest.fixture(scope="session")
def spm_server(
    spm_llama: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerProcess]:
    """Of a tiny model with a vocabulary of sentencepiece."""
    template = tmp_path_factory.mktemp("template") / "tools.jinja"
    template.write_text(SPM_TEMPLATE)
    shared = ServerProcess.launch(
        str(spm_llama),
        *("--chat-template", str(template), "--tool-call-parser", "hermes"),
        *("--max-num-seqs", "8", "--max-num-batched-tokens", "32", "--kv-cache-memory", "1MiB"),
    )
    try:
        shared.wait_ready()
        yield shared
    finally:
        shared.stop()


@pytest.fixture
def start_server(small_engine: tuple[str, ...]) -> Iterator[Callable[..., ServerProcess]]:
    """Starts servers that a test may kill."""
    yield from _starter(small_engine)


@pytest.fixture
def start_tiny(tiny_flags: tuple[str, ...]) -> Iterator[Callable[..., ServerProcess]]:
    """Starts servers of the tiny Llama that a test may kill."""
    yield from _starter(tiny_flags)


def _starter(own: tuple[str, ...]) -> Iterator[Callable[..., ServerProcess]]:
    started: list[ServerProcess] = []

    def start(*flags: str, wait: bool = True) -> ServerProcess:
        started.append(ServerProcess.launch(*own, *flags))
        if wait:
            started[-1].wait_ready()
        return started[-1]

    yield start
    for one in started:
        one.stop()
