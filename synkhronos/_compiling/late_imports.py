"""Imports of linkers: of a package's operations when a graph is first compiled; of JAX, if any."""

from __future__ import annotations

import functools
import sys
from importlib import import_module
from typing import Any

from pytensor.compile.mode import optdb
from pytensor.graph.fg import FunctionGraph

from synkhronos._compiling.where import Where

_modules: dict[str, str] = {}  # to be imported, by the names of rewrites
_LAST = 1000.0  # a position after all of PyTensor's own rewrites


def _import(module: str, fgraph: FunctionGraph) -> None:
    """Import a module, and change no graph; PyTensor's linkers offer packages no other hook."""
    del fgraph
    import_module(module)


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
            rewrite = Where(functools.partial(_import, _modules[name]))
            optdb.register(name, rewrite, linker, position=_LAST)


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
