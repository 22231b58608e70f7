"""Machine: what the defaults depend on, of this machine or of one that is only thought of."""

from __future__ import annotations

from dataclasses import dataclass

import jax

from jaxserve.config import MIB, EngineConfig
from jaxserve.errors import ConfigError

# Bytes of memory that the driver reports.
GPUS = {
    "A100-40GB": 40_960 * MIB,
    "A100-80GB": 81_920 * MIB,
    "H100-80GB": 81_559 * MIB,
    "H200-141GB": 143_771 * MIB,
}


@dataclass(frozen=True, slots=True)
class Machine:
    """Args:
    gpu_bytes: memory of the GPU; None for a CPU.
    """

    gpu_bytes: int | None

    @classmethod
    def here(cls) -> Machine:
        """The one that this process computes on."""
        if jax.default_backend() == "cpu":
            return cls(None)
        stats = jax.local_devices()[0].memory_stats() or {}
        return cls(int(stats["bytes_limit"]))

    @classmethod
    def named(cls, gpu: str | None) -> Machine:
        """One with this GPU, or a CPU.

        Raises:
            ConfigError: we don't know the GPU.
        """
        if gpu is None:
            return cls(None)
        if gpu not in GPUS:
            raise ConfigError(f"there is no GPU {gpu} here; known are {', '.join(GPUS)}")
        return cls(GPUS[gpu])

    @property
    def on_cpu(self) -> bool:
        return self.gpu_bytes is None

    def dtype(self, config: EngineConfig) -> str:
        """bfloat16 on a GPU, float32 on a CPU, unless the config says otherwise."""
        if config.dtype != "auto":
            return config.dtype
        return "float32" if self.on_cpu else "bfloat16"
