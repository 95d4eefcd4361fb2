"""The promises of a proof: how a variable's value follows from its values for the parts.

A call's n rows are divided into parts of n_i rows. V is the variable's value for all rows, and V_i
its value if only part i is there. Each class is a promise about V:

    Same        V = V_i for every part
    Rows        V is the V_i joined along one axis; every row fills equally many entries of it
    Folded      V has an axis of blocks, and each block is joined from that block of the V_i
    Reduced     V is a reduction of the V_i: sum, avg (weighted by n_i), max, min, prod
    LogSum      V = log(sum of exp(V_i))
    Count       V = a * n**power, where a is Same
    Position    V holds the numbers 0..n-1 of the rows
    Entries     V is a vector, and every entry has its own promise (most often a shape)
    Finished    V is a function only of such values: known once they are reduced
    Unknown     no promise

Rows and sums may have *factors*. A factor is a number that depends on all rows, such as the
1 / x.shape[0] or the 1 / mask.sum() that the gradient of a mean brings into the graph. Then
V = f_1 * U_1 + f_2 * U_2 + ..., where U_k is V with f_k = 1 and the other factors = 0. U_k has the
promise without factors. So the members compute the U_k, and the f_k are applied after the
reduction.

A *zero* is made of a constant zero, and fits values of any factors. In Same it is exact. In the
other classes it is exact except for rows that hold infinities, since 0 * inf is nan.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from pytensor.graph.basic import Variable


@dataclass(frozen=True)
class Factor:
    """A number that depends on all rows and multiplies (or divides) a value."""

    variable: Variable | None  # None: inside a loop, where it cannot be replaced
    inverse: bool = False
    per_row: bool = False  # the number is c / n with c Same

    @property
    def removable(self) -> bool:
        """Whether it can be set to zero; the inverse of a factor would have to be infinite."""
        return self.variable is not None and not self.inverse


Factors = frozenset[Factor]
NO_FACTORS: Factors = frozenset()


@dataclass(frozen=True)
class Same:
    zero: bool = False


@dataclass(frozen=True)
class Rows:
    axis: int
    whole: bool = True  # one entry for each row, so the axis has length n
    factors: Factors = NO_FACTORS
    zero: bool = False


type Product = tuple[int, frozenset[tuple[Hashable, int]]]  # a number, and symbols with powers


@dataclass(frozen=True)
class Folded:
    """Rows along an axis whose length is outer * n * inner, as time-major data have.

    An operation that treats all entries of that axis alike treats them as Rows.
    """

    axis: int
    outer: Product
    inner: Product
    factors: Factors = NO_FACTORS
    zero: bool = False

    @property
    def fold(self) -> tuple[Product, Product]:
        return self.outer, self.inner

    def as_rows(self) -> Rows:
        return Rows(self.axis, whole=False, factors=self.factors, zero=self.zero)

    @staticmethod
    def of(rows: Rows, fold: tuple[Product, Product]) -> Folded:
        return Folded(rows.axis, *fold, rows.factors, rows.zero)


@dataclass(frozen=True)
class Reduced:
    by: str
    factors: Factors = NO_FACTORS
    zero: bool = False  # each row adds 0, so it is an avg, too


@dataclass(frozen=True)
class LogSum:
    pass


@dataclass(frozen=True)
class Count:
    power: int = 1
    whole: bool = False  # exactly n


@dataclass(frozen=True)
class Position:
    axis: int = 0


@dataclass(frozen=True)
class Entries:
    entries: tuple[Value, ...]


@dataclass(frozen=True)
class Finished:
    penalised: bool = False  # a * S + b, S summed over rows, a and b Same and b not zero


@dataclass(frozen=True)
class Unknown:
    reason: str


type Value = (
    Same | Rows | Folded | Reduced | LogSum | Count | Position | Entries | Finished | Unknown
)


class Stuck(Exception):
    """There is no promise for a node's outputs; the message says why."""


def is_floating(dtype: str) -> bool:
    return np.dtype(dtype).kind in "fc"


def is_summable(dtype: str) -> bool:
    """Whether sums keep this dtype; numpy widens small integers."""
    return is_floating(dtype) or dtype in ("int64", "uint64")


def is_scalable(dtype: str) -> bool:
    """Whether factors may be removed; sums of float16 without 1 / n would overflow."""
    return dtype in ("float32", "float64")


def is_zero(value: Value) -> bool:
    return isinstance(value, Same | Rows) and value.zero


def join_factors(operands: Iterable[Factors]) -> Factors:
    """The factors of a sum of values that all carry factors."""
    joined = frozenset().union(*operands)
    terms = sum(not f.per_row for f in joined) + any(f.per_row for f in joined)
    if terms > 1 and not all(f.removable for f in joined):
        raise Stuck("it adds terms that are divided by different totals over the rows")
    return joined


def common_factors(operands: Iterable[tuple[Factors, Value]]) -> Factors:
    """The factors of values that are added or joined; zeros fit any factors."""
    operands = [factors for factors, value in operands if not is_zero(value)]
    if any(operands) and not all(operands):
        raise Stuck("it adds terms that are scaled by totals over the rows to terms that are not")
    return join_factors(operands)


def summed(factors: Factors, dtype: str, *, zero: bool = False) -> Value:
    """The sum over the row axis of Rows with these factors."""
    if not is_summable(dtype):
        raise Stuck(f"its sum is kept in {dtype}, which partial sums do not")
    if zero:
        return Reduced("sum", zero=True)
    if factors and all(f.per_row for f in factors):
        return Reduced("avg")
    return Reduced("sum", factors)


def linear(value: Value, dtype: str) -> Value | None:
    """The value after a map that is linear and the same in all members."""
    match value:
        case Reduced(by="sum") if is_summable(dtype):
            return value
        case Reduced(by="avg") if is_floating(dtype):
            return value
        case Count() if is_summable(dtype):
            return replace(value, whole=False)
        case Finished(penalised=True):
            return value
    return None


def merge(values: Sequence[Value]) -> Value | None:
    """The promise for values that are joined, or for any one of them."""
    if any(isinstance(v, Rows) for v in values):
        return _merge_rows(values)
    return _absorb(_merge_totals, values)


def _absorb(join: Callable[[list[Value]], Value | None], values: Sequence[Value]) -> Value | None:
    """Merge the values without the sums that are zero, which fit the others."""
    zeros = [v for v in values if isinstance(v, Reduced) and v.zero]
    found = join([v for v in values if v not in zeros])
    if not zeros or (isinstance(found, Reduced) and found.by in ("sum", "avg")):
        return found
    return zeros[0] if found is not None and is_zero(found) else None


def _merge_totals(values: Sequence[Value]) -> Value | None:
    if all(isinstance(v, Same) for v in values):
        return Same(zero=all(is_zero(v) for v in values))
    if counts := _as_counts(values):
        return counts
    reduced = [v for v in values if isinstance(v, Reduced)]
    others = [v for v in values if not isinstance(v, Reduced)]
    if not reduced or len({v.by for v in reduced}) > 1:
        return None
    match reduced[0].by:
        case "avg":
            return reduced[0] if all(isinstance(v, Same) for v in others) else None
        case "sum" if all(map(is_zero, others)):
            return Reduced("sum", common_factors((v.factors, v) for v in reduced))
        case "max" | "min" | "prod" if not others:
            return reduced[0]
    return None


def _as_counts(values: Sequence[Value]) -> Count | None:
    """Counts of one power, added to zeros or joined with them."""
    powers = {v.power if isinstance(v, Count) else None for v in values if not is_zero(v)}
    return Count(powers.pop()) if len(powers) == 1 and None not in powers else None


def _merge_rows(values: Sequence[Value]) -> Value | None:
    rows = [v for v in values if isinstance(v, Rows)]
    if len(rows) < len(values) or len({v.axis for v in rows}) > 1:
        return None
    whole, zero = any(v.whole for v in rows), all(v.zero for v in rows)
    return Rows(rows[0].axis, whole, common_factors((v.factors, v) for v in rows), zero)


def added(values: Sequence[Value], dtype: str) -> Value | None:
    """The sum or difference of values, none of which is Rows."""
    return _absorb(lambda terms: _added(terms, dtype), values)


def _added(values: Sequence[Value], dtype: str) -> Value | None:
    terms = [v for v in values if not is_zero(v)]
    if not terms:
        return Same(zero=True)
    if (counts := _as_counts(terms)) and is_summable(dtype):
        return counts
    constants = [v for v in terms if isinstance(v, Same)]
    sums = [v for v in terms if isinstance(v, Count) and v.power == 1]
    sums += [v for v in terms if isinstance(v, Reduced) and v.by == "sum"]
    penalised = [v for v in terms if v == Finished(penalised=True)]
    if len(constants) + len(sums) + len(penalised) == len(terms) and is_summable(dtype):
        return _added_sums(constants, sums, penalised)
    averages = [v for v in terms if v == Reduced("avg")]
    if averages and len(constants) + len(averages) == len(terms) and is_floating(dtype):
        return Reduced("avg")
    return None


def _added_sums(
    constants: Sequence[Value], sums: Sequence[Value], penalised: Sequence[Value]
) -> Value | None:
    scaled = [v for v in sums if isinstance(v, Reduced) and v.factors]
    if not constants and not penalised:
        if scaled and len(scaled) < len(sums):
            return None
        return Reduced("sum", join_factors(v.factors for v in sums if isinstance(v, Reduced)))
    return None if scaled else Finished(penalised=True)
