"""The observed terms of a PyMC model: which can be divided, and along which axis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
from pymc.data import MinibatchOp
from pymc.distributions.distribution import PartialObservedRV
from pymc.variational.minibatch_rv import MinibatchRandomVariable
from pytensor.compile.mode import Mode
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.rewriting.utils import rewrite_graph
from pytensor.graph.traversal import ancestors
from pytensor.tensor.random.type import RandomType
from pytensor.tensor.type import TensorType

from synkhronos._errors import InputError, InputTypeError, shown
from synkhronos._plan.inference.walk import name_of
from synkhronos.pymc._declared import Declared, check
from synkhronos.pymc._rows import Lengths, Place, Reader, Reading, Unreadable, dependent

_PLAIN = Mode(linker="py", optimizer=None)


@dataclass(frozen=True)
class Term:
    """The log-density of one observed variable.

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
    serial : tuple of Variable
        Observed variables that stay in the model's own graph.
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
    serial: tuple[Variable, ...]
    shapes: Mapping[Variable, Lengths]
    free: frozenset[Variable]
    checked: bool
    declared: Declared

    @property
    def names(self) -> list[str]:
        """The observed variables that are divided."""
        return [t.name for terms, _ in self.readings for t in terms]

    def only(self, name: str) -> Terms:
        """Only the term with this name."""
        [term] = [t for terms, _ in self.readings for t in terms if t.name == name]
        free = set(self.free)
        reading = _read(term.rows, [term], self.shapes, free, self.checked, self.declared)
        return Terms((((term,), reading),), (), self.shapes, self.free, self.checked, self.declared)


def read_model(model: Any, dim: str | None, row_wise: Sequence[Any] = ()) -> Terms:
    """Read all observed terms of a model.

    Raises
    ------
    InputError
        A term that was to be divided cannot be, with the reason.
    """
    observed = list(model.observed_RVs)
    if not observed:
        names = ", ".join(p.name for p in model.potentials)
        potentials = (
            f". pm.Potential ({names}) is not divided: write it as an observed variable, for "
            "example by pm.CustomDist"
        )
        raise InputError(
            f"{_called(model)} has no observed variables: there is nothing to divide"
            f"{potentials if names else ''}"
        )
    if dim is not None:
        observed = _with_dim(model, dim, observed)
    for rv in observed:
        _refuse_kind(model, rv)
    declared = Declared(model, row_wise)
    factors = type(model).logp(model, sum=False)
    at = [*model.free_RVs, *model.observed_RVs].index
    logps = {rv: _as_tensor(factors[at(rv)]) for rv in observed}
    for rv, logp in logps.items():
        _refuse_random(rv, logp)
        declared.note(rv.name, logp)
    shapes = shapes_of(model, list(logps.values()))
    terms = [_term(model, rv, logps[rv], dim, shapes) for rv in observed]
    divided = [t for t in terms if t is not None]
    if not divided:
        names = ", ".join(rv.name for rv in observed)
        raise InputError(
            f"the observed variables ({names}) have one row each: there is nothing to divide"
        )
    free = dependent([t.variable for t in divided], model.value_vars)
    by_rows: dict[int, list[Term]] = {}
    for term in divided:
        by_rows.setdefault(term.rows, []).append(term)
    readings = tuple(
        (tuple(group), _read(rows, group, shapes, free, model.check_bounds, declared))
        for rows, group in by_rows.items()
    )
    for group, reading in readings:
        for term in group:
            _refuse_mixed(model, term, reading, free)
    check(model, [belief for _, reading in readings for belief in reading.beliefs])
    named = {t.name for t in divided}
    serial = tuple(rv for rv in model.observed_RVs if rv.name not in named)
    return Terms(readings, serial, shapes, frozenset(free), model.check_bounds, declared)


def _as_tensor(factor: Any) -> Any:
    """Convert a term of `pymc.dims`, whose arrays have named axes, to plain tensors."""
    tensor = pt.as_tensor(factor, allow_xtensor_conversion=True)
    if tensor is factor:
        return tensor
    return rewrite_graph(tensor, include=("lower_xtensor", "canonicalize"), clone=True)


def _called(model: Any) -> str:
    return f"model {model.name!r}" if model.name else "the model"


def _with_dim(model: Any, dim: str, observed: Sequence[Any]) -> list[Any]:
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
    found = [rv for rv in observed if dim in (model.named_vars_to_dims.get(rv.name) or ())]
    if not found:
        names = ", ".join(
            f"{rv.name}: {model.named_vars_to_dims.get(rv.name) or 'none'}" for rv in observed
        )
        raise InputError(
            f"dim={dim!r}: no observed variable has this dimension (dims of {names}). Name it in "
            "dims= of the observed variable, or leave dim out to divide the longest axis"
        )
    return found


def _refuse_kind(model: Any, rv: Any) -> None:
    """Raise if observations of this kind cannot be divided."""
    op = None if rv.owner is None else rv.owner.op
    name = rv.name.removesuffix("_observed")
    if isinstance(op, PartialObservedRV) or f"{name}_unobserved" in model.named_vars:
        raise InputError(
            f"{name} has missing values. PyMC turns them into random variables, so rows with and "
            "without missing values cannot be divided in the same way. Remove the rows with "
            "missing values, or fill them in first"
        )
    if isinstance(op, MinibatchRandomVariable):
        raise InputError(
            f"{rv.name} has a total_size (Minibatch): its log-density is an estimate from some of "
            "the rows, scaled up. Give it all rows: members divide them, and the result is exact"
        )
    value: Any = model.rvs_to_values[rv]
    if not isinstance(value.type, TensorType) and not hasattr(value.type, "dims"):
        raise InputError(f"{rv.name} is observed as {value.type}, whose rows cannot be divided")


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
        point = model.initial_point(0)
        inputs = model.value_vars
        measure = pytensor.function(
            inputs, [v.shape for v in unknown], mode=_PLAIN, on_unused_input="ignore"
        )
        shapes = measure(*[point[v.name] for v in inputs])
        found |= {v: tuple(map(int, s)) for v, s in zip(unknown, shapes, strict=True)}
    return found


def _term(
    model: Any, rv: Any, logp: Any, dim: str | None, shapes: Mapping[Variable, Lengths]
) -> Term | None:
    """The term to divide; None for a single observation, which is not divided."""
    data, found = _observed_shape(model, rv), shapes[logp]
    if dim is not None:
        axis = model.named_vars_to_dims[rv.name].index(dim)
        if axis >= len(found) or found[axis] != data[axis]:
            raise InputError(_joint(rv, data, found, f"along {dim!r}"))
    elif max(data, default=1) == 1:
        return None
    elif not found or max(found) == 1:
        raise InputError(_joint(rv, data, found, "by row"))
    else:
        axis = int(np.argmax(found))
        if found[axis] not in data:
            raise InputError(_joint(rv, data, found, "by row"))
    return None if found[axis] < 2 else Term(rv.name, logp, axis, found[axis])


def _observed_shape(model: Any, rv: Any) -> Lengths:
    value: Any = model.rvs_to_values[rv]
    if isinstance(value, Constant):
        return np.shape(value.data)
    return tuple(map(int, np.shape(value.eval())))


def _joint(rv: Any, data: Lengths, found: Lengths, how: str) -> str:
    kind = getattr(getattr(rv.owner, "op", None), "_print_name", ("",))[0] or str(rv.owner.op)
    return (
        f"{rv.name} ({kind}) cannot be divided {how}: its data have shape {data} and its "
        f"log-density has shape {found}, so it is not a sum over rows. The rows depend on one "
        "another (time series, a Gaussian process, one multivariate observation). If another "
        "dimension has independent entries, name it with dim="
    )


def _refuse_mixed(model: Any, term: Term, reading: Reading, free: set[Variable]) -> None:
    """Raise if the term mixes observed rows before it computes the density of each.

    The rest of such a term could be divided, but its costly first part would run in one process.
    """
    observed = model.rvs_to_values[model[term.name]]
    inner = {
        variable
        for variable, axis in reading.sources
        if axis is not None and variable in free and variable.owner is not None
    }
    for variable in inner & set(ancestors([term.variable])):
        if any(_is_same(v, observed) for v in ancestors([variable])):
            raise InputError(
                f"the log-density of {term.name} cannot be divided into its {term.rows} rows: "
                f"{name_of(variable.owner)} mixes rows of the observed data"
            )


def _is_same(variable: Any, observed: Any) -> bool:
    both = isinstance(variable, Constant) and isinstance(observed, Constant)
    return variable is observed or (both and variable.data is observed.data)


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
