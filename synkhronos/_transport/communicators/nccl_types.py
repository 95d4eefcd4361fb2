"""How NCCL reduces arrays of each dtype: in which it combines them, and what it takes that for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from synkhronos._backends.nccl import element, operator
from synkhronos._plan.reductions import Reduction, accumulator, result_dtype

_NCCL = {
    Reduction.AVG: "Sum",
    Reduction.SUM: "Sum",
    Reduction.PROD: "Prod",
    Reduction.MIN: "Min",
    Reduction.MAX: "Max",
}
_OF_BOOLS = {"Sum": "Max", "Prod": "Min", "Min": "Min", "Max": "Max"}
_HALVES = ("float16", "bfloat16")
_SHORTS = {"int16": "int32", "uint16": "uint32"}  # that NCCL has no kernels for
_REALS = {"complex64": "float32", "complex128": "float64"}


@dataclass(frozen=True)
class Way:
    """How NCCL reduces arrays of a dtype.

    Attributes
    ----------
    dtype : str
        In which they are combined.
    element, operator : str
        What NCCL takes this for.
    times : int
        NCCL's elements to one.
    """

    dtype: str
    element: str
    operator: str
    times: int = 1

    @property
    def numbers(self) -> tuple[int, int]:
        """NCCL's of the element and the operator."""
        return element(self.element), operator(self.operator)


def way(dtype: np.dtype, op: Reduction) -> Way | None:
    """How NCCL reduces a dtype; None where it cannot. Pure.

    >>> way(np.dtype("float16"), Reduction.SUM)
    Way(dtype='float32', element='float32', operator='Sum', times=1)
    >>> way(np.dtype("complex64"), Reduction.MAX) is None
    True
    """
    name = dtype.name
    if name in _HALVES and op not in (Reduction.MIN, Reduction.MAX):
        wide = "float32"
    else:
        wide = accumulator(dtype, op).name if dtype.kind != "V" else name
    wide = _SHORTS.get(wide, wide)
    if wide == "bool":
        return Way(wide, "uint8", _OF_BOOLS[_NCCL[op]])
    if wide in _REALS:
        return Way(wide, _REALS[wide], "Sum", 2) if _NCCL[op] == "Sum" else None
    return Way(wide, wide, _NCCL[op])


def result_of(dtype: Any, op: Reduction) -> Any:
    """The dtype of reduced values; that of JAX's alone is kept."""
    return dtype if dtype.kind == "V" else result_dtype(np.dtype(dtype), op)
