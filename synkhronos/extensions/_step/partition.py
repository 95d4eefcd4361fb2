"""Partition an update rule: what can be done element by element, and what needs whole parameters.

A rule gives new values of parameters and states as graphs of their gradients, themselves, and
scalars. A *unit* is a parameter with the states that belong to it (several parameters where the
rule mixes them). A unit is *elementwise* where each element of its new values depends on the same
element of its gradient, parameter and states, and on scalars. Such a unit is rewritten for 1-D
vectors, so that any chunk of a flat vector can be updated by itself. Sums over all elements of
a unit (a gradient's norm) are *totals*. They are computed chunk by chunk too, level by level if one
depends on another, and are scalars in later expressions.

Units whose graphs are alike, but for the names, share one `Loop`, which is one compiled function.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytensor.tensor as pt
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Apply, Constant, Variable, equal_computations
from pytensor.graph.replace import clone_replace
from pytensor.graph.traversal import ancestors, io_toposort
from pytensor.tensor.basic import Alloc
from pytensor.tensor.elemwise import CAReduce, DimShuffle, Elemwise
from pytensor.tensor.random.op import RandomVariable
from pytensor.tensor.shape import Shape, Shape_i, SpecifyShape

from synkhronos._errors import InputError, InputTypeError


@dataclass(frozen=True)
class Unit:
    """Parameters that are updated together, and their states."""

    params: tuple[int, ...]  # which gradients belong to it; one, unless the rule mixes parameters
    # the parameter, then its states of the same shape. Empty where there are several parameters
    variables: tuple[SharedVariable, ...]
    loose: tuple[SharedVariable, ...]  # all others

    @property
    def everything(self) -> tuple[SharedVariable, ...]:
        """All variables."""
        return self.variables + self.loose


@dataclass(frozen=True)
class Use:
    """The use of a loop for a unit: the scalars that replace its placeholders."""

    unit: int
    scalars: tuple[int, ...]


@dataclass(frozen=True)
class Loop:
    """A computation over equally long vectors, of which any chunk can be done by itself."""

    gradient: Variable  # placeholder of the reduced gradient; a vector, as are `values`
    values: tuple[Variable, ...]  # placeholders of the parameter and the states of a unit
    scalars: tuple[Variable, ...]  # placeholders of derived scalars, which can differ between units
    # new values of `values[i]` for i in `targets`; or totals of the vectors, 0-d
    outputs: tuple[Variable, ...]
    targets: tuple[int, ...]
    uses: tuple[Use, ...] = ()

    @property
    def places(self) -> tuple[Variable, ...]:
        """All placeholders."""
        return (self.gradient, *self.values, *self.scalars)

    def used_for(self, use: Use) -> Loop:
        """The same loop with one more use."""
        return Loop(
            self.gradient, self.values, self.scalars, self.outputs, self.targets, (*self.uses, use)
        )


@dataclass(frozen=True)
class Level:
    """Totals that depend on those of earlier levels only."""

    loops: tuple[Loop, ...]
    # for each total, in the order of loops, uses and outputs: "sum", "prod", "min" or "max"
    combines: tuple[str, ...]


@dataclass(frozen=True)
class WholeUpdate:
    """A unit that one member updates: `outputs` are new values of `everything[targets]`."""

    unit: int
    gradients: tuple[Variable, ...]
    scalars: tuple[Variable, ...]
    scalar_numbers: tuple[int, ...]
    outputs: tuple[Variable, ...]
    targets: tuple[int, ...]

    @property
    def places(self) -> tuple[Variable, ...]:
        """All placeholders; the unit's variables have none."""
        return (*self.gradients, *self.scalars)


@dataclass(frozen=True)
class Partition:
    """A partitioned update rule."""

    units: tuple[Unit, ...]
    leaves: tuple[Variable, ...]  # 0-d shared variables and call inputs that the graphs depend on
    levels: tuple[Level, ...]
    # placeholders of the totals, level after level, in `scalars` and `states`
    totals: tuple[Variable, ...]
    scalars: tuple[Variable, ...]  # derived scalars: expressions of leaves and totals
    loops: tuple[Loop, ...]  # the updates of elementwise units
    whole_updates: tuple[WholeUpdate, ...]  # the updates of the others
    # 0-d states of the whole rule (a count of steps), and their new values
    states: tuple[tuple[SharedVariable, Variable], ...]


# A variable holds one value for each element of a unit (then it has the unit's number), or is the
# same for all elements (_FIXED), or neither (_OTHER).
_FIXED = -1
_OTHER = -2

_COMBINES = {"add": "sum", "mul": "prod", "maximum": "max", "minimum": "min"}


def partition_rule(
    updates: Iterable[tuple[SharedVariable, Variable]],
    params: Sequence[SharedVariable],
    # placeholders of the reduced gradients in the updates, one for each parameter, of its type
    gradients: Sequence[Variable],
) -> Partition:
    """Partition the updates of a rule.

    Raises
    ------
    InputError
        The rule draws random numbers, or depends on a variable that is not a scalar, a parameter or
        a state.

    Notes
    -----
    A parameter that the rule does not change does not belong to a unit.
    """
    return _Partitioner(list(updates), list(params), list(gradients)).partition()


@dataclass
class _Partitioner:
    updates: list[tuple[SharedVariable, Variable]]
    params: list[SharedVariable]
    gradients: list[Variable]
    totals: list[Variable] = field(default_factory=list)
    scalars: list[Variable] = field(default_factory=list)

    def partition(self) -> Partition:
        new = dict(self.updates)
        self._check(new)
        self._find_units(new)
        self._walk([v for _, v in self.updates])
        self._number_totals()
        loops: list[Loop] = []
        whole_updates = []
        for number, unit in enumerate(self.units):
            targets = tuple(i for i, v in enumerate(unit.everything) if v in new)
            outputs = [new[unit.everything[i]] for i in targets]
            if not unit.loose and all(self.kind[v] in (number, _FIXED) for v in outputs):
                self._add(loops, number, outputs, targets)
            else:
                whole_updates.append(self._whole(number, outputs, targets))
        states = [(s, self._of_totals(v)) for s, v in self.updates if s in self.states]
        inner = [x for level in self.levels for x in level.loops]
        every: list[Loop | WholeUpdate] = [*loops, *whole_updates, *inner]
        graphs = [*self.scalars, *(v for _, v in states), *(v for x in every for v in x.outputs)]
        places = {p for x in every for p in x.places}
        return Partition(
            tuple(self.units),
            tuple(self._leaves(graphs, places)),
            tuple(self.levels),
            tuple(self.totals),
            tuple(self.scalars),
            tuple(loops),
            tuple(whole_updates),
            tuple(states),
        )

    def _check(self, new: dict[SharedVariable, Variable]) -> None:
        for shared, value in new.items():
            if not isinstance(shared, SharedVariable) or not hasattr(shared.type, "dtype"):
                raise InputError(f"the update rule changes {shared}, which is not a shared array")
            try:
                new[shared] = shared.type.filter_variable(value)
            except TypeError as exc:
                raise InputTypeError(
                    f"the update rule gives {shared} a value of another type: {exc}"
                ) from None
        self.updates = list(new.items())
        for variable in ancestors(list(new.values())):
            if variable.owner is not None and isinstance(variable.owner.op, RandomVariable):
                raise InputError(
                    "the update rule draws random numbers, so that members would differ. Add the "
                    "noise to the gradient, or use the two functions of extensions.updates"
                )

    def _find_units(self, new: dict[SharedVariable, Variable]) -> None:
        """Group updated variables that depend on each other, other than by totals."""
        owner: dict[Variable, int] = {}
        for i, (p, g) in enumerate(zip(self.params, self.gradients, strict=True)):
            if p in new:
                owner[p] = owner[g] = i
        reads = {s: self._reads(v) for s, v in new.items()}
        group = {i: {i} for i in owner.values()}  # parameters that are mixed with one another
        # parameters first, then the states that read a gradient, then the others
        for shared in sorted(
            new, key=lambda s: (s not in owner, not any(v in owner for v in reads[s]))
        ):
            touched = {owner[v] for v in reads[shared] if v in owner} | (
                {owner[shared]} if shared in owner else set()
            )
            if not touched and shared.type.ndim:  # a 0-d one is of the whole rule, as a count
                touched = {owner[s] for s, read in reads.items() if s in owner and shared in read}
            if not touched:
                continue
            merged = set().union(*(group[i] for i in touched))
            for i in merged:
                group[i] = merged
            owner.setdefault(shared, min(touched))
        self.states = [s for s in new if s not in owner]
        self.units, self.own = [], {}
        for i in dict.fromkeys(min(g) for g in group.values()):
            self.units.append(self._unit(tuple(sorted(group[i])), new, owner))
        for number, unit in enumerate(self.units):
            for v in (*unit.everything, *(self.gradients[j] for j in unit.params)):
                self.own[v] = number
        for s in self.states:
            if s.type.ndim:
                raise InputError(f"the update rule keeps {s}, which does not belong to a parameter")

    def _unit(
        self,
        params: tuple[int, ...],
        new: dict[SharedVariable, Variable],
        owner: dict[Variable, int],
    ) -> Unit:
        first = [self.params[i] for i in params]
        states = [s for s in new if owner.get(s) in params and s not in self.params]
        if len(params) > 1:
            return Unit(params, (), (*first, *states))
        shape = _shape(first[0])
        alike = [s for s in states if _shape(s) == shape]
        return Unit(params, (*first, *alike), tuple(s for s in states if s not in alike))

    def _reads(self, root: Variable) -> set[Variable]:
        """The leaves that a value depends on, other than by totals."""
        found, seen, stack = set(), set(), [root]
        while stack:
            v = stack.pop()
            if v in seen:
                continue
            seen.add(v)
            if v.owner is None:
                found.add(v)
            elif not _is_total(v.owner):
                stack += v.owner.inputs
        return found

    def _walk(self, roots: list[Variable]) -> None:
        """Classify each variable, and find the totals and their levels."""
        self.kind: dict[Variable, int] = {}
        self.level: dict[Variable, int] = {}
        self.found: list[tuple[int, Variable]] = []  # level and output of every total
        for v in ancestors(roots):
            if v.owner is None:
                self.kind[v] = self._leaf(v)
                self.level[v] = 0
        for node in io_toposort([], roots):
            level = max((self.level[v] for v in node.inputs), default=0)
            kind = self._node(node)
            if _is_total(node) and self.kind[node.inputs[0]] >= 0:
                kind, level = _FIXED, level + 1
                self.found.append((level, node.outputs[0]))
            for out in node.outputs:
                self.kind[out], self.level[out] = kind, level

    def _leaf(self, v: Variable) -> int:
        if v in self.own:
            unit = self.units[self.own[v]]
            return self.own[v] if unit.variables and v not in unit.loose else _OTHER
        if isinstance(v, Constant) or getattr(v.type, "ndim", 1) == 0:
            return _FIXED
        return _OTHER

    def _node(self, node: Apply) -> int:
        kinds = [self.kind[v] for v in node.inputs]
        if isinstance(node.op, Shape | Shape_i) and kinds[0] >= 0:
            return _FIXED
        if all(k == _FIXED for k in kinds):
            return _FIXED
        units = {k for k in kinds if k != _FIXED}
        if len(units) > 1 or _OTHER in units:
            return _OTHER
        [unit] = units
        if isinstance(node.op, Elemwise):
            alike = all(
                k != _FIXED or _is_scalar(v) for k, v in zip(kinds, node.inputs, strict=True)
            )
            return unit if alike else _OTHER
        if isinstance(node.op, SpecifyShape):
            return unit
        if isinstance(node.op, DimShuffle) and node.op.new_order == tuple(
            range(node.inputs[0].type.ndim)
        ):
            return unit
        return _OTHER

    def _number_totals(self) -> None:
        """Group the totals into levels of loops, and give each a placeholder."""
        self.placeholders: dict[Variable, Variable] = {}
        self.scalar_of: dict[Variable, int] = {}
        self.levels: list[Level] = []
        for level in sorted({n for n, _ in self.found}):
            loops: list[Loop] = []
            by_unit: dict[int, list[Variable]] = {}
            for n, total in self.found:
                if n == level:
                    by_unit.setdefault(self.kind[total.owner.inputs[0]], []).append(total)
            where: dict[tuple[int, int], list[Variable]] = {}
            for unit, totals in by_unit.items():
                at = self._add(loops, unit, totals, ())
                where[at] = totals
            combines = []
            for i, loop in enumerate(loops):
                for j in range(len(loop.uses)):
                    for total in where[i, j]:
                        place = total.type()
                        self.placeholders[total] = place
                        self.totals.append(place)
                        combines.append(_COMBINES[str(total.owner.op.scalar_op)])
            self.levels.append(Level(tuple(loops), tuple(combines)))

    def _add(
        self, loops: list[Loop], unit: int, outputs: list[Variable], targets: tuple[int, ...]
    ) -> tuple[int, int]:
        """Add a unit's computation to the loop that does the same, or as a new one."""
        made, scalars = self._vectorised(unit, outputs, targets)
        use = Use(unit, scalars)
        for i, loop in enumerate(loops):
            if _alike(loop, made):
                loops[i] = loop.used_for(use)
                return i, len(loop.uses)
        loops.append(made.used_for(use))
        return len(loops) - 1, 0

    def _vectorised(
        self, unit: int, outputs: list[Variable], targets: tuple[int, ...]
    ) -> tuple[Loop, tuple[int, ...]]:
        """The same computation on vectors."""
        [i] = self.units[unit].params
        gradient = self.gradients[i]
        memo: dict[Variable, Variable] = {gradient: pt.vector("g", dtype=gradient.type.dtype)}
        for shared in self.units[unit].variables:
            memo[shared] = pt.vector(shared.name, dtype=shared.type.dtype)
        values = tuple(memo[v] for v in self.units[unit].variables)
        scalars: dict[int, Variable] = {}
        made: list[Variable] = []
        v: Variable
        for v in outputs:
            if _is_total(v.owner) and self.kind[v] == _FIXED and not targets:
                inner = self._as_vector(v.owner.inputs[0], memo, scalars)
                made.append(v.owner.op.clone(axis=(0,))(inner))
            else:
                vector = self._as_vector(v, memo, scalars)
                if vector.type.ndim == 0:  # the same for all elements, such as zeros
                    vector = pt.second(values[0], vector)
                made.append(pt.cast(vector, v.type.dtype))
        loop = Loop(memo[gradient], values, tuple(scalars.values()), tuple(made), targets)
        return loop, tuple(scalars)

    def _as_vector(
        self, root: Variable, memo: dict[Variable, Variable], scalars: dict[int, Variable]
    ) -> Variable:
        stack = [root]
        while stack:
            v = stack[-1]
            if v in memo:
                stack.pop()
            elif self.kind[v] == _FIXED:
                memo[v] = self._as_scalar(v, scalars)
            else:
                inputs = (
                    v.owner.inputs[:1] if not isinstance(v.owner.op, Elemwise) else v.owner.inputs
                )
                missing = [i for i in inputs if i not in memo]
                if missing:
                    stack += missing
                    continue
                if isinstance(v.owner.op, Elemwise):
                    made = v.owner.op.make_node(*[memo[i] for i in inputs]).outputs
                    for out, vector in zip(v.owner.outputs, made, strict=True):
                        memo[out] = vector
                else:
                    memo[v] = memo[inputs[0]]
        return memo[root]

    def _as_scalar(self, v: Variable, scalars: dict[int, Variable]) -> Variable:
        """A 0-d expression of leaves; a placeholder where it depends on totals."""
        flat = _flat(v)
        if not self.level[v]:
            return self._sized(flat)
        number = self._scalar_number(v, flat)
        if number not in scalars:
            scalars[number] = flat.type()
        return scalars[number]

    def _scalar_number(self, v: Variable, flat: Variable) -> int:
        # one scalar that is broadcast to several shapes is the same one
        number = self.scalar_of.get(flat)
        if number is None:
            number = self.scalar_of[flat] = len(self.scalars)
            self.scalars.append(self._of_totals(flat))
        self.scalar_of[v] = number
        return number

    def _of_totals(self, v: Variable) -> Variable:
        """The expression with placeholders in the place of totals."""
        used = set(ancestors([v]))
        replace = [(t, p) for t, p in self.placeholders.items() if t in used]
        return self._sized(clone_replace([v], replace=replace)[0] if replace else v)

    def _sized(self, v: Variable) -> Variable:
        """The expression with the sizes of parameters, which never change, as constants."""
        replace = []
        for found in ancestors([v]):
            node = found.owner
            if node is not None and isinstance(node.op, Shape | Shape_i):
                unit = self.own.get(node.inputs[0], self.kind.get(node.inputs[0], _OTHER))
                if unit >= 0:
                    param = self.params[self.units[unit].params[0]]
                    shape = param.get_value(borrow=True).shape
                    value = shape if isinstance(node.op, Shape) else shape[node.op.i]
                    replace.append((found, pt.constant(value, dtype="int64")))
        return clone_replace([v], replace=replace)[0] if replace else v

    def _whole(self, number: int, outputs: list[Variable], targets: tuple[int, ...]) -> WholeUpdate:
        """The unit's graphs as they are, but for scalars that depend on totals."""
        scalars: dict[int, Variable] = {}
        replace: list[tuple[Variable, Variable]] = []
        for v in self._outermost_scalars(outputs):
            self._as_scalar(v, scalars)
            place: Any = scalars[self.scalar_of[v]]
            shaped = place.dimshuffle(["x"] * v.type.ndim) if v.type.ndim else place
            replace.append((v, shaped))
        made = clone_replace(outputs, replace=replace) if replace else outputs
        gradients = tuple(self.gradients[i] for i in self.units[number].params)
        return WholeUpdate(
            number, gradients, tuple(scalars.values()), tuple(scalars), tuple(made), targets
        )

    def _outermost_scalars(self, roots: list[Variable]) -> list[Variable]:
        found, seen, stack = [], set(), list(roots)
        while stack:
            v = stack.pop()
            if v in seen or v.owner is None:
                continue
            seen.add(v)
            if self.kind[v] == _FIXED and self.level[v] and _is_scalar(v):
                found.append(v)
            else:
                stack += v.owner.inputs
        return found

    def _leaves(self, graphs: list[Variable], places: set[Variable]) -> list[Variable]:
        """The outside variables, all 0-d, that the graphs depend on."""
        inner = {*places, *self.totals, *self.own}
        found = [
            v
            for v in dict.fromkeys(ancestors(graphs))
            if v.owner is None and not isinstance(v, Constant) and v not in inner
        ]
        for v in found:
            if getattr(v.type, "ndim", 1):
                raise InputError(
                    f"the update rule depends on {v}, which is not a parameter, a state or a "
                    "scalar: use it in the gradient, or make it a state of the rule"
                )
        return found


def _shape(shared: SharedVariable) -> tuple[int, ...]:
    found: tuple[int, ...] = shared.get_value(borrow=True).shape
    return found


def _is_total(node: Apply | None) -> bool:
    """Whether a node reduces an array to one value."""
    if node is None or not isinstance(node.op, CAReduce):
        return False
    whole = node.op.axis is None or len(node.op.axis) == node.inputs[0].type.ndim
    return whole and str(node.op.scalar_op) in _COMBINES


def _is_scalar(v: Variable) -> bool:
    """Whether a variable has one element, by its type."""
    if v.owner is not None and isinstance(v.owner.op, Alloc):
        return v.owner.inputs[0].type.ndim == 0
    return all(v.type.broadcastable)


def _flat(v: Any) -> Any:
    """The value of a variable of one element, as a 0-d variable."""
    while v.owner is not None and isinstance(v.owner.op, Alloc | DimShuffle):
        v = v.owner.inputs[0]
    if v.type.ndim == 0:
        return v
    if isinstance(v, Constant):
        return pt.constant(v.data.reshape(()), dtype=v.type.dtype)
    if v.owner is not None and isinstance(v.owner.op, Elemwise):
        made = v.owner.op.make_node(*[_flat(i) for i in v.owner.inputs])
        return made.outputs[v.owner.outputs.index(v)]
    return v.dimshuffle()


def _alike(a: Loop, b: Loop) -> bool:
    """Whether two loops compute the same expressions of their placeholders."""
    mine, others = list(a.places), list(b.places)
    if a.targets != b.targets or len(mine) != len(others) or len(a.outputs) != len(b.outputs):
        return False
    if any(x.type != y.type for x, y in zip(mine, others, strict=True)):
        return False
    return bool(equal_computations(list(a.outputs), list(b.outputs), mine, others))
