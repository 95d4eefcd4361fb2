"""Which step methods `pm.sample` takes, from one graph of a model's log-density and its gradient.

PyMC makes the gradient by each parameter for itself, and nutpie makes the log-density once more.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence
from typing import Any, Literal

import pytensor
from pymc import Model
from pymc.step_methods import STEP_METHODS
from pytensor.graph.basic import Variable
from pytensor.tensor import TensorVariable

from synkhronos._compiling.traces import untraced
from synkhronos._libraries.library import optional_gain
from synkhronos._libraries.pymc import PYMC

ASSIGN = "assign_step_methods"


class ModelWithGraph:
    """A model whose log-density is a graph that has been made, for as long as it is compiled.

    The variables of a draw may be given too.
    """

    def __init__(
        self, model: Model, graph: TensorVariable, drawn: Sequence[Variable] | None = None
    ) -> None:
        self.model, self._graph = model, graph
        if drawn is not None:
            self.unobserved_value_vars = list(drawn)

    def logp(self) -> TensorVariable:
        """The log-density."""
        return self._graph

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    def __getitem__(self, name: str) -> TensorVariable:
        return self.model[name]

    def __enter__(self) -> Model:
        return self.model.__enter__()

    def __exit__(self, *exc: object) -> None:
        self.model.__exit__(*exc)


def chosen_by(
    graph: TensorVariable,
    model: Model,
    methods: Sequence[type] | None = None,
    disconnected_inputs: Literal["ignore", "raise"] = "raise",
) -> dict[type, list[TensorVariable]]:
    """The step methods that PyMC takes for parameters by which this log-density has a gradient.

    Raises
    ------
    NotImplementedError, NullTypeGradError
        There is a parameter without.
    """
    pytensor.grad(graph, model.value_vars, disconnected_inputs=disconnected_inputs)
    found: dict[type, list[TensorVariable]] = {}
    for value in model.value_vars:
        rv = model.values_to_rvs[value]
        suits = {each: PYMC.of(each, "_competence")(rv, True) for each in methods or STEP_METHODS}
        found.setdefault(max(suits, key=suits.__getitem__), []).append(value)
    return found


class StepMethods:
    """A function for ``assign_step_methods`` of PyMC, and the graph that it made in this thread."""

    def __init__(self) -> None:
        self._assign = PYMC.get(ASSIGN)
        self._of_thread = threading.local()

    def assigned(
        self, model: Model, step: object = None, methods: Sequence[type] | None = None
    ) -> tuple[list[Any], dict[type, list[TensorVariable]]]:
        """The step methods that are given, and which ones PyMC takes for parameters without."""
        self._of_thread.made = None
        with (
            contextlib.suppress(Exception),
            optional_gain(),
            untraced(),
        ):  # PyMC tells what is wrong
            if step is None and model.value_vars == model.continuous_value_vars:
                graph = model.logp()
                chosen = chosen_by(graph, model, methods)
                self._of_thread.made = ModelWithGraph(model, graph)
                return [], chosen
        found: tuple[list[Any], dict[type, list[TensorVariable]]]
        found = self._assign(model, step, methods=methods)
        return found

    def with_graph(self, model: Model) -> Any:
        """The model with the graph that step methods were assigned by, if that was the last one."""
        made: ModelWithGraph | None = getattr(self._of_thread, "made", None)
        self._of_thread.made = None
        return made if made is not None and made.model is model else model
