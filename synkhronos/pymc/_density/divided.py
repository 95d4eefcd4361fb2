"""A log-density in the place of a model's own, and the model and the point that it is of."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Container, Sequence
from types import FrameType
from typing import Any, Self

from pymc import Model
from pymc.util import treedict
from pytensor.graph.basic import Variable
from pytensor.graph.replace import clone_replace
from pytensor.tensor import TensorVariable

from synkhronos._compiling.late_imports import imported_jax
from synkhronos._warnings import log
from synkhronos.pymc._density.failures import let_failures_pass
from synkhronos.pymc._density.normals import with_normals
from synkhronos.pymc._reading.reading import Reading


class Replaced:
    """A model whose log-density is replaced until `close`, or the end of ``with``."""

    def __init__(self, model: Model) -> None:
        self.model = model

    def replace(self, density: Divided | Marked) -> None:
        """Give the model this log-density, in place of its own or of an earlier one."""
        model = self.model
        forget_compiled(model)
        model.logp = density
        if isinstance(model.rvs_to_initial_values, treedict):  # a user may have set a dict
            model.rvs_to_initial_values.__class__ = NotedInitialValues

    def restore(self) -> None:
        """Give the model its own log-density again, if it has another one."""
        model = self.model
        if isinstance(vars(model).get("logp"), Divided | Marked):
            del model.logp
            if isinstance(model.rvs_to_initial_values, NotedInitialValues):
                model.rvs_to_initial_values.__class__ = treedict
            forget_compiled(model)

    def close(self) -> None:
        """Restore the model. Safe to call again."""
        self.restore()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.close()


# By package, how to sample a copy with our log-density.
_COPYING = {
    "nutpie": "use synk.pymc.sample; or freeze the model first (pymc.model.transform.optimization."
    'freeze_dims_and_data), and let nutpie leave it so: compile_kwargs={"freeze_model": False}',
    "pymc_extras": "what it does is right, and takes as long as with the model itself. Its "
    "find_MAP and fit_laplace take freeze_model=False",
    "pymc_marketing": "what it does is right, and takes as long as with the model itself. Let a "
    "subclass make the model that fit freezes faster: synk.pymc.fast in _get_sampling_model",
}
_BY_OTHERS = "freeze the model first, and make the frozen model faster"
_FREEZING = "pymc.model.transform.optimization"


class NotedInitialValues(treedict):
    """The initial values of a model with another log-density: they notice that it is copied.

    PyMC's copies of a model have its graph, and not its log-density. PyMC looks at all initial
    values before it copies. A line tells of frozen copies, and of all those of some packages: they
    are made to be sampled.
    """

    def values(self) -> Any:
        """The initial values."""
        # a frame in a variable would keep itself and its callers alive
        package = _caller_of(inspect.currentframe(), _COPYING) or _freezer(inspect.currentframe())
        if package is not None:
            log.warning(
                "%s copies the model (freeze_dims_and_data), and the copy has PyMC's own "
                "log-density, not the one of synk.pymc: %s",
                package,
                _COPYING.get(package, _BY_OTHERS),
            )
        return super().values()


def _caller_of(frame: FrameType | None, packages: Container[str]) -> str | None:
    """The package of these whose code this frame runs, or one that has called it; else None."""
    while frame is not None:
        package: str = frame.f_globals.get("__name__", "").split(".")[0]
        if package in packages:
            return package
        frame = frame.f_back
    return None


def _freezer(frame: FrameType | None) -> str | None:
    """The package whose code freezes the model, if it is not this one."""
    freezes = False
    while frame is not None:
        module: str = frame.f_globals.get("__name__", "")
        if module == _FREEZING:
            freezes = True
        elif freezes:
            package = module.partition(".")[0]
            return None if package == __name__.partition(".")[0] else package
        frame = frame.f_back
    return None


class Divided:
    """Replaces `model.logp`: the divided terms are one operation, the others `with_normals`."""

    def __init__(
        self,
        model: Model,
        reading: Reading,
        # the log-density of the divided terms, and what remains of their variables
        value: TensorVariable,
        divide: Callable[[Reading], TensorVariable],
        lasting: bool = False,
    ) -> None:
        self._model = model
        self.reading = reading  # of this model
        self.lasting = lasting  # whether the model is a copy that keeps this log-density
        # ``divide(reading) -> variable``: the same of some of the terms
        self._divide: Callable[[Reading], TensorVariable] | None = divide
        self._names = frozenset(reading.names)
        self._together = (self._names, reading.observed)  # sets of names that are divided
        self._values = {self._names: value}

    def __call__(self, vars: Any = None, jacobian: bool = True, sum: bool = True) -> Any:
        """The log-density, as `pymc.Model.logp`; with ``sum=False`` the undivided one."""
        model, plain = self._model, type(self._model).logp
        _register_jax()
        let_failures_pass()
        if vars is None:
            given = [*model.free_RVs, *model.observed_RVs, *model.potentials]
        else:
            given = list(vars) if isinstance(vars, list | tuple) else [vars]
        rvs = [model.values_to_rvs.get(v, v) for v in given]
        mine = frozenset({rv.name for rv in rvs if rv not in model.free_RVs}) & self._names
        # ADVI and SMC ask for the observed variables, and compute Potentials themselves
        if not sum or not mine or mine not in self._together:
            return plain(model, vars, jacobian=jacobian, sum=sum)
        if mine not in self._values:
            if self._divide is None:
                return plain(model, vars, jacobian=jacobian, sum=sum)
            self._values[mine] = self._divide(self.reading.only(mine))
        rest = [v for v, rv in zip(given, rvs, strict=True) if rv.name not in mine]
        [total] = clone_replace([self._values[mine]])
        if rest:
            others = with_normals(self._of_others(rest, jacobian), model.value_vars)
            total = others + total
            total.name = "_".join(filter(None, ["__logp", "nojac" * (not jacobian), model.name]))
        return total

    def _of_others(self, rest: Sequence[Variable], jacobian: bool) -> TensorVariable:
        """A copy of the log-density of variables that are not divided; frozen models keep theirs.

        It was read with the model, if the variable was there. PyMC takes some 50 ms to make it.
        """
        names = [self._model.values_to_rvs.get(v, v).name for v in rest]
        if jacobian and self.reading is not None and self.reading.factors.keys() >= set(names):
            return self.reading.sum_of(names)
        others = type(self._model).logp(self._model, rest, jacobian=jacobian)
        [copied] = clone_replace([others])
        return copied

    def __getstate__(self) -> dict[str, Any]:
        """For another process, which has what was divided here."""
        return {**self.__dict__, "_divide": None, "reading": None}


class Marked:
    """Replaces `model.logp`: the graph `with_normals`, with a mark for those who compile it."""

    lasting = True  # only copies have one

    def __init__(self, model: Model, mark: Callable[[TensorVariable], TensorVariable]) -> None:
        self._model, self._mark = model, mark

    def __call__(self, vars: Any = None, jacobian: bool = True, sum: bool = True) -> Any:
        """The log-density, as `pymc.Model.logp`."""
        found = type(self._model).logp(self._model, vars, jacobian=jacobian, sum=sum)
        if not sum:
            return found
        marked = self._mark(with_normals(found, self._model.value_vars))
        marked.name = found.name
        return marked


def _register_jax() -> None:
    """Register the operation with JAX, if this process uses JAX."""
    if imported_jax() is not None:
        importlib.import_module("synkhronos.pymc._density.jax")


def forget_compiled(model: Model) -> None:
    """Clear a frozen model's cache: it holds functions compiled for another log-density."""
    vars(model).pop("_cache", None)
