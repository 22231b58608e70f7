"""Memory, blocks and programs of an engine, computed from its config without starting it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import jax.numpy as jnp

from checkpoints import open_outline
from jaxserve.config import GIB, EngineConfig, Quantization
from jaxserve.engine.device.buckets import BucketTable
from jaxserve.engine.startup.adapter_loading import adapter_layout
from jaxserve.engine.startup.device_info import GPUS, DeviceInfo
from jaxserve.engine.startup.engine_limits import EngineLimits
from jaxserve.engine.startup.stored_forms import planned_model
from jaxserve.errors import ConfigError

TYPICAL_TOKENS = 1000  # tokens of the request that the figures take as typical


def plan(config: EngineConfig, path: Path, gpu: str | None) -> Iterator[str]:
    """Lines that describe the engine that would serve the model at path.

    Args:
        path: of a Hugging Face folder config.json is enough.
        gpu: a name in device_info.GPUS; None is a CPU.

    Raises:
        ModelError: the model has no config, or one that we can't read.
        ConfigError: the settings don't fit the model or the GPU.
    """
    device = DeviceInfo.named(gpu, config.gpu_memory_utilization)
    dtype = jnp.dtype(device.dtype(config))
    model = planned_model(config, open_outline(path, config.quantization), device)
    adapters = adapter_layout(config, model, dtype, device.on_cpu)
    adapter_bytes = 0 if adapters is None else adapters.nbytes
    limits = EngineLimits.resolve(config, model, dtype, device, adapter_bytes=adapter_bytes)
    yield f"model        {model.config.architecture}, {dtype.name}"
    yield f"weights      {model.nbytes / GIB:.2f} GiB{', quantised' if model.forms else ''}"
    if adapters is not None:
        each = adapter_bytes / adapters.slots / GIB
        yield (
            f"adapters     {adapter_bytes / GIB:.2f} GiB: {adapters.slots} slots of rank "
            f"{config.max_lora_rank}; in host memory {each:.3f} GiB an adapter"
        )
    yield f"KV cache     {describe_cache(limits)}"
    table = BucketTable.build(
        limits.max_num_seqs, limits.max_num_batched_tokens, limits.num_guesses
    )
    yield f"step shapes  {len(table.all)}"
    rows = ", ".join(str(b.rows) for b in table.decode)
    yield f"  decode     {rows} rows; {_decode_waste(table)}"
    if (steps := config.decode_steps) > 1:
        more = len(table.decode)
        yield f"             also {steps} steps in one dispatch: {more} programs more"
    if table.verify:
        sizes = ", ".join(str(b.tokens) for b in table.verify)
        yield f"  verify     {sizes} tokens, up to {limits.num_guesses} guesses a sequence"
    shapes = ", ".join(f"{b.tokens} x {b.rows}" for b in table.mixed)
    yield f"  mixed      {shapes} (tokens x rows); {_mixed_waste(table, limits)}"


def suggest(config: EngineConfig, path: Path, gpu: str | None) -> Iterator[str]:
    """Lines that say which forms of a model fit which GPU, and how many requests each holds.

    Args:
        path: as of plan().
        gpu: a name in device_info.GPUS; None is each of them.

    Raises:
        ModelError: as plan().
        ConfigError: we don't know the GPU.
    """
    checkpoint = open_outline(path)
    kinds: tuple[Quantization | None, ...] = (None, "fp8", "int8", "int4")
    if any(checkpoint.form(parameter) is not None for parameter in checkpoint.parameters()):
        kinds = (None,)  # it is quantised already
    for name in GPUS if gpu is None else (gpu,):
        for kind in kinds:
            device = DeviceInfo.named(name, config.gpu_memory_utilization)
            dtype = jnp.dtype(device.dtype(config))
            chosen = checkpoint if kind is None else open_outline(path, kind)
            model = planned_model(config, chosen, device)
            form = kind or ("as stored" if model.forms else dtype.name)
            line = f"{name:<12} {form:<10} weights {model.nbytes / GIB:7.2f} GiB: "
            adapters = adapter_layout(config, model, dtype, device.on_cpu)
            taken = 0 if adapters is None else adapters.nbytes
            try:
                limits = EngineLimits.resolve(config, model, dtype, device, adapter_bytes=taken)
            except ConfigError:
                yield line + "doesn't fit"
                continue
            pool = limits.num_blocks * limits.block_size // len(limits.layout.groups)
            yield (
                f"{line}KV cache of {pool} tokens, "
                f"{limits.capacity(limits.max_model_len)} requests of {limits.max_model_len}"
                f"{_typical_capacity(limits)}"
            )


def describe_cache(limits: EngineLimits) -> str:
    """The KV pool in one line."""
    size = limits.block_size
    groups = len(limits.layout.groups)
    return (
        f"{limits.num_blocks * limits.bytes_per_block / GIB:.2f} GiB: {limits.num_blocks} blocks "
        f"of {size} tokens in {groups} cache group{'s' * (groups > 1)}, "
        f"{limits.bytes_per_block // size * groups} bytes a token; holds "
        f"{limits.capacity(limits.max_model_len)} requests of {limits.max_model_len} tokens"
        f"{_typical_capacity(limits)}"
    )


def _typical_capacity(limits: EngineLimits) -> str:
    """How many typical requests fit; nothing where a request can't have so many tokens."""
    if limits.max_model_len <= TYPICAL_TOKENS:
        return ""
    return f", {limits.capacity(TYPICAL_TOKENS)} of {TYPICAL_TOKENS}"


def _decode_waste(table: BucketTable) -> str:
    most = table.decode[-1].rows
    padded = [table.pick(n, n).rows for n in range(1, most + 1)]
    return f"of the rows computed {1 - most * (most + 1) / 2 / sum(padded):.0%} padding on average"


def _mixed_waste(table: BucketTable, limits: EngineLimits) -> str:
    sizes = range(2, limits.max_num_batched_tokens + 1)
    padded = sum(table.pick(n, 1).tokens for n in sizes)
    return f"of the tokens computed {1 - sum(sizes) / padded:.0%} padding on average"
