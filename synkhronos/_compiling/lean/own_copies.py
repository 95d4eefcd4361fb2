"""Functions of numba that call no machine code but their own and that of libraries in C.

numba links a copy of each function into its callers. A copy that is not inlined is a weak symbol:
if the function itself has been compiled or loaded in this process, its callers jump there, and
otherwise to their own copy, which was optimised for them. So a caller that has just been compiled
computes other last digits than the same one from the cache, whose callees were not loaded.
"""

from __future__ import annotations

from types import FunctionType
from typing import Any

from synkhronos._compiling.lean.constants import align_arrays
from synkhronos._libraries.library import optional_gain
from synkhronos._libraries.numba import NUMBA, Compiler, JITCodeLibrary, lookup_environment

_ENVIRONMENT = "_ZN08NumbaEnv"  # the prefix of the names of environments


class _OwnCopies(JITCodeLibrary):  # type: ignore[misc]
    """The machine code of a function, whose copies of other functions are its own.

    LLVM optimises it twice: the second time it finds more in the loops that were inlined the first
    time. A mixture of 1,000 rows takes 29 us so, and 36 with one pass. PyTensor's linker compiles a
    graph's function twice, with the same effect, and for longer.
    """

    def _optimize_final_module(self) -> None:
        for _ in range(2):
            super()._optimize_final_module()

    def _finalize_final_module(self) -> None:
        for function in NUMBA.of(self, "_final_module").functions:
            if function.linkage.name == "linkonce_odr":
                function.linkage = "internal"
        super()._finalize_final_module()
        set_environments(self)


class WithOwnCopies(Compiler):  # type: ignore[misc]
    """A pipeline of `numba.njit` for a function that calls its own copies of others."""

    def compile_extra(self, func: FunctionType) -> object:
        """Compile a function of Python."""
        library = _OwnCopies(self.state.targetctx.codegen(), func.__qualname__)
        library.enable_object_caching()
        self.state.library = library
        with optional_gain():
            align_arrays(self.state.targetctx)
        return super().compile_extra(func)


def set_environments(library: Any) -> None:
    """Give machine code the environments of the functions whose copies it has."""
    names = {v.name for v in NUMBA.of(library, "_final_module").global_variables}
    found = {name: lookup_environment(name) for name in names if name.startswith(_ENVIRONMENT)}
    library.environments = [each for each in found.values() if each is not None]  # holds them
    for each in library.environments:
        library.codegen.set_env(each.env_name, each)
