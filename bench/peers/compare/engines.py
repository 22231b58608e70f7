"""The engines that are compared: how each is started, and whether it is installed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import checkpoints
from bench.common.demo_weights import DEMO

MAX_SEQS, MAX_LEN, VLLM_BLOCK = 32, 2048, 32
SERVER = Path(__file__).resolve().parents[1] / "transformers_server.py"
CORES = os.cpu_count() or 1
BOUND = f"0-{CORES - 1}"
VLLM_NOTE = (
    f"CPU build; eager (--enforce-eager, no torch.compile); blocks of {VLLM_BLOCK} tokens; "
    f"threads bound to cores {BOUND}"
)
VLLM_CPU = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": BOUND,
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}


@dataclass(frozen=True, slots=True)
class Engine:
    """A server of one engine, computing in one data type.

    Args:
        program: its interpreter or binary; None if `variable` isn't set.
        variable: the environment variable that names the program.
        command: the program's arguments, given the folder of weights and a port.
        version: arguments with which the program prints its version.
        note: what a reader of the table must know about how it runs.
    """

    name: str
    program: str | None
    variable: str
    command: Callable[[Path, int], list[str]]
    version: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    note: str = ""

    @property
    def missing(self) -> str | None:
        """Why it can't be started; None if it can."""
        if self.program is None:
            return f"not installed: {self.variable} isn't set (bench/peers/setup.sh makes it)"
        if not Path(self.program).exists():
            return
            f"not installed: {self.variable} names {Path(self.program).name}, which does not exist"
        return None

    def command_line(self, folder: Path, port: int) -> list[str]:
        """What starts its server."""
        assert self.program is not None
        return [self.program, *self.command(folder, port)]

    def read_version(self) -> str:
        """The first line with a number of what the program prints; "" if there is none."""
        assert self.program is not None
        done = subprocess.run([self.program, *self.version], capture_output=True, text=True)
        lines = (done.stdout + done.stderr).splitlines()
        return next((line for line in lines if any(map(str.isdigit, line))), "")


def _ours(folder: Path, port: int) -> list[str]:
    sizes = ["--max-num-seqs", str(MAX_SEQS), "--kv-cache-memory", "1GiB"]
    flags = ["--no-access-log", "--port", str(port)]
    return ["-m", "jaxserve.cli.main", "serve", str(folder), *sizes, *flags]


def _vllm(dtype: str) -> Callable[[Path, int], list[str]]:
    def command(folder: Path, port: int) -> list[str]:
        sizes = ["--max-num-seqs", str(MAX_SEQS), "--max-model-len", str(MAX_LEN)]
        flags = ["--dtype", dtype, "--block-size", str(VLLM_BLOCK), "--enforce-eager"]
        address = ["--host", "127.0.0.1", "--port", str(port)]
        # `vllm serve` asks for metadata that the CPU build has under another name.
        entry = ["-m", "vllm.entrypoints.openai.api_server", "--model", str(folder)]
        return [*entry, *sizes, *flags, *address]

    return command


def _transformers(kind: str, dtype: str) -> Callable[[Path, int], list[str]]:
    return lambda folder, port: [str(SERVER), kind, str(folder), dtype, str(port), str(MAX_SEQS)]


def _llama(_: Path, port: int) -> list[str]:
    sizes = ["--parallel", str(MAX_SEQS), "--ctx-size", str(MAX_SEQS * 768)]
    threads = ["--threads", str(CORES), "--threads-batch", str(CORES)]
    model = ["--model", str(checkpoints.pull(DEMO)), "--host", "127.0.0.1", "--port", str(port)]
    return [*model, *sizes, *threads]


def _print_version(*packages: str) -> tuple[str, ...]:
    names = ", ".join(f"'{name} ' + version('{name}')" for name in packages)
    return ("-c", f"from importlib.metadata import version; print({names}, sep=', ')")


def all_engines() -> list[Engine]:
    """In the order of the table: ours first, then those that also compute in float32."""
    vllm, torch = "JAXSERVE_VLLM_PYTHON", "JAXSERVE_TORCH_PYTHON"
    llama = "JAXSERVE_LLAMA_SERVER"

    def of_vllm(dtype: str) -> Engine:
        return Engine(
            f"vllm {dtype}",
            os.environ.get(vllm),
            vllm,
            _vllm(dtype),
            _print_version("vllm-cpu", "torch"),
            VLLM_CPU,
            VLLM_NOTE,
        )

    def of_transformers(kind: str, dtype: str) -> Engine:
        return Engine(
            f"transformers {kind} {dtype}",
            os.environ.get(torch),
            torch,
            _transformers(kind, dtype),
            _print_version("transformers", "torch"),
            note={
                "static": "generate() with a batch of all waiting requests, padded; streamed",
                "continuous": "its ContinuousBatchingManager, paged KV",
            }[kind],
        )

    return [
        Engine("jaxserve float32", sys.executable, "", _ours, _print_version("jaxserve", "jax")),
        of_vllm("float32"),
        of_transformers("static", "float32"),
        of_transformers("continuous", "float32"),
        Engine(
            "llama.cpp Q4_1",
            os.environ.get(llama),
            llama,
            _llama,
            ("--version",),
            note="reads the GGUF and computes with its 4-bit weights: less work than the others'",
        ),
        of_vllm("bfloat16"),
        of_transformers("static", "bfloat16"),
        of_transformers("continuous", "bfloat16"),
    ]
