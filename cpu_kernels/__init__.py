"""CPU kernels compiled by numba: matrix products, adapters on them, paged attention, and norms.

They replace XLA's own code where it is slow on CPUs. Importing this package compiles machine code
and starts threads, so import it only where the model runs on a CPU.
"""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np

from cpu_kernels.code_cache import checked_cache

with checked_cache():
    from cpu_kernels.columns import STEP, Columns, call_arguments, pack, pack_codes
    from cpu_kernels.thread_pool import (
        ADAPT,
        ATTENTION,
        LINEAR,
        NORMALIZE,
        STORED_LINEAR,
        default_threads,
        use_threads,
    )
    from cpu_kernels.tiles import TILE

__all__ = [
    "CUSTOM_CALLS",
    "Columns",
    "adapt",
    "attention",
    "default_threads",
    "linear",
    "normalize",
    "pack",
    "pack_codes",
    "packed_linear",
    "use_threads",
]
CUSTOM_CALLS = (ADAPT, ATTENTION, LINEAR, NORMALIZE, STORED_LINEAR)
_NO_WINDOW = 2**30


def linear(x: jax.Array, w: jax.Array) -> jax.Array:
    """x @ w.T. A row's bits depend on that row and on w alone, provided that w is finite.

    Args:
        x: [T, I] float32. Trailing rows of zeros cost next to nothing.
        w: [O, I] float32.

    Returns:
        [T, O] float32.

    Raises:
        ValueError: types or shapes other than these.
    """
    if not x.dtype == w.dtype == jnp.float32:
        raise ValueError(f"x and w must be float32; got {x.dtype} and {w.dtype}")
    if not x.ndim == w.ndim == 2 or x.shape[1] != w.shape[1]:
        raise ValueError(f"x must be [T, I] and w [O, I]; got {x.shape} and {w.shape}")
    shape = jax.ShapeDtypeStruct((x.shape[0], w.shape[0]), jnp.float32)
    return jax.ffi.ffi_call(LINEAR, shape)(x, w)


def packed_linear(x: jax.Array, columns: Columns, expert: jax.Array | None = None) -> jax.Array:
    """x @ w.T with w in columns: bit for bit what `linear` gives for w in float32, faster.

    Args:
        x: [T, I] float32. Trailing rows of zeros take almost no time.
        columns: of w, or of several w of one shape: each array [X, N, ...].
        expert: which of several, a number.

    Returns:
        [T, O] float32.

    Raises:
        ValueError: types or shapes other than these.
    """
    if x.dtype != jnp.float32 or x.ndim != 2 or x.shape[1] != columns.inputs:
        raise ValueError(f"x must be [T, {columns.inputs}] float32; it is {x.shape} {x.dtype}")
    first = jnp.zeros(1, jnp.int32)  # of the groups of outputs
    if expert is not None:
        joined = {n: a.reshape(-1, *a.shape[2:]) for n, a in columns.arrays.items()}
        first = expert.astype(jnp.int32).reshape(1) * columns.groups
        columns = replace(columns, arrays=joined)
    shape = jax.ShapeDtypeStruct((x.shape[0], columns.outputs), jnp.float32)
    if columns.arrays["codes"].dtype == jnp.float32:
        return jax.ffi.ffi_call(LINEAR, shape)(x, columns.arrays["codes"], first)
    x = jnp.pad(x, ((0, 0), (0, -columns.inputs % STEP)))
    return jax.ffi.ffi_call(STORED_LINEAR, shape)(x, *call_arguments(columns), first)


def adapt(
    y: jax.Array,
    x: jax.Array,
    order: jax.Array,
    groups: jax.Array,
    down: jax.Array,
    up: jax.Array,
    spans: jax.Array,
    touched: jax.Array,
) -> jax.Array:
    """y + (x @ down[g]) @ up[g], where g is each row's group; y where it has none.

    A row's bits depend on that row and its group's arrays alone. The cost is in proportion to the
    rows that have a group, and to its rank.

    Args:
        y: [T, O] float32.
        x: [T, I] float32; or [T, K], what is multiplied by `up`, where `down` is empty.
        order: [T] int32, the rows in the order of their groups.
        groups: [T] int32, the groups of these rows, ascending; G and more is none.
        down: [G, I * R + C] float32: in each group's row first its matrix [I, rank], rank at
            most R, and then whatever; or [G, 0].
        up: [G, P, M, K, C] float32, P columns of C outputs each. C is the tile's.
        spans: [G, N + 1] int32. Of the rank, spans[g, n] to spans[g, n + 1] belong to part n; at
            most K. The last entry is the rank; 0 leaves y as it is.
        touched: [P, M] int32: up[:, p, m] has the columns p of part touched[p, m]; -1 is none.

    Raises:
        ValueError: types or shapes other than these.
    """
    if not all(a.dtype == jnp.float32 for a in (y, x, down, up)):
        raise ValueError("y, x, down and up must be float32")
    count, panels, most, rank, columns = up.shape
    tokens, parts = len(y), spans.shape[1] - 1
    wide = x.shape[1] * rank * parts + TILE.columns
    if not (
        x.shape[0] == tokens
        and order.shape == groups.shape == (tokens,)
        and down.shape in ((count, wide), (count, 0))
        and (columns, panels) == (TILE.columns, -(-y.shape[1] // TILE.columns))
        and spans.shape[0] == count
        and touched.shape == (panels, most)
    ):
        raise ValueError(
            f"shapes don't fit together: y {y.shape}, x {x.shape}, order {order.shape}, groups "
            f"{groups.shape}, down {down.shape}, up {up.shape}, spans {spans.shape}, touched "
            f"{touched.shape}"
        )
    call = jax.ffi.ffi_call(
        ADAPT, jax.ShapeDtypeStruct(y.shape, jnp.float32), input_output_aliases={0: 0}
    )
    ints = (a.astype(jnp.int32) for a in (order, groups))
    return call(y, x, *ints, down, up, spans, touched)


def normalize(x: jax.Array, epsilon: float) -> jax.Array:
    """Each row of x [..., I] over the square root of its mean square plus epsilon.

    A row's bits depend on that row alone.

    Raises:
        ValueError: x isn't float32.
    """
    if x.dtype != jnp.float32:
        raise ValueError(f"x must be float32; it was {x.dtype}")
    rows = x.reshape(-1, x.shape[-1])
    call = jax.ffi.ffi_call(NORMALIZE, jax.ShapeDtypeStruct(rows.shape, jnp.float32))
    return call(rows, np.array([epsilon], np.float32)).reshape(x.shape)


def attention(
    q: jax.Array,
    k_pages: jax.Array,
    v_pages: jax.Array,
    block_tables: jax.Array,
    context_lens: jax.Array,
    query_starts: jax.Array,
    *,
    window: int | None = None,
    softcap: float | None = None,
    sinks: jax.Array | None = None,
) -> jax.Array:
    """Causal attention of a ragged batch over paged keys and values.

    A token's bits depend on its own sequence alone, whether it is a decode or part of a prefill,
    provided that the sequence's values are finite.

    Args:
        q: [T, K, G, D] float32, scaled; G query heads for each of K kv heads.
        k_pages: [B, K, P, D] float32; P and D are multiples of 16.
        v_pages: [B, K, P, D] float32.
        block_tables: [S, W] int32.
        context_lens: [S] int32, tokens.
        query_starts: [S + 1] int32.
        window: a token sees the last `window` positions, its own included; None sees all.
        softcap: scores become softcap * tanh(score / softcap).
        sinks: [K, G], an additional logit per head in the softmax, with no value.

    Returns:
        [T, K, G, D] float32; zeros for tokens past the last sequence.

    Raises:
        ValueError: types, sizes or shapes other than these.
    """
    block_size, head_dim = k_pages.shape[2:]
    if not q.dtype == k_pages.dtype == v_pages.dtype == jnp.float32:
        raise ValueError(
            f"q and pools must be float32; got {q.dtype}, {k_pages.dtype} and {v_pages.dtype}"
        )
    if block_size % 16 or head_dim % 16:
        raise ValueError(
            f"block and head sizes must be multiples of 16; got {block_size} and {head_dim}"
        )
    sequences, heads = len(block_tables), q.shape[1:3]
    if not (
        k_pages.shape == v_pages.shape
        and (q.shape[1], q.shape[3]) == (k_pages.shape[1], head_dim)
        and context_lens.shape == (sequences,)
        and query_starts.shape == (sequences + 1,)
        and (sinks is None or sinks.shape == heads)
    ):
        raise ValueError(
            f"shapes don't fit together: q {q.shape}, pools {k_pages.shape} and {v_pages.shape}, "
            f"block_tables {block_tables.shape}, context_lens {context_lens.shape}, query_starts "
            f"{query_starts.shape}, sinks {sinks if sinks is None else sinks.shape}"
        )
    ints = (a.astype(jnp.int32) for a in (block_tables, context_lens, query_starts))
    call = jax.ffi.ffi_call(ATTENTION, jax.ShapeDtypeStruct(q.shape, jnp.float32))
    return call(
        q,
        k_pages,
        v_pages,
        *ints,
        jnp.zeros((0, 0), jnp.float32) if sinks is None else sinks.astype(jnp.float32),
        np.array([_NO_WINDOW if window is None else window], np.int32),
        np.array([softcap or 0], np.float32),
    )
