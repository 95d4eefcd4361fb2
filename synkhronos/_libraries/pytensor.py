"""Private names of PyTensor."""

from __future__ import annotations

from synkhronos._libraries.library import Library

_BASIC = "pytensor.link.numba.dispatch.basic"

PYTENSOR = Library(
    "pytensor",
    tried="3.3.8",
    names={
        "operations of this package have no code for numba": (
            f"{_BASIC}:get_numba_type register_funcify_and_cache_key",
        ),
        "first calls take longer, since PyTensor's own numba code is used": (
            "pytensor.link.numba.cache:compile_numba_function_src",
        ),
        "loops take longer, since the functions of libm and SciPy are used": (
            f"{_BASIC}:numba_typify",
            "pytensor.link.numba.dispatch.elemwise:numba_funcify_FusedElemwise",
            "pytensor.link.numba.dispatch.scalar:numba_funcify_Composite",
            "pytensor.link.utils:fgraph_to_python",
            "pytensor.tensor.rewriting.fused_elemwise:FusedElemwise",
            "pytensor.tensor.rewriting.scalarize:ScalarizedElemwise",
        ),
        "loops over many arrays are not fused": (
            "pytensor.tensor.rewriting.elemwise:elemwise_max_operands_fct",
        ),
        "loops of operations such as softmax take longer": (
            "pytensor.compile.rewriting:inline_ofg_node",
            "pytensor.tensor.symbolic:FusibleSymbolicOp FusibleSymbolicOpDerivative",
        ),
        "more exponentials are computed than are needed": (
            "pytensor.tensor.rewriting.math:local_mul_exp_to_exp_add",
        ),
        "gradients by covariances of many columns take longer, since loops compute inverses": (
            "pytensor.link.numba.cache:_call_cached_ptr",
        ),
        "numba compiles the function of each graph twice": (
            "pytensor.link.numba.cache:CACHED_SRC_FUNCTIONS",
            f"{_BASIC}:numba_funcify_and_cache_key",
        ),
        "reports do not say why numba keeps no code of a function": (
            f"{_BASIC}:NUMBA_CONSTANT_SIZE_LIMIT numba_funcify_default_op_cache_key",
        ),
        "threads that compile at once may take each other's mode, or keep it": (
            "pytensor.configparser:PyTensorConfigParser.change_flags",
            "pytensor.configparser:ConfigParam().val",
        ),
        "a log-density is compiled without operations of this package": (
            "pytensor.compile.mode:_ActiveModeGraphRewriter",
            "pytensor.graph.fg:FunctionGraph()._compile_mode",
        ),
        "no compiled function is kept for later runs": (f"{_BASIC}:numba_funcify",),
        "an operation of wrap_py whose function is not importable stays in this process": (
            "pytensor.compile.ops:FromFunctionOp()._FromFunctionOp__fn",
            "pytensor.compile.ops:FromFunctionOp()._FromFunctionOp__infer_shape",
        ),
        "collectives of a batch of values exchange one value after another": (
            "pytensor.graph.replace:_vectorize_node",
        ),
    },
)
__getattr__ = PYTENSOR.get
