"""Each linker's versions of these operations are imported when it first compiles a graph."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from pytensor.compile.mode import optdb
from pytensor.graph.rewriting.basic import GraphRewriter

_LAST = 1000.0  # after all rewrites of PyTensor's own


class _Imports(GraphRewriter):
    """Changes no graph. PyTensor's linkers have no other place where a package could join them."""

    def __init__(self, module: str) -> None:
        super().__init__()
        self.module = module

    def add_requirements(self, fgraph: Any) -> None:
        """None."""

    def apply(self, fgraph: Any) -> None:
        """Import the module; from the second time on that is nothing."""
        import_module(self.module)


def register() -> None:
    """Join the linkers, once in a process."""
    for linker in ("numba", "jax"):
        name = f"synkhronos_nn_{linker}"
        if name not in optdb:
            optdb.register(name, _Imports(f"synkhronos.nn._{linker}"), linker, position=_LAST)
