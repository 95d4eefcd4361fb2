"""A model is read once: its log-density as terms with rows, and the rest."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pytensor.tensor as pt
from pymc import Model
from pymc.data import MinibatchOp
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.replace import clone_replace
from pytensor.graph.rewriting.utils import rewrite_graph
from pytensor.graph.traversal import ancestors
from pytensor.tensor import TensorVariable
from pytensor.tensor.random.type import RandomType
from pytensor.tensor.type import TensorType

from synkhronos._checks import shown
from synkhronos._compiling.python_mode import python_mode
from synkhronos._errors import InputError, InputTypeError
from synkhronos.pymc._reading.assumptions import check
from synkhronos.pymc._reading.declared import Declared
from synkhronos.pymc._reading.facts import Facts
from synkhronos.pymc._reading.models import length_of
from synkhronos.pymc._reading.rewrites import stable
from synkhronos.pymc._reading.rows import RowReading, Term, read_rows
from synkhronos.pymc._reading.summands import summands_of
from synkhronos.pymc._reading.terms import Factor, Finder, Found

_PLAIN = python_mode("none")
_SHORT = 8  # a summand is short if the longest term has more than this many times its rows


@dataclass(frozen=True)
class Reading:
    """The terms of a model, and the rest: all that follows takes it instead of the model."""

    groups: tuple[RowReading, ...]  # the terms that are divided, by their number of rows
    # the log-density of each variable of the model, by name, element by element
    factors: Mapping[str, Variable]
    # by name, the rest of a divided variable's log-density, which is not divided
    rests: Mapping[str, TensorVariable]
    stays: Mapping[str, str]  # by name, the reason for which a variable with rows is not divided
    # the values of the observed variables, by name; Potentials have none
    data: Mapping[str, Variable]
    facts: Facts  # what is known of all variables in these graphs

    @cached_property
    def terms(self) -> list[Term]:
        """The terms, whatever their number of rows."""
        return [term for group in self.groups for term in group.terms]

    @property
    def names(self) -> list[str]:
        """The variables that are divided."""
        return list(dict.fromkeys(term.name for term in self.terms))

    @property
    def observed(self) -> frozenset[str]:
        """Those of them that are observed; the others are Potentials."""
        return frozenset(self.names) & self.data.keys()

    def sum_of(self, names: Collection[str]) -> TensorVariable:
        """The log-density of these variables, as a copy, which may be rewritten in place."""
        factors = [pt.as_tensor(self.factors[n], allow_xtensor_conversion=True) for n in names]
        [found] = clone_replace([pt.add(*[factor.sum() for factor in factors])])
        return found

    def only(self, names: Collection[str]) -> Reading:
        """Only the terms with these names."""
        return replace(
            self,
            groups=read_rows([t for t in self.terms if t.name in names], self.facts),
            rests={name: rest for name, rest in self.rests.items() if name in names},
        )


def read(
    model: Model,
    dim: str | None = None,
    declared: Declared | None = None,
    given: Sequence[Variable] | None = None,
) -> Reading:
    """Read the log-densities of all observed variables and of all Potentials of a model.

    They are given if PyMC has made them, as `pymc.Model.logp` returns them.

    Raises
    ------
    InputError
        Nothing can be divided, or an observed variable with the dimension `dim` cannot be, with
        the reasons.
    """
    facts, stays = Facts(model, declared or Declared()), dict[str, str]()
    observed = _observed_of(model, dim)
    every = [*model.free_RVs, *model.observed_RVs, *model.potentials]
    given = given or type(model).logp(model, sum=False)
    graphs = dict(zip([v.name for v in every], given, strict=True))
    factors: list[Factor] = []
    for variable in [*observed, *model.potentials]:
        with _kept(stays, variable.name, raises=dim is not None and variable in observed):
            factors.append(_factor_of(model, variable, graphs[variable.name], dim))
    factors = [
        replace(factor, graph=graph)
        for factor, graph in zip(factors, stable([f.graph for f in factors]), strict=True)
    ]
    found = _found(factors, facts, dim, stays)
    terms, rests = _large_enough(found)
    if not terms:
        raise InputError(_nothing(model, dim, [rv.name for rv in observed], stays))
    reading = Reading(
        groups=read_rows(terms, facts),
        factors=graphs | {f.name: f.graph for f, _ in found if f.name in {t.name for t in terms}},
        rests=rests,
        stays=stays,
        data={rv.name: model.rvs_to_values[rv] for rv in model.observed_RVs},
        facts=facts,
    )
    check([a for group in reading.groups for a in group.assumptions], facts)
    return reading


def _observed_of(model: Model, dim: str | None) -> list[TensorVariable]:
    """The observed variables, or those with the dimension `dim`.

    Raises
    ------
    InputError, InputTypeError
        There is nothing to divide: neither such a variable nor a Potential.
    """
    if dim is None:
        if not model.observed_RVs and not model.potentials:
            raise InputError(
                f"{_called(model)} has no observed variables: there is nothing to divide"
            )
        return list(model.observed_RVs)
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
    found = [rv for rv in model.observed_RVs if dim in _dims_of(model, rv.name)]
    if not found and not model.potentials:
        raise InputError(_no_dim(model, dim))
    return found


def _dims_of(model: Model, name: str) -> list[str]:
    """The dimensions of a variable. Observed values beside missing ones have none but the first."""
    found = list(model.named_vars_to_dims.get(name) or ())
    if not found and name.endswith("_observed"):
        found = list(model.named_vars_to_dims.get(name.removesuffix("_observed")) or ())[:1]
    return found


def _factor_of(
    model: Model, variable: TensorVariable, graph: Variable, dim: str | None = None
) -> Factor:
    """The log-density of a variable, whose graph is given.

    Raises
    ------
    InputError
        It cannot be divided, with the reason.
    """
    data = model.rvs_to_values.get(variable)
    kind = (variable if data is None else data).type
    if not isinstance(kind, TensorType) and not hasattr(kind, "dims"):
        raise InputError(f"{variable.name} is observed as {kind}, whose rows cannot be divided")
    graph, op = _as_tensor(graph), None if variable.owner is None else variable.owner.op
    _refuse_random(variable.name, graph)
    if data is None:
        rows = None if dim is None else length_of(model, dim)
        return Factor(variable.name, graph, op, rows=rows)
    shape = np.shape(data.data if isinstance(data, Constant) else data.eval(mode=_PLAIN))
    if dim is None:
        return Factor(variable.name, graph, op, data, shape)
    axis = _dims_of(model, variable.name).index(dim)
    return Factor(variable.name, graph, op, data, shape, axis, shape[axis])


def _as_tensor(factor: Variable) -> TensorVariable:
    """Convert a term of `pymc.dims`, whose arrays have named axes, to plain tensors."""
    tensor = pt.as_tensor(factor, allow_xtensor_conversion=True)
    if tensor is factor:
        return tensor
    return rewrite_graph(tensor, include=("lower_xtensor", "canonicalize"), clone=True)


def _refuse_random(name: str, graph: TensorVariable) -> None:
    for variable in ancestors([graph]):
        if variable.owner is not None and isinstance(variable.owner.op, MinibatchOp):
            raise InputError(
                f"{name} depends on a Minibatch, which has other rows at each evaluation. Give "
                "it all rows: members divide them, and the result is exact"
            )
        if isinstance(variable.type, RandomType):
            raise InputError(f"the log-density of {name} draws random numbers")


def _found(
    factors: Sequence[Factor], facts: Facts, dim: str | None, stays: dict[str, str]
) -> list[tuple[Factor, Found]]:
    """The log-densities that have terms, with their summands; the reasons of others are kept."""
    summands = {factor.name: summands_of(factor.graph) for factor in factors}
    facts.note(
        {f.name: [f.graph, *[a for s in summands[f.name] for a in s.arrays]] for f in factors}
    )
    finder = Finder(facts, dim)
    found: list[tuple[Factor, Found]] = []
    for factor in factors:
        with _kept(stays, factor.name, raises=dim is not None and factor.data is not None):
            terms = finder.terms_of(factor, summands[factor.name])
            if terms is not None:
                found.append((_as_read(factor, terms), terms))
    return found


def _as_read(factor: Factor, found: Found) -> Factor:
    """The log-density as it was read, if it is one term: some of its checks may be choices."""
    (summand, term), *others = found
    whole = term is not None and summand.value is term.variable and not others
    return replace(factor, graph=summand.value) if whole else factor


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
    found: Sequence[tuple[Factor, Found]],
) -> tuple[list[Term], dict[str, TensorVariable]]:
    """The terms, and what remains of their variables.

    A Potential, or one of several summands, that is much shorter than the longest term stays whole:
    another number of rows is another function to compile.
    """
    longest = max((t.rows for _, summands in found for _, t in summands if t), default=0)
    divided: list[Term] = []
    rests: dict[str, TensorVariable] = {}
    for factor, summands in found:
        always = factor.data is not None and len(summands) == 1
        pairs = [
            (s, t if t and (always or t.rows * _SHORT >= longest) else None) for s, t in summands
        ]
        terms = [t for _, t in pairs if t is not None]
        divided += terms
        left = [summand.value.sum() for summand, term in pairs if term is None]
        if terms and left:
            rests[factor.name] = pt.add(*left) if len(left) > 1 else left[0]
    return divided, rests


def _nothing(
    model: Model, dim: str | None, observed: Sequence[str], stays: Mapping[str, str]
) -> str:
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
        return (
            f"the observed variables ({', '.join(observed)}) have one row each, or none: there is "
            "nothing to divide"
        )
    return (
        f"{_called(model)} has no observed variables, and none of its Potentials "
        f"({', '.join(p.name for p in model.potentials)}) sums over rows of data: there is nothing "
        "to divide"
    )


def _no_dim(model: Model, dim: str) -> str:
    names = ", ".join(
        f"{rv.name}: {model.named_vars_to_dims.get(rv.name) or 'none'}" for rv in model.observed_RVs
    )
    return (
        f"dim={dim!r}: no observed variable has this dimension (dims of {names}). Name it in "
        "dims= of the observed variable, or leave dim out to divide the longest axis"
    )


def _called(model: Model) -> str:
    return f"model {model.name!r}" if model.name else "the model"
