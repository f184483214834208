"""Compiled programs that outlast the command: a second start of the same run compiles nothing."""

from __future__ import annotations

import jax

from rookery.data.catalogue import cache_folder


def keep_compiled() -> None:
    """Keeps compiled programs in the cache (ROOKERY_CACHE), unless JAX has been told where already."""
    if getattr(jax.config, "jax_compilation_cache_dir", None) is not None:
        return
    folder = cache_folder() / "compiled"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:  # a home that cannot be written: everything works, and is compiled anew
        return
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)
