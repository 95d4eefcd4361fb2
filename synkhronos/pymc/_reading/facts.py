"""Facts about the variables of a model: lengths, and what is free."""

from __future__ import annotations

import contextlib
import functools
import itertools
import operator
import weakref
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import pytensor
from pymc import Model
from pymc.initial_point import make_initial_point_fn
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.traversal import ancestors, toposort
from pytensor.tensor import TensorVariable
from pytensor.tensor.rewriting.shape import ShapeFeature
from pytensor.tensor.shape import Shape, Shape_i
from pytensor.tensor.type import TensorType

from synkhronos._compiling.python_function import PythonFunction
from synkhronos._compiling.python_mode import python_mode
from synkhronos._errors import InputError
from synkhronos.pymc._reading.declared import Declared
from synkhronos.pymc._reading.rewrites import without_parameter_checks

Lengths = tuple[int, ...]
Place = tuple[Variable, int | None]  # a variable and its row axis; None: needed whole
Point = dict[Variable, np.ndarray]  # a value for each input of a model's log-density

_PLAIN = python_mode("none")


class Facts:
    """Facts about the variables of a model, as far as they were noted."""

    def __init__(self, model: Model, declared: Declared) -> None:
        self.inputs: list[TensorVariable] = list(model.value_vars)  # the model's value variables
        self.checked: bool = model.check_bounds  # whether the model checks conditions on parameters
        # the shape of every tensor that was noted, at the model's initial point
        self.shapes: dict[Variable, Lengths] = {}
        # those that depend on free random variables; all others are data
        self.free: set[Variable] = set()
        self._declared = declared
        self._random = list(model.free_RVs)
        self._row_wise: set[Apply] = set()
        self._point_of_seed = functools.cache(lambda: make_initial_point_fn(model=model))

    def start(self) -> Point:
        """The model's initial point; of other data that the user sets it may have other shapes."""
        found = self._point_of_seed()(0)
        return {v: np.array(found[v.name]) for v in self.inputs}

    @cached_property
    def of_shapes(self) -> list[SharedVariable]:
        """The shared variables that shapes of parameters depend on: data, and lengths of dims."""
        found = ancestors(_lengths_of([v for v in self._random if isinstance(v.type, TensorType)]))
        return [v for v in found if isinstance(v, SharedVariable) and hasattr(v.type, "ndim")]

    def note(self, arrays: Mapping[str, Sequence[Variable]]) -> None:
        """Find the shapes in graphs, and what is free; they are of the variables of these names."""
        for name, graphs in arrays.items():
            if name in self._declared.names:
                self._row_wise.update(v.owner for v in ancestors(graphs) if v.owner is not None)
        every = list(itertools.chain.from_iterable(arrays.values()))
        self.free |= dependent(every, self.inputs)
        unknown: list[TensorVariable] = []
        for variable in ancestors(every):
            if not isinstance(variable.type, TensorType) or variable in self.shapes:
                continue
            if isinstance(variable, Constant):
                self.shapes[variable] = np.shape(variable.data)
            elif None not in variable.type.shape:
                self.shapes[variable] = tuple(variable.type.shape)
            else:
                unknown.append(variable)
        if unknown:
            self.shapes |= self._measured(unknown)

    def _measured(self, unknown: Sequence[TensorVariable]) -> dict[Variable, Lengths]:
        """The shapes of variables at the model's initial point.

        PyTensor infers them from the shapes of data and parameters, so that no value is computed
        but those that decide lengths: a loop of many steps, or many rows, take no longer than few.
        """
        lengths = without_parameter_checks(_lengths_of(unknown))
        measure = pytensor.function(self.inputs, lengths, mode=_PLAIN, on_unused_input="ignore")
        numbers = iter(map(int, measure(*self.start().values())))
        return {v: tuple(itertools.islice(numbers, v.type.ndim)) for v in unknown}

    def is_declared(self, node: Apply) -> bool:
        """Whether the user says that an operation keeps rows apart."""
        return isinstance(node.op, self._declared.kinds) or node in self._row_wise


class Start:
    """The model's initial point, of which the shapes of data are computed that depend on it.

    A pickle has the point as it was last.
    """

    def __init__(self, facts: Facts) -> None:
        self._facts: Facts | None = facts if facts.of_shapes else None
        self.shareds = facts.of_shapes  # the shared variables that its shapes depend on
        self._seen = self._values()  # when the point was made
        self.point = facts.start()

    @property
    def can_change(self) -> bool:
        """Whether its shapes can change."""
        return self._facts is not None

    def now(self) -> Point:
        """The point, with the present shapes; the same object as long as they cannot have changed.

        Raises
        ------
        InputError
            Data and lengths of dims do not fit together, as while one after another is set.
        """
        values = self._values()
        if self._facts is not None and not all(map(operator.is_, values, self._seen)):
            with _fitting():
                self.point = self._facts.start()
            self._seen = values
        return self.point

    def _values(self) -> list[weakref.ref[Any]]:
        """The values, which are other arrays once they are set. They may be large: none is held."""
        return [weakref.ref(shared.container.storage[0]) for shared in self.shareds]

    def __getstate__(self) -> dict[str, object]:
        return {"_facts": None, "shareds": [], "_seen": [], "point": self.point}


class Shapes:
    """The shapes of variables of a model, which change with the lengths of its dims."""

    def __init__(self, variables: Sequence[TensorVariable], facts: Facts, start: Start) -> None:
        self._start, self._point = start, start.point
        self._known: list[Lengths] = [facts.shapes.get(v, ()) for v in variables]
        lengths = _lengths_of(variables) if start.can_change else []
        self._measured = PythonFunction(facts.inputs, without_parameter_checks(lengths))

    def now(self) -> list[Lengths]:
        """The present shapes."""
        point = self._start.now()
        if point is not self._point:
            with _fitting():
                numbers = iter(map(int, self._measured(*point.values())))
            self._known = [tuple(itertools.islice(numbers, len(s))) for s in self._known]
            self._point = point
        return self._known

    def __getstate__(self) -> dict[str, object]:
        return {**vars(self), "_measured": PythonFunction([], [])}


@contextlib.contextmanager
def _fitting() -> Iterator[None]:
    """Raise an InputError for whatever prevents that shapes are computed."""
    try:
        yield
    except Exception as exc:
        raise InputError(f"data and dims of the model do not fit together: {exc}") from exc


def _lengths_of(variables: Sequence[Variable]) -> list[Variable]:
    """The lengths of the axes of variables, computed from those of inputs as far as is known."""
    shapes = ShapeFeature()
    return [n for v in variables for n in shapes.shape_tuple(v)]


def dependent(terms: Sequence[Variable], on: Sequence[Variable]) -> set[Variable]:
    """The variables in the terms' graphs that depend on any of `on`, which are included."""
    found = set(on)
    for node in toposort(terms):
        if isinstance(node.op, Shape | Shape_i):  # a parameter's shape does not change
            continue
        if any(v in found for v in node.inputs):
            found.update(node.outputs)
    return found


def is_smooth(variable: Variable) -> bool:
    """Whether gradients by this variable exist."""
    return variable.type.dtype in ("float32", "float64")
