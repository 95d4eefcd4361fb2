"""JAX: the only file that imports it, and only where a function is compiled for it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytensor


def typified(state: Any) -> Any:
    """A random generator as JAX takes it; states that JAX has returned are left alone."""
    if not isinstance(state, np.random.Generator):
        return state
    from pytensor.link.jax.dispatch import jax_typify

    return jax_typify(state)


@contextlib.contextmanager
def shared_cache() -> Iterator[None]:
    """Keep what JAX compiles on disk meanwhile, unless the user does: the others load it."""
    import jax
    from jax.experimental.compilation_cache import compilation_cache

    if jax.config.jax_compilation_cache_dir:
        yield
        return
    wanted = {
        "jax_compilation_cache_dir": str(Path(pytensor.config.base_compiledir) / "synkhronos-jax"),
        "jax_persistent_cache_min_compile_time_secs": 0.0,  # else small programs are left out
        "jax_persistent_cache_min_entry_size_bytes": 0,
    }
    before = {name: getattr(jax.config, name) for name in wanted}
    try:
        _configure(jax, wanted)
        compilation_cache.reset_cache()  # JAX reads the folder once
        yield
    finally:
        _configure(jax, before)
        compilation_cache.reset_cache()


def _configure(jax: Any, values: dict[str, Any]) -> None:
    for name, value in values.items():
        jax.config.update(name, value)
