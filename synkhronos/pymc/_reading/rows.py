"""Finds the variables of a log-density that have its rows; reads the graph from the term upwards.

A term has one value for each row of the data. For each variable in its graph, the reader decides:
are the variable's rows the term's rows, or does each member need the whole variable? The rules are
those that prove reductions (`synkhronos._proofs`): the reader goes on through an operation
only if the operation is known to keep rows apart. A variable at which the reader stops is a
*source*: data, a parameter, or the result of an operation that mixes rows (the values of a Gaussian
process, a random walk). The model itself computes the sources, as it does undivided.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pytensor.tensor as pt
from pymc.pytensorf import constant_fold
from pytensor.compile.builders import OpFromGraph, SymbolicOp
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.replace import clone_replace
from pytensor.graph.traversal import ancestors
from pytensor.raise_op import CheckAndRaise
from pytensor.scalar import basic as ps
from pytensor.scalar.math import Sigmoid, Softplus
from pytensor.scan.op import Scan
from pytensor.tensor import TensorVariable
from pytensor.tensor.basic import ARange, MakeVector, ScalarFromTensor, TensorFromScalar
from pytensor.tensor.elemwise import DimShuffle, Elemwise
from pytensor.tensor.math import All
from pytensor.tensor.shape import Reshape, SpecifyShape
from pytensor.tensor.subtensor import Subtensor, indices_from_subtensor
from pytensor.tensor.type import TensorType

from synkhronos._compiling.nodes import computes, without_axes
from synkhronos._errors import InputError
from synkhronos._proofs.indexing import is_full
from synkhronos._proofs.values import Position, Rows, Same, Stuck, Unknown
from synkhronos._proofs.walk import Walk, constant_of, name_of, transfer
from synkhronos.pymc._reading.assumptions import Assumption
from synkhronos.pymc._reading.counts import Counts
from synkhronos.pymc._reading.facts import Facts, Lengths, Place
from synkhronos.pymc._reading.lengths import ROW_AXIS, at_axis, lengths_of, relengthened, stays

POSITION = -1  # instead of an axis: the variable holds the row numbers, 0 to n - 1

_INLINE_BYTES = 1 << 12  # constants up to this size stay in the graph and can be folded
_ROWLESS = (None, POSITION)
_FEW = 8  # numbers, of which a member computes others at no cost
_MUCH_SMALLER = 8  # ratio of sizes
_MAX_TRIES = 128  # combinations of row axes tried for the inputs of one node


@dataclass(frozen=True)
class Term:
    """The log-density of one observed variable or Potential, or a summand of it."""

    name: str
    # the log-density of each row, as a function of the model's value variables
    variable: TensorVariable
    axis: int  # the axis of `variable` that is divided
    rows: int


@dataclass(frozen=True)
class RowReading:
    """Terms with the same number of rows, rewritten on placeholders."""

    terms: tuple[Term, ...]
    facts: Facts
    total: TensorVariable  # the sum of the terms over the rows of the placeholders
    # whether all checks of parameters hold; if one does not, the log-density is -inf
    holds: TensorVariable | None
    refuses_nan: bool  # whether there are checks that fail for nan, and hold for every number
    # the placeholder of each source. The row axis of placeholders is 0
    sources: Mapping[Place, TensorVariable]
    assumptions: tuple[Assumption, ...]  # operations that are read as the user declares them
    # what members compute. It may contain a source: one that they need by row and whole
    computed: frozenset[Variable]
    values: tuple[TensorVariable, ...]  # each of the terms, by row

    @property
    def rows(self) -> int:
        """The number of rows of each term."""
        return self.terms[0].rows

    @property
    def names(self) -> list[str]:
        """The variable of each term."""
        return [term.name for term in self.terms]

    @property
    def has_latents(self) -> bool:
        """Whether there are parameters with rows."""
        return any(axis is not None and v in self.facts.free for v, axis in self.sources)

    @cached_property
    def apart(self) -> list[RowReading]:
        """The same terms, each read alone, but those with latents together.

        Terms may share latents, and the gradient by these has one place.
        """
        alone = [group for term in self.terms for group in read_rows([term], self.facts)]
        latent = [term for group in alone if group.has_latents for term in group.terms]
        rest = [group for group in alone if not group.has_latents]
        return [*read_rows(latent, self.facts), *rest]


def read_rows(terms: Sequence[Term], facts: Facts) -> tuple[RowReading, ...]:
    """Read terms, those with the same number of rows together.

    Raises
    ------
    InputError
        One cannot be divided into its rows, with the reason.
    """
    by_rows: dict[int, list[Term]] = {}
    for term in terms:
        by_rows.setdefault(term.rows, []).append(term)
    return tuple(Reader(rows, facts).read(group) for rows, group in by_rows.items())


class Reader:
    """Reads terms with the same number of rows."""

    def __init__(self, rows: int, facts: Facts) -> None:
        self._rows = rows
        self._facts, self._shapes, self._free = facts, facts.shapes, facts.free
        self._assumptions: dict[Place, Assumption] = {}
        self._counts = Counts(rows, facts.shapes)
        self._ways: dict[Place, tuple[int | None, ...] | None] = {}
        self._pruned: dict[Place, tuple[tuple[int | None, ...] | None, frozenset[Place]]] = {}
        self._reasons: dict[Place, str] = {}
        self._built: dict[Place, TensorVariable] = {}
        self._lengths: dict[Variable, tuple[int | None, ...] | None] = {}
        self._sources: dict[Place, TensorVariable] = {}

    def read(self, terms: Sequence[Term], checked: bool = True) -> RowReading:
        """Rewrite the terms; `checked`: with the conditions on parameters, if the model has them.

        Raises
        ------
        InputError
        """
        bare = [(without_checks(term.variable), term.axis) for term in terms]
        for place in bare:
            self._follow(place)
            self._prune(place)
        for term, place in zip(terms, bare, strict=True):
            if self._ways[place] is None:
                reason = self._reasons.get(place, "it is not computed row by row")
                raise InputError(
                    f"the log-density of {term.name} cannot be divided into its {self._rows} rows: "
                    f"{reason}"
                )
        everything = [t.variable for t in terms] if checked and self._facts.checked else []
        conditions, refuses_nan = self._conditions(everything)
        for place in conditions:
            self._follow(place)
            self._prune(place)
        self._restore([*bare, *conditions])
        values = [self._build(place) for place in bare]
        checks = [pt.all(self._build(place)) for place in conditions]
        return RowReading(
            terms=tuple(terms),
            facts=self._facts,
            total=pt.add(*[v.sum() for v in values]) if len(values) > 1 else values[0].sum(),
            holds=functools.reduce(pt.and_, checks) if checks else None,
            refuses_nan=refuses_nan,
            sources=self._sources,
            assumptions=tuple(self._assumptions.values()),
            computed=frozenset(v for v, axis in self._built if self._ways[v, axis] is not None),
            values=tuple(values),
        )

    def _conditions(self, terms: Sequence[Variable]) -> tuple[list[Place], bool]:
        """The conditions, and whether some that only nan can fail are left out."""
        found: dict[Place, None] = {}
        refuses_nan = False
        for variable in ancestors(list(terms)):
            node = variable.owner
            if node is None or not isinstance(node.op, CheckAndRaise):
                continue
            for condition in itertools.chain.from_iterable(map(all_of, node.inputs[1:])):
                bare = without_checks(condition)
                if always(bare):
                    refuses_nan = True
                elif not isinstance(bare, Constant):
                    found[bare, self._axis_of(bare)] = None
        return list(found), refuses_nan

    def _axis_of(self, variable: Variable) -> int | None:
        """The row axis of a condition, found by its length."""
        for axis in self._candidates(variable):
            if axis is None or axis == POSITION:
                return None
            self._follow((variable, axis))
            if variable.owner is None or self._ways[variable, axis] is not None:
                return axis
        return None

    def _follow(self, place: Place) -> None:
        """Decide, for a place and everything in its graph, where reading stops."""
        stack = [place]
        while stack:
            here = stack.pop()
            if here in self._ways:
                continue
            self._ways[here] = self._way(here)
            stack += self._inputs(here)

    def _prune(self, root: Place) -> None:
        """Stop at a place that is much smaller than the parameters with rows in its graph.

        Example: the product of a covariance's square root (n x n) with a vector. Scattering the
        product moves n numbers, scattering its inputs n * n. A variable with rows
        of data in its graph is divided all the same: it may be the density.
        """
        below: dict[Place, tuple[frozenset[Place], bool]] = {}
        for place in self._order(root, below):
            inner = [below[p] for p in self._inputs(place)]
            found = frozenset[Place]().union(*[places for places, _ in inner])
            data = any(has_data for _, has_data in inner)
            variable, axis = place
            if self._ways[place] is None and axis not in _ROWLESS:
                found = frozenset([place]) if variable in self._free else found
                data = variable not in self._free
            size = _size(self._shapes.get(variable, ()))
            total = sum(_size(self._shapes[v]) for v, _ in found)
            if place != root and not data and axis not in _ROWLESS and total > _MUCH_SMALLER * size:
                self._pruned[place] = self._ways[place], found
                self._ways[place] = None
                found = frozenset([place])
            below[place] = found, data

    def _restore(self, roots: Sequence[Place]) -> None:
        """Read on at pruned places whose parameters are scattered for other places anyway."""
        for place, (way, found) in self._pruned.items():
            done: dict[Place, None] = {}
            for root in roots:
                done.update(dict.fromkeys(self._order(root, done)))
            if found <= done.keys():
                self._ways[place] = way

    def _way(self, place: Place) -> tuple[int | None, ...] | None:
        """The row axis of each input of the place's node; None: reading stops here."""
        variable, axis = place
        node = variable.owner
        if node is None or axis == POSITION:
            return None
        if axis is None:
            return (None,) * len(node.inputs) if self._goes_on(variable, node) else None
        if isinstance(node.op, CheckAndRaise | SpecifyShape):
            return (axis,)
        if isinstance(node.op, Scan) and axis == 0 and self._steps_are_rows(node):
            return _by_step(node)
        if isinstance(node.op, Subtensor) and self._takes_all_rows(node, axis):
            return (axis,)
        known = ROW_AXIS.get(type(node.op))
        if known is not None:
            inner = known(node, axis, self._shapes)
            if inner is None:
                return None
            own, others = at_axis(lengths_of(node), axis)
            rest = any(constant_of(length) == -1 for length in others)
            if rest and not self._spans(own, node.inputs[0], inner):
                return None  # other data could be folded to other rows
            read = 0 if all(map(stays, others)) else len(node.inputs) - 1
            return (inner, *(None,) * read)
        return self._try(node, place)

    def _steps_are_rows(self, node: Apply) -> bool:
        """Whether a loop carries nothing from step to step, and each step reads and gives one row.

        The number of steps has to follow the data. Else new data could be longer than the steps
        that the user has asked for.
        """
        op, info = node.op, node.op.info
        if not info.n_seqs or info.as_while or len(node.outputs) != info.n_nit_sot:
            return False
        steps = [node.inputs[0], *op.outer_nitsot(node.inputs)]
        return all(map(self._is_count, [*steps, *(v.shape[0] for v in op.outer_seqs(node.inputs))]))

    def _takes_all_rows(self, node: Apply, axis: int) -> bool:
        """Whether slices take all rows, up to a length that is their number."""
        assert isinstance(node.op, Subtensor)
        taken = indices_from_subtensor(node.inputs[1:], node.op.idx_list)
        if axis >= len(taken) or not all(isinstance(index, slice) for index in taken):
            return False
        own, others = at_axis(taken, axis)
        return (
            own.stop is not None
            and is_full(slice(own.start, None, own.step))
            and all(map(is_full, others))
            and self._spans(own.stop, node.inputs[0], axis)
        )

    def _spans(self, length: TensorVariable, array: TensorVariable, axis: int) -> bool:
        """Whether a length is that of an array with the rows, also of other data.

        A number of the user's is, if the array keeps its length. Of longer data the model would
        take a part.
        """
        if self._shapes[array][axis] != self._rows:
            return False
        fixed = self._is_fixed(length) and self._is_fixed(array.shape[axis])
        return fixed or self._counts.is_count(length)

    def _is_count(self, length: TensorVariable) -> bool:
        return self._is_fixed(length) or self._counts.is_count(length)

    def _is_fixed(self, length: TensorVariable) -> bool:
        """Whether a length is the number of rows as a constant, which no data change."""
        [found] = constant_fold([length], raise_not_constant=False)
        return not isinstance(found, Variable) and int(found) == self._rows

    def _goes_on(self, variable: Variable, node: Apply) -> bool:
        """Whether members shall compute a value that they need whole, instead of receiving it.

        They do if it costs little and its inputs are few or not longer than it. Terms that use a
        parameter in several forms then receive the parameter once, and rewrites see all of its way.
        """
        if not isinstance(variable.type, TensorType):
            return True
        if variable not in self._free:
            return all(isinstance(v, Constant) for v in ancestors([variable]) if v.owner is None)
        if not isinstance(node.op, Elemwise | DimShuffle):
            return False
        if computes(node, ps.Log | ps.Log1p) and not self._goes_on_below(node.inputs[0]):
            return False
        inputs = {v for v in node.inputs if v in self._free}
        given = sum(_size(self._shapes[v]) for v in inputs)
        return given <= max(_FEW, _size(self._shapes[variable]))

    def _goes_on_below(self, variable: Variable) -> bool:
        """Whether members compute what a logarithm is of, or it is a parameter.

        If not, the model computes the logarithm too: that of a product or a determinant is finite
        where the product itself is 0 or infinite.
        """
        variable = without_axes(variable)
        return variable.owner is None or self._goes_on(variable, variable.owner)

    def _candidates(self, variable: Variable) -> list[int | None]:
        """The axes whose length allows them to be the row axis; None and POSITION last."""
        shape = self._shapes.get(variable, ())
        axes = [a for a, n in enumerate(shape) if n == self._rows and variable.type.shape[a] != 1]
        counts = [POSITION] if len(axes) == 1 and self._rows == _size(shape) else []
        counts = counts if _counts(variable) else []
        return [*axes, None, *counts]

    def _try(self, node: Apply, place: Place) -> tuple[int | None, ...] | None:
        """Find row axes of the inputs that give the output the row axis of `place`."""
        variable, axis = place
        output = node.outputs.index(variable)
        choices = [self._candidates(v) for v in node.inputs]
        known = self._with_known_lengths(node)
        for way in itertools.islice(itertools.product(*choices), _MAX_TRIES):
            if all(a is None or a == POSITION for a in way):
                continue
            found = _carry(_of_any_length(known, way), way)
            if isinstance(found, str):
                self._reasons.setdefault(place, f"{name_of(node)}: {found}{_advice(node)}")
                continue
            if isinstance(found[output], Rows) and found[output].axis == axis:
                return way
        if self._facts.is_declared(node):
            return self._assume(node, place)
        self._reasons.setdefault(place, f"{name_of(node)} may mix rows{_advice(node)}")
        return None

    def _assume(self, node: Apply, place: Place) -> tuple[int | None, ...] | None:
        """Each input that is as long as the rows has them."""
        firsts = [self._candidates(v)[0] for v in node.inputs]
        axes = tuple(None if a == POSITION else a for a in firsts)
        variable, axis = place
        if axis is None or all(a is None for a in axes) or variable not in self._free:
            return None  # data need no assumption: the model computes them from all rows
        self._assumptions[place] = Assumption(node, axes, node.outputs.index(variable), axis)
        return axes

    def _with_known_lengths(self, node: Apply) -> Apply:
        """The node, with inputs whose types say which of their lengths are 1."""
        shapes = [self._known_lengths(v) for v in node.inputs]
        inputs = [
            v if shape is None else v.type.clone(shape=shape)()
            for v, shape in zip(node.inputs, shapes, strict=True)
        ]
        return node if not any(shapes) else node.clone_with_new_inputs(inputs, strict=False)

    def _known_lengths(self, variable: Variable) -> tuple[int | None, ...] | None:
        """The variable's lengths, if more of them are 1 than its type says; else None.

        Example: the row numbers of a matrix of one row, ``pt.arange(p.shape[0])``.
        """
        known = tuple(getattr(variable.type, "shape", ()))
        if variable not in self._lengths:
            found = list(known)
            for axis, n in enumerate(self._shapes.get(variable, ())):
                if n == 1 and found[axis] is None:
                    [length] = constant_fold([variable.shape[axis]], raise_not_constant=False)
                    found[axis] = 1 if isinstance(length, np.ndarray) and length == 1 else None
            self._lengths[variable] = tuple(found) if tuple(found) != known else None
        return self._lengths[variable]

    def _build(self, place: Place) -> TensorVariable:
        """Rewrite the place's variable on placeholders."""
        for here in self._order(place, self._built):
            self._built[here] = self._make(here)
        return self._built[place]

    def _order(self, place: Place, done: Mapping[Place, object]) -> Iterator[Place]:
        """The places in the graph of `place`, inputs first, without those in `done`."""
        stack: list[tuple[Place, bool]] = [(place, False)]
        while stack:
            here, ready = stack.pop()
            if here in done:
                continue
            inputs = self._inputs(here)
            if ready or not inputs:
                yield here
            else:
                stack.append((here, True))
                stack += [(p, False) for p in inputs]

    def _inputs(self, place: Place) -> list[Place]:
        """The inputs of a place, without lengths and checks; none for a source."""
        way = self._ways[place]
        if way is None or place[0].owner is None:
            return []
        return list(zip(place[0].owner.inputs, way, strict=False))

    def _make(self, place: Place) -> Variable:
        variable, axis = place
        if self._ways[place] is None:
            return variable if axis == POSITION else self._source(place)
        node = variable.owner
        assert node is not None
        given = self._inputs(place)
        inputs = [self._built[p] for p in given]
        if any(a == POSITION for _, a in given):
            inputs = _renumbered(given, inputs)
        if axis is not None:
            if isinstance(node.op, CheckAndRaise | Subtensor) and len(given) == 1:
                return inputs[0]
            if isinstance(node.op, SpecifyShape):
                return _respecified(node, axis, inputs[0])
            if isinstance(node.op, Scan) and self._ways[place] == _by_step(node):
                inputs = _restepped(node, inputs)
            if type(node.op) in ROW_AXIS:
                return relengthened(node, axis, inputs, self._shapes)
        return _remade(node, inputs)[node.outputs.index(variable)]

    def _source(self, place: Place) -> Variable:
        variable, axis = place
        small = isinstance(variable, Constant) and getattr(variable.data, "nbytes", 0)
        if isinstance(variable, Constant) and axis is None and small <= _INLINE_BYTES:
            return variable
        found = self._sources.get(place)
        if found is None:
            found = _placeholder(variable, axis, self._known_lengths(variable))
            self._sources[place] = found
        return found if not axis else pt.moveaxis(found, 0, axis)


def _placeholder(
    variable: Variable, axis: int | None, known: tuple[int | None, ...] | None = None
) -> TensorVariable:
    """An input of the member's graph; its rows come first, their number is free."""
    lengths = list(known or variable.type.shape)
    if axis is not None:
        del lengths[axis]
        lengths.insert(0, None)
    return variable.type.clone(shape=tuple(lengths))(name=variable.name)


def _respecified(node: Apply, axis: int, rows: Variable) -> Variable:
    """A member's rows of an array whose lengths are given; those of the other axes remain.

    Elementwise operations stretch an axis only where its type says that its length is 1.
    """
    shape = node.outputs[0].type.shape
    lengths = [None if i == axis else n for i, n in enumerate(shape)]
    return pt.specify_shape(rows, lengths)


def _counts(variable: Variable) -> bool:
    """Whether an array holds 0, 1, 2, ... along one axis, and its other axes have length 1."""
    if isinstance(variable, Constant):
        data = np.ravel(variable.data)
        return data.dtype.kind in "iu" and np.array_equal(data, np.arange(len(data)))
    node = variable.owner
    while node is not None and isinstance(node.op, Reshape | DimShuffle):
        node = node.inputs[0].owner
    if node is None or not isinstance(node.op, ARange):
        return False
    start, _, step = node.inputs
    return (constant_of(start), constant_of(step)) == (0, 1)


def _renumbered(given: Sequence[Place], inputs: Sequence[Variable]) -> list[Variable]:
    """The inputs of a node; row numbers become those of the member's rows."""
    rows = next(v.shape[a] for (_, a), v in zip(given, inputs, strict=True) if a not in _ROWLESS)
    return [
        pt.arange(rows, dtype=v.type.dtype).reshape([-1 if n != 1 else 1 for n in v.type.shape])
        if a == POSITION
        else v
        for (_, a), v in zip(given, inputs, strict=True)
    ]


def _of_any_length(node: Apply, way: Sequence[int | None]) -> Apply:
    """The node, with an inner graph that accepts any number of rows."""
    if isinstance(node.op, Scan):
        given = [_unsized(v, axis) for v, axis in zip(node.inputs, way, strict=True)]
        op = _rescanned(node.op, given)
        return node if op is node.op else op.make_node(*given)
    if not isinstance(node.op, OpFromGraph):
        return node
    symbolic = isinstance(node.op, SymbolicOp)
    inputs: list[Variable] = []
    for variable, axis in zip(node.inputs, way, strict=True):
        # rebuilding the inner graph would rebuild the input's own graph too
        whole = axis in _ROWLESS and not symbolic and variable.owner is not None
        inputs.append(variable.type() if whole else _unsized(variable, axis))
    outputs = _remade(node, inputs)
    if not symbolic:
        outputs = OpFromGraph(inputs, outputs)(*inputs, return_list=True)
    owner = outputs[0].owner
    return owner if len({v.owner for v in outputs}) == 1 and owner is not None else node


def _unsized(variable: Variable, axis: int | None) -> Variable:
    """An input of any number of rows; the variable itself if it has no rows."""
    if axis in _ROWLESS:
        return variable
    lengths = [None if i == axis else n for i, n in enumerate(variable.type.shape)]
    return variable.type.clone(shape=tuple(lengths))()


def _rescanned(op: Scan, given: Sequence[Variable]) -> Scan:
    """A loop whose inner graph has no length that the types of these inputs do not have."""
    inner, info = op.fgraph.unfreeze(), op.info
    outer = op.get_oinp_iinp_iout_oout_mappings()["outer_inp_from_inner_inp"]
    taps = [*info.mit_mot_in_slices, *info.mit_sot_in_slices]
    stacked = info.n_seqs + sum(map(len, taps)) + info.n_sit_sot
    inputs: dict[Variable, Variable] = {}
    for i, variable in enumerate(inner.inputs):
        kind = variable.type
        lengths = getattr(given[outer[i]].type, "shape", ())[i < stacked :]
        known = getattr(kind, "shape", ())
        free = tuple(None if m is None else n for n, m in zip(known, lengths, strict=True))
        inputs[variable] = kind.clone(shape=free)() if free != known else kind()
    if all(v.type == w.type for v, w in inputs.items()):
        return op
    made = dict(inputs)
    for node in inner.toposort():
        remade = _remade(node, [made.get(v, v) for v in node.inputs])
        made.update(zip(node.outputs, remade, strict=True))
    return Scan(
        [*inputs.values()],
        [made.get(v, v) for v in inner.outputs],
        info,
        mode=op.mode,
        truncate_gradient=op.truncate_gradient,
        name=op.name,
        profile=op.profile,
        allow_gc=op.allow_gc,
        strict=op.strict,
    )


def _remade(node: Apply, inputs: Sequence[Variable]) -> Sequence[Variable]:
    """The node's outputs for other inputs, which may have other lengths.

    They keep what is promised of the values in tags: PyTensor takes the Cholesky factor of L @ L.T
    to be L only if L has the tag of triangular matrices.
    """
    made = _made_again(node, inputs)
    for old, new in zip(node.outputs, made, strict=True):
        promised = {name: value for name, value in vars(old.tag).items() if name != "trace"}
        vars(new.tag).update(promised | vars(new.tag))
    return made


def _made_again(node: Apply, inputs: Sequence[Variable]) -> Sequence[Variable]:
    if isinstance(node.op, Scan):
        return _rescanned(node.op, inputs).make_node(*inputs).outputs
    if isinstance(node.op, SymbolicOp):  # builds its inner graph again
        found = node.op(*inputs)
        return found if isinstance(found, Sequence) else [found]
    if isinstance(node.op, OpFromGraph):
        inner = node.op.fgraph.unfreeze()  # in which nodes can be made for other lengths
        given = list(zip(inner.inputs, inputs, strict=True))
        return clone_replace(inner.outputs, replace=given, rebuild_strict=False)
    return node.clone_with_new_inputs(inputs, strict=False).outputs


def _carry(node: Apply, way: Sequence[int | None]) -> Sequence[object] | str:
    """The outputs' values if these inputs have rows; or the reason why they are unknown."""
    values = [
        Same() if a is None else _position(v) if a == POSITION else Rows(a)
        for v, a in zip(node.inputs, way, strict=True)
    ]
    try:
        found = transfer(node.op, node, values, Walk(dict(zip(node.inputs, values, strict=True))))
    except Stuck as stop:
        return str(stop)
    if isinstance(found, Unknown):
        return found.reason
    if found is None:
        return "it may mix rows"
    each = found if isinstance(found, Sequence) else [found] * len(node.outputs)
    return (
        "it depends on totals over rows" if any(getattr(v, "factors", ()) for v in each) else each
    )


def _advice(node: Apply) -> str:
    """The advice about an operation of the user's."""
    kind = type(node.op)
    if kind.__module__.partition(".")[0] in ("pytensor", "pymc", "synkhronos"):
        return ""
    return f". If it computes each row from this row alone, declare it: row_wise=[{kind.__name__}]"


def _position(variable: Variable) -> Position:
    return Position(next(i for i, n in enumerate(variable.type.shape) if n != 1))


def without_checks(variable: Variable) -> TensorVariable:
    """The variable below its checks of parameters."""
    while variable.owner is not None and isinstance(variable.owner.op, CheckAndRaise):
        variable = variable.owner.inputs[0]
    return variable


def all_of(condition: Variable) -> list[Variable]:
    """The tensors whose elements all have to be true for a condition to hold."""
    found, stack = [], [condition]
    while stack:
        variable = stack.pop()
        node = variable.owner
        if node is not None and isinstance(
            node.op, ScalarFromTensor | TensorFromScalar | MakeVector | All
        ):
            stack += node.inputs
        else:
            found.append(variable)
    return found


def always(condition: Variable) -> bool:
    """Whether a condition holds for every number, such as 0 <= sigmoid(x).

    It does not hold for nan, which shows in the log-density.
    """
    node = condition.owner
    low = computes(node, ps.GE)
    if not computes(node, ps.GE | ps.LE):
        return False
    bound, inner = constant_of(node.inputs[1]), node.inputs[0].owner
    if computes(inner, Sigmoid):
        return bound == (0 if low else 1)
    return low and bound == 0 and computes(inner, ps.Exp | ps.Sqr | Softplus)


def _size(shape: Lengths) -> int:
    size = 1
    for n in shape:
        size *= n
    return size


def _by_step(node: Apply) -> tuple[int | None, ...]:
    """The row axes of the inputs of a loop over rows: only its sequences have them."""
    assert isinstance(node.op, Scan)
    count = node.op.info.n_seqs
    return tuple(0 if 1 <= i <= count else None for i in range(len(node.inputs)))


def _restepped(node: Apply, inputs: Sequence[Variable]) -> list[Variable]:
    """The inputs of a loop over rows, with one step for each of the member's rows."""
    assert isinstance(node.op, Scan)
    lengths = {0, *node.op.outer_nitsot(range(len(inputs)))}
    rows = inputs[1].shape[0]
    return [rows.astype(v.type.dtype) if i in lengths else v for i, v in enumerate(inputs)]
