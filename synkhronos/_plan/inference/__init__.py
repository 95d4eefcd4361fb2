"""Proves how an output follows from what the members compute on their parts of the rows.

`prove` reads a graph from the scattered inputs to the output, and compiles and runs nothing.
`values` defines what can be known of a variable, `walk` derives it node by node, and the rules for
Ops are in `elementwise`, `shapes`, `totals`, `indexing` and `nested`. `cut` turns what is known of
the output into a Proof. A rule that is not sure gives up: an output without a proof costs a
warning, while a wrong proof would give wrong numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pytensor.graph.basic import Variable
from pytensor.graph.traversal import ancestors

from synkhronos._plan.inference import elementwise as elementwise
from synkhronos._plan.inference import indexing as indexing
from synkhronos._plan.inference import nested as nested
from synkhronos._plan.inference import shapes as shapes
from synkhronos._plan.inference import totals as totals
from synkhronos._plan.inference.cut import Decomposition, Partial
from synkhronos._plan.inference.values import Count, Finished, Reduced, Rows, Same, Stuck, Unknown
from synkhronos._plan.inference.walk import Walk, name_of, seed

__all__ = ["Partial", "Proof", "Unproved", "depends_on", "prove"]


@dataclass(frozen=True)
class Proof:
    """How to compute an output's exact value from its partials.

    Each partial is reduced over the members, in the order of ranks. If `finished` is None, there is
    one partial, and its reduction is the output. Otherwise `finished` is the output: an expression
    of the `placeholders`, which stand for the reduced partials in their order, and of variables
    that do not depend on rows.

    `penalised`: the output is a * S + b with S summed over rows and b not zero. Then neither the
    sum nor the mean of the parts' own values is the output.
    """

    partials: tuple[Partial, ...]
    placeholders: tuple[Variable, ...] = ()
    finished: Variable | None = None
    penalised: bool = False


@dataclass(frozen=True)
class Unproved:
    """There is no proof; `reason` is a text for a warning, as in "CumOp{0, add}: it mixes rows"."""

    reason: str


def prove(output: Variable, rows: Sequence[Variable]) -> Proof | Unproved:
    """Prove how `output` follows from parts of the rows of `rows`, for any split.

    Args:
        output: the variable, in the graph as the user wrote it.
        rows: the inputs and shared variables whose axis 0 is split, all equally long. All other
            inputs of the output must be equal in all members.

    Returns:
        A Proof that holds for every split into parts of at least one row, up to rounding; or
        Unproved, which names the node that prevents a proof.

    Example:
        >>> import pytensor.tensor as pt
        >>> x, w = pt.matrix("x"), pt.vector("w")
        >>> prove((x @ w).mean(), [x]).partials[0].reduction
        'avg'
        >>> proof = prove(((x @ w) ** 2).sum() + (w**2).sum(), [x])
        >>> [partial.reduction for partial in proof.partials], proof.penalised
        (['sum'], True)
        >>> prove(x.std(axis=0), [x])  # doctest: +ELLIPSIS
        Unproved(reason='Sub: it combines single rows with a value over all rows')
    """
    walk = Walk({variable: seed(variable) for variable in rows})
    [value] = walk.read([output])
    cut = Decomposition(walk)
    match value:
        case Unknown(reason=reason):
            return Unproved(reason)
        case Same():
            return Proof((cut.partial(output, None),))
        case Rows(axis=0, factors=factors) if not factors:
            return Proof((cut.partial(output, "gather"),))
        case Reduced(by=by, factors=factors) if not factors:
            return Proof((cut.partial(output, by),))
        case Count(power=1):
            return Proof((cut.partial(output, "sum"),))
    try:
        finished = cut.gather(output, value) if isinstance(value, Rows) else cut.finish(output)
    except Stuck as stop:
        return Unproved(f"{name_of(output)}: {stop}")
    if depends_on(finished, rows):
        return Unproved(f"{name_of(output)} cannot be separated from its rows")
    penalised = isinstance(value, Finished) and value.penalised
    return Proof(tuple(cut.partials), tuple(cut.placeholders), finished, penalised)


def depends_on(output: Variable, rows: Iterable[Variable]) -> bool:
    """Whether `output` is computed from any of `rows`, or only from their shapes."""
    wanted = set(rows)
    return any(variable in wanted for variable in ancestors([output]))
