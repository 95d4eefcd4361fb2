"""Tells PyTensor's numba linker the code of lean operations."""

from __future__ import annotations

from hashlib import sha256
from typing import Any

import numpy as np
from pytensor.graph.basic import Apply
from pytensor.link.numba.dispatch.basic import numba_njit
from pytensor.tensor.basic import Alloc, Split
from pytensor.tensor.elemwise import CAReduce
from pytensor.tensor.math import Dot
from pytensor.tensor.shape import SpecifyShape
from pytensor.tensor.type_other import NoneTypeT

from synkhronos._compiling.lean import (
    convolution_loops,
    covariance_loops,
    products,
    quadratic_loops,
    reductions,
    row_product_loops,
    scan_loops,
    shapes,
)
from synkhronos._compiling.lean.convolutions import Convolution
from synkhronos._compiling.lean.covariances import CovarianceGradient
from synkhronos._compiling.lean.op import Lean
from synkhronos._compiling.lean.quadratics import SquaresOfRows
from synkhronos._compiling.lean.row_products import ChosenRowProducts, SumsOfRowsByIndex
from synkhronos._compiling.lean.scans import NumberScan
from synkhronos._libraries.pytensor import (
    compile_numba_function_src,
    numba_funcify_and_cache_key,
    register_funcify_and_cache_key,
)


def _key(module: Any, *parts: Any) -> str:
    """A key of machine code; it becomes part of a file's name.

    Cached code imports the module of the functions that it was made of, so its name is a part.
    """
    return sha256(str((module.__name__, module.VERSION, *parts)).encode()).hexdigest()


@register_funcify_and_cache_key(Lean)  # type: ignore[untyped-decorator]
def _funcify(lean: Lean, node: Apply, **kwargs: Any) -> tuple[Any, str]:
    """Return a function of numba, and the key of its machine code.

    Numba itself adds the dtypes, ranks and layouts of the arguments to the key.
    """
    op: Any = lean.op
    given, dtype = node.inputs[0].type, node.outputs[0].type.dtype
    if isinstance(op, Dot):
        return products.product(dtype), _key(products, dtype)
    if isinstance(op, CAReduce):
        wide = np.dtype(getattr(op, "acc_dtype", None) or dtype)
        function = reductions.reduction(op, given.ndim, np.dtype(dtype), wide)
        scalar = type(op.scalar_op).__name__
        return function, _key(reductions, scalar, given.ndim, op.axis, dtype, wide)
    if isinstance(op, Alloc):
        ndim = node.outputs[0].type.ndim
        key = _key(shapes, "fill", ndim, given.ndim, dtype)
        return shapes.fill(ndim, given.ndim, np.dtype(dtype)), key
    if isinstance(op, SpecifyShape):
        checked = [not isinstance(v.type, NoneTypeT) for v in node.inputs[1:]]
        return shapes.checked_shape(checked), _key(shapes, "checked", checked)
    if isinstance(op, Split):
        axis, pieces = int(op.axis or 0), len(node.outputs)
        return shapes.split(axis, pieces), _key(shapes, "split", axis, pieces)
    raise NotImplementedError(f"{lean} has no numba code")


@register_funcify_and_cache_key(Convolution)  # type: ignore[untyped-decorator]
def _funcify_convolution(op: Convolution, node: Apply, **kwargs: Any) -> tuple[Any, str]:
    """Return a function of numba, and the key of its machine code."""
    kind = node.outputs[0].type
    key = _key(convolution_loops, kind.ndim, kind.dtype)
    return convolution_loops.convolution(kind.ndim, np.dtype(kind.dtype)), key


@register_funcify_and_cache_key(CovarianceGradient)  # type: ignore[untyped-decorator]
def _funcify_gradient(op: CovarianceGradient, node: Apply, **kwargs: Any) -> tuple[Any, str]:
    """Return a function of numba, and the key of its machine code."""
    dtype = np.dtype(node.outputs[0].type.dtype)
    return covariance_loops.covariance_gradient(dtype), _key(covariance_loops, dtype)


@register_funcify_and_cache_key(SquaresOfRows)  # type: ignore[untyped-decorator]
def _funcify_squares(op: SquaresOfRows, node: Apply, **kwargs: Any) -> tuple[Any, str]:
    """Return a function of numba, and the key of its machine code."""
    return quadratic_loops.squares_of_rows, _key(quadratic_loops)


@register_funcify_and_cache_key(ChosenRowProducts)  # type: ignore[untyped-decorator]
def _funcify_products(op: ChosenRowProducts, node: Apply, **kwargs: Any) -> tuple[Any, str]:
    """Return a function of numba, and the key of its machine code."""
    dtype = np.dtype(node.outputs[0].type.dtype)
    function = row_product_loops.chosen_row_products(op.columns, dtype)
    return function, _key(row_product_loops, "products", op.columns, dtype)


@register_funcify_and_cache_key(SumsOfRowsByIndex)  # type: ignore[untyped-decorator]
def _funcify_sums(op: SumsOfRowsByIndex, node: Apply, **kwargs: Any) -> tuple[Any, str]:
    """Return a function of numba, and the key of its machine code."""
    dtype = np.dtype(node.outputs[0].type.dtype)
    function = row_product_loops.sums_of_rows_by_index(op.columns, dtype)
    return function, _key(row_product_loops, "sums", op.columns, dtype)


@register_funcify_and_cache_key(NumberScan)  # type: ignore[untyped-decorator]
def _funcify_scan(op: NumberScan, node: Apply, **kwargs: Any) -> tuple[Any, str | None]:
    """Return a function of numba, and the key of its machine code."""
    step, known = numba_funcify_and_cache_key(op.step, node=op.step.make_node(*op.step.inputs))
    text = scan_loops.source(node)
    code = compile_numba_function_src(text, "scan", {"np": np, "step": step})
    key = None if known is None else _key(scan_loops, text, known)
    return numba_njit(code, boundscheck=False), key
