"""Cuts an output into partials, which members compute, and the expression that finishes them.

A Finished value is cut at the totals that it is a function of. Each total becomes a partial with a
placeholder for its reduced value. The part of the graph behind the totals is rebuilt with the
placeholders.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from operator import add

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.traversal import toposort

from synkhronos._proofs.values import (
    Count,
    Entries,
    Factor,
    Factors,
    LogSum,
    Reduced,
    Rows,
    Same,
    Stuck,
)
from synkhronos._proofs.walk import Walk, is_scalar


@dataclass(frozen=True)
class Partial:
    """A value that every member computes on its own rows, and the reduction of these values.

    `reduction` is "gather" (joined along axis 0), "sum", "avg" (weighted by the number of rows),
    "max", "min", "prod", or None: the value is the same in all members. `of` says what it is a part
    of, if its reduction does not.
    """

    variable: Variable
    reduction: str | None
    of: str = ""


class Decomposition:
    """The partials of one output, and the expression that finishes them."""

    def __init__(self, walk: Walk) -> None:
        self._walk = walk
        self._scaling = Scaling(walk)
        self._finished: dict[Variable, Variable] = {}
        self.partials: list[Partial] = []
        self.placeholders: list[Variable] = []

    def partial(self, variable: Variable, reduction: str | None) -> Partial:
        """A partial without the values over all rows of which it only uses the shape."""
        return Partial(self._scaling.freed(variable), reduction)

    def finish(self, variable: Variable) -> Variable:
        """The variable as a function of placeholders and of what does not depend on rows."""
        edge = list(self._edge(variable))
        for each in edge:
            if each not in self._finished:
                self._finished[each] = self._total(each)
        for node in toposort([variable], blockers=edge):
            _rebuild(node, [self._finished.get(v, v) for v in node.inputs], self._finished)
        return self._finished.get(variable, variable)

    def gather(self, variable: Variable, rows: Rows) -> Variable:
        """The joined rows of all members, times their factors."""
        factors = self._scaling.ordered(rows.factors)
        if not factors:
            return self._gathered(variable, rows.axis)
        if not all(f.variable is not None and is_scalar(f.variable) for f in factors) or (
            len(factors) > 1 and not all(f.removable for f in factors)
        ):
            raise Stuck("its rows are scaled by values over all rows")
        parts = [self._scaling.only(variable, f, factors) for f in factors]
        held = [self._gathered(part, rows.axis) for part in parts]
        return self._combined(held, factors).astype(variable.type.dtype)

    def _gathered(self, variable: Variable, axis: int) -> Variable:
        in_front = variable if axis == 0 else pt.moveaxis(variable, axis, 0)
        placeholder = self._hold(in_front, "gather")
        return placeholder if axis == 0 else pt.moveaxis(placeholder, 0, axis)

    def _hold(self, variable: Variable, reduction: str | None) -> Variable:
        """A placeholder for a new partial."""
        self.partials.append(self.partial(variable, reduction))
        self.placeholders.append(variable.type())
        return self.placeholders[-1]

    def _edge(self, variable: Variable) -> Iterator[Variable]:
        """The totals and the outputs of inlined Ops that a variable is a function of."""
        seen: set[Variable] = set()
        ahead = [variable]
        while ahead:
            each = ahead.pop()
            if each in seen:
                continue
            seen.add(each)
            if self._is_total(each) or each in self._walk.inlined:
                yield each
            elif each.owner is not None:
                ahead.extend(each.owner.inputs)

    def _is_total(self, variable: Variable) -> bool:
        match self._walk.value(variable):
            case Same():
                return not self._can_be_finished(variable)
            case Reduced() | LogSum() | Count(power=1):
                return True
            case Entries(entries=entries):
                return all(isinstance(v, Same) or _is_counted(v) for v in entries)
        return False

    def _can_be_finished(self, variable: Variable) -> bool:
        """Whether a Same value is a function of Same values, so that members need not send it."""
        if variable not in self._walk.reached or variable.owner is None:
            return False
        if variable in self._walk.met:
            return False
        return all(isinstance(self._walk.value(v), Same) for v in variable.owner.inputs)

    def _total(self, variable: Variable) -> Variable:
        match self._walk.value(variable):
            case Same() if variable not in self._walk.inlined:
                depends = variable in self._walk.reached
                return self._hold(variable, None) if depends else variable
            case Reduced(by=by, factors=factors):
                return self._sum(variable, factors) if factors else self._hold(variable, by)
            case LogSum():
                return self._log_sum(variable)
            case Count(power=1):
                return self._hold(variable, "sum")
            case Entries(entries=entries) if self._is_total(variable):
                by = ["sum" if _is_counted(v) else None for v in entries]
                held = [self._hold(variable[i], reduction) for i, reduction in enumerate(by)]
                return pt.stack(held)
        return self.finish(self._walk.inlined[variable])

    def _sum(self, variable: Variable, factors: Factors) -> Variable:
        """A sum with factors. Terms with 1 / n stay together, since their sum is an average."""
        ordered = self._scaling.ordered(factors)
        apart = [f for f in ordered if not f.per_row]
        held = [self._hold(self._scaling.only(variable, f, ordered), "sum") for f in apart]
        total = self._combined(held, apart)
        if len(apart) < len(ordered):
            total += self._hold(self._scaling.without(variable, apart), "avg")
        return total.astype(variable.type.dtype)

    def _log_sum(self, variable: Variable) -> Variable:
        """Of the parts' values, which are stacked: no sum of their exponentials overflows."""
        self.partials.append(Partial(variable[None], "gather", of="a logarithm of a sum over rows"))
        values = pt.tensor(dtype=variable.type.dtype, shape=(None, *variable.type.shape))
        self.placeholders.append(values)
        return pt.logsumexp(values, axis=0)

    def _combined(self, held: list[Variable], factors: list[Factor]) -> Variable:
        numbers = [self.finish(f.variable).dimshuffle() for f in factors]
        return reduce(
            add,
            (
                part / number if factor.inverse else part * number
                for part, number, factor in zip(held, numbers, factors, strict=True)
            ),
        )


class Scaling:
    """Removes factors from a value, at the nodes where they enter."""

    def __init__(self, walk: Walk) -> None:
        self._walk = walk
        entered = [node.inputs[i] for node, i in walk.scalings]
        self._order = {v: i for i, v in enumerate(dict.fromkeys(entered))}

    def ordered(self, factors: Factors) -> list[Factor]:
        """The factors in the order of the graph, so that sums round equally in each run."""
        return sorted(factors, key=lambda f: (self._order.get(f.variable, -1), f.inverse))

    def freed(self, variable: Variable) -> Variable:
        """The value, without computing what it takes only the shapes of."""
        return self._replace(variable, {}) if self._walk.unshaped else variable

    def only(self, variable: Variable, factor: Factor, factors: list[Factor]) -> Variable:
        """The value with one factor set to 1 and the others to 0."""
        numbers = {f.variable: _filled(f.variable, int(f == factor)) for f in factors}
        return self._replace(variable, numbers)

    def without(self, variable: Variable, factors: list[Factor]) -> Variable:
        """The value with some factors set to 0."""
        return self._replace(variable, {f.variable: _filled(f.variable, 0) for f in factors})

    def _replace(self, variable: Variable, numbers: dict[Variable, Variable]) -> Variable:
        rebuilt: dict[Variable, Variable] = {}
        self._rebuild_all(variable, self._walk.met, numbers, rebuilt)
        return rebuilt.get(variable, variable)

    def _rebuild_all(
        self,
        variable: Variable,
        blockers: list[Variable],
        numbers: dict[Variable, Variable],
        rebuilt: dict[Variable, Variable],
    ) -> None:
        for node in list(toposort([variable], blockers=blockers)):
            inlined = [v for v in node.outputs if v in self._walk.inlined]
            for output in inlined:
                inner = self._walk.inlined[output]
                self._rebuild_all(inner, [*node.inputs, *self._walk.met], numbers, rebuilt)
                if inner in rebuilt or output in self._walk.unshaped:
                    rebuilt[output] = rebuilt.get(inner, inner)
            if not inlined:
                inputs = [self._input(node, i, numbers, rebuilt) for i in range(len(node.inputs))]
                _rebuild(node, inputs, rebuilt)

    def _input(
        self,
        node: Apply,
        i: int,
        numbers: dict[Variable, Variable],
        rebuilt: dict[Variable, Variable],
    ) -> Variable:
        variable = node.inputs[i]
        if (node, i) in self._walk.scalings and variable in numbers:
            return numbers[variable]
        return rebuilt.get(variable, variable)


def _rebuild(node: Apply, inputs: list[Variable], rebuilt: dict[Variable, Variable]) -> None:
    if any(new is not old for new, old in zip(inputs, node.inputs, strict=True)):
        rebuilt.update(zip(node.outputs, node.clone_with_new_inputs(inputs).outputs, strict=True))


def _filled(variable: Variable, number: int) -> Variable:
    """A constant in place of the variable, which a single member may not be able to compute."""
    if not is_scalar(variable):
        return pt.zeros_like(variable)  # of c / n only zeros are made
    return pt.constant(np.full(variable.type.shape, number, dtype=variable.type.dtype))


def _is_counted(value: object) -> bool:
    return isinstance(value, Count) and value.power == 1
