"""Machine code of C functions: made around a function that numba has compiled, or loaded again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from llvmlite import ir

from synkhronos._compiling.kept.machine_code import NEEDED
from synkhronos._libraries.numba import (
    cpu_target,
    dumps,
    global_compiler_lock,
    loads,
    lookup_environment,
    rtsys,
)


@dataclass(frozen=True, eq=False)
class CFunction:
    """A C function, for as long as this object lives.

    Attributes
    ----------
    address : int
    object_code : bytes or None
        What `loaded` takes, in each process with the same numba on the same processor. As with any
        machine code, who can write it can do all that the process can. None: it holds addresses of
        this process.
    """

    address: int
    object_code: bytes | None
    _owner: object  # holds the memory of the code


@global_compiler_lock  # type: ignore[untyped-decorator]
def linked(name: str, module: ir.Module, inner: Any) -> CFunction:
    """The function of this name in a module of LLVM, which calls the function of a numba result."""
    library = inner.target_context.codegen().create_library(name)
    library.enable_object_caching()
    library.add_ir_module(module)
    library.add_linking_library(rtsys.library)
    library.finalize()
    address = library.get_pointer_to_function(name)
    return CFunction(address, _object_code(name, inner, library), (library, inner))


@global_compiler_lock  # type: ignore[untyped-decorator]
def compiled(name: str, module: ir.Module) -> CFunction:
    """The function of this name in a module of LLVM, which calls nothing of numba."""
    library = cpu_target.target_context.codegen().create_library(name)
    library.add_ir_module(module)
    library.finalize()
    return CFunction(library.get_pointer_to_function(name), None, library)


def _object_code(name: str, inner: Any, library: Any) -> bytes | None:
    """What `loaded` takes: the libraries, and the environments of code that calls Python."""
    if inner.library.has_dynamic_globals:
        return None
    try:
        libraries = [each.serialize_using_object_code() for each in (inner.library, library)]
    except (ValueError, RuntimeError):  # numba has not kept it
        return None
    called = {match.decode() for match in NEEDED.findall(libraries[0][2][0])}
    found = [lookup_environment(each) for each in called - {inner.fndesc.env_name}]
    return None if None in found else dumps((name, libraries, found))


@global_compiler_lock  # type: ignore[untyped-decorator]
def loaded(object_code: bytes) -> CFunction:
    """The function of `CFunction.object_code`. Nothing is typed, and nothing is compiled."""
    context = cpu_target.target_context
    rtsys.initialize(context)  # tells LLVM where the functions are that the code calls
    name, libraries, environments = loads(object_code)
    libraries = [context.codegen().unserialize_library(each) for each in libraries]
    for each in environments:
        context.codegen().set_env(each.env_name, each)
    address = libraries[-1].get_pointer_to_function(name)
    return CFunction(address, object_code, (libraries, environments))
