"""Functions that other functions call: they become a part of these, without machine code of theirs.

numba makes machine code of each function that it compiles. It links copies of those that a function
calls into it, from their LLVM code, so the machine code of most is never run.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from synkhronos._compiling.lean.own_copies import set_environments
from synkhronos._compiling.memory import rarely_collected
from synkhronos._libraries.library import optional_gain
from synkhronos._libraries.numba import (
    NUMBA,
    JITCodeLibrary,
    JITCPUCodegen,
    RuntimeLinker,
    cpu_target,
    global_compiler_lock,
)

_KEY = "inner code"  # numba caches these functions apart, since others load their machine code


class _InnerLibrary(JITCodeLibrary):  # type: ignore[misc]
    """The code of a function, of which machine code is made when something asks for its address."""

    _waits = False

    def _finalize_final_module(self) -> None:
        module = NUMBA.of(self, "_final_module")
        resolved_later = any(
            v.name.startswith(RuntimeLinker.PREFIX) for v in module.global_variables
        )
        if resolved_later or (self._object_caching_enabled and self._compiled_object):
            super()._finalize_final_module()
            return
        self._finalize_dynamic_globals()
        self._finalized = self._waits = True

    def get_pointer_to_function(self, name: str) -> int:
        """The address of a function; 0 if there is none of this name."""
        self._ensure_finalized()
        if self._waits:
            module = NUMBA.of(self, "_final_module")
            if name not in {f.name for f in module.functions if not f.is_declaration}:
                return 0
            self._get_module_for_linking()  # its copy for callers stays as it is
            self._waits = False
            self._dynamic_globals.clear()
            super()._finalize_final_module()
            set_environments(self)
        address: int = super().get_pointer_to_function(name)
        return address

    def serialize_using_object_code(self) -> object:
        """The bitcode, where there is no machine code yet; numba caches it."""
        if self._waits:
            return self.serialize_using_bitcode()
        return super().serialize_using_object_code()


@contextlib.contextmanager
def inner_code() -> Iterator[None]:
    """A context in which numba makes no machine code of functions that nothing calls by address.

    It holds numba's lock, so other threads compile as ever.
    """
    with global_compiler_lock, rarely_collected(), contextlib.ExitStack() as stack:
        with optional_gain():
            _lead(cpu_target.target_context.codegen(), stack)
        yield


def _lead(codegen: JITCPUCodegen, stack: contextlib.ExitStack) -> None:
    """Let numba make libraries of this module, until the stack is closed."""
    if NUMBA.of(codegen, "_library_class") is _InnerLibrary:
        return
    engine, set_env = NUMBA.of(codegen, "_engine"), codegen.set_env
    apart = (*codegen.magic_tuple(), _KEY)

    def set_env_of_machine_code(name: str, environment: object) -> None:
        if engine.is_symbol_defined(name):
            set_env(name, environment)

    for name, value in (
        ("_library_class", _InnerLibrary),
        ("magic_tuple", lambda: apart),
        ("set_env", set_env_of_machine_code),
    ):
        setattr(codegen, name, value)
        stack.callback(delattr, codegen, name)
