"""A model is read once: its log-density as terms with rows, and the rest."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import pytensor.tensor as pt
from pymc import Model
from pytensor.graph.basic import Variable
from pytensor.tensor import TensorVariable

from synkhronos._errors import InputError
from synkhronos.pymc._reading.assumptions import check
from synkhronos.pymc._reading.factors import Factor, called, factor_of, no_dim, observed_of
from synkhronos.pymc._reading.facts import Declared, Facts
from synkhronos.pymc._reading.rewrites import stable
from synkhronos.pymc._reading.rows import RowReading, Term, read_rows
from synkhronos.pymc._reading.summands import summands_of
from synkhronos.pymc._reading.terms import Finder, Found

_SHORT = 8  # a summand is short if the longest term has more than this many times its rows


@dataclass(frozen=True)
class Reading:
    """What is read of a model, once: everything that follows takes it instead of the model."""

    groups: tuple[RowReading, ...]  # the terms that are divided, by their number of rows
    factors: Mapping[str, TensorVariable]  # the log-density of each variable of the model, by name
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

    def only(self, names: Collection[str]) -> Reading:
        """Only the terms with these names."""
        return replace(
            self,
            groups=read_rows([t for t in self.terms if t.name in names], self.facts),
            rests={name: rest for name, rest in self.rests.items() if name in names},
        )


def read(model: Model, dim: str | None = None, declared: Declared | None = None) -> Reading:
    """Read the log-densities of all observed variables and of all Potentials of a model.

    Raises
    ------
    InputError
        Nothing can be divided, or an observed variable with the dimension `dim` cannot be, with
        the reasons.
    """
    facts, stays = Facts(model, declared or Declared()), dict[str, str]()
    observed = observed_of(model, dim)
    every = [*model.free_RVs, *model.observed_RVs, *model.potentials]
    graphs = dict(zip([v.name for v in every], type(model).logp(model, sum=False), strict=True))
    factors: list[Factor] = []
    for variable in [*observed, *model.potentials]:
        with _kept(stays, variable.name, raises=dim is not None and variable in observed):
            factors.append(factor_of(model, variable, graphs[variable.name], dim))
    factors = [
        replace(factor, graph=graph)
        for factor, graph in zip(factors, stable([f.graph for f in factors]), strict=True)
    ]
    terms, rests = _large_enough(_found(factors, facts, dim, stays))
    if not terms:
        raise InputError(_nothing(model, dim, [rv.name for rv in observed], stays))
    reading = Reading(
        groups=read_rows(terms, facts),
        factors=graphs | {factor.name: factor.graph for factor in factors},
        rests=rests,
        stays=stays,
        data={rv.name: model.rvs_to_values[rv] for rv in model.observed_RVs},
        facts=facts,
    )
    check([a for group in reading.groups for a in group.assumptions], facts)
    return reading


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
                found.append((factor, terms))
    return found


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
        return no_dim(model, dim)
    reasons = list(stays.values())
    if len(reasons) > 1:
        listed = "".join(f"\n- {name}: {reason}" for name, reason in stays.items())
        return f"nothing in {called(model)} can be divided:{listed}"
    if reasons:
        return reasons[0]
    if observed:
        return (
            f"the observed variables ({', '.join(observed)}) have one row each, or none: there is "
            "nothing to divide"
        )
    return (
        f"{called(model)} has no observed variables, and none of its Potentials "
        f"({', '.join(p.name for p in model.potentials)}) sums over rows of data: there is nothing "
        "to divide"
    )
