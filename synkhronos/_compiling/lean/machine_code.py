"""Machine code of C functions, made around a function that numba has compiled, or of LLVM alone."""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from synkhronos._compiling.kept.image import NotLoadable
from synkhronos._compiling.kept.machine_code import CFunction, Code, needed_environments
from synkhronos._libraries.numba import cpu_target, global_compiler_lock, lookup_environment, rtsys


@global_compiler_lock  # type: ignore[untyped-decorator]
def linked(name: str, module: ir.Module, inner: Any) -> CFunction:
    """The function of this name in a module of LLVM, which calls the function of a numba result."""
    library = inner.target_context.codegen().create_library(name)
    library.enable_object_caching()
    library.add_ir_module(module)
    library.add_linking_library(rtsys.library)
    library.finalize()
    address = library.get_pointer_to_function(name)
    code = None if inner.library.has_dynamic_globals else _code(name, library, inner)
    return CFunction(address, code, (library, inner))


@global_compiler_lock  # type: ignore[untyped-decorator]
def compiled(name: str, module: ir.Module) -> CFunction:
    """The function of this name in a module of LLVM, which calls nothing of numba."""
    library = cpu_target.target_context.codegen().create_library(name)
    library.enable_object_caching()
    library.add_ir_module(module)
    library.finalize()
    return CFunction(library.get_pointer_to_function(name), _code(name, library), library)


def _code(name: str, library: Any, inner: Any = None) -> Code | None:
    """The machine code of a function and of the inner one, whose call by Python nobody needs."""
    libraries = [library] if inner is None else [inner.library, library]
    try:
        found = [each.serialize_using_object_code()[2][0] for each in libraries]
        needed = set() if inner is None else needed_environments(found[0]) - {inner.fndesc.env_name}
        return Code.of(found, name, {each: lookup_environment(each) for each in needed})
    except (ValueError, RuntimeError, NotLoadable):  # numba has not kept it
        return None
