"""DeviceInfo: what the defaults depend on, of this process's device or of a named GPU."""

from __future__ import annotations

import importlib.util
import os
from dataclasses import dataclass

import jax

from jaxserve.config import MIB, EngineConfig
from jaxserve.errors import ConfigError

# Bytes of memory as CUDA reports them, of which XLA takes its share. nvidia-smi shows more: also
# what the driver reserves.
GPUS = {
    "A100-40GB": 40_326 * MIB,
    "A100-80GB": 81_154 * MIB,
    "H100-80GB": 81_007 * MIB,
    "H200-141GB": 143_156 * MIB,
}

# The name that XLA reads now, and the one that it read before.
_FRACTIONS = (
    "XLA_CLIENT_MEM_FRACTION",
    "XLA_PYTHON_CLIENT_MEM_FRACTION",
)

# By default XLA leaves branches and loops outside of command buffers (CUDA graphs). There the host
# waits for the device at each of them, and no step could be dispatched while one runs.
_COMMAND_BUFFERS = "xla_gpu_enable_command_buffer"


# Settings of JAX, all from its environment variables too, with the one value that step programs are
# made for: others change the types of arrays, or compile after ready.
_JAX_SETTINGS = {
    "jax_enable_x64": False,
    "jax_debug_nans": False,
    "jax_debug_infs": False,
    "jax_disable_jit": False,
    "jax_numpy_dtype_promotion": "standard",
    "jax_numpy_rank_promotion": "allow",
    "jax_transfer_guard": None,
}


def check_jax_settings() -> None:
    """Refuses settings of JAX, and of numba, that the engine can't run under.

    Raises:
        ConfigError: names the setting.
    """
    for name, needed in _JAX_SETTINGS.items():
        if (value := jax.config.values[name]) != needed:
            raise ConfigError(
                f"the engine can't run with JAX's setting {name} = {value}: unset {name.upper()}, "
                f"or set it to {needed}"
            )
    if os.environ.get("NUMBA_DISABLE_JIT", "0") not in ("", "0"):
        raise ConfigError(
            "the kernels for CPUs can't be compiled with NUMBA_DISABLE_JIT: unset NUMBA_DISABLE_JIT"
        )


def prepare_gpu(share: float) -> None:
    """Has XLA take this share of a GPU's memory (its own default is three quarters), launch
    branches and loops without the host, and compute nothing twice to save memory.

    Has no effect once this process has used the device. Settings of XLA that the user has made
    take precedence.
    """
    if not any(name in os.environ for name in _FRACTIONS):
        os.environ[_FRACTIONS[0]] = str(share)
    if importlib.util.find_spec("jax_plugins") is None:
        return  # no GPU; and options would change the keys of the compilation cache
    # Weights and pool take more than 80 % of the memory, from where on XLA would rematerialize:
    # compute angles and tiles again in every layer.
    jax.config.update("jax_compiler_enable_remat_pass", False)
    flags = os.environ.get("XLA_FLAGS", "")
    if _COMMAND_BUFFERS not in flags:
        os.environ["XLA_FLAGS"] = f"{flags} --{_COMMAND_BUFFERS}=+CONDITIONAL,+WHILE".strip()


def memory_by_kind(kind: str, config: EngineConfig) -> int:
    """Bytes that the engine may use of a GPU whose allocator doesn't count.

    Args:
        kind: as XLA names the device, such as "NVIDIA H100 80GB HBM3".

    Raises:
        ConfigError: the GPU isn't in GPUS, and no kv_cache_memory is set.
    """
    words = kind.replace("-", " ").split()
    of_name = {gpu: total for gpu, total in GPUS.items() if gpu.split("-")[0] in words}
    of_size = {gpu: total for gpu, total in of_name.items() if gpu.split("-")[1] in words}
    if found := of_size or of_name:
        return int(min(found.values()) * config.gpu_memory_utilization)
    if config.kv_cache_memory is None:
        raise ConfigError(
            f"XLA's allocator doesn't tell how much memory {kind!r} has: set --kv-cache-memory, or "
            "unset XLA_PYTHON_CLIENT_ALLOCATOR"
        )
    return 0


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """Args:
    gpu_bytes: memory of the GPU that the engine may use; None for a CPU.
    """

    gpu_bytes: int | None

    @classmethod
    def here(cls, config: EngineConfig) -> DeviceInfo:
        """The device that this process computes on; see prepare_gpu.

        Raises:
            ConfigError: the device tells no memory, it isn't in GPUS, and no kv_cache_memory is
                set.
        """
        if jax.default_backend() == "cpu":
            return cls(None)
        device = jax.local_devices()[0]
        if stats := device.memory_stats():
            return cls(int(stats["bytes_limit"] - stats["bytes_in_use"]))
        # An allocator that doesn't count, such as XLA_PYTHON_CLIENT_ALLOCATOR=platform.
        return cls(memory_by_kind(device.device_kind, config))

    @classmethod
    def named(cls, gpu: str | None, share: float) -> DeviceInfo:
        """A device with this share of this GPU's memory, or a CPU.

        Raises:
            ConfigError: the GPU isn't in GPUS.
        """
        if gpu is None:
            return cls(None)
        if gpu not in GPUS:
            raise ConfigError(f"the GPU {gpu} isn't known; choose one of {', '.join(GPUS)}")
        return cls(int(GPUS[gpu] * share))

    @property
    def on_cpu(self) -> bool:
        return self.gpu_bytes is None

    def dtype(self, config: EngineConfig) -> str:
        """bfloat16 on a GPU, float32 on a CPU, unless the config says otherwise."""
        if config.dtype != "auto":
            return config.dtype
        return "float32" if self.on_cpu else "bfloat16"

    def keeps_stored(self, config: EngineConfig) -> bool:
        """Whether weights stay as they are stored. The CPU kernels read stored forms in float32
        only; for other types XLA widens them in every step, which is many times slower."""
        if config.weights == "auto":
            return not self.on_cpu or self.dtype(config) == "float32"
        return config.weights == "stored"
