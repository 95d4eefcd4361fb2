"""Imports a linker's implementations of these operations when it first compiles a graph."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from pytensor.compile.mode import optdb
from pytensor.graph.rewriting.basic import GraphRewriter

_LAST = 1000.0  # a position after all of PyTensor's own rewrites


class _Imports(GraphRewriter):
    """A rewrite that changes no graph; PyTensor's linkers offer packages no other hook."""

    def __init__(self, module: str) -> None:
        super().__init__()
        self.module = module

    def add_requirements(self, fgraph: Any) -> None:
        """Add none."""

    def apply(self, fgraph: Any) -> None:
        """Import the module; from the second time on this costs nothing."""
        import_module(self.module)


def register() -> None:
    """Register the imports with the linkers, once in a process."""
    for linker in ("numba", "jax"):
        name = f"synkhronos_nn_{linker}"
        if name not in optdb:
            optdb.register(name, _Imports(f"synkhronos.nn._{linker}"), linker, position=_LAST)
