"""Replaces scalar operations by vectorised ones, before loops are fused."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from importlib import import_module
from typing import Any

from pytensor.compile.mode import optdb
from pytensor.graph.rewriting.basic import GraphRewriter
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.math import cast

from synkhronos._backends.vectorised.op import Vectorised
from synkhronos._backends.vectorised.table import has_code

log = logging.getLogger("synkhronos")

_TAG = "synkhronos_vectorised"
_BEFORE_FUSION = 48.5  # after the rewrites that look for PyTensor's operations
_wanted: ContextVar[bool] = ContextVar("wanted", default=True)


def is_replaced(variable: Any) -> bool:
    """Whether an elementwise function with vectorised code computes the variable."""
    node = variable.owner
    return (
        node is not None
        and isinstance(node.op, Elemwise)
        and has_code(node.op.scalar_op, variable.type.dtype)
    )


class _Replace(GraphRewriter):
    """Puts vectorised operations into a graph."""

    def add_requirements(self, fgraph: Any) -> None:
        """Add none."""

    def apply(self, fgraph: Any) -> None:
        """Replace the elementwise functions that this package has code for."""
        found = [v for node in fgraph.toposort() for v in node.outputs if is_replaced(v)]
        if not found or not _is_available():
            return
        for variable in found:
            dtype = variable.type.dtype
            given = [v if v.type.dtype == dtype else cast(v, dtype) for v in variable.owner.inputs]
            new = Elemwise(Vectorised(variable.owner.op.scalar_op))(*given)
            fgraph.replace(variable, new, reason=_TAG)


def _is_available() -> bool:
    """Whether the code can be imported; PyTensor's and numba's own parts may change."""
    try:
        import_module("synkhronos._backends.vectorised.dispatch")
    except (ImportError, AttributeError) as exc:
        log.info("loops take longer: the functions of libm and SciPy are used (%s)", exc)
        return False
    return True


@contextmanager
def vectorising(wanted: bool) -> Iterator[None]:
    """A context in which compiled functions get vectorised operations, or keep PyTensor's."""
    before = _wanted.set(wanted)
    try:
        yield
    finally:
        _wanted.reset(before)


def tags() -> tuple[str, ...]:
    """What a mode has to include, so that operations are replaced; nothing, if they are not."""
    if not _wanted.get():
        return ()
    if _TAG not in optdb:
        optdb.register("synkhronos_vectorised_functions", _Replace(), _TAG, position=_BEFORE_FUSION)
    return (_TAG,)
