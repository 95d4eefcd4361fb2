"""`parallel`: a model whose likelihood is evaluated by all members, for a while."""

from __future__ import annotations

import importlib
import logging
import sys
from collections.abc import Sequence
from types import TracebackType
from typing import Any

from pytensor.graph.replace import clone_replace

import synkhronos.pymc._numba  # noqa: F401 (registers the operation)
from synkhronos import _group
from synkhronos._errors import InputError, InputTypeError
from synkhronos._group import Group
from synkhronos.pymc._chains import Evaluator
from synkhronos.pymc._likelihood import Likelihood
from synkhronos.pymc._op import DividedLogp
from synkhronos.pymc._proof import prove
from synkhronos.pymc._terms import Term, Terms, read_model

log = logging.getLogger("synkhronos")


class Divided:
    """In place of `model.logp`: the divided terms are one operation, the rest is as ever."""

    def __init__(self, model: Any, terms: Terms, op: DividedLogp, value: Any) -> None:
        self._model = model
        self._op = op
        self._value = value
        self._names = frozenset(terms.names)

    def __call__(self, vars: Any = None, jacobian: bool = True, sum: bool = True) -> Any:
        """The log-density, as `pymc.Model.logp`; row by row (``sum=False``) it is the plain one."""
        model, plain = self._model, type(self._model).logp
        _register_jax()
        if vars is None:
            given = [*model.free_RVs, *model.observed_RVs, *model.potentials]
        else:
            given = list(vars) if isinstance(vars, list | tuple) else [vars]
        rvs = [model.values_to_rvs.get(v, v) for v in given]
        mine = {rv.name for rv in rvs if rv in model.observed_RVs} & self._names
        if not sum or mine != self._names:
            return plain(model, vars, jacobian=jacobian, sum=sum)
        rest = [v for v, rv in zip(given, rvs, strict=True) if rv.name not in self._names]
        [total] = clone_replace([self._value])
        if rest:
            others = plain(model, rest, jacobian=jacobian)
            name, total = others.name, others + total
            total.name = name
        return total


def _register_jax() -> None:
    """JAX learns of the operation once somebody uses JAX."""
    if "jax" in sys.modules:
        importlib.import_module("synkhronos.pymc._jax")


class Parallel:
    """A model that is divided; made by `parallel`. Leaving it restores the model.

    Attributes
    ----------
    model : pymc.Model
    names : list of str
        The observed variables that are divided; empty where the model was left alone.
    group : Group, or None
        The members that evaluate.
    """

    def __init__(
        self,
        model: Any,
        dim: str | None = None,
        *,
        members: int | None = None,
        members_per_chain: int | None = None,
        mode: Any = None,
    ) -> None:
        self.model = model = _model(model)
        if isinstance(model.__dict__.get("logp"), Divided):
            raise InputError("the model is divided already: leave that first (its close())")
        terms = read_model(model, dim)
        self.names: list[str] = []
        self.group, self._own_group = _group_for(members)
        try:
            self._divide(terms, mode, members_per_chain)
        except BaseException:
            self._give_up()
            raise

    def _divide(self, terms: Terms, mode: Any, members_per_chain: int | None) -> None:
        model = self.model
        likelihood = Likelihood(terms, _point(model))
        assert self.group is not None
        self._evaluator = Evaluator(likelihood, mode, self.group, members_per_chain or 1)
        op = DividedLogp(self._evaluator)
        value = op(likelihood.theta, *likelihood.latents)[0]
        self._prove(terms, value)
        model.logp = Divided(model, terms, op, value)
        self.names = terms.names

    def _prove(self, terms: Terms, value: Any) -> None:
        divided = [t for ts, _ in terms.readings for t in ts]
        found = prove(self.model, divided, value, self.model.check_bounds)
        if found is None:
            return
        culprits = [t.name for t in divided if len(divided) == 1 or self._alone_wrong(t)]
        raise InputError(
            f"the parts of {', '.join(culprits or [t.name for t in divided])} do not add up: "
            f"{found.what} is {found.plain!r} of the plain model and {found.divided!r} of the "
            f"parts (allowed: {found.allowed:.1e}). The model is left as it was; please report it"
        )

    def _alone_wrong(self, term: Term) -> bool:
        """Whether a term, divided alone, is wrong."""
        terms = read_model(self.model, None)
        readings = tuple(
            (ts, reading) for ts, reading in terms.readings if [t.name for t in ts] == [term.name]
        )
        if not readings:
            return True
        alone = Likelihood(Terms(readings, (), terms.shapes), _point(self.model))
        assert self.group is not None
        op = DividedLogp(Evaluator(alone, self._evaluator.mode, self.group, 1))
        value = op(alone.theta, *alone.latents)[0]
        return prove(self.model, readings[0][0], value, self.model.check_bounds) is not None

    def close(self) -> None:
        """Restore the model; a group that was started for it ends. Safe to call again."""
        if isinstance(self.model.__dict__.get("logp"), Divided):
            del self.model.logp
        self._give_up()

    def _give_up(self) -> None:
        evaluator = getattr(self, "_evaluator", None)
        if evaluator is not None:
            evaluator.leave()
        if self._own_group and self.group is not None:
            self.group.close()
        self.group = None

    def __enter__(self) -> Parallel:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _model(model: Any) -> Any:
    from pymc import modelcontext
    from pymc.model.core import BaseModel

    if model is None:
        return modelcontext(None)
    if not isinstance(model, BaseModel):
        raise InputTypeError(f"parallel takes a pymc.Model, found {type(model).__name__}")
    return model.root


def _point(model: Any) -> dict[Any, Any]:
    start = model.initial_point(0)
    return {v: start[v.name] for v in model.value_vars}


def _group_for(members: int | None) -> tuple[Group, bool]:
    """The current group if it is alive and of that size, else a new one (True)."""
    found = _group._current
    if found is not None and found.alive and members in (None, found.size):
        return found, False
    return Group(members), True


def parallel(model: Any = None, dim: str | None = None, **options: Any) -> Parallel:
    """Divide a model."""
    return Parallel(model, dim, **options)


__all__: Sequence[str] = ["Parallel", "parallel"]
