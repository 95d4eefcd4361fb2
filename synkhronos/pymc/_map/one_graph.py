"""Models that have the same graph and other data: a copy whose data are variables, and its key."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass

import numpy as np
import pytensor
from pymc import Model
from pytensor.compile import SharedVariable
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.traversal import ancestors, toposort
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.math import Dot
from pytensor.tensor.random.op import RandomVariable
from pytensor.tensor.random.type import RandomType
from pytensor.tensor.subtensor import AdvancedSubtensor
from pytensor.tensor.type import DenseTensorType
from pytensor.tensor.variable import TensorConstant

from synkhronos._compiling.kept.keys import graph_key
from synkhronos._libraries.pymc import (
    PYMC,
    ModelDeterministic,
    ModelFreeRV,
    ModelObservedRV,
    fgraph_from_model,
    model_from_fgraph,
)
from synkhronos.pymc._kept.written import REGISTRIES
from synkhronos.pymc._reading.models import initial_values_of, without_initial_values

# What takes integers as numbers. Elsewhere they may be shapes, which graphs are built by.
_TAKES_NUMBERS = (Elemwise, Dot, AdvancedSubtensor, ModelObservedRV)
_SIZE = 1  # the place of the size among the inputs of a RandomVariable


@dataclass(frozen=True)
class OneGraph:
    """A model as a graph in which its data are variables."""

    # equal for models that differ in data only, so that one compiled function serves all
    key: str
    data: Mapping[str, np.ndarray]  # the values of the variables, by name
    # makes the model, and returns it with the variables by name
    make: Callable[[], tuple[Model, dict[str, SharedVariable]]]


def one_graph(model: Model) -> OneGraph:
    """Read a model.

    Data are those of `pm.Data`, shared variables, observed values, and arrays of the graph. An
    array that holds inf or NaN stays a constant, since PyMC reads bounds in the graph.

    Raises
    ------
    NotImplementedError, ValueError
        PyMC cannot copy the model, two of its data have one name, or some are no arrays.
    """
    starts, checked = initial_values_of(model), model.check_bounds
    graph, copies = fgraph_from_model(without_initial_values(model))
    found = dict.fromkeys(v for node in toposort(graph.outputs) for v in node.inputs)
    theirs = _of_the_model(copies)
    given = [v for v in found if _is_given(v)]
    lifted: dict[Variable, SharedVariable] = {v: _fresh(v) for v in given if v in theirs}
    for constant in [v for v in found if _is_data(graph, v)]:
        value = np.asarray(constant.data)
        name = f"synk data {len(lifted)}"
        shape = value.shape if _is_size(graph, constant) else _lengths(value)
        lifted[constant] = pytensor.shared(value, name=name, shape=shape)
    outputs = _rebuilt(graph, lifted)
    every = [*(v for v in given if v not in theirs), *lifted.values()]
    shared = {v.name: v for v in every}
    if len(shared) < len(every) or None in shared:
        raise ValueError("two data of the model have one name")
    data = {name: np.asarray(v.get_value(borrow=True)) for name, v in shared.items()}
    again = FunctionGraph(outputs=outputs, clone=False)
    for name in ("_coords", "_dim_lengths"):  # which the copy of the model gets from there
        setattr(again, name, PYMC.of(graph, name))

    def make() -> tuple[Model, dict[str, SharedVariable]]:
        made = model_from_fgraph(again, mutate_fgraph=True)
        made.check_bounds = checked
        for name, value in starts.items():
            made.rvs_to_initial_values[made[name]] = value
        return made, shared

    more = (checked, starts, _fixed(outputs, shared))
    return OneGraph(graph_key([], outputs, *more, registries=REGISTRIES), data, make)


def _is_given(variable: Variable) -> bool:
    """Whether it is a shared variable with data.

    Raises
    ------
    NotImplementedError
        Its data are no array.
    """
    if not isinstance(variable, SharedVariable) or isinstance(variable.type, RandomType):
        return False
    if not isinstance(variable.type, DenseTensorType):
        raise NotImplementedError(f"{variable.name} is a shared variable of {variable.type!r}")
    return True


def _of_the_model(copies: Mapping[Variable, Variable]) -> set[Variable]:
    """Copies that have the container of the model's own variable: PyMC copies only `pm.Data`."""
    return {
        new
        for old, new in copies.items()
        if isinstance(old, SharedVariable) and getattr(new, "container", None) is old.container
    }


def _fresh(shared: SharedVariable) -> SharedVariable:
    """A variable of the same type and name, with a value of its own."""
    value = shared.get_value()
    return type(shared)(type=shared.type, value=value, strict=True, name=shared.name)


def _lengths(value: np.ndarray) -> tuple[int | None, ...]:
    """The static shape of data of any length; an axis of length 1 is one that is broadcast."""
    return tuple(1 if n == 1 else None for n in value.shape)


def _is_size(graph: FunctionGraph, constant: Variable) -> bool:
    """Whether it is the size of an observed variable, and of nothing else."""
    return all(_sizes_observed(graph, *client) for client in graph.clients[constant])


def _sizes_observed(graph: FunctionGraph, node: Apply, place: int) -> bool:
    return (
        isinstance(node.op, RandomVariable)
        and place == _SIZE
        and all(
            isinstance(user.op, ModelObservedRV) and at == 0
            for user, at in graph.clients[node.outputs[1]]
        )
    )


def _is_data(graph: FunctionGraph, variable: Variable) -> bool:
    if not isinstance(variable, TensorConstant):
        return False
    clients = graph.clients.get(variable, [])
    observed = any(isinstance(n.op, ModelObservedRV) and at == 1 for n, at in clients)
    value = np.asarray(variable.data)
    if not clients or not (observed or (value.ndim and value.dtype != bool)):
        return False
    if value.dtype.kind == "f":
        return bool(np.isfinite(value).all()) and (observed or value.size > 1)
    return _is_size(graph, variable) or all(_takes_numbers(*client) for client in clients)


def _takes_numbers(node: Apply, place: int) -> bool:
    if isinstance(node.op, RandomVariable):
        return place > _SIZE
    return isinstance(node.op, _TAKES_NUMBERS)


def _rebuilt(graph: FunctionGraph, replaced: Mapping[Variable, Variable]) -> list[Variable]:
    """The outputs of a graph with variables in place of others, whose types may be wider."""
    now = dict(replaced)
    for node in toposort(graph.outputs):
        if any(v in now for v in node.inputs):
            new = node.op.make_node(*[now.get(v, v) for v in node.inputs])
            for old, variable in zip(node.outputs, new.outputs, strict=True):
                variable.name, variable.tag = old.name, copy(old.tag)
                now[old] = variable
    return [now.get(v, v) for v in graph.outputs]


def _fixed(outputs: list[Variable], shared: Mapping[str, SharedVariable]) -> list[object]:
    """Lengths and integers that shapes of parameters and Deterministics follow from."""
    kinds = (ModelFreeRV, ModelDeterministic)
    named = [v for v in outputs if v.owner is not None and isinstance(v.owner.op, kinds)]
    read = set(ancestors([v for v in named if None in v.type.shape]))
    values = [v.get_value(borrow=True) for v in shared.values() if v in read]
    return [(v.shape, v.item() if v.ndim == 0 and v.dtype.kind in "iu" else None) for v in values]
