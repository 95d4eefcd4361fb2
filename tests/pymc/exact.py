"""The true value of a log-density and its gradient: its graph in arithmetic of many digits.

mpmath's numbers have as many digits as are asked for, and any exponent: nothing overflows, and what
cancels is left with digits enough. The graph is the one that the user wrote, before any rewrite.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import mpmath as mp
import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
from pytensor.compile.builders import OpFromGraph
from pytensor.compile.mode import Mode
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Apply
from pytensor.graph.replace import clone_replace
from pytensor.graph.rewriting.db import RewriteDatabaseQuery
from pytensor.graph.traversal import toposort
from pytensor.raise_op import CheckAndRaise
from pytensor.tensor.basic import Alloc, Join, MakeVector, ScalarFromTensor, TensorFromScalar
from pytensor.tensor.blockwise import Blockwise
from pytensor.tensor.elemwise import CAReduce, Elemwise
from pytensor.tensor.linalg import Cholesky, SolveTriangular
from pytensor.tensor.math import Dot

DIGITS = 50, 400, 1000  # more until two agree
_STABLE = Mode("py", RewriteDatabaseQuery(include=["canonicalize", "stabilize"]))
_LARGEST = 10**400  # of an exponent


def truth(
    model: pm.Model, each: Sequence[int] = DIGITS
) -> Callable[[Mapping[str, np.ndarray]], tuple[float, np.ndarray] | None]:
    """A function: (log-density, gradient) at a point; None if so many digits do not settle it.

    The gradient comes from differences of the value if its graph has an operation that is not
    computed here. NotImplementedError is raised if the value's own graph has one.
    """
    value = model.logp()
    slopes = pytensor.grad(value, model.continuous_value_vars, disconnected_inputs="ignore")

    def at(point: Mapping[str, np.ndarray]) -> tuple[float, np.ndarray] | None:
        given = {v: np.asarray(point[v.name], v.type.dtype) for v in model.value_vars}
        before = None
        for digits in each:
            try:
                found = _rounded([value, *slopes], given, digits)
            except NotImplementedError:
                found = _by_differences(value, model.continuous_value_vars, given, digits)
            if before is not None and np.allclose(before, found, 1e-13, 0, equal_nan=True):
                return float(found[0]), found[1:]
            before = found
        return None

    return at


def _rounded(outputs: Sequence[Any], given: Mapping[Any, Any], digits: int) -> np.ndarray:
    with mp.workdps(digits):
        found = _evaluated(outputs, {v: _lifted(value) for v, value in given.items()})
        return np.array([float(x) for array in found for x in np.ravel(array)])


def _by_differences(
    value: Any, variables: Sequence[Any], given: Mapping[Any, Any], digits: int
) -> np.ndarray:
    """As `_rounded`, with slopes between two points so near that a third of the digits is left."""
    with mp.workdps(digits):
        at = {v: _lifted(value) for v, value in given.items()}
        step = mp.mpf(10) ** (-digits // 3)

        def moved(v: Any, place: int, by: Any) -> Any:
            there = at[v].copy()
            there.reshape(-1)[place] += by
            return _evaluated([value], {**at, v: there})[0].item()

        found = [_evaluated([value], at)[0].item()]
        for v in variables:
            for place in range(at[v].size):
                ends = moved(v, place, step), moved(v, place, -step)
                found.append((ends[0] - ends[1]) / (2 * step))
        return np.array([float(x) for x in found])


def _evaluated(outputs: Sequence[Any], given: Mapping[Any, Any]) -> list[Any]:
    known = dict(given)

    def value(v: Any) -> Any:
        if v not in known:
            known[v] = _lifted(v.get_value() if isinstance(v, SharedVariable) else v.data)
        return known[v]

    for node in toposort(list(outputs), blockers=list(known)):
        found = _computed(node, [value(v) for v in node.inputs])
        known.update(zip(node.outputs, found, strict=True))
    return [value(v) for v in outputs]


def _lifted(value: Any) -> Any:
    """Floats as numbers of many digits; other values as they are."""
    if value is None or isinstance(value, slice) or np.asarray(value).dtype.kind != "f":
        return value
    return _each(lambda x: mp.mpf(float(x)), np.asarray(value))


def _objects(value: Any) -> np.ndarray:
    if isinstance(value, np.ndarray) and value.dtype == object:
        return value
    found = np.empty(np.shape(value), object)
    found[...] = value
    return found


def _each(function: Callable[..., Any], *arrays: Any) -> np.ndarray:
    with np.errstate(invalid="ignore"):  # a graph may have NaN as a constant
        return _objects(np.frompyfunc(function, len(arrays), 1)(*map(_objects, arrays)))


def _typed(value: Any, kind: Any) -> Any:
    dtype = np.dtype(kind.dtype)
    return _each(_number, value) if dtype.kind == "f" else np.asarray(value).astype(dtype)


def _computed(node: Apply, inputs: list[Any]) -> list[Any]:
    op, kind = node.op, node.outputs[0].type
    core = op.core_op if isinstance(op, Blockwise) else op
    if isinstance(op, CheckAndRaise):
        value, *conditions = inputs
        holds = all(bool(np.all(c)) for c in conditions)
        return [value if holds else _each(lambda x: -mp.inf, value)]
    if isinstance(op, OpFromGraph):
        return _evaluated(op.inner_outputs, dict(zip(op.inner_inputs, inputs, strict=True)))
    if isinstance(op, Elemwise):
        return [_typed(_each(_function(op.scalar_op, kind), *inputs), kind)]
    if isinstance(op, CAReduce):
        axis = None if op.axis is None else tuple(op.axis)
        reduce = _REDUCE[type(op.scalar_op).__name__]
        return [inputs[0] if axis == () else _typed(reduce(inputs[0], axis=axis), kind)]
    if isinstance(core, Dot):
        return [_objects(np.matmul(*map(_objects, inputs)))]
    if isinstance(op, ScalarFromTensor | TensorFromScalar):
        return inputs[:1]
    if isinstance(op, MakeVector):
        return [_typed([np.ravel(v)[0] for v in inputs], kind)]
    if isinstance(op, Join):
        return [_typed(np.concatenate([_objects(v) for v in inputs], axis=op.axis), kind)]
    if isinstance(op, Alloc):
        return [np.broadcast_to(inputs[0], [int(n) for n in inputs[1:]]).copy()]
    if isinstance(core, Cholesky):
        return [_by_matrix(lambda a: _triangular(a, core.lower), inputs, (2,))]
    if isinstance(core, SolveTriangular):
        return [_by_matrix(lambda a, b: _solved(a, b, core.lower), inputs, (2, core.b_ndim))]
    if isinstance(op, Blockwise):
        raise NotImplementedError(f"{op}")
    storage: list[list[Any]] = [[None] for _ in node.outputs]
    op.perform(node, inputs, storage)  # it moves elements
    return [cell[0] for cell in storage]


def _by_matrix(
    function: Callable[..., np.ndarray], arrays: Sequence[Any], ndims: Sequence[int]
) -> np.ndarray:
    """Apply a function of matrices and vectors, which stand on the last axes of arrays."""
    given = [_objects(a) for a in arrays]
    cores = [a.shape[a.ndim - n :] for a, n in zip(given, ndims, strict=True)]
    batch = np.broadcast_shapes(*[a.shape[: a.ndim - n] for a, n in zip(given, ndims, strict=True)])
    wide = [np.broadcast_to(a, batch + core) for a, core in zip(given, cores, strict=True)]
    found = [function(*(a[i] for a in wide)) for i in np.ndindex(batch)]
    return np.stack(found).reshape(batch + found[0].shape)


def _triangular(matrix: np.ndarray, lower: bool) -> np.ndarray:
    found = _objects(mp.cholesky(mp.matrix(matrix.tolist())).tolist())
    return found if lower else found.T


def _solved(matrix: np.ndarray, right: np.ndarray, lower: bool) -> np.ndarray:
    """Solve a triangular system, row by row."""
    found = right.copy()
    order = range(len(matrix)) if lower else range(len(matrix) - 1, -1, -1)
    for i in order:
        others = [j for j in order if (j < i if lower else j > i)]
        found[i] = (right[i] - sum(matrix[i, j] * found[j] for j in others)) / matrix[i, i]
    return found


_REDUCE = {
    "Add": np.add.reduce,
    "Mul": np.multiply.reduce,
    "AND": np.logical_and.reduce,
    "OR": np.logical_or.reduce,
    "Maximum": np.maximum.reduce,
    "Minimum": np.minimum.reduce,
}


def _function(scalar: Any, kind: Any) -> Callable[..., Any]:
    name = type(scalar).__name__
    if name == "Cast":
        return _number if kind.dtype.startswith("float") else int
    if name not in _SCALARS:
        raise NotImplementedError(name)
    if name in _OF_NUMBERS:
        return lambda *given: _of_numbers(name, mp.mp.prec, *map(_number, given))
    return _SCALARS[name]


@functools.lru_cache(maxsize=1 << 14)  # rows repeat, and so do parameters
def _of_numbers(name: str, bits: int, *given: Any) -> Any:
    """A function of numbers, in as many bits as mpmath has now."""
    return _OF_NUMBERS[name](*given)


def _number(x: Any) -> Any:
    if isinstance(x, mp.mpf):
        return x
    return mp.mpf(float(x)) if isinstance(x, float | np.floating) else mp.mpf(int(x))


def _times(*given: Any) -> Any:
    """A factor of 0 is that of a branch that is not chosen."""
    return mp.mpf(0) if 0 in given else functools.reduce(operator.mul, given)


def _divided(a: Any, b: Any) -> Any:
    if b == 0:
        return mp.nan if a == 0 or mp.isnan(a) else mp.inf * mp.sign(a)
    return a / b


def _exp(x: Any) -> Any:
    return mp.exp(x) if not abs(x) > _LARGEST else mp.inf if x > 0 else mp.mpf(0)


def _expm1(x: Any) -> Any:
    return mp.expm1(x) if abs(x) < 1 else _exp(x) - 1


def _log1p(x: Any) -> Any:
    return mp.log1p(x) if abs(x) < 1 else _log(1 + x)


def _log(x: Any) -> Any:
    return mp.log(x) if x > 0 else -mp.inf if x == 0 else mp.nan


def _power(a: Any, b: Any) -> Any:
    if b == 0:
        return mp.mpf(1)
    if a == 0:
        return mp.mpf(0) if b > 0 else mp.inf
    return a**b if a > 0 or b == int(b) else mp.nan


def _gammaln(x: Any) -> Any:
    if x == mp.inf or mp.isnan(x):
        return x
    return mp.loggamma(x) if x > 0 else mp.inf if x == int(x) else mp.log(abs(mp.gamma(x)))


def _betainc(a: Any, b: Any, x: Any) -> Any:
    return _power(x, a) if b == 1 else mp.betainc(a, b, 0, x, regularized=True)


def _psi(x: Any) -> Any:
    return mp.digamma(x) if 0 < x < mp.inf else mp.nan


_OF_NUMBERS: dict[str, Callable[..., Any]] = {
    "Add": lambda *given: functools.reduce(operator.add, given),
    "Sub": operator.sub,
    "Mul": _times,
    "TrueDiv": _divided,
    "Reciprocal": lambda x: _divided(mp.mpf(1), x),
    "Pow": _power,
    "Sqr": lambda x: x * x,
    "Sqrt": lambda x: mp.sqrt(x) if x >= 0 else mp.nan,
    "Exp": _exp,
    "Expm1": _expm1,
    "Log": _log,
    "Log1p": _log1p,
    "Log1mexp": lambda x: _log(-_expm1(x)) if x > -1 else _log1p(-_exp(x)),
    "Sigmoid": lambda x: 1 / (1 + _exp(-x)),
    "Softplus": lambda x: _log1p(_exp(x)),
    "Sin": mp.sin,
    "Cos": mp.cos,
    "Tanh": mp.tanh,
    "GammaLn": _gammaln,
    "Psi": _psi,
    "BetaInc": _betainc,
    "Floor": mp.floor,
    "Erf": mp.erf,
    "Erfc": mp.erfc,
    "Erfcx": lambda x: _exp(x * x) * mp.erfc(x),
    "IsNan": mp.isnan,
    "IsInf": mp.isinf,
    "Maximum": max,
    "Minimum": min,
    "Clip": lambda x, low, high: min(max(x, low), high),
}
_SCALARS = _OF_NUMBERS | {
    "Neg": operator.neg,
    "Abs": abs,
    "Sign": mp.sign,
    "Identity": lambda x: x,
    "Second": lambda like, x: x,
    "Switch": lambda condition, a, b: a if condition else b,
    "GT": operator.gt,
    "GE": operator.ge,
    "LT": operator.lt,
    "LE": operator.le,
    "EQ": operator.eq,
    "NEQ": operator.ne,
    "AND": operator.and_,
    "OR": operator.or_,
    "Invert": lambda x: not x,
}


def roundings(model: pm.Model) -> Callable[[Mapping[str, np.ndarray]], tuple[float, np.ndarray]]:
    """A function: what roundings of each row change in (log-density, gradient) at a point.

    Each term of a row is rounded once, and so is each observed number: all in the same direction,
    so a sum by rows that errs by less owes it to chance.
    """
    seen = {
        v: v.type()
        for v in (model.rvs_to_values[rv] for rv in model.observed_RVs)
        if v.type.dtype == "float64"
    }
    terms = [pt.concatenate([t.ravel() for t in model.logp(sum=False)])]
    [flat] = clone_replace(terms, replace=seen)
    chosen = pt.vector("chosen", dtype="float64")
    total = pt.switch(chosen > 0, flat, 0.0).sum()
    slope = pt.concatenate([s.ravel() for s in pytensor.grad(total, model.continuous_value_vars)])
    weights = pt.vector("weights", dtype="float64")
    by_seen = [
        pytensor.grad(cost, list(seen.values()), disconnected_inputs="ignore")
        for cost in (total, pt.dot(weights, slope))
    ]
    compiled = [
        pytensor.function(
            [*model.value_vars, *seen.values(), chosen, *extra],
            outputs,
            mode=_STABLE,
            on_unused_input="ignore",
        )
        for extra, outputs in (([], [flat, slope]), ([], by_seen[0]), ([weights], by_seen[1]))
    ]
    rows, of_value, of_slopes = compiled
    data = [np.asarray(v.eval()) for v in seen]

    def changed(slopes: Sequence[np.ndarray]) -> float:
        return sum(float(np.abs(s * a).sum()) for s, a in zip(slopes, data, strict=True))

    def at(point: Mapping[str, np.ndarray]) -> tuple[float, np.ndarray]:
        given = [*(point[v.name] for v in model.value_vars), *data]
        count = flat_size(*given)
        everything = np.ones(count)
        values, slopes = rows(*given, everything)
        each = [np.abs(rows(*given, one)[1]) for one in np.eye(count)]
        more = [changed(of_slopes(*given, everything, one)) for one in np.eye(len(slopes))]
        value = float(np.abs(values).sum()) + changed(of_value(*given, everything))
        return value, np.sum(each, axis=0) + more

    flat_size = pytensor.function(
        [*model.value_vars, *seen.values()], flat.shape[0], mode=_STABLE, on_unused_input="ignore"
    )
    return at
