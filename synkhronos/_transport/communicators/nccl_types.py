"""Which of NCCL's types and operators reduce arrays of a dtype."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from synkhronos._backends.nccl import element, operator
from synkhronos._proofs.reductions import Reduction, accumulator, result_dtype

_NCCL = {
    Reduction.AVG: "Sum",
    Reduction.SUM: "Sum",
    Reduction.PROD: "Prod",
    Reduction.MIN: "Min",
    Reduction.MAX: "Max",
}
_OF_BOOLS = {"Sum": "Max", "Prod": "Min", "Min": "Min", "Max": "Max"}
_FLOATS_OF_16_BITS = ("float16", "bfloat16")
_INTS_OF_16_BITS = {"int16": "int32", "uint16": "uint32"}  # that NCCL has no kernels for
_REALS = {"complex64": "float32", "complex128": "float64"}


@dataclass(frozen=True)
class NcclReduction:
    """The call of NCCL that reduces arrays of a dtype."""

    dtype: str  # the dtype in which they are combined
    # the names of NCCL's element type and operator
    element: str
    operator: str
    parts: int = 1  # elements of NCCL for each element of the array: 2 for complex numbers

    @property
    def numbers(self) -> tuple[int, int]:
        """NCCL's numbers of the element type and the operator."""
        return element(self.element), operator(self.operator)


def nccl_reduction(dtype: np.dtype, op: Reduction) -> NcclReduction | None:
    """The reduction for a dtype; None where NCCL has none. Pure.

    >>> nccl_reduction(np.dtype("float16"), Reduction.SUM)
    NcclReduction(dtype='float32', element='float32', operator='Sum', parts=1)
    >>> nccl_reduction(np.dtype("complex64"), Reduction.MAX) is None
    True
    """
    name = dtype.name
    if name in _FLOATS_OF_16_BITS and op not in (Reduction.MIN, Reduction.MAX):
        wide = "float32"
    else:
        wide = accumulator(dtype, op).name if dtype.kind != "V" else name
    wide = _INTS_OF_16_BITS.get(wide, wide)
    if wide == "bool":
        return NcclReduction(wide, "uint8", _OF_BOOLS[_NCCL[op]])
    if wide in _REALS:
        return NcclReduction(wide, _REALS[wide], "Sum", 2) if _NCCL[op] == "Sum" else None
    return NcclReduction(wide, wide, _NCCL[op])


def reduced_dtype(dtype: Any, op: Reduction) -> Any:
    """The dtype of reduced values; a dtype that only JAX has (bfloat16) stays."""
    return dtype if dtype.kind == "V" else result_dtype(np.dtype(dtype), op)
