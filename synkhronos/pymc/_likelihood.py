"""The observed likelihood as a graph that each member computes on its rows.

The graph has three inputs: one flat vector *theta* of all parameters that members need whole, the
rows of the *latents* (parameters with one value per row), and data. Its outputs are one flat vector
[log-density, its gradient by theta], which is summed over members, and the gradient by the rows of
each latent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor.compile.mode import get_mode
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.gradient import NullTypeGradError
from pytensor.graph.basic import Constant
from pytensor.graph.replace import clone_replace
from pytensor.graph.rewriting.utils import rewrite_graph
from pytensor.graph.traversal import ancestors
from pytensor.link.numba.linker import NumbaLinker

from synkhronos._backends.vectorised.tails import expanded
from synkhronos._engine.python_mode import python_mode
from synkhronos._errors import InputError
from synkhronos.pymc._rewrites import (
    Hoisted,
    hinders_vectorising,
    hoist,
    simplified,
    with_named_tails,
)
from synkhronos.pymc._rows import Place, Reading, is_smooth
from synkhronos.pymc._terms import Terms

_PLAIN = python_mode()


@dataclass(frozen=True)
class ThetaSlice:
    """A parameter of the model, and its slice of theta."""

    variable: Any
    start: int
    stop: int
    shape: tuple[int, ...]


class Values:
    """Data of a model as arrays.

    Attributes
    ----------
    shareds : list of SharedVariable
        The shared variables that the data depend on.
    """

    def __init__(self, variables: Sequence[Any], point: Mapping[Any, np.ndarray]) -> None:
        self._variables = list(variables)
        self._point = point  # values of free variables: data may depend on their shapes
        self.shareds = [v for v in ancestors(self._variables) if isinstance(v, SharedVariable)]
        self._function: Any = None

    def arrays(self) -> list[np.ndarray]:
        """The current values."""
        derived = [v for v in self._variables if v.owner is not None]
        if derived and self._function is None:
            self._function = pytensor.function(
                list(self._point), derived, mode=_PLAIN, on_unused_input="ignore"
            )
        computed = iter(self._function(*self._point.values()) if derived else ())
        return [
            np.asarray(next(computed) if v.owner is not None else _value(v))
            for v in self._variables
        ]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_function": None}


def _value(leaf: Any) -> Any:
    return leaf.data if isinstance(leaf, Constant) else leaf.container.storage[0]


class DividedTerms:
    """The terms with the same number of rows.

    Attributes
    ----------
    rows : int
    names : list of str
        The observed variables.
    latents : list of int
        Indices of the likelihood's latents that have these rows.
    scattered : list of Variable
        Inputs of the member's graph that have rows: latents, data, hoisted data.
    broadcast : list of Variable
        Its other inputs: theta, and data that each member needs whole.
    outputs : list of Variable
        The flat vector, then the gradient by each latent.
    """

    def __init__(
        self,
        rows: int,
        names: list[str],
        reading: Reading,
        theta: Any,
        pieces: dict[Any, ThetaSlice],
        everything: Sequence[ThetaSlice],
        latents: dict[int, Any],
        scattered: dict[Any, Any],
        whole: dict[Any, Any],
        point: Mapping[Any, np.ndarray],
    ) -> None:
        self.rows = rows
        self.names = names
        self.latents = list(latents)
        self.data = Values(list(scattered), point)
        self.whole = Values(list(whole), point)
        scattered_places, whole_places = list(scattered.values()), list(whole.values())
        conditions = [] if reading.holds is None else [reading.holds]
        graph, *conditions = simplified(
            _rewritten(with_named_tails([reading.total, *conditions])), _positive(scattered)
        )
        if reading.refuses_nan:
            conditions.append(pt.invert(pt.isnan(graph)))
        wrt = [v for v in [*pieces, *latents.values()] if is_smooth(v)]
        found = _gradients(graph, wrt, names)
        by = dict(zip(wrt, found, strict=True))
        for holds in conditions:  # the gradient stays as it is, as in the plain model
            graph = pt.switch(holds, graph, -np.inf)
        used = {id(p): by.get(v) for v, p in pieces.items()}
        flat = _joined(graph, [(p.stop - p.start, used.get(id(p))) for p in everything])
        outputs = [flat, *(by[v] for v in latents.values() if is_smooth(v))]
        outputs = _rewritten(outputs)
        hoisted = hoist(outputs, scattered_places, whole_places)
        self.hoisted: Hoisted = hoisted
        unpacked = [
            (v, theta[p.start : p.stop].reshape(p.shape, ndim=len(p.shape)).astype(v.type.dtype))
            for v, p in pieces.items()
        ]
        self.outputs: list[Any] = clone_replace(
            hoisted.outputs, replace=unpacked, rebuild_strict=False
        )
        used = set(ancestors(self.outputs))
        self._keep_data = [v in used for v in scattered_places]
        self._keep_whole = [v in used for v in whole_places]
        rowed = [v for v, keep in zip(scattered_places, self._keep_data, strict=True) if keep]
        fixed = [v for v, keep in zip(whole_places, self._keep_whole, strict=True) if keep]
        self.scattered = [*latents.values(), *rowed, *hoisted.rows]
        self.broadcast = [theta, *fixed]

    def compiled_for(self, mode: Any, vectorised: bool) -> tuple[list[Any], Any]:
        """The outputs rewritten for a mode, and the mode with the rewrites that suit them."""
        mode = mode_of(mode)
        numba = isinstance(mode.linker, NumbaLinker)
        outputs = self.outputs if numba and vectorised else expanded(self.outputs)
        if not numba:
            return outputs, mode
        found = _rewritten(outputs, "specialize")
        if any(map(hinders_vectorising, ancestors(found))):
            mode = mode.excluding("fuse_indexed_into_elemwise")
        return found, mode

    @property
    def shareds(self) -> list[SharedVariable]:
        """The shared variables of the model's data, which the user can set."""
        return [*self.data.shareds, *self.whole.shareds]

    def arrays(self) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """The data that is scattered (rows first), and the data that each member needs whole."""
        rowed = self.data.arrays()
        whole = self.whole.arrays()
        lengths = {len(a) for a in rowed}
        if len(lengths) > 1:
            raise InputError(
                f"the data of {', '.join(self.names)} differ in their numbers of rows: "
                f"{sorted(lengths)}. They were equal when the model was divided: close the "
                "division, and divide the model again"
            )
        more = self.hoisted.arrays(rowed, whole)
        kept = [a for a, keep in zip(rowed, self._keep_data, strict=True) if keep]
        fixed = [a for a, keep in zip(whole, self._keep_whole, strict=True) if keep]
        return [*kept, *more], fixed


def _gradients(graph: Any, wrt: Sequence[Any], names: Sequence[str]) -> Sequence[Any]:
    try:
        found: Any = pytensor.grad(graph, list(wrt), disconnected_inputs="ignore") if wrt else []
    except (NotImplementedError, NullTypeGradError) as exc:
        raise InputError(
            f"the log-density of {', '.join(names)} has no gradient by its parameters, which a "
            f"divided model needs: {exc}"
        ) from exc
    return list(found)


def mode_of(mode: Any) -> Any:
    """The Mode of a name; "C" means PyTensor's CVM, which runs C code if an operation has some."""
    return get_mode("CVM" if mode == "C" else mode)


def _rewritten(graph: Any, *more: str) -> Any:
    """A copy of the graph, rewritten, without the rewrites for C.

    The latter make PyTensor look for a BLAS to link with, and warn if it finds none.
    """
    include = "canonicalize", "stabilize", *more
    return rewrite_graph(graph, include=include, exclude=("cxx_only",), clone=True)


def _joined(total: Any, slots: Sequence[tuple[int, Any]]) -> Any:
    """[log-density, gradient by theta]; zeros for elements of theta without a gradient."""
    parts = [pt.atleast_1d(pt.cast(total, "float64"))]
    for length, gradient in slots:
        none = gradient is None
        parts.append(
            pt.zeros((length,), "float64") if none else pt.cast(gradient, "float64").ravel()
        )
    return pt.join(0, *parts)


class Likelihood:
    """The divided terms of a model, as functions of theta and latents.

    Attributes
    ----------
    theta : Variable
        In the model's graph: the vector of all parameters that members need whole.
    latents : list of Variable
        In the model's graph: parameters with rows; the row axis comes first.
    size : int
        The length of theta.
    pieces : list of ThetaSlice
        The variables of theta, in its order.
    places : list of (Variable, int)
        The variable of each latent, and its row axis.
    parts : list of DividedTerms
        The terms, grouped by their number of rows.
    computed : set of Variable
        What members compute from the variables above.
    """

    def __init__(self, terms: Terms, point: Mapping[Any, np.ndarray]) -> None:
        free, shapes = terms.free, terms.shapes
        self.names = terms.names
        self.computed = frozenset().union(*[reading.computed for _, reading in terms.readings])
        pieces: dict[Place, ThetaSlice] = {}
        latents: dict[Place, int] = {}
        self.latents: list[Any] = []
        self.latent_shapes: list[tuple[int, ...]] = []
        self.size = 0
        for _, reading in terms.readings:
            for place in reading.sources:
                variable, axis = place
                if variable not in free or place in pieces or place in latents:
                    continue
                if axis is None:
                    n = int(np.prod(shapes.get(variable, ()), dtype=np.int64))
                    shape = shapes.get(variable, ())
                    pieces[place] = ThetaSlice(variable, self.size, self.size + n, shape)
                    self.size += n
                else:
                    latents[place] = len(self.latents)
                    moved = list(shapes[variable])
                    self.latent_shapes.append((moved.pop(axis), *moved))
                    self.latents.append(pt.moveaxis(variable, axis, 0) if axis else variable)
        self.places = list(latents)
        self.pieces = ordered = sorted(pieces.values(), key=lambda p: p.start)
        flat = [pt.cast(p.variable, "float64").ravel() for p in ordered]
        self.theta: Any = pt.join(0, *flat) if flat else pt.zeros((0,), "float64")
        self.parts = []
        for group, reading in terms.readings:
            theta = pt.tensor("theta", dtype="float64", shape=(self.size,))
            rowed = {p: v for p, v in reading.sources.items() if p[1] is not None}
            self.parts.append(
                DividedTerms(
                    reading.rows,
                    [t.name for t in group],
                    reading,
                    theta,
                    {v: pieces[p] for p, v in reading.sources.items() if p in pieces},
                    ordered,
                    {latents[p]: v for p, v in rowed.items() if p in latents},
                    {_leading(p): v for p, v in rowed.items() if p not in latents},
                    {
                        p[0]: v
                        for p, v in reading.sources.items()
                        if p[1] is None and p not in pieces
                    },
                    point,
                )
            )


def _positive(places: Mapping[Any, Any]) -> set[Any]:
    """The places of constants that are above 0."""
    found = set()
    for variable, place in places.items():
        node = variable.owner
        value = variable if node is None else node.inputs[0]  # its axes may be in another order
        if isinstance(value, Constant) and np.all(np.asarray(value.data) > 0):
            found.add(place)
    return found


def _leading(place: Place) -> Any:
    """Data with the row axis first."""
    variable, axis = place
    return pt.moveaxis(variable, axis, 0) if axis else variable
