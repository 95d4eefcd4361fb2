"""The reductions: how partial results of members and slices combine. Pure numpy."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from synkhronos._errors import InputError, InputTypeError


class Reduction(enum.StrEnum):
    """How the values of several parts are combined into one."""

    AVG = "avg"
    SUM = "sum"
    PROD = "prod"
    MIN = "min"
    MAX = "max"
    GATHER = "gather"

    def __reduce_ex__(self, protocol: object) -> Any:
        return Reduction, (str(self),)


# The ufunc that combines two values; avg adds weighted values.
COMBINE: dict[Reduction, np.ufunc] = {
    Reduction.AVG: np.add,
    Reduction.SUM: np.add,
    Reduction.PROD: np.multiply,
    Reduction.MIN: np.minimum,
    Reduction.MAX: np.maximum,
}

# All names that users may pass: also a synonym, and those of 2017 for reductions through the CPU.
NAMES = (
    {str(op): op for op in Reduction}
    | {f"c_{op}": op for op in Reduction}
    | {"mean": Reduction.AVG}
)


def parse(name: object, what: str = "reduction") -> Reduction | None:
    """The reduction of a name; None stands for the master's own value.

    >>> parse("mean"), parse("c_gather"), parse(None)
    (<Reduction.AVG: 'avg'>, <Reduction.GATHER: 'gather'>, None)
    """
    if name is None:
        return None
    if isinstance(name, str) and name in NAMES:
        return NAMES[name]
    known = ", ".join(repr(str(op)) for op in Reduction)
    raise InputError(f"{what} {name!r} is not known: use one of {known}, 'mean' for 'avg', or None")


def accumulator(dtype: np.dtype, op: Reduction) -> np.dtype:
    """The dtype in which partial values of `dtype` are combined.

    float16 is summed in float32. Averages of integers and bools are floats.
    """
    if op is Reduction.AVG and dtype.kind in "biu":
        return np.dtype(np.float64)
    if dtype == np.float16 and op in (Reduction.AVG, Reduction.SUM, Reduction.PROD):
        return np.dtype(np.float32)
    return dtype


def result_dtype(dtype: np.dtype, op: Reduction) -> np.dtype:
    """The dtype of a reduced value: unchanged, but float64 for averages of integers."""
    return np.dtype(np.float64) if op is Reduction.AVG and dtype.kind in "biu" else dtype


def check_adds(op: Reduction | None, dtype: object, what: str) -> None:
    """Refuse the sum of bools: in their own dtype it would be a logical or, and not a count.

    Every place that combines values follows this rule. The product of bools is a bool, and so are
    their minimum and maximum. Their average is a float64; a variable of bools holds the nearest.

    >>> check_adds(Reduction.PROD, "bool", "all_reduce: s")
    >>> check_adds(Reduction.SUM, "int8", "all_reduce: s")
    """
    if op is Reduction.SUM and dtype == "bool":
        raise InputTypeError(
            f"{what} holds bools, and a bool cannot hold their sum: cast it, as in "
            '.astype("int64"), or use "max", which is true where any is'
        )


def normalized(weights: Sequence[float]) -> list[float]:
    """Weights divided by their sum."""
    total = float(sum(weights))
    return [w / total for w in weights]


def scales(
    dtype: np.dtype, weights: Sequence[float] | None, parts: int
) -> tuple[list[float], float]:
    """For an average: the factor of each part's value, and the divisor of their sum.

    Sums of integers are exact and divided once; a sum of floats could overflow.

    >>> scales(np.dtype("int32"), [1, 3], 2), scales(np.dtype("float32"), [1, 3], 2)
    (([1, 3], 4.0), ([0.25, 0.75], 1.0))
    """
    given = [1.0] * parts if weights is None else list(weights)
    if dtype.kind in "biu":
        return given, float(sum(given))
    return normalized(given), 1.0


def combine(
    values: Iterable[object], op: Reduction, weights: Sequence[float] | None = None
) -> np.ndarray:
    """Reduce the values of the parts, in the order given.

    Parameters
    ----------
    values : arrays
        One for each part, equal in shape and dtype (for gather: equal but for axis 0).
    op : Reduction
    weights : floats, optional
        For avg: the rows of each part. Equal weights unless given.

    Returns
    -------
    numpy.ndarray
        A fresh array, of the parts' dtype (float64 for an average of integers).

    >>> combine([np.array(1.0), np.array(4.0)], Reduction.AVG, weights=[2, 1])
    array(2.)
    """
    parts = [np.asarray(v) for v in values]
    first = parts[0]
    if op is Reduction.GATHER:
        return np.concatenate([p.reshape(1) if p.ndim == 0 else p for p in parts])
    check_alike(parts)
    total = np.array(first, dtype=accumulator(first.dtype, op))
    ufunc = COMBINE[op]
    if op is Reduction.AVG and len(parts) > 1:
        scale, divisor = scales(first.dtype, weights, len(parts))
        total *= scale[0]
        for part, share in zip(parts[1:], scale[1:], strict=True):
            total += part.astype(total.dtype, copy=False) * share
        if divisor != 1.0:
            total /= divisor
    else:
        for part in parts[1:]:
            ufunc(total, part, out=total)
    return np.asarray(total, dtype=result_dtype(first.dtype, op))


def rounded(value: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """A reduced value in another dtype; floats become integers or bools by rounding.

    They become the nearest; of two that are equally near, the even one.

    >>> rounded(np.array([0.5, 1.5, -0.7]), np.dtype("int8"))
    array([ 0,  2, -1], dtype=int8)
    >>> rounded(np.array([0.25, 0.5, 0.75]), np.dtype("bool"))
    array([False, False,  True])
    """
    if dtype.kind in "biu" and value.dtype.kind == "f":
        value = np.rint(value)
    return value.astype(dtype, copy=False)


def check_alike(parts: Sequence[np.ndarray]) -> None:
    """Refuse values of different shapes, since broadcasting would hide a mistake."""
    check_shapes([p.shape for p in parts])


def check_shapes(shapes: Sequence[tuple[int, ...]], joined: bool = False) -> None:
    """Refuse different shapes of the parts' values; of `joined` ones, without their first axis."""
    if all([s == shapes[0] for s in shapes]):
        return
    if joined:
        raise InputError(
            f"the parts' values have shapes {shapes} after the first axis, which must be equal to "
            "join them"
        )
    raise InputError(
        f"the parts' values have shapes {shapes}, which must be equal to combine them: reduce over "
        'rows in the graph, or name the reduction "gather"'
    )


class Accumulator:
    """Combines the values of slices one after the other, with one total in memory.

    >>> a = Accumulator(Reduction.AVG)
    >>> a.add(np.array([1.0, 2.0]), 1); a.add(np.array([3.0, 4.0]), 3); a.result()
    array([2.5, 3.5])
    """

    def __init__(self, op: Reduction | None) -> None:
        self._op = op
        self._total: Any = None
        self._weight = 0.0
        self._parts: list[np.ndarray] = []
        self._dtype = np.dtype(np.float64)

    def add(self, value: object, rows: float) -> None:
        """Add the value of a slice of `rows` rows."""
        if self._op is None:
            if self._total is None:
                self._total = value
        elif self._op is Reduction.GATHER:
            self._parts.append(np.asarray(value))
        else:
            self._combine(np.asarray(value), rows, self._op)

    def _combine(self, value: np.ndarray, rows: float, op: Reduction) -> None:
        weighted = op is Reduction.AVG
        if self._total is None:
            self._dtype = value.dtype
            self._total = np.array(value, dtype=accumulator(value.dtype, op))
            if weighted:
                self._total *= rows
        else:
            check_alike([self._total, value])
            if weighted:
                value = value.astype(self._total.dtype, copy=False) * float(rows)
            COMBINE[op](self._total, value, out=self._total)
        self._weight += rows

    def result(self) -> Any:
        """The combined value of all slices."""
        if self._op is None:
            return self._total
        if self._op is Reduction.GATHER:
            return combine(self._parts, self._op)
        if self._op is Reduction.AVG:
            self._total /= self._weight
        return np.asarray(self._total, dtype=result_dtype(self._dtype, self._op))
