"""Machine code for a CPU, by numba, where XLA's falls short: products of few rows, paged attention.

For importing only where there is a CPU to run on: it compiles, and starts threads.
"""

from __future__ import annotations

import atexit
import hashlib
import logging
import os
import shutil
import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp
import numba
import numpy as np


def _kept_at() -> str:
    """Where machine code of this version is kept: the first folder that can be written to.

    Numba keeps a function's for as long as its own file stays the same; what it calls may be in
    another.
    """
    folder = Path(__file__).parent
    sources = b"".join(path.read_bytes() for path in sorted(folder.glob("*.py")))
    version = hashlib.sha256(sources).hexdigest()[:16]
    home = os.path.expanduser("~")  # stays as it is where nobody has one
    places = numba.config.CACHE_DIR, folder / "__pycache__", f"{home}/.cache/jaxserve/numba"
    for place in (Path(place) for place in places if os.path.isabs(place)):
        try:
            (place / version).mkdir(parents=True, exist_ok=True)
            if not any((place / version).iterdir()):
                logging.getLogger(__name__).info("compiling kernels for this CPU, once: 20 s")
            with tempfile.TemporaryFile(dir=place / version):
                return str(place / version)
        except OSError:
            continue
    nowhere = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, nowhere, ignore_errors=True)
    return nowhere


_before, numba.config.CACHE_DIR = numba.config.CACHE_DIR, _kept_at()
from cpu_kernels.crew import ATTENTION, LINEAR  # noqa: E402

numba.config.CACHE_DIR = _before

CUSTOM_CALLS = (ATTENTION, LINEAR)
_NO_WINDOW = 2**30


def linear(x: jax.Array, w: jax.Array) -> jax.Array:
    """x @ w.T; a row's bits depend on that row and on w alone, if w is finite.

    Args:
        x: [T, I] float32. Last rows that are all zeros cost next to nothing.
        w: [O, I] float32.

    Returns:
        [T, O] float32.

    Raises:
        ValueError: other types or shapes.
    """
    if not x.dtype == w.dtype == jnp.float32:
        raise ValueError(f"x and w must be float32; got {x.dtype} and {w.dtype}")
    if not x.ndim == w.ndim == 2 or x.shape[1] != w.shape[1]:
        raise ValueError(f"x must be [T, I] and w [O, I]; got {x.shape} and {w.shape}")
    shape = jax.ShapeDtypeStruct((x.shape[0], w.shape[0]), jnp.float32)
    return jax.ffi.ffi_call(LINEAR, shape)(x, w)


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
    """Causal attention of a ragged batch over paged keys and values; a token's bits depend on its
    own sequence alone, decode or prefill, if that sequence's values are finite.

    Args:
        q: [T, K, G, D] float32, scaled: G query heads for each of K kv heads.
        k_pages: [B, K, P, D] float32; P and D are multiples of 16.
        v_pages: [B, K, P, D] float32.
        block_tables: [S, W] int32.
        context_lens: [S] int32, tokens.
        query_starts: [S + 1] int32.
        window: a token sees the last `window` positions, its own included; None sees all.
        softcap: scores become softcap * tanh(score / softcap).
        sinks: [K, G], one more logit a head in the softmax, with no value.

    Returns:
        [T, K, G, D] float32; zeros for tokens past the last sequence.

    Raises:
        ValueError: other types, sizes or shapes.
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
