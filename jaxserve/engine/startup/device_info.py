"""DeviceInfo: what the defaults depend on, of this machine or of one that is only thought of."""

from __future__ import annotations

import importlib.util
import os
from dataclasses import dataclass

import jax

from jaxserve.config import MIB, EngineConfig
from jaxserve.errors import ConfigError

# Bytes of memory as CUDA reports them, of which XLA takes its share: the driver has set its own
# part aside, which nvidia-smi counts in.
GPUS = {
    "A100-40GB": 40_326 * MIB,
    "A100-80GB": 81_154 * MIB,
    "H100-80GB": 81_007 * MIB,
    "H200-141GB": 143_156 * MIB,
}

_FRACTIONS = ("XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION")  # now, and once


# Outside of command buffers (CUDA graphs), where XLA leaves them by default, a branch or a loop
# has the host wait for the device: no step could be dispatched while one runs.
_COMMAND_BUFFERS = "xla_gpu_enable_command_buffer"


def prepare_gpu(share: float) -> None:
    """Lets XLA take this share of a GPU's memory, where its own default is three quarters, launch
    branches and loops without the host, and compute nothing twice to save memory.

    Without effect once this process has used the device. The user's own settings of XLA win.
    """
    if not any(name in os.environ for name in _FRACTIONS):
        os.environ[_FRACTIONS[0]] = str(share)
    if importlib.util.find_spec("jax_plugins") is None:
        return  # no plugin, no GPU; and options are part of the keys of the compilation cache
    # XLA finds weights and pool more than its limit (80 % of the memory), and would compute angles
    # and tiles anew in every layer.
    jax.config.update("jax_compiler_enable_remat_pass", False)
    flags = os.environ.get("XLA_FLAGS", "")
    if _COMMAND_BUFFERS not in flags:
        os.environ["XLA_FLAGS"] = f"{flags} --{_COMMAND_BUFFERS}=+CONDITIONAL,+WHILE".strip()


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """Args:
    gpu_bytes: memory of the GPU that the engine may use; None for a CPU.
    """

    gpu_bytes: int | None

    @classmethod
    def here(cls) -> DeviceInfo:
        """The one that this process computes on; see prepare_gpu."""
        if jax.default_backend() == "cpu":
            return cls(None)
        stats = jax.local_devices()[0].memory_stats() or {}
        return cls(int(stats["bytes_limit"] - stats["bytes_in_use"]))

    @classmethod
    def named(cls, gpu: str | None, share: float) -> DeviceInfo:
        """One with this share of this GPU, or a CPU.

        Raises:
            ConfigError: we don't know the GPU.
        """
        if gpu is None:
            return cls(None)
        if gpu not in GPUS:
            raise ConfigError(f"there is no GPU {gpu} here; known are {', '.join(GPUS)}")
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
        """Whether quantised weights stay as they are stored. On a CPU a step that widens them
        takes longer than one that reads float32."""
        return config.weights == "stored" or (config.weights == "auto" and not self.on_cpu)
