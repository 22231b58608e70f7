"""The limits an engine really runs under: its settings where given, the machine's where not."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import jax
import jax.numpy as jnp

from jaxserve.config import GIB, MIB, EngineConfig, cache_dir
from jaxserve.engine.device.buckets import Bucket
from jaxserve.engine.device.cache_layout import CacheLayout
from jaxserve.engine.device.compilation.checked_files import drop_damaged
from jaxserve.engine.device.model_outline import ModelOutline
from jaxserve.engine.device.paged_cache import bytes_per_block
from jaxserve.engine.startup import step_memory
from jaxserve.engine.startup.device_info import DeviceInfo
from jaxserve.errors import ConfigError
from scheduler import longest_sequence

CPU_SEQS, CPU_TOKENS, CPU_KV_BYTES = 32, 512, GIB
GPU_SEQS, GPU_TOKENS = 256, 8192
SLACK = 256 * MIB  # for holes between allocations, and libraries' work space


def use_compilation_cache() -> Path:
    """Keeps every compiled program on disk, however quick it was to compile.

    The user's own JAX_COMPILATION_CACHE_DIR wins.

    Returns:
        The folder; damaged entries are gone from it.
    """
    if jax.config.jax_compilation_cache_dir is None:
        jax.config.update("jax_compilation_cache_dir", str(cache_dir() / "xla"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    # Source lines on every instruction double a program's size, and so the time to load it.
    jax.config.update("jax_traceback_in_locations_limit", 0)
    folder = Path(jax.config.jax_compilation_cache_dir)
    drop_damaged(folder)
    return folder


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """What EngineConfig leaves open, decided.

    Args:
        layout: how the layers share the pool.
        num_blocks: blocks in the pool, the null block among them.
        bytes_per_block: over all of the pool's buffers, K and V together.
        max_model_len: tokens of prompt and output; never more than the pool can hold.
    """

    layout: CacheLayout
    num_blocks: int
    block_size: int
    bytes_per_block: int
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int

    @classmethod
    def resolve(
        cls,
        config: EngineConfig,
        model: ModelOutline,
        dtype: jnp.dtype,
        machine: DeviceInfo,
        step_bytes: int | None = None,
    ) -> EngineLimits:
        """Decides the limits for a model on a machine.

        Args:
            step_bytes: what the largest step allocates on a GPU; None estimates it.

        Raises:
            ConfigError: the KV memory holds no block, max_model_len exceeds the model's, or the
                machine can't keep what batch_invariant promises.
        """
        on_cpu = machine.on_cpu
        if config.batch_invariant and not on_cpu:
            raise ConfigError(
                "batch_invariant holds on a CPU alone: a GPU's matrix products go by their shape; "
                "leave it out"
            )
        context = model.config.max_position_embeddings
        wanted = config.max_model_len or context
        if wanted > context:
            raise ConfigError(
                f"max_model_len is {wanted}, but the model was made for at most {context}"
            )
        tokens = config.max_num_batched_tokens or (CPU_TOKENS if on_cpu else GPU_TOKENS)
        rows = config.max_num_seqs or (CPU_SEQS if on_cpu else GPU_SEQS)
        layout = CacheLayout.choose(model.cache_specs, config.block_size, wanted, tokens)
        memory = config.kv_cache_memory
        if memory is None:
            if step_bytes is None:
                step_bytes = step_memory.estimate(model.config, dtype, Bucket(tokens, rows))
            tables = step_memory.table_bytes(rows, model.config.vocab_size)
            memory = _spare_bytes(machine, model.nbytes, tables + step_bytes)
        per_block = bytes_per_block(layout.buffers, config.block_size, dtype)
        num_blocks = memory // per_block
        if num_blocks <= len(layout.groups):
            raise ConfigError(
                f"kv_cache_memory of {memory} bytes holds {num_blocks} blocks of {per_block} "
                f"bytes; at least {len(layout.groups) + 1} are needed"
            )
        longest = longest_sequence(num_blocks, config.block_size, layout.groups, tokens)
        return cls(
            layout=layout,
            num_blocks=num_blocks,
            block_size=config.block_size,
            bytes_per_block=per_block,
            max_model_len=min(wanted, longest),
            max_num_seqs=rows,
            max_num_batched_tokens=tokens,
        )

    def capacity(self, tokens: int) -> int:
        """Requests of so many tokens that the pool holds at once."""
        blocks = -(-tokens // self.block_size)
        held = sum(
            group.most_blocks(blocks, self.block_size, self.max_num_batched_tokens)
            for group in self.layout.groups
        )
        return (self.num_blocks - 1) // held


def _spare_bytes(machine: DeviceInfo, weights: int, step: int) -> int:
    """What the KV cache may take."""
    if machine.gpu_bytes is None:
        return CPU_KV_BYTES
    free = machine.gpu_bytes - weights - step - SLACK
    if free <= 0:
        raise ConfigError(
            f"of the GPU's {machine.gpu_bytes / GIB:.2f} GiB that the engine may use the weights "
            f"take {weights / GIB:.2f} and a step {(step + SLACK) / GIB:.2f}, which leaves none "
            "for the KV cache: raise gpu_memory_utilization, lower max_num_batched_tokens, or take "
            "a smaller model"
        )
    return free
