"""Private names of numba."""

from __future__ import annotations

from synkhronos._libraries.library import Library

NUMBA = Library(
    "numba",
    tried="0.68.0",
    names={
        "the last digits of results depend on what numba has cached": (
            "numba.core.codegen:JITCodeLibrary JITCodeLibrary._finalize_final_module",
            "numba.core.compiler:Compiler Compiler.compile_extra",
        ),
        "loops of a function take up to a quarter longer": (
            "numba.core.codegen:JITCodeLibrary._optimize_final_module",
        ),
        "products with matrices of data take up to a third longer": (
            "numba.core.base:BaseContext BaseContext.make_constant_array",
        ),
        "numba makes machine code of functions that are never called": (
            "numba.core.codegen:JITCodeLibrary._ensure_finalized",
            "numba.core.codegen:JITCodeLibrary._finalize_dynamic_globals",
            "numba.core.codegen:JITCodeLibrary._get_module_for_linking",
            "numba.core.codegen:JITCPUCodegen JITCPUCodegen._library_class",
            "numba.core.codegen:JITCPUCodegen()._engine",
            "numba.core.codegen:RuntimeLinker RuntimeLinker.PREFIX",
        ),
        "nutpie links a log-density again for each of its functions": (
            "numba.core.codegen:JITCodeLibrary()._shared_module JITCodeLibrary()._final_module",
        ),
        "first calls take longer, since PyTensor's own numba code is used": (
            "numba.core:cgutils cgutils.alloca_once_value cgutils.for_range",
            "numba.core:cgutils.get_or_insert_function cgutils.is_null cgutils.memset",
            "numba.core:cgutils.pack_array cgutils.unpack_tuple",
            "numba.np.linalg:ensure_blas",
        ),
        "nutpie's functions take seconds longer to compile": (
            "numba.core.callconv:ALLOC_FLAG_IDX HASH_BUF_IDX",
            "numba.core.cgutils:pointer_add true_bit voidptr_t",
            "numba.core.compiler_lock:global_compiler_lock",
            "numba.core.environment:lookup_environment",
            "numba.core.registry:cpu_target",
            "numba.core.runtime.nrt:rtsys",
            "numba.np.arrayobj:make_array populate_array",
        ),
        "compiled models are not kept between processes": (
            "numba.core.caching:NullCache FunctionCache()._impl",
            "numba.core.codegen:JITCodeLibrary()._compiled_object",
            "numba.core.dispatcher:Dispatcher()._cache",
        ),
        "a function that this machine has compiled before takes seconds to be loaded": (
            "numba._dynfunc:make_function",
            "numba._dynfunc:Environment",
            "numba._helperlib:c_helpers",
            "numba.core.runtime._nrt_python:meminfo_new",
            "numba.core.serialize:_numba_unpickle",
        ),
        "a process whose parallel numba function has run is forked, and members may hang": (
            "numba.np.ufunc.parallel:_is_initialized",
        ),
    },
)
__getattr__ = NUMBA.get
