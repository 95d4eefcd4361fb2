"""The observed terms and the Potentials of a PyMC model: which can be divided, along which axis."""

from __future__ import annotations

import contextlib
import itertools
import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
from pymc.data import MinibatchOp
from pymc.distributions.custom import CustomDistRV, CustomSymbolicDistRV
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.rewriting.utils import rewrite_graph
from pytensor.graph.traversal import ancestors
from pytensor.tensor.random.type import RandomType
from pytensor.tensor.rewriting.shape import ShapeFeature
from pytensor.tensor.subtensor import AdvancedIncSubtensor, AdvancedSubtensor, IncSubtensor
from pytensor.tensor.type import TensorType

from synkhronos._checks import shown
from synkhronos._compiling.python_mode import python_mode
from synkhronos._errors import InputError, InputTypeError
from synkhronos._proofs.walk import name_of
from synkhronos.pymc._reading.declared import Declared, check
from synkhronos.pymc._reading.rewrites import stable, without_parameter_checks
from synkhronos.pymc._reading.rows import Lengths, Place, Reader, Reading, Unreadable, dependent
from synkhronos.pymc._reading.selections import with_chosen_sources
from synkhronos.pymc._reading.summands import Summand, summands_of, with_exact_checks

log = logging.getLogger("synkhronos")

_PLAIN = python_mode("none")
_SHORT = 8  # a summand is short if the longest term has more than this many times its rows


@dataclass(frozen=True)
class Term:
    """The log-density of one observed variable or Potential, or a summand of it.

    Attributes
    ----------
    name : str
    variable : Variable
        The log-density of each row, as a function of the model's value variables.
    axis : int
        The axis of `variable` that is divided.
    rows : int
    """

    name: str
    variable: Any
    axis: int
    rows: int


@dataclass(frozen=True)
class Terms:
    """The terms of a model that are divided, by number of rows, and those that are not.

    Attributes
    ----------
    readings : tuple of (tuple of Term, Reading)
    factors : mapping
        The whole log-density of each variable that is divided, by name.
    rests : mapping
        By name, the rest of a divided variable's log-density, which is not divided.
    stays : mapping
        By name, the reason for which a variable with rows is not divided.
    observed : set of str
        Those of the divided variables that are observed; the others are Potentials.
    shapes : mapping
        The shape of every variable of the divided terms.
    free : set of Variable
        The variables that depend on free random variables.
    checked : bool
        Whether the model checks conditions on parameters.
    declared : Declared
        What the user says of operations.
    """

    readings: tuple[tuple[tuple[Term, ...], Reading], ...]
    factors: Mapping[str, Any]
    rests: Mapping[str, Any]
    stays: Mapping[str, str]
    observed: frozenset[str]
    shapes: Mapping[Variable, Lengths]
    free: frozenset[Variable]
    checked: bool
    declared: Declared

    @property
    def all(self) -> list[Term]:
        """The terms, whatever their number of rows."""
        return [t for terms, _ in self.readings for t in terms]

    @property
    def names(self) -> list[str]:
        """The variables that are divided."""
        return list(dict.fromkeys(t.name for t in self.all))

    def only(self, names: Collection[str]) -> Terms:
        """Only the terms with these names."""
        kept = [t for t in self.all if t.name in names]
        return replace(
            self,
            readings=_read_all(kept, self.shapes, set(self.free), self.checked, self.declared),
            factors={n: v for n, v in self.factors.items() if n in names},
            rests={n: v for n, v in self.rests.items() if n in names},
            observed=self.observed & set(names),
        )

    def apart(self, names: Collection[str]) -> list[tuple[tuple[Term, ...], Reading]]:
        """The terms with these names, each read alone."""
        found = [t for t in self.all if t.name in names]
        return [
            pair
            for term in found
            for pair in _read_all([term], self.shapes, set(self.free), self.checked, self.declared)
        ]


def read_model(model: Any, dim: str | None, row_wise: Sequence[object] = ()) -> Terms:
    """Read all observed terms and all Potentials of a model.

    Raises
    ------
    InputError
        Nothing can be divided, or an observed variable with the dimension `dim` cannot be, with
        the reasons.
    """
    observed, potentials = list(model.observed_RVs), list(model.potentials)
    if not observed and not potentials:
        raise InputError(f"{_called(model)} has no observed variables: there is nothing to divide")
    if dim is not None:
        observed = _with_dim(model, dim, observed, potentials)
    declared = Declared(model, row_wise)
    factors = dict(
        zip(
            [*model.free_RVs, *model.observed_RVs, *potentials],
            type(model).logp(model, sum=False),
            strict=True,
        )
    )
    stays: dict[str, str] = {}
    readable: dict[Any, Any] = {}
    for variable in [*observed, *potentials]:
        with _kept(stays, variable.name, raises=dim is not None and variable in observed):
            _refuse_kind(model, variable)
            factor = _as_tensor(factors[variable])
            _refuse_random(variable, factor)
            readable[variable] = factor
    readable = dict(zip(readable, stable(list(readable.values())), strict=True))
    summands = {variable: summands_of(factor) for variable, factor in readable.items()}
    for variable, factor in readable.items():
        declared.note(variable.name, [factor, *[a for p in summands[variable] for a in p.arrays]])
    arrays = [array for ps in summands.values() for summand in ps for array in summand.arrays]
    shapes = shapes_of(model, [*readable.values(), *arrays])
    free = dependent([*readable.values(), *arrays], model.value_vars)
    candidates = Candidates(model, dim, shapes, free, declared)
    found: dict[str, list[tuple[Summand, Term | None]]] = {}
    for variable, factor in readable.items():
        named = variable in observed
        with _kept(stays, variable.name, raises=dim is not None and named):
            chosen = (
                candidates.of_observed(variable, factor, summands[variable])
                if named
                else candidates.of_potential(variable, summands[variable])
            )
            if chosen is not None:
                found[variable.name] = chosen
    divided, rests = _large_enough(found, {rv.name for rv in observed})
    if not divided:
        raise InputError(_nothing(model, dim, observed, stays))
    shapes = candidates.shapes
    readings = _read_all(divided, shapes, free, model.check_bounds, declared)
    check(model, [assumption for _, reading in readings for assumption in reading.assumptions])
    return Terms(
        readings,
        {v.name: f for v, f in readable.items() if any(t.name == v.name for t in divided)},
        rests,
        stays,
        frozenset(t.name for t in divided) & {rv.name for rv in observed},
        shapes,
        frozenset(free),
        model.check_bounds,
        declared,
    )


@contextlib.contextmanager
def _kept(reasons: dict[str, str], name: str, raises: bool) -> Iterator[None]:
    """Keep an InputError as the reason why a variable is not divided."""
    try:
        yield
    except InputError as exc:
        if raises:
            raise
        if str(exc):
            reasons[name] = str(exc)


def _large_enough(
    found: Mapping[str, Sequence[tuple[Summand, Term | None]]], observed: Collection[str]
) -> tuple[list[Term], dict[str, Any]]:
    """The terms, and what remains of their variables.

    A Potential, or one of several summands, that is much shorter than the longest term stays whole:
    another number of rows is another function to compile.
    """
    longest = max((t.rows for summands in found.values() for _, t in summands if t), default=0)
    divided: list[Term] = []
    rests: dict[str, Any] = {}
    for name, summands in found.items():
        always = name in observed and len(summands) == 1
        pairs = [
            (s, t if t and (always or t.rows * _SHORT >= longest) else None) for s, t in summands
        ]
        terms = [t for _, t in pairs if t is not None]
        divided += terms
        left = [summand.value.sum() for summand, term in pairs if term is None]
        if terms and left:
            rests[name] = pt.add(*left) if len(left) > 1 else left[0]
    return divided, rests


def _nothing(model: Any, dim: str | None, observed: Sequence[Any], stays: Mapping[str, str]) -> str:
    """The message for a model of which nothing can be divided."""
    if dim is not None and not observed:
        return _no_dim(model, dim)
    reasons = list(stays.values())
    if len(reasons) > 1:
        listed = "".join(f"\n- {name}: {reason}" for name, reason in stays.items())
        return f"nothing in {_called(model)} can be divided:{listed}"
    if reasons:
        return reasons[0]
    if observed:
        names = ", ".join(rv.name for rv in observed)
        return (
            f"the observed variables ({names}) have one row each, or none: there is nothing to "
            "divide"
        )
    return (
        f"{_called(model)} has no observed variables, and none of its Potentials "
        f"({', '.join(p.name for p in model.potentials)}) sums over rows of data: there is nothing "
        "to divide"
    )


class Candidates:
    """Finds, for each variable of a model, the terms that can be divided."""

    def __init__(
        self,
        model: Any,
        dim: str | None,
        shapes: Mapping[Variable, Lengths],
        free: set[Variable],
        declared: Declared,
    ) -> None:
        self._declared = declared
        self._model = model
        self._dim = dim
        self.shapes = shapes
        self.free = free

    def of_observed(
        self, rv: Any, factor: Any, summands: Sequence[Summand]
    ) -> list[tuple[Summand, Term | None]] | None:
        """The summands of an observed variable's log-density; None for one observation, or none.

        Raises
        ------
        InputError
            It cannot be divided, with the reason.
        """
        model = self._model
        data, found = _observed_shape(model, rv), self.shapes[factor]
        axis = None if self._dim is None else _dims_of(model, rv.name).index(self._dim)
        if axis is None and (0 in data or max(data, default=1) == 1):
            return None
        joint = _joint(rv, data, found, f"along {self._dim!r}" if self._dim else "by row")
        if axis is None:
            rows = None
            longest_first = sorted(range(len(found)), key=lambda a: -found[a])
            by_row = max(found, default=1) > 1 and max(found) in data
            axes = [a for a in longest_first if found[a] > 1 and found[a] in data]
        else:
            rows = data[axis]
            by_row = axis < len(found) and found[axis] == rows
            axes = [axis]
        if by_row and found[axes[0]] < 2:
            return None
        if by_row:
            return [(summands[0], self._along(rv, factor, axes))]
        chosen = [
            (summand, self._term(rv.name, summand, rows, observed=rv)) for summand in summands
        ]
        if all(term is None for _, term in chosen):
            raise InputError(joint)
        return chosen

    def _along(self, rv: Any, factor: Any, axes: Sequence[int]) -> Term:
        """The term along the first of these axes whose entries are computed apart."""
        reasons: list[InputError] = []
        for axis in axes:
            term = Term(rv.name, factor, axis, self.shapes[factor][axis])
            try:
                self._refuse_mixed(rv, term, self._read(term))
            except InputError as exc:
                reasons.append(exc)
                continue
            if reasons:
                log.info("%s is divided along axis %d: %s", rv.name, axis, reasons[0])
            return term
        raise reasons[0]

    def of_potential(
        self, potential: Any, summands: Sequence[Summand]
    ) -> list[tuple[Summand, Term | None]] | None:
        """The summands of a Potential; None if it is no sum over rows of data."""
        rows = None
        if self._dim is not None:
            rows = int(self._model.dim_lengths[self._dim].eval())
        chosen = [(summand, self._term(potential.name, summand, rows)) for summand in summands]
        if any(term is not None for _, term in chosen):
            return chosen
        if self._dim is None and self._has_rows(summands):
            raise InputError(
                f"the Potential {potential.name} cannot be divided: it is not a sum over rows of "
                "data that are computed apart from one another, as far as its graph tells. If it "
                f'is one, declare it: row_wise=["{potential.name}"]'
            )
        return None

    def _has_rows(self, summands: Sequence[Summand]) -> bool:
        """Whether data that are not constants of a few numbers take part."""
        graph = ancestors([summand.value for summand in summands])
        return any(
            v not in self.free and v.owner is None and max(self.shapes.get(v, ()), default=0) > 8
            for v in graph
        )

    def _term(
        self, name: str, summand: Summand, rows: int | None, observed: Any = None
    ) -> Term | None:
        """The summand as a term along its longest axis that can be divided; None if none can be."""
        as_written = ((array, False) for array in summand.arrays)
        for array, moved in itertools.chain(self._moved(name, summand.arrays), as_written):
            kind: Any = array.type
            if array not in self.free or not kind.dtype.startswith("float"):
                continue
            lengths = self.shapes[array]
            for axis in sorted(range(len(lengths)), key=lambda a: -lengths[a]):
                if lengths[axis] < 2 or kind.shape[axis] == 1 or rows not in (None, lengths[axis]):
                    continue
                try:
                    term = self._exact(Term(name, array, axis, lengths[axis]))
                    reading = self._read(term)
                    if observed is not None:
                        self._refuse_mixed(observed, term, reading)
                except InputError:
                    continue
                if any(a is not None and self._is_data(v, moved) for v, a in reading.sources):
                    return term
        return None

    def _moved(self, name: str, arrays: Sequence[Any]) -> Iterator[tuple[Any, bool]]:
        """The arrays that choose rows, with the choice moved to their sources."""
        for array in arrays:
            with contextlib.suppress(InputError):
                exact = self._exact(Term(name, array, 0, 0)).variable
                moved = with_chosen_sources(exact, self.shapes, self.free, self._declared)
                if moved is not exact:
                    self._know(name, moved)
                    yield moved, True

    def _know(self, name: str, array: Any) -> None:
        """Find the shapes in another form of a term, and what is free in it."""
        self.shapes = {**self.shapes, **shapes_of(self._model, [array])}
        self.free |= dependent([array], self._model.value_vars)
        self._declared.note(name, [array])

    def _is_data(self, variable: Any, moved: bool) -> bool:
        """Whether an array is data, or imputed values beside data.

        Or rows that data choose, where the choice was `moved` to the sources.
        """
        if variable not in self.free:
            return True
        node = variable.owner
        if node is None:
            return False
        joins = isinstance(node.op, IncSubtensor | AdvancedIncSubtensor)
        if joins and any(v not in self.free for v in node.inputs[:2]):
            return True
        return moved and isinstance(node.op, AdvancedSubtensor)

    def _exact(self, term: Term) -> Term:
        """The term with checks as choices where they have to be."""
        if not self._model.check_bounds:
            return term
        exact = with_exact_checks(term.variable)
        if exact is term.variable:
            return term
        self._know(term.name, exact)
        return replace(term, variable=exact)

    def _read(self, term: Term) -> Reading:
        checked = self._model.check_bounds
        return _read(term.rows, [term], self.shapes, self.free, checked, self._declared)

    def _refuse_mixed(self, rv: Any, term: Term, reading: Reading) -> None:
        """Raise if the term mixes observed rows before it computes the density of each.

        The rest of such a term could be divided, but its costly first part would run in one
        process.
        """
        observed = self._model.rvs_to_values[rv]
        inner = {
            variable
            for variable, axis in reading.sources
            if axis is not None and variable in self.free and variable.owner is not None
        }
        for variable in inner & set(ancestors([term.variable])):
            if isinstance(variable.owner.op, IncSubtensor | AdvancedIncSubtensor):
                continue  # puts imputed values beside the observed ones
            if any(_is_same(v, observed) for v in ancestors([variable])):
                raise InputError(
                    f"the log-density of {term.name} cannot be divided into its {term.rows} rows: "
                    f"{name_of(variable.owner)} mixes rows of the observed data"
                )


def _as_tensor(factor: Any) -> Any:
    """Convert a term of `pymc.dims`, whose arrays have named axes, to plain tensors."""
    tensor = pt.as_tensor(factor, allow_xtensor_conversion=True)
    if tensor is factor:
        return tensor
    return rewrite_graph(tensor, include=("lower_xtensor", "canonicalize"), clone=True)


def _called(model: Any) -> str:
    return f"model {model.name!r}" if model.name else "the model"


def _dims_of(model: Any, name: str) -> list[str]:
    """The dimensions of a variable. Observed values beside missing ones have none but the first."""
    found = list(model.named_vars_to_dims.get(name) or ())
    if not found and name.endswith("_observed"):
        found = list(model.named_vars_to_dims.get(name.removesuffix("_observed")) or ())[:1]
    return found


def _with_dim(
    model: Any, dim: str, observed: Sequence[Any], potentials: Sequence[Any]
) -> list[Any]:
    if not isinstance(dim, str):
        also = f"; for {dim} members write parallel(model, members={dim})"
        raise InputTypeError(
            f"dim={shown(dim)} is not the name of a dimension{also * isinstance(dim, int)}"
        )
    if dim not in model.dim_lengths:
        raise InputError(
            f"dim={dim!r} is not a dimension of {_called(model)}; it has: "
            f"{', '.join(model.dim_lengths) or 'none (give coords and dims, or leave dim out)'}"
        )
    found = [rv for rv in observed if dim in _dims_of(model, rv.name)]
    if not found and not potentials:
        raise InputError(_no_dim(model, dim))
    return found


def _no_dim(model: Any, dim: str) -> str:
    names = ", ".join(
        f"{rv.name}: {model.named_vars_to_dims.get(rv.name) or 'none'}" for rv in model.observed_RVs
    )
    return (
        f"dim={dim!r}: no observed variable has this dimension (dims of {names}). Name it in "
        "dims= of the observed variable, or leave dim out to divide the longest axis"
    )


def _refuse_kind(model: Any, variable: Any) -> None:
    """Raise if observations of this kind cannot be divided."""
    value: Any = model.rvs_to_values.get(variable, variable)
    if not isinstance(value.type, TensorType) and not hasattr(value.type, "dims"):
        raise InputError(
            f"{variable.name} is observed as {value.type}, whose rows cannot be divided"
        )


def _refuse_random(rv: Any, logp: Variable) -> None:
    for variable in ancestors([logp]):
        op = None if variable.owner is None else variable.owner.op
        if isinstance(op, MinibatchOp):
            raise InputError(
                f"{rv.name} depends on a Minibatch, which has other rows at each evaluation. Give "
                "it all rows: members divide them, and the result is exact"
            )
        if isinstance(variable.type, RandomType):
            raise InputError(f"the log-density of {rv.name} draws random numbers")


def shapes_of(model: Any, terms: Sequence[Variable]) -> dict[Variable, Lengths]:
    """The shape of every tensor in the terms' graphs, at the model's initial point."""
    found: dict[Variable, Lengths] = {}
    unknown: list[Any] = []
    for variable in ancestors(list(terms)):
        kind: Any = variable.type
        if not isinstance(kind, TensorType):
            continue
        if isinstance(variable, Constant):
            found[variable] = np.shape(variable.data)
        elif None not in kind.shape:
            found[variable] = tuple(kind.shape)
        else:
            unknown.append(variable)
    if unknown:
        found |= _measured(model, unknown)
    return found


def _measured(model: Any, unknown: Sequence[Any]) -> dict[Variable, Lengths]:
    """The shapes of variables at the model's initial point.

    PyTensor infers them from the shapes of data and parameters, so that no value is computed but
    those that decide lengths: a loop of many steps, or many rows, take no longer than few.
    """
    shapes = ShapeFeature()
    lengths = [n for v in unknown for n in shapes.shape_tuple(v)]
    inputs, point = model.value_vars, model.initial_point(0)
    measure = pytensor.function(
        inputs, without_parameter_checks(lengths), mode=_PLAIN, on_unused_input="ignore"
    )
    numbers = iter(map(int, measure(*[point[v.name] for v in inputs])))
    return {v: tuple(itertools.islice(numbers, v.type.ndim)) for v in unknown}


def _observed_shape(model: Any, rv: Any) -> Lengths:
    value: Any = model.rvs_to_values[rv]
    if isinstance(value, Constant):
        return np.shape(value.data)
    return np.shape(value.eval(mode=_PLAIN))


def _joint(rv: Any, data: Lengths, found: Lengths, how: str) -> str:
    op = getattr(rv.owner, "op", None)
    kind = getattr(op, "_print_name", ("",))[0] or str(op)
    what = (
        f"{rv.name} ({kind}) cannot be divided {how}: its data have shape {data} and its "
        f"log-density has shape {found}, so it is not a sum over rows. "
    )
    if isinstance(op, CustomDistRV | CustomSymbolicDistRV) and max(found, default=1) == 1:
        return what + (
            "Let logp return one value per row. A sum of them at its end can be read through, "
            "other operations behind the sum only if they add, or multiply by a scalar"
        )
    return what + (
        "The rows depend on one another (time series, a Gaussian process, one multivariate "
        "observation). If another dimension has independent entries, name it with dim="
    )


def _is_same(variable: Any, observed: Any) -> bool:
    """Whether both are the same data. PyTensor merges constants of equal values."""
    if variable is observed:
        return True
    if not (isinstance(variable, Constant) and isinstance(observed, Constant)):
        return False
    one, other = variable.data, observed.data
    return one is other or bool(
        isinstance(one, np.ndarray)
        and isinstance(other, np.ndarray)
        and one.size > 1
        and np.array_equal(one, other)
    )


def _read_all(
    terms: Sequence[Term],
    shapes: Mapping[Variable, Lengths],
    free: set[Variable],
    checked: bool,
    declared: Declared,
) -> tuple[tuple[tuple[Term, ...], Reading], ...]:
    """Read the terms, those with the same number of rows together."""
    by_rows: dict[int, list[Term]] = {}
    for term in terms:
        by_rows.setdefault(term.rows, []).append(term)
    return tuple(
        (tuple(group), _read(rows, group, shapes, free, checked, declared))
        for rows, group in by_rows.items()
    )


def _read(
    rows: int,
    terms: Sequence[Term],
    shapes: Mapping[Variable, Lengths],
    free: set[Variable],
    checked: bool,
    declared: Declared,
) -> Reading:
    places: list[Place] = [(t.variable, t.axis) for t in terms]
    found = Reader(rows, shapes, free, declared).read(places, checked)
    if isinstance(found, Reading):
        return found
    index, why = next(iter(found.items()))
    assert isinstance(why, Unreadable)
    raise InputError(
        f"the log-density of {terms[index].name} cannot be divided into its {rows} rows: "
        f"{why.reason}"
    )
