"""Writing new keys and values into the pool, in Pallas for NVIDIA GPUs (Triton backend)."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plt

_Ref = Any  # Pallas has no public type for one


def write_kv(
    k: jax.Array,  # [T, K, D], as stored
    v: jax.Array,  # [T, K, D], as stored
    k_pages: jax.Array,  # [B, K, P, D]
    v_pages: jax.Array,  # [B, K, P, D]
    slots: jax.Array,  # [T]
    *,
    interpret: bool = False,
) -> tuple[jax.Array, jax.Array]:
    """See `pallas_kernels.write_kv`. The pools come back as the same memory, where donated."""
    dtype = k_pages.dtype
    if dtype.itemsize == 1:  # moved as bits: sm_80 knows no e4m3
        k, v, k_pages, v_pages = (
            lax.bitcast_convert_type(x, jnp.uint8) for x in (k, v, k_pages, v_pages)
        )
    pools = pl.pallas_call(
        _write_kernel,
        grid=(len(slots),),
        out_shape=(
            jax.ShapeDtypeStruct(k_pages.shape, k_pages.dtype),
            jax.ShapeDtypeStruct(v_pages.shape, v_pages.dtype),
        ),
        in_specs=[pl.no_block_spec] * 5,
        out_specs=(pl.no_block_spec, pl.no_block_spec),
        input_output_aliases={3: 0, 4: 1},
        interpret=interpret,
        compiler_params=plt.CompilerParams(num_warps=4, num_stages=1),
        name="write_kv",
    )(k, v, slots, k_pages, v_pages)
    if dtype.itemsize == 1:
        return tuple(lax.bitcast_convert_type(x, dtype) for x in pools)  # type: ignore[return-value]
    return pools


def _write_kernel(
    k_ref: _Ref,  # [T, K, D]
    v_ref: _Ref,  # [T, K, D]
    slots_ref: _Ref,  # [T]
    unused_k_pages_ref: _Ref,  # the outputs are the same memory
    unused_v_pages_ref: _Ref,
    k_pages_ref: _Ref,  # [B, K, P, D]
    v_pages_ref: _Ref,  # [B, K, P, D]
) -> None:
    """One token."""
    token = pl.program_id(0)
    slot = slots_ref[token]
    kv_heads, head_dim = k_ref.shape[1:]
    block_size = k_pages_ref.shape[2]

    @pl.when(slot >= 0)
    def _() -> None:
        head = jnp.arange(pl.next_power_of_2(kv_heads))[:, None]
        lane = jnp.arange(pl.next_power_of_2(head_dim))[None]
        mask = (head < kv_heads) & (lane < head_dim)
        for new_ref, pages_ref in ((k_ref, k_pages_ref), (v_ref, v_pages_ref)):
            x = plt.load(new_ref.at[token, head, lane], mask=mask, other=0)
            where = pages_ref.at[slot // block_size, head, slot % block_size, lane]
            plt.store(where, x, mask=mask)
