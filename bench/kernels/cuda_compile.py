"""Compiles a jitted function for an NVIDIA GPU without one, and reads the machine code.

XLA:GPU compiles against a description of the device; Pallas calls become the same kernels that the
device would run. Needs jax's CUDA plugin, ptxas and nvdisasm, but no driver. Import this module
before jax is used: it sets XLA's flags.
"""

from __future__ import annotations

import glob
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

_DUMP = tempfile.mkdtemp(prefix="cuda_compile.")
os.environ["XLA_FLAGS"] = (
    f"{os.environ.get('XLA_FLAGS', '')} --xla_dump_to={_DUMP} "
    "--xla_gpu_dump_llvmir=true --xla_dump_emitter_re=ptx"
)
os.environ.setdefault("JAX_SKIP_CUDA_CONSTRAINTS_CHECK", "1")
os.environ["JAX_PLATFORMS"] = ""

import jax  # noqa: E402
import numpy as np  # noqa: E402
from jax.experimental import topologies  # noqa: E402
from jax.sharding import Mesh, NamedSharding, PartitionSpec  # noqa: E402


@dataclass(frozen=True)
class Gpu:
    """What XLA asks about a device (from NVIDIA's data sheets and `nvidia-smi -q`)."""

    name: str
    major: int
    cores: int
    fpus_per_core: int
    shared_per_core: int
    shared_per_block: int
    bandwidth: int
    l2: int
    clock_ghz: float
    memory: int
    extension: str

    @property
    def arch(self) -> str:
        return f"sm_{self.major}0"

    def target_config(self) -> str:
        fields = {
            "threads_per_block_limit": 1024,
            "threads_per_warp": 32,
            "shared_memory_per_block": 49152,
            "shared_memory_per_core": self.shared_per_core,
            "threads_per_core_limit": 2048,
            "core_count": self.cores,
            "fpus_per_core": self.fpus_per_core,
            "block_dim_limit_x": 2147483647,
            "block_dim_limit_y": 65535,
            "block_dim_limit_z": 65535,
            "memory_bandwidth": self.bandwidth,
            "l2_cache_size": self.l2,
            "clock_rate_ghz": self.clock_ghz,
            "device_memory_size": self.memory,
            "shared_memory_per_block_optin": self.shared_per_block,
            "registers_per_core_limit": 65536,
            "registers_per_block_limit": 65536,
            "thread_dim_limit_x": 1024,
            "thread_dim_limit_y": 1024,
            "thread_dim_limit_z": 64,
            "device_address_bits": 64,
        }
        texts = {
            "device_vendor": "NVIDIA Corporation",
            "name": self.name,
            "driver_version": "13.0.0",
            "runtime_version": "13.0.0",
            "compile_time_toolkit_version": "13.0.0",
            "dnn_version": "9.10.0",
        }
        lines = [f"{k}: {v}" for k, v in fields.items()] + [f'{k}: "{v}"' for k, v in texts.items()]
        lines.append(
            f"cuda_compute_capability {{ major: {self.major} feature_extension: {self.extension} }}"
        )
        return (
            f"gpu_device_info {{ {' '.join(lines)} }}\n"
            'platform_name: "CUDA" dnn_version_info { major: 9 minor: 10 patch: 0 } '
            f'device_description_str: "{self.name}"'
        )


_CONTAINERS = ("kSequential", "kConditional", "kWhile")

GPUS = {
    gpu.arch: gpu
    for gpu in (
        Gpu(
            name="NVIDIA A100-SXM4-80GB",
            major=8,
            cores=108,
            fpus_per_core=64,
            shared_per_core=167936,
            shared_per_block=166912,
            bandwidth=2_039_040_000_000,
            l2=41943040,
            clock_ghz=1.41,
            memory=85100068864,
            extension="NONE",
        ),
        Gpu(
            name="NVIDIA H100 80GB HBM3",
            major=9,
            cores=132,
            fpus_per_core=128,
            shared_per_core=233472,
            shared_per_block=232448,
            bandwidth=3_352_320_000_000,
            l2=52428800,
            clock_ghz=1.98,
            memory=84942979072,
            extension="ACCELERATED_FEATURES",
        ),
    )
}


@dataclass(frozen=True)
class Kernel:
    """One kernel's machine code. Sizes in bytes; `mix` counts instructions by opcode."""

    name: str
    registers: int
    spill_stores: int
    spill_loads: int
    shared: int
    mix: Counter[str]

    def count(self, *prefixes: str) -> int:
        return sum(n for op, n in self.mix.items() if op.startswith(prefixes))


@dataclass(frozen=True)
class Thunk:
    """One operation of the device: a kernel, a library's matrix product, a copy.

    Args:
        kind: XLA's name for it, as kCustomKernel.
        buffered: whether a command buffer (a CUDA graph) launches it.
    """

    name: str
    kind: str
    buffered: bool


@dataclass(frozen=True)
class Compiled:
    """A compiled function: its memory in bytes, and the device's operations in order.

    Args:
        temporary, outputs: allocated for a call; outputs without the aliased ones.
        aliased: of arguments that it updates in place.
    """

    temporary: int
    outputs: int
    aliased: int
    thunks: list[Thunk]


def compile_for(gpu: Gpu, fn: Callable[..., Any], args: Any, **jit: Any) -> Compiled:
    """Compiles fn for one device of this kind; args are arrays or ShapeDtypeStructs."""
    for path in glob.glob(f"{_DUMP}/*"):
        shutil.rmtree(path) if os.path.isdir(path) else os.unlink(path)
    topology = topologies.get_topology_desc(
        platform="cuda", topology_name="", topology="1x1x1", target_config=gpu.target_config()
    )
    mesh = Mesh(np.array(topology.devices[:1]), ("x",))
    sharding = NamedSharding(mesh, PartitionSpec())
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), args)
    with jax.set_mesh(mesh):  # Pallas reads the kind of GPU from here
        memory = jax.jit(fn, **jit).lower(*shapes).compile().memory_analysis()
    aliased = memory.alias_size_in_bytes
    outputs = memory.output_size_in_bytes - aliased
    return Compiled(memory.temp_size_in_bytes, outputs, aliased, list(_thunks()))


def _thunks() -> Iterator[Thunk]:
    """The operations of the function compiled last."""
    # XLA writes the first after its last pass over the operations; a function too small for a
    # command buffer has no such passes.
    paths = glob.glob(f"{_DUMP}/*thunk_sequence_after_thunk_passes.txt")
    paths = paths or glob.glob(f"{_DUMP}/*thunk_sequence.txt")
    buffer_depth: int | None = None
    with open(paths[0]) as file:
        for line in file:
            found = re.match(r"( *)\d+: (k\w+) +\[[^\]]*\] *(\w*)", line)
            if found is None:
                continue
            depth, kind = len(found[1]), found[2]
            if buffer_depth is not None and depth <= buffer_depth:
                buffer_depth = None
            if kind == "kCommandBuffer":
                buffer_depth = depth
            elif kind not in _CONTAINERS:
                yield Thunk(found[3], kind, buffer_depth is not None)


def optimized_text() -> str:
    """XLA's operations of the function compiled last, after all optimizations."""
    texts = []
    for path in glob.glob(f"{_DUMP}/*gpu_after_optimizations.txt"):
        with open(path) as file:
            texts.append(file.read())
    return "".join(texts)


def kernels() -> Iterator[Kernel]:
    """The machine code of the function compiled last."""
    shared = {}
    for path in glob.glob(f"{_DUMP}/*thunk_sequence.txt"):
        with open(path) as file:
            for found in re.finditer(r"(\w+) grid: .*?shared_memory: (\d+)", file.read()):
                shared[found[1]] = int(found[2])
    for path in sorted(glob.glob(f"{_DUMP}/*.ptx")):
        with open(path) as file:
            ptx = file.read()
        names = re.findall(r"\.entry (\w+)", ptx)
        if not names:
            continue
        cubin = f"{path}.cubin"
        arch = re.search(r"\.target (\w+)", ptx)
        assert arch is not None
        log = _run("ptxas", "-v", f"--gpu-name={arch[1]}", path, "-o", cubin).stderr
        mixes = _instructions(cubin)
        for name in names:
            facts = log[log.index(f"'{name}'") :]
            yield Kernel(
                name=name,
                registers=_number(r"Used (\d+) reg", facts),
                spill_stores=_number(r"(\d+) bytes spill st", facts),
                spill_loads=_number(r"(\d+) bytes spill lo", facts),
                shared=shared.get(name, 0),
                mix=mixes.get(name, Counter()),
            )


def _instructions(cubin: str) -> dict[str, Counter[str]]:
    mixes: dict[str, Counter[str]] = {}
    mix: Counter[str] = Counter()
    for line in _run("nvdisasm", "-c", cubin).stdout.splitlines():
        if section := re.match(r"\.text\.(\w+):", line):
            mix = mixes.setdefault(section[1], Counter())
        elif found := re.match(
            r"\s+/\*[0-9a-f]{4,}\*/\s+(?:\{\s*)?(?:@!?U?P\w+\s+)?([A-Z][\w.]*)", line
        ):
            mix[found[1]] += 1
    return mixes


def _number(pattern: str, text: str) -> int:
    found = re.search(pattern, text)
    return int(found[1]) if found else 0


def _run(tool: str, *args: str) -> subprocess.CompletedProcess[str]:
    """Runs a CUDA tool from the wheels on sys.path, of CUDA 12 or 13, or from PATH."""
    folders = [f"{p}/nvidia/{of}/bin" for p in sys.path for of in ("cuda_nvcc", "cu13")]
    candidates = [*(f"{folder}/{tool}" for folder in folders), shutil.which(tool)]
    path = next((c for c in candidates if c and os.path.exists(c)), None)
    if path is None:
        raise FileNotFoundError(f"{tool} is neither on PATH nor in a wheel: run `make kernels`")
    return subprocess.run([path, *args], capture_output=True, text=True, check=True)
