"""Compiled models of nutpie: models with one graph share one."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from pymc import NUTS, Model
from pytensor.compile import SharedVariable
from xarray import Dataset

from synkhronos._libraries.library import optional_gain, usable
from synkhronos._libraries.nutpie import NUTPIE
from synkhronos._libraries.pymc import PYMC
from synkhronos._warnings import log
from synkhronos.pymc._kept.models import kept_model
from synkhronos.pymc._reading.models import length_of

if TYPE_CHECKING:
    from synkhronos.pymc._map.one_graph import OneGraph


_MOST = 64  # compiled models that are kept; each holds some MB of machine code
_PLAIN = {"backend": "numba"}  # of these arguments, compiled models are shared


@dataclasses.dataclass(eq=False)
class Compiled:
    """A compiled model, for all models whose graph has its key.

    `compiled` is nutpie's, and `shared` are the variables of its data, by name.
    """

    key: str
    compiled: Any
    shared: Mapping[str, SharedVariable]

    def with_data(self, graph: OneGraph, model: Model) -> object:
        """The compiled model with the data, and the coordinates, of another model."""
        for name, value in graph.data.items():
            self.shared[name].set_value(value)  # which the function of the initial point reads
        read = {v.name for v in self.compiled.shared_var_keys}
        found = self.compiled.with_data(**{n: v for n, v in graph.data.items() if n in read})
        coords = {
            name: range(length_of(model, name)) if values is None else list(values)
            for name, values in model.coords.items()
        }
        indexes = Dataset(coords=coords).indexes  # of pandas, as nutpie's own
        return dataclasses.replace(found, _coords={**found.coords, **indexes})


class Compilations:
    """Replaces ``nutpie.compile_pymc_model`` in this process, while it is a context.

    `pm.sample` also differentiates each model, only to see that NUTS can sample it. Models of a
    graph that is compiled are spared that: it takes as long as the draws of a small model.
    """

    def __init__(self) -> None:
        self._kept: list[Compiled] = []
        self._compile: Callable[..., object] | None = None
        self._assign: Callable[..., object] | None = None
        if find_spec("nutpie"):
            with optional_gain():
                self._assign = PYMC.get("assign_step_methods")
                self._compile = NUTPIE.get("compile_pymc_model")
        self._replaced = ExitStack()
        self._read: tuple[object, OneGraph | None] = (None, None)  # the model that is sampled next
        self.count = 0  # how many models were compiled

    def __enter__(self) -> Compilations:
        if self._compile is not None:
            self._replaced.callback(NUTPIE.replace({"compile_pymc_model": self.compiled}))
            self._replaced.callback(PYMC.replace({"assign_step_methods": self.assigned}))
        return self

    def __exit__(self, *_: object) -> None:
        self._replaced.close()

    def assigned(self, model: Model, step: object = None, methods: object = None) -> object:
        """As ``assign_step_methods`` of PyMC: the step methods, and which variables each has."""
        assert self._assign is not None
        graph = _graph_of(model) if step is None else None
        self._read = (model, graph)
        if graph is not None and self._kept_of(graph) is not None:
            return [], {NUTS: list(model.value_vars)}
        return self._assign(model, step, methods=methods)

    def _kept_of(self, graph: OneGraph) -> Compiled | None:
        return next((kept for kept in self._kept if kept.key == graph.key), None)

    def compiled(self, model: Model, **given: object) -> object:
        """The compiled model of nutpie, with the arguments of ``compile_pymc_model``."""
        assert self._compile is not None
        asked = {name: value for name, value in given.items() if value is not None}
        (before, graph), self._read = self._read, (None, None)
        if asked != _PLAIN:
            graph = None
        elif before is not model:
            graph = _graph_of(model)
        if graph is None:
            self.count += 1
            return self._compile(model, **given)
        if (kept := self._kept_of(graph)) is not None:
            self._kept.remove(kept)
            self._kept.append(kept)
            return kept.with_data(graph, model)
        self.count += 1
        template, shared = graph.make()
        of_machine = kept_model(template)
        made = (
            self._compile(template, **given)
            if of_machine is None
            else of_machine.compiled(self._compile, given)
        )
        new = Compiled(graph.key, made, shared)
        self._kept = [*self._kept[1 - _MOST :], new]
        return new.with_data(graph, model)


def _graph_of(model: Model) -> OneGraph | None:
    if not usable("synkhronos.pymc._map.one_graph"):
        return None
    from synkhronos.pymc._map.one_graph import one_graph

    try:
        return one_graph(model)
    except (NotImplementedError, ValueError, TypeError) as exc:
        log.info("a model is compiled for itself: %s", exc)
        return None
