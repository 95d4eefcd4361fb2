"""JAX: the only file that imports it, and only where a function is compiled for it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytensor
from pytensor.compile.mode import Mode, get_mode
from pytensor.graph.rewriting.basic import dfs_rewriter, node_rewriter
from pytensor.link.jax.linker import JAXLinker
from pytensor.tensor.elemwise import CAReduce

_LAST = 1000.0  # after all rewrites of PyTensor's own


def runs_jax(mode: Any) -> bool:
    """Whether functions of a mode are compiled by JAX."""
    return isinstance(get_mode(mode).linker, JAXLinker)


@node_rewriter([CAReduce])  # type: ignore[untyped-decorator]
def _declared_sum(fgraph: Any, node: Any) -> Any:
    """Let a reduction give the dtype it declares.

    JAX sums in the dtype of the input whatever is asked, and PyTensor 3.3 casts that to the dtype
    of the accumulator. So float32 leaves a sum as float64, and all that follows, a gradient's
    matrix products above all, takes twice as long.
    """
    del fgraph
    dtype = node.outputs[0].type.dtype
    if node.op.acc_dtype in (None, dtype) or node.inputs[0].type.dtype != dtype:
        return None
    return [node.op.clone(acc_dtype=dtype)(*node.inputs)]


def declared_dtypes(mode: Any) -> Mode:
    """A mode of JAX whose float32 graphs stay float32."""
    return get_mode(mode).register((dfs_rewriter(_declared_sum), _LAST))


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
