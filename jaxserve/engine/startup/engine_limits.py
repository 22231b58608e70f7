"""EngineLimits: the limits that an engine runs under, from settings, model and device."""

from __future__ import annotations

from dataclasses import dataclass

import jax.numpy as jnp

from jaxserve.config import GIB, MIB, EngineConfig
from jaxserve.engine.device.buckets import Bucket, guess_masks
from jaxserve.engine.device.cache_layout import CacheLayout
from jaxserve.engine.device.model_outline import ModelOutline
from jaxserve.engine.device.paged_cache import bytes_per_block
from jaxserve.engine.startup import step_memory
from jaxserve.engine.startup.device_info import DeviceInfo
from jaxserve.errors import ConfigError
from scheduler import longest_sequence

CPU_SEQS, CPU_TOKENS, CPU_KV_BYTES = 32, 512, GIB
GPU_SEQS, GPU_TOKENS = 256, 8192
KV_TYPES = {"fp8_e4m3": jnp.float8_e4m3fn, "fp8_e5m2": jnp.float8_e5m2}
MOST_GUESSES = 8  # unless num_speculative_tokens says otherwise
SLACK = 256 * MIB  # for fragmentation, and the work space of libraries


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """Every limit decided, also those that EngineConfig leaves open.

    Args:
        layout: how the layers share the pool.
        num_blocks: blocks in the pool, the null block among them.
        kv_dtype: NumPy's name of the type of keys and values in the pool.
        bytes_per_block: of a block in all of the pool's buffers, K and V together.
        max_model_len: tokens of prompt and output; never more than the pool can hold.
        num_guesses: most guesses of a sequence that a step verifies; 0 without speculation.
    """

    layout: CacheLayout
    num_blocks: int
    block_size: int
    kv_dtype: str
    bytes_per_block: int
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    num_guesses: int = 0

    @classmethod
    def resolve(
        cls,
        config: EngineConfig,
        model: ModelOutline,
        dtype: jnp.dtype,
        device: DeviceInfo,
        step_bytes: int | None = None,
        adapter_bytes: int = 0,
    ) -> EngineLimits:
        """Decides the limits for a model on a device.

        Args:
            step_bytes: what the largest step allocates on a GPU; None: an estimate.
            adapter_bytes: what the adapter slots take.

        Raises:
            ConfigError: the KV memory holds no block, or max_model_len exceeds the model's.
        """
        on_cpu = device.on_cpu
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
            tables = step_memory.table_bytes(
                rows, model.config.vocab_size, guess_masks(rows, config.speculation is not None)
            )
            memory = _spare_bytes(device, model.nbytes + adapter_bytes, tables + step_bytes)
        kv_dtype = jnp.dtype(KV_TYPES.get(config.kv_cache_dtype, dtype))
        per_block = bytes_per_block(layout.buffers, config.block_size, kv_dtype)
        num_blocks = memory // per_block
        if config.kv_cache_memory is None and not on_cpu:
            num_blocks = rounded_blocks(num_blocks)
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
            kv_dtype=kv_dtype.name,
            bytes_per_block=per_block,
            max_model_len=min(wanted, longest),
            max_num_seqs=rows,
            max_num_batched_tokens=tokens,
            num_guesses=_num_guesses(config, rows, tokens),
        )

    def capacity(self, tokens: int) -> int:
        """Requests of so many tokens that the pool holds at once."""
        blocks = -(-tokens // self.block_size)
        held = sum(
            group.most_blocks(blocks, self.block_size, self.max_num_batched_tokens)
            for group in self.layout.groups
        )
        return (self.num_blocks - 1) // held


def rounded_blocks(num_blocks: int) -> int:
    """At most so many blocks, and at least 98.4 % of them: a number whose binary form has seven
    digits before its zeros.

    The memory that a step is measured to take differs by a little from start to start, and the
    number of blocks is in the shapes of all programs: nearly every restart finds the same number,
    and so all its programs in the compilation cache.
    """
    zeros = max(num_blocks.bit_length() - 7, 0)
    return num_blocks >> zeros << zeros


def _num_guesses(config: EngineConfig, rows: int, tokens: int) -> int:
    """Guesses a sequence for which the token budget has room beside one token of each."""
    if config.speculation is None:
        return 0
    most, wanted = tokens // rows - 1, config.num_speculative_tokens
    if most < (wanted or 1):
        raise ConfigError(
            f"max_num_batched_tokens ({tokens}) must be at least max_num_seqs ({rows}) x (1 + "
            f"num_speculative_tokens) = {rows * (1 + (wanted or 1))}: raise it, or lower the others"
        )
    return wanted or min(MOST_GUESSES, most)


def _spare_bytes(device: DeviceInfo, weights: int, step: int) -> int:
    """Bytes that the KV cache may take."""
    if device.gpu_bytes is None:
        return CPU_KV_BYTES
    free = device.gpu_bytes - weights - step - SLACK
    if free <= 0:
        raise ConfigError(
            f"of the GPU's {device.gpu_bytes / GIB:.2f} GiB that the engine may use the weights "
            f"take {weights / GIB:.2f} and a step {(step + SLACK) / GIB:.2f}, which leaves none "
            "for the KV cache: raise gpu_memory_utilization, lower max_num_batched_tokens, or take "
            "a smaller model"
        )
    return free
