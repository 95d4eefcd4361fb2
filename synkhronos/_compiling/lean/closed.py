"""A linker whose functions are called by other numba code, and do not become a part of it.

numba links the code of a function into each of its callers, and optimises it there again. For a
log-density this takes seconds, in each process if the caller is not cached.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from pytensor.graph.basic import Variable
from pytensor.graph.fg import FunctionGraph

from synkhronos._compiling.data.once import with_data_apart
from synkhronos._compiling.lean.linker import LeanLinker
from synkhronos._libraries.library import optional_gain
from synkhronos._libraries.numba import NUMBA


class ClosedLinker(LeanLinker):
    """Compiles functions that numba code calls by their address.

    Attributes
    ----------
    graph : FunctionGraph or None
        What was compiled.
    arguments : list of Variable
        What the function takes: inputs of its graph, and what is computed of data once.
    """

    keeps_code = False
    graph: FunctionGraph | None = None
    arguments: list[Variable]

    def fgraph_convert(self, fgraph: FunctionGraph, *args: object, **kwargs: object) -> Any:
        """Return the graph's function, whose data are arguments."""
        apart = with_data_apart(fgraph)
        self.graph, self.arguments = apart or (fgraph, list(fgraph.inputs))
        if apart is None:
            return functools.partial(super().fgraph_convert, fgraph, *args, **kwargs)
        return functools.partial(super().fgraph_convert, self.graph)

    def jit_compile(self, fn: Callable[[], Any]) -> Any:
        """Return the compiled function of a graph, which is made when it is used."""
        return _Later(lambda: self._compiled(fn()))

    def _compiled(self, fn: Any) -> Any:
        import llvmlite.binding as llvm  # it takes 30 ms, and what is kept needs none

        found = super().jit_compile(fn)
        compile_for = getattr(found, "compile", None)
        if compile_for is None:
            return found
        with optional_gain():
            _keep_object_code(NUMBA.of(found, "_cache"))

        def compile_closed(types: object) -> object:
            entry: object = compile_for(types)
            for result in found.overloads.values():
                # finds or makes the machine code, whose symbol other code may then name
                result.library.get_pointer_to_function(result.fndesc.llvm_func_name)
                with optional_gain():  # callers link the shared module
                    NUMBA.put(result.library, "_shared_module", llvm.parse_assembly(""))
            return entry

        found.compile = compile_closed
        return found


class _Later:
    """A function of numba that is made when something asks for what it has."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make

    def __getattr__(self, name: str) -> Any:
        return getattr(self._made, name)

    def __call__(self, *values: object) -> Any:
        """Call the function."""
        return self._made(*values)

    @functools.cached_property
    def _made(self) -> Any:
        return self._make()


def _keep_object_code(cache: object) -> None:
    """Let the library of a function that is loaded have its object code, as a compiled one has."""
    if isinstance(cache, NUMBA.get("NullCache")):
        return
    implementation = NUMBA.of(cache, "_impl")
    rebuild = implementation.rebuild

    def rebuilt(context: object, payload: Any) -> object:
        found = rebuild(context, payload)
        with optional_gain():  # LLVM has taken it
            NUMBA.put(found.library, "_compiled_object", payload[0][2][0])
        return found

    implementation.rebuild = rebuilt
