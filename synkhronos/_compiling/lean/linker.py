"""PyTensor's linker for numba, with one compilation of a graph's function less."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pytensor.configdefaults import config
from pytensor.graph.fg import FunctionGraph
from pytensor.link.numba.linker import NumbaLinker

from synkhronos._compiling.data.aligned import BORDER
from synkhronos._compiling.kept.functions import KeptFunction
from synkhronos._compiling.late_imports import import_now
from synkhronos._libraries.library import optional_gain, usable


class LeanLinker(NumbaLinker):
    """Compiles the function that calls a graph's operations once, where PyTensor does it twice.

    PyTensor wraps each function into another one before numba caches it, so that the key of the
    machine code depends on no closure. The function of a whole graph has none.
    """

    kept: KeptFunction | None = None  # of the graph
    keeps_code = True  # of functions that Python calls

    def fgraph_convert(self, fgraph: FunctionGraph, *args: object, **kwargs: object) -> Any:
        """Return the graph's function and the key of its machine code (None: not cached).

        Of a graph whose machine code is kept, return a function of that.
        """
        if self.kept is not None and self.keeps_code:
            compiled: list[Callable[..., object]] = []

            def other(*values: object) -> object:
                if not compiled:
                    compiled.append(self.jit_compile(self._converted(fgraph, *args, **kwargs)))
                return compiled[0](*values)

            if (found := self.kept.function(other)) is not None:
                return found
        return self._converted(fgraph, *args, **kwargs)

    def _converted(self, fgraph: FunctionGraph, *args: object, **kwargs: object) -> Any:
        for module in ("lean", "vectorised"):  # a graph that is kept was not rewritten here
            usable(f"synkhronos._compiling.{module}.dispatch")
        import_now("numba")
        if not config.numba__cache:
            return super().fgraph_convert(fgraph, *args, **kwargs)
        with optional_gain():
            from synkhronos._libraries.pytensor import (
                CACHED_SRC_FUNCTIONS,
                numba_funcify_and_cache_key,
            )

            function, key = numba_funcify_and_cache_key(fgraph, **kwargs)
            if key is not None:
                fast = int(config.numba__fastmath)
                source = function.py_func
                # its temporary file would be part of the name of the cached machine code
                source.__code__ = source.__code__.replace(co_filename="<graph>")
                name = f"synkhronos_{key}_fastmath{fast}_border{BORDER}_twice"
                CACHED_SRC_FUNCTIONS[source] = name
            return function, key
        return super().fgraph_convert(fgraph, *args, **kwargs)

    def jit_compile(self, fn: Any) -> Any:
        """Return the compiled function of a graph: its bits do not depend on what was cached."""
        if not isinstance(fn, tuple):
            return fn
        function, key = fn
        with optional_gain():
            from pytensor.link.numba.dispatch.basic import numba_njit

            from synkhronos._compiling.lean.own_copies import WithOwnCopies

            found: Any = numba_njit(
                function.py_func,
                final_function=True,
                cache=key is not None,
                pipeline_class=WithOwnCopies,
            )
            if self.kept is not None and self.keeps_code:
                self.kept.watch(found)
            if usable("synkhronos._compiling.lean.inner"):
                from synkhronos._compiling.lean.inner import inner_code

                found.compile = inner_code()(found.compile)
            return found
        return super().jit_compile(fn)
