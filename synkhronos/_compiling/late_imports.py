"""Imports of linkers: of a package's operations when a graph is first compiled; of JAX, if any."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

from pytensor.compile.mode import optdb
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.rewriting.basic import GraphRewriter

_modules: dict[str, str] = {}  # to be imported, by the names of rewrites
_LAST = 1000.0  # a position after all of PyTensor's own rewrites


class _Imports(GraphRewriter):
    """A rewrite that changes no graph; PyTensor's linkers offer packages no other hook."""

    def __init__(self, module: str) -> None:
        super().__init__()
        self.module = module

    def add_requirements(self, fgraph: FunctionGraph) -> None:
        """Add none."""

    def apply(self, fgraph: FunctionGraph) -> None:
        """Import the module; from the second time on this costs nothing."""
        import_module(self.module)


def import_late(package: str, *linkers: str) -> None:
    """Let numba and JAX import ``_numba`` and ``_jax`` of a package of ours, once in a process.

    Parameters
    ----------
    package : str
        Its name below ``synkhronos``, such as "nn".
    *linkers : str
        Only these.
    """
    for linker in linkers or ("numba", "jax"):
        name = f"synkhronos_{package}_{linker}"
        if name not in optdb:
            _modules[name] = f"synkhronos.{package}._{linker}"
            optdb.register(name, _Imports(_modules[name]), linker, position=_LAST)


def import_now(linker: str) -> None:
    """Import what a rewrite for this linker would import."""
    for name, module in _modules.items():
        if name.endswith(f"_{linker}"):
            import_module(module)


def imported_jax() -> Any:
    """JAX if this process has imported it, else None.

    ArviZ puts a module of the name into ``sys.modules`` that imports JAX, for some seconds, once an
    attribute of it is read. Such a module counts as not imported.
    """
    return sys.modules.get("jax") if "jax.numpy" in sys.modules else None
