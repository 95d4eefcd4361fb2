"""The observed likelihood as a graph that each member computes on its rows.

The graph has three inputs: one flat vector *theta* of all parameters that members need whole, the
rows of the *latents* (parameters with one value per row), and data. Its outputs are one flat vector
[log-density, its gradient by theta], which is summed over members, and the gradient by the rows of
each latent.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress

import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor.compile.mode import Mode
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.gradient import NullTypeGradError
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.replace import clone_replace
from pytensor.graph.traversal import ancestors
from pytensor.link.numba.linker import NumbaLinker
from pytensor.tensor import TensorVariable

from synkhronos._compiling.python_function import PythonFunction
from synkhronos._compiling.vectorised.tails import expanded
from synkhronos._errors import InputError
from synkhronos._warnings import log
from synkhronos.pymc._reading.facts import Place, Shapes, Start, is_smooth
from synkhronos.pymc._reading.reading import Reading
from synkhronos.pymc._reading.rewrites import (
    Hoisted,
    hoist,
    rewritten,
    simplified,
    with_named_tails,
)
from synkhronos.pymc._reading.rows import RowReading
from synkhronos.pymc._repeated.choice import GAIN, LEAST_ROWS, cheapest
from synkhronos.pymc._repeated.columns import RowTerms
from synkhronos.pymc._repeated.form import Form

Arrays = tuple[list[np.ndarray], list[np.ndarray]]  # with rows, and without


@dataclass(frozen=True)
class ThetaSlice:
    """A parameter of the model, and its slice of theta."""

    variable: TensorVariable
    start: int
    stop: int
    shape: tuple[int, ...]


class Values:
    """Data of a model as arrays."""

    def __init__(self, variables: Sequence[Variable], start: Start) -> None:
        self._variables = list(variables)
        self._start = start  # values of free variables: data may depend on their shapes
        free = set(start.point) if start.can_change else set()
        # of each array, whether it depends on shapes that can change
        self._of_shapes = [not free.isdisjoint(ancestors([v])) for v in self._variables]
        # the shared variables that the data depend on
        self.shareds = _shareds(self._variables)
        if any(self._of_shapes):
            self.shareds += start.shareds
        derived = [v for v in self._variables if v.owner is not None]
        self._derived = PythonFunction(list(start.point), derived)

    @property
    def settable(self) -> list[bool]:
        """Of each array, whether it depends on data, or lengths of dims, that the user can set."""
        pairs = zip(self._variables, self._of_shapes, strict=True)
        return [of_shapes or bool(_shareds([v])) for v, of_shapes in pairs]

    def arrays(self) -> list[np.ndarray]:
        """The current values."""
        point = self._start.now() if any(self._of_shapes) else self._start.point
        computed = iter(self._derived(*point.values()))
        return [
            np.asarray(next(computed) if v.owner is not None else _value(v))
            for v in self._variables
        ]


def _shareds(variables: Sequence[Variable]) -> list[SharedVariable]:
    return [v for v in ancestors(variables) if isinstance(v, SharedVariable)]


def _value(leaf: Variable) -> object:
    return leaf.data if isinstance(leaf, Constant) else leaf.container.storage[0]


class RowData:
    """The data of terms with the same rows."""

    def __init__(self, group: RowReading, start: Start) -> None:
        self._names, free = group.names, group.facts.free
        found = {p: v for p, v in group.sources.items() if p[0] not in free}
        # data that have rows, which come first, and data that each row needs whole; each with its
        # placeholder
        self.rowed = {_leading(p): v for p, v in found.items() if p[1] is not None}
        self.whole = {p[0]: v for p, v in found.items() if p[1] is None}
        self._rowed = Values(list(self.rowed), start)
        self._whole = Values(list(self.whole), start)
        self._start = start

    @property
    def shareds(self) -> list[SharedVariable]:
        """The shared variables of the model's data, which the user can set."""
        return [*self._rowed.shareds, *self._whole.shareds]

    @property
    def of_shapes(self) -> list[SharedVariable]:
        """The shared variables that the shapes of parameters depend on."""
        return self._start.shareds

    @property
    def settable(self) -> tuple[list[bool], list[bool]]:
        """Of each array, with rows and without, whether it depends on data that can be set."""
        return self._rowed.settable, self._whole.settable

    def arrays(self) -> Arrays:
        """The current values."""
        rowed = self._rowed.arrays()
        lengths = {len(a) for a in rowed}
        if len(lengths) > 1:
            raise InputError(
                f"the data of {', '.join(self._names)} differ in their numbers of rows: "
                f"{sorted(lengths)}. They were equal when the model was divided: close the "
                "division, and divide the model again"
            )
        return rowed, self._whole.arrays()


class DividedTerms:
    """The terms with the same number of rows."""

    def __init__(
        self,
        group: RowReading,
        data: RowData,
        form: Form,
        theta: TensorVariable,
        pieces: Mapping[TensorVariable, ThetaSlice],
        everything: Sequence[ThetaSlice],
        latents: Mapping[int, TensorVariable],
    ) -> None:
        self.rows, self.names = group.rows, group.names  # the user's rows, before any form
        self.latents = list(latents)  # indices of the likelihood's latents that have these rows
        self.form = form  # the rows that are summed
        self._data = data
        self._known: tuple[list[object], Arrays] | None = None
        conditions = [] if form.holds is None else [form.holds]
        wrt = [v for v in [*pieces, *latents.values()] if is_smooth(v)]
        graph, *conditions = simplified(
            rewritten(with_named_tails([form.total, *conditions])), _positive(data.rowed), wrt
        )
        if group.refuses_nan:
            conditions.append(pt.invert(pt.isnan(graph)))
        found = _gradients(graph, wrt, self.names)
        by = dict(zip(wrt, found, strict=True))
        within = set(ancestors([graph]))
        for holds in conditions:  # the gradient stays as it is, as in the plain model
            graph = pt.switch(holds, graph, -np.inf)
        smooth = {p: v for v, p in pieces.items() if is_smooth(v)}
        outputs = [graph, *map(by.__getitem__, smooth.values())]
        outputs += [by[v] for v in latents.values() if is_smooth(v)]
        hoisted = hoist(rewritten(outputs), form.places, form.whole)
        self.hoisted: Hoisted = hoisted
        # the placeholder of each piece of theta in `value`, and below the gradients by them
        self.pieces = {p: v for v, p in pieces.items()}
        # the log-density, as a function of pieces of theta instead of theta itself
        self.value, *gradients = hoisted.outputs
        self.by_pieces = dict(zip(smooth, gradients, strict=False))
        # the smooth pieces and latents that conditions alone depend on: the gradients by them are 0
        self.constant_by: set[ThetaSlice | int] = {p for p, v in smooth.items() if v not in within}
        self.constant_by |= {i for i, v in latents.items() if is_smooth(v) and v not in within}
        # the gradient by each latent, as functions of the pieces too
        self.by_latents = gradients[len(smooth) :]
        slots = [(p.stop - p.start, self.by_pieces.get(p)) for p in everything]
        unpacked = [
            (v, theta[p.start : p.stop].reshape(p.shape, ndim=len(p.shape)).astype(v.type.dtype))
            for v, p in pieces.items()
        ]
        # the flat vector, the gradient by each latent, and the log-density alone
        self.outputs: list[TensorVariable] = clone_replace(
            [_joined(self.value, slots), *self.by_latents, _joined(self.value, ())],
            replace=unpacked,
            rebuild_strict=False,
        )
        inputs = set(ancestors(self.outputs))
        self._keep_data = [v in inputs for v in form.places]
        self._keep_whole = [v in inputs for v in form.whole]
        rowed = [v for v, keep in zip(form.places, self._keep_data, strict=True) if keep]
        fixed = [v for v, keep in zip(form.whole, self._keep_whole, strict=True) if keep]
        # inputs of the member's graph that have rows: latents, data, hoisted data
        self.scattered = [*latents.values(), *rowed, *hoisted.rows]
        # its other inputs: theta, and data that each member needs whole
        self.broadcast = [theta, *fixed]

    def outputs_for(self, mode: Mode, vectorised: bool) -> list[TensorVariable]:
        """The outputs as a mode computes them fastest."""
        numba = isinstance(mode.linker, NumbaLinker)
        return self.outputs if numba and vectorised else expanded(self.outputs)

    @property
    def shareds(self) -> list[SharedVariable]:
        """The shared variables of the model's data, which the user can set.

        Forms also depend on the shapes of parameters.
        """
        found = self._data.shareds
        return [*found, *self._data.of_shapes] if found and self.form.described else found

    @property
    def of_shapes(self) -> list[SharedVariable]:
        """The shared variables that shapes of parameters depend on: lengths of dims, and data."""
        return self._data.of_shapes

    @property
    def settable(self) -> list[bool]:
        """Of each of `arrays`, whether it depends on data that the user can set."""
        rowed, whole = self._data.settable
        if self.form.described:  # its arrays are made of all of them
            rowed, whole = [
                [any([*rowed, *whole])] * len(places)
                for places in (self.form.places, self.form.whole)
            ]
        places = [*zip(self.form.places, rowed, strict=True)]
        places += zip(self.form.whole, whole, strict=True)
        more = self.hoisted.depend_on([v for v, is_settable in places if is_settable])
        return [*compress(rowed, self._keep_data), *more, *compress(whole, self._keep_whole)]

    def arrays(self) -> Arrays:
        """The data that is scattered (rows first), and the data that each member needs whole.

        If the form has fewer rows than the user's data, they are kept until other data are set.
        """
        now = [shared.container.storage[0] for shared in self.shareds]
        if self._known is not None:
            seen, found = self._known
            if all(a is b for a, b in zip(seen, now, strict=True)):
                return found
        data = self._data.arrays()
        if self.form.indices is not None:
            self.form.indices.check(*data)
        rowed, whole = self.form.arrays(*data)
        more = self.hoisted.arrays(rowed, whole)
        kept = [a for a, keep in zip(rowed, self._keep_data, strict=True) if keep]
        fixed = [a for a, keep in zip(whole, self._keep_whole, strict=True) if keep]
        found = [*kept, *more], fixed
        if self.form.described:
            self._known = now, found
        return found


def _gradients(
    graph: TensorVariable, wrt: Sequence[TensorVariable], names: Sequence[str]
) -> list[TensorVariable]:
    try:
        return list(pytensor.grad(graph, list(wrt), disconnected_inputs="ignore")) if wrt else []
    except (NotImplementedError, NullTypeGradError) as exc:
        raise InputError(
            f"the log-density of {', '.join(names)} has no gradient by its parameters, which a "
            f"divided model needs: {exc}"
        ) from exc


def _joined(
    total: TensorVariable, slots: Sequence[tuple[int, TensorVariable | None]]
) -> TensorVariable:
    """[log-density, gradient by theta]; zeros for elements of theta without a gradient."""
    parts = [pt.atleast_1d(pt.cast(total, "float64"))]
    for length, gradient in slots:
        none = gradient is None
        parts.append(
            pt.zeros((length,), "float64") if none else pt.cast(gradient, "float64").ravel()
        )
    return pt.join(0, *parts)


class Likelihood:
    """The divided terms of a model, as functions of theta and latents."""

    def __init__(self, reading: Reading, repeated: bool = True) -> None:
        free, shapes = reading.facts.free, reading.facts.shapes
        self.names = reading.names
        formed = list(_formed(reading, repeated))
        # what members compute from theta and the latents
        self.computed = frozenset().union(*[group.computed for group, *_ in formed])
        pieces: dict[Place, ThetaSlice] = {}
        latents: dict[Place, int] = {}
        # in the model's graph: parameters with rows; the row axis comes first
        self.latents: list[TensorVariable] = []
        self.latent_shapes: list[tuple[int, ...]] = []
        self.size = 0  # the length of theta
        for group, *_ in formed:
            for place in group.sources:
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
        self.places = list(latents)  # the variable of each latent, and its row axis
        # the variables of theta, in its order
        self.pieces = ordered = sorted(pieces.values(), key=lambda p: p.start)
        flat = [pt.cast(p.variable, "float64").ravel() for p in ordered]
        # in the model's graph: the vector of all parameters that members need whole
        self.theta = pt.join(0, *flat) if flat else pt.zeros((0,), "float64")
        self.parts: list[DividedTerms] = []  # the terms, grouped by their number of rows
        for group, data, form in formed:
            theta = pt.tensor("theta", dtype="float64", shape=(self.size,))
            self.parts.append(
                DividedTerms(
                    group,
                    data,
                    form,
                    theta,
                    {v: pieces[p] for p, v in group.sources.items() if p in pieces},
                    ordered,
                    {latents[p]: v for p, v in group.sources.items() if p in latents},
                )
            )


_Formed = tuple[RowReading, RowData, Form]


def _formed(reading: Reading, repeated: bool) -> Iterator[_Formed]:
    """The terms in the forms that cost least; apart from one another where that costs less."""
    start = Start(reading.facts)
    for group in reading.groups:
        together = _form_of(group, start, repeated)
        rows = together[-1].cost
        if repeated and len(group.terms) > 1 and rows > LEAST_ROWS:
            apart = [_form_of(alone, start, repeated) for alone in group.apart]
            if any(form.described for *_, form in apart):
                cost = sum(form.cost * len(alone.terms) for alone, _, form in apart)
                if cost * GAIN <= rows * len(group.terms):
                    yield from apart
                    continue
        yield together


def _form_of(group: RowReading, start: Start, repeated: bool) -> _Formed:
    data, free = RowData(group, start), group.facts.free
    rowed, whole = list(data.rowed.values()), list(data.whole.values())
    places = {v: p for p, v in group.sources.items() if p[0] in free}
    if not repeated or group.has_latents:
        return group, data, Form(rowed, whole, group.total, group.holds, group.rows, group.rows)
    rows = RowTerms(
        group.names,
        group.rows,
        group.total,
        list(group.values),
        [term.axis for term in group.terms],
        group.holds,
        rowed,
        whole,
        list(places),
        Shapes([variable for variable, _ in places.values()], group.facts, start),
        *data.arrays(),
    )
    return group, data, cheapest(rows)


def tell_forms(likelihood: Likelihood) -> None:
    """Log a line for each of the parts whose rows repeat."""
    for part in likelihood.parts:
        if part.form.described:
            log.info(
                "%s: %s rows, %s", ", ".join(part.names), f"{part.rows:,}", part.form.described
            )


def _positive(places: Mapping[TensorVariable, TensorVariable]) -> set[Variable]:
    """The places of constants that are above 0."""
    found = set()
    for variable, place in places.items():
        node = variable.owner
        value = variable if node is None else node.inputs[0]  # its axes may be in another order
        if isinstance(value, Constant) and np.all(np.asarray(value.data) > 0):
            found.add(place)
    return found


def _leading(place: Place) -> TensorVariable:
    """Data with the row axis first."""
    variable, axis = place
    return pt.moveaxis(variable, axis, 0) if axis else variable
