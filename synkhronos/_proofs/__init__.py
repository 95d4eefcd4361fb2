"""Proves how an output follows from what the members compute on their parts of the rows.

`prove` reads a graph from the scattered inputs to the output, and compiles and runs nothing.
`values` defines what can be known of a variable, `walk` derives it node by node, and the rules for
Ops are in `elementwise`, `exponentials`, `shapes`, `folded`, `totals`, `indexing` and `nested`.
`cut` turns what is known of the output into a Proof. A rule that is not sure gives up: an output
without a proof costs a warning, while a wrong proof would give wrong numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pytensor.graph.basic import Variable
from pytensor.graph.traversal import ancestors

from synkhronos._proofs import elementwise as elementwise
from synkhronos._proofs import exponentials as exponentials
from synkhronos._proofs import folded as folded
from synkhronos._proofs import indexing as indexing
from synkhronos._proofs import nested as nested
from synkhronos._proofs import shapes as shapes
from synkhronos._proofs import totals as totals
from synkhronos._proofs.cut import Decomposition, Partial
from synkhronos._proofs.draws import row_draws
from synkhronos._proofs.linear import decides, is_linear
from synkhronos._proofs.values import Count, Finished, Reduced, Rows, Same, Stuck, Unknown
from synkhronos._proofs.walk import Made, Walk, name_of, seed

__all__ = ["Partial", "Proof", "Unproved", "depends_on", "prove", "row_draws"]


@dataclass(frozen=True)
class Proof:
    """How to compute an output's exact value from its partials.

    Each partial is reduced over the members, in the order of ranks. If `finished` is None, there is
    one partial, and its reduction is the output. Otherwise `finished` is the output: an expression
    of the `placeholders`, which stand for the reduced partials in their order, and of variables
    that do not depend on rows.

    `penalised`: the output is a * S + b with S summed over rows and b not zero. Then neither the
    sum nor the mean of the parts' own values is the output. `zero`: it is a sum of zeros, and so a
    mean of zeros.
    """

    partials: tuple[Partial, ...]
    placeholders: tuple[Variable, ...] = ()
    finished: Variable | None = None
    penalised: bool = False
    zero: bool = False

    def refutes(self, reduction: str | None) -> str:
        """The kind of the output, if the parts' own values, so reduced, are something else; or "".

        "gather" and None ask for the parts' own values, and are never refuted.

        >>> import pytensor.tensor as pt
        >>> x = pt.vector("x")
        >>> prove(x.max(), [x]).refutes("avg"), prove(x.max(), [x]).refutes("max")
        ('a maximum over rows', '')
        >>> prove(pt.sqrt((x**2).mean()), [x]).refutes("avg")
        'a nonlinear expression of a mean over rows'
        """
        if reduction in ("gather", None) or (self.zero and reduction in ("sum", "avg")):
            return ""
        found = {
            (p.reduction, p.of or _MEANINGS[p.reduction]) for p in self.partials if p.reduction
        }
        others = [meaning for by, meaning in sorted(found) if by != reduction]
        if self.finished is None:
            return others[0] if others else ""
        if reduction not in ("sum", "avg"):
            return ""  # min(total, 3) may be right or wrong
        if decides(self.finished, self.placeholders):
            return ""  # -inf of one part is that of the whole: PyMC's densities are checked so
        if is_linear(self.finished, self.placeholders):
            return f"computed from {' and '.join(others)}" if others else ""
        return f"a nonlinear expression of {' and '.join(meaning for _, meaning in sorted(found))}"


_MEANINGS = {
    "avg": "a mean over rows",
    "gather": "one value for each row",
    "max": "a maximum over rows",
    "min": "a minimum over rows",
    "prod": "a product over rows",
    "sum": "a sum over rows",
}


@dataclass(frozen=True)
class Unproved:
    """There is no proof; `reason` is a text for a warning, as in "CumOp{0, add}: it mixes rows"."""

    reason: str


def prove(
    output: Variable, rows: Sequence[Variable], *, log_sums: bool = True, made: Made | None = None
) -> Proof | Unproved:
    """Prove how `output` follows from parts of the rows of `rows`, for any split.

    Args:
        output: the variable, in the graph as the user wrote it.
        rows: the inputs and shared variables whose axis 0 is split, all equally long. All other
            inputs of the output must be equal in all members.
        log_sums: whether parts of a logarithm of a sum of exponentials are logarithms, too. Their
            gradients do not add up.
        made: what proofs of outputs of the same graph share: graphs that are made on the way.

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
    walk = Walk({variable: seed(variable) for variable in rows}, log_sums, made)
    [value] = walk.read([output])
    cut = Decomposition(walk)
    match value:
        case Unknown(reason=reason):
            return Unproved(reason)
        case Same():
            return Proof((cut.partial(output, None),))
        case Rows(axis=0, factors=factors) if not factors:
            return Proof((cut.partial(output, "gather"),))
        case Reduced(by=by, factors=factors, zero=zero) if not factors:
            return Proof((cut.partial(output, by),), zero=zero)
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
