"""The graphs that all functions of a sampler follow from, and their key."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from pymc import Model
from pymc.initial_point import convert_str_to_rv_dict, make_initial_point_expression
from pymc.step_methods import STEP_METHODS
from pytensor.compile.mode import get_mode
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.traversal import ancestors, graph_inputs
from pytensor.tensor import TensorVariable, as_tensor
from pytensor.tensor.math import variadic_add
from pytensor.tensor.random.type import RandomType
from pytensor.tensor.type import TensorType

from synkhronos._compiling.data.lifted import lifted
from synkhronos._compiling.kept.digests import Unkeyed
from synkhronos._compiling.kept.keys import graph_key
from synkhronos._warnings import log


@dataclass(frozen=True)
class Noted:
    """A note on the graphs of a model.

    Attributes
    ----------
    key : str
    start : str
        The key of the initial point that the model has by itself.
    shared : list of SharedVariable
    """

    key: str
    start: str
    shared: list[SharedVariable]


class Graphs:
    """A model's log-density and the variables of its draws, as graphs of the point.

    They are made at once, unless the key is noted.

    Attributes
    ----------
    model : pymc.Model
    shared : list of SharedVariable
        The data that these graphs read, in the order in which they read them; also arrays that are
        constants of them.
    """

    def __init__(self, model: Model, noted: Noted | None = None) -> None:
        self.model = model
        self._replaced = vars(model).get("logp")  # the model's own, or that of `fast`
        self._key: str | Unkeyed
        if noted is not None:
            self._key, self._own_start, self.shared = noted.key, noted.start, noted.shared
            return
        from synkhronos.pymc._density.regressions import which  # its import takes time

        drawn = model.unobserved_value_vars
        found = lifted([self.value, *drawn])
        self.shared = [v for v in graph_inputs(found) if isinstance(v, SharedVariable)]
        try:
            _refuse_random(self.shared)
            self._key = graph_key(
                model.value_vars,
                found,
                list(STEP_METHODS),
                model.check_bounds,
                get_mode("NUMBA"),
                [getattr(v.type, "shape", None) for v in drawn],
                _of_lengths([*model.free_RVs, *drawn]),
                which(found[0]),
            )
        except Unkeyed as exc:
            log.debug("the model is compiled as it is, and not kept: %s", exc)
            self._key = exc

    @cached_property
    def terms(self) -> list[Variable] | None:
        """The log-densities of its variables and Potentials, as `pymc.Model.logp` gives them.

        None if the model has another log-density than PyMC's.
        """
        model = self.model
        return type(model).logp(model, sum=False) if self._replaced is None else None

    @cached_property
    def value(self) -> TensorVariable:
        """The log-density."""
        return self.model.logp() if self.terms is None else sum_of(self.model, self.terms)

    @property
    def key(self) -> str:
        """Equal in every process for models with the same graphs.

        Data count only where lengths of draws, or code, depend on them: of many rows a regression
        has another form than of few.

        Raises
        ------
        Unkeyed
            A part of them has no such key.
        """
        if isinstance(self._key, Unkeyed):
            raise Unkeyed(str(self._key))
        return self._key

    @property
    def is_current(self) -> bool:
        """Whether the model still has the log-density that the key was made of."""
        return vars(self.model).get("logp") is self._replaced

    def initial_key(self, overrides: Mapping[Any, Any] | None) -> str:
        """The key of the graph of the initial point, as nutpie asks for it."""
        return self._start_of(overrides) if overrides else self._own_start

    @cached_property
    def _own_start(self) -> str:
        return self._start_of({})

    def _start_of(self, overrides: Mapping[Any, Any]) -> str:
        model = self.model
        found = make_initial_point_expression(
            free_rvs=model.free_RVs,
            rvs_to_transforms=model.rvs_to_transforms,
            initval_strategies={
                **model.rvs_to_initial_values,
                **convert_str_to_rv_dict(model, dict(overrides)),
            },
            jitter_rvs=set(model.free_RVs),
        )
        return graph_key(self.shared, found)

    def values(self) -> list[np.ndarray]:
        """The values that shared variables have now."""
        return _values(self.shared)


def sum_of(model: Model, terms: Sequence[Variable]) -> TensorVariable:
    """The sum of a model's log-densities, as `pymc.Model.logp` makes it of them."""
    found = variadic_add(*[as_tensor(v, allow_xtensor_conversion=True).sum() for v in terms])
    found.name = "_".join(filter(None, ["__logp", model.name]))
    return found


def _refuse_random(shared: Sequence[SharedVariable]) -> None:
    for variable in shared:
        if not isinstance(variable.type, TensorType):
            raise Unkeyed(f"{variable.name or variable.type} is no array")


def _of_lengths(variables: Collection[Variable]) -> list[object]:
    """The values that lengths of these may depend on: the key has other arrays as data only."""
    read = ancestors([v for v in variables if None in v.type.shape])
    known = [v for v in read if not isinstance(v.type, RandomType)]
    shared = _values(v for v in known if isinstance(v, SharedVariable))
    return [*shared, *(v.data for v in known if isinstance(v, Constant))]


def _values(shared: Any) -> list[np.ndarray]:
    return [np.asarray(v.get_value(borrow=True)) for v in shared]
