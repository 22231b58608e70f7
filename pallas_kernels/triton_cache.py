"""Writes new keys and values into the pool, in Pallas for NVIDIA GPUs (Triton backend)."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plt

_Ref = Any  # Pallas has no public type for one


def check_pool_size(pages: jax.Array) -> None:
    """Refuses a pool in which Pallas would compute wrong offsets.

    Pallas computes offsets in elements, with 64 bits for arrays from 2^32 bytes on and with signed
    32 bits for smaller ones. That is correct for all types except the 8-bit ones.

    Raises:
        ValueError: an 8-bit pool of more than 2^31 and at most 2^32 elements.
    """
    if pages.dtype.itemsize == 1 and 2**31 < math.prod(pages.shape) <= 2**32:
        raise ValueError(
            f"an 8-bit pool of shape {pages.shape} has {math.prod(pages.shape)} elements; choose a "
            f"number of blocks for at most {2**31} elements, or for more than {2**32}"
        )


def write_kv(
    k: jax.Array,  # [T, K, D], as stored
    v: jax.Array,  # [T, K, D], as stored
    k_pages: jax.Array,  # [B, K, P, D]
    v_pages: jax.Array,  # [B, K, P, D]
    slots: jax.Array,  # [T]
    *,
    interpret: bool = False,
) -> tuple[jax.Array, jax.Array]:
    """See `pallas_kernels.write_kv`."""
    check_pool_size(k_pages)
    dtype = k_pages.dtype
    if dtype.itemsize == 1:  # copied as bits, because sm_80 does not support e4m3
        k, v, k_pages, v_pages = (
            lax.bitcast_convert_type(x, jnp.uint8) for x in (k, v, k_pages, v_pages)
        )
    # Keys and values are one operand, so that XLA computes both in one kernel.
    new = jnp.concatenate([k, v], axis=1)
    pools = pl.pallas_call(
        _write_kernel,
        grid=(len(slots),),
        out_shape=(
            jax.ShapeDtypeStruct(k_pages.shape, k_pages.dtype),
            jax.ShapeDtypeStruct(v_pages.shape, v_pages.dtype),
        ),
        in_specs=[pl.no_block_spec] * 4,
        out_specs=(pl.no_block_spec, pl.no_block_spec),
        input_output_aliases={2: 0, 3: 1},
        interpret=interpret,
        compiler_params=plt.CompilerParams(num_warps=4, num_stages=1),
        name="write_kv",
    )(new, slots, k_pages, v_pages)
    if dtype.itemsize == 1:
        return tuple(lax.bitcast_convert_type(x, dtype) for x in pools)  # type: ignore[return-value]
    return pools


def _write_kernel(
    new_ref: _Ref,  # [T, 2K, D], keys before values
    slots_ref: _Ref,  # [T]
    unused_k_pages_ref: _Ref,  # aliased with the outputs
    unused_v_pages_ref: _Ref,
    k_pages_ref: _Ref,  # [B, K, P, D]
    v_pages_ref: _Ref,  # [B, K, P, D]
) -> None:
    """Stores the keys and values of one token."""
    token = pl.program_id(0)
    slot = slots_ref[token]
    kv_heads, block_size, head_dim = k_pages_ref.shape[1:]

    @pl.when(slot >= 0)
    def _() -> None:
        head = jnp.arange(pl.next_power_of_2(kv_heads))[:, None]
        lane = jnp.arange(pl.next_power_of_2(head_dim))[None]
        mask = (head < kv_heads) & (lane < head_dim)
        for first, pages_ref in ((0, k_pages_ref), (kv_heads, v_pages_ref)):
            x = plt.load(new_ref.at[token, first + head, lane], mask=mask, other=0)
            where = pages_ref.at[slot // block_size, head, slot % block_size, lane]
            plt.store(where, x, mask=mask)
