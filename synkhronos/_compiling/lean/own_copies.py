"""Functions of numba that call no machine code but their own and that of libraries in C.

numba links a copy of each function into its callers. A copy that is not inlined is a weak symbol:
if the function itself has been compiled or loaded in this process, its callers jump there, and
otherwise to their own copy, which was optimised for them. So a caller that has just been compiled
computes other last digits than the same one from the cache, whose callees were not loaded.
"""

from __future__ import annotations

from types import FunctionType

from synkhronos._libraries.numba import NUMBA, Compiler, JITCodeLibrary


class _OwnCopies(JITCodeLibrary):  # type: ignore[misc]
    """The machine code of a function, whose copies of other functions are its own."""

    def _finalize_final_module(self) -> None:
        for function in NUMBA.of(self, "_final_module").functions:
            if function.linkage.name == "linkonce_odr":
                function.linkage = "internal"
        super()._finalize_final_module()


class WithOwnCopies(Compiler):  # type: ignore[misc]
    """A pipeline of `numba.njit` for a function that calls its own copies of others."""

    def compile_extra(self, func: FunctionType) -> object:
        """Compile a function of Python."""
        library = _OwnCopies(self.state.targetctx.codegen(), func.__qualname__)
        library.enable_object_caching()
        self.state.library = library
        return super().compile_extra(func)
