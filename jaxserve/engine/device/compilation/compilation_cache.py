"""JAX's persistent compilation cache, as the engine uses it."""

from __future__ import annotations

from pathlib import Path

import jax

from jaxserve.config import cache_dir
from jaxserve.engine.device.compilation.checked_files import drop_damaged


def use_compilation_cache() -> Path:
    """Keeps every compiled program on disk, however quick it was to compile.

    A JAX_COMPILATION_CACHE_DIR that the user has set is used as it is.

    Returns:
        The folder, from which damaged entries have been deleted.
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
