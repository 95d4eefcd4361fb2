"""How the gradient of a loss over all rows follows from the members' gradients.

The loss may be proved to be an expression F of one sum (or mean) P over rows, and of values that do
not depend on rows: with penalties, masked and weighted means, roots of means. Then the gradient is
dF/dP * sum of dP over the members + the direct derivative of F. The factor and the direct term go
into the update, where they are computed once; members compute dP of their rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytensor
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Variable
from pytensor.graph.traversal import ancestors

from synkhronos._checks import shown
from synkhronos._engine.graph_collectives import has_collectives
from synkhronos._errors import InputError, ReductionWarning
from synkhronos._proofs import Proof, Unproved, depends_on, prove, row_draws
from synkhronos._proofs.reductions import NAMES, Reduction
from synkhronos._warnings import warn
from synkhronos.extensions.updates._slots import fitted_gradient, gradients


@dataclass(frozen=True)
class Objective:
    """A loss: what members compute of their rows, and how the gradient follows."""

    average: bool  # whether the members' gradients are averaged, weighted by rows, or summed
    gradients: list[Variable]  # expressions that each member computes of its rows
    # reduced values that the factor and the direct terms need: the value, whether it is averaged or
    # summed, and its placeholder
    partials: tuple[tuple[Variable, bool, Variable], ...]
    factor: Variable | None = None
    direct: tuple[Variable | None, ...] = ()

    def full_gradients(self, reduced: Sequence[Variable]) -> list[Variable]:
        """The gradients of the loss over all rows, from the reduced ones."""
        found = []
        g: Any
        for i, g in enumerate(reduced):
            whole: Any = g if self.factor is None else self.factor * g
            if self.direct and self.direct[i] is not None:
                whole = whole + self.direct[i]
            found.append(fitted_gradient(g, whole))
        return found


def objective(
    loss: Variable,
    params: Sequence[SharedVariable],
    rows: Sequence[Variable],
    reduction: str | None,
    infer: bool,
) -> Objective:
    """Analyse a loss; `reduction` ("avg" or "sum") replaces the proof."""
    if reduction is not None:
        op = NAMES.get(reduction) if isinstance(reduction, str) else None
        if op not in (Reduction.AVG, Reduction.SUM):
            raise InputError(
                f"make_train_function: reduction={shown(reduction)}: members' gradients add up, so "
                'use "avg" (for a loss that is a mean over rows) or "sum"'
            )
        return Objective(op is Reduction.AVG, gradients(loss, params, params), ())
    if not depends_on(loss, rows):
        return Objective(True, gradients(loss, params, params), ())
    every = [*rows, *row_draws(loss, rows)]
    proof = prove(loss, every, log_sums=False) if infer else Unproved("infer=False")
    found = _apart(loss, params, proof) if isinstance(proof, Proof) else None
    if found is not None:
        return found
    if isinstance(proof, Proof) and proof.finished is None and has_collectives([loss]):
        # by collectives it is the same in all members; so it is the mean of their losses
        return Objective(True, gradients(loss, params, params), ())
    if infer:
        reason = proof.reason if isinstance(proof, Unproved) else "several sums have gradients"
        warn(
            "the gradient of the loss is averaged over members, weighted by rows, since no "
            f'reduction can be proved ({reason}). Name it: reduction="avg" or "sum"',
            ReductionWarning,
        )
    return Objective(True, gradients(loss, params, params), ())


def _apart(loss: Variable, params: Sequence[SharedVariable], proof: Proof) -> Objective | None:
    if any(p.reduction not in ("avg", "sum") for p in proof.partials):
        return None
    if proof.finished is None:
        [partial] = proof.partials
        return Objective(partial.reduction == "avg", gradients(loss, params, params), ())
    moving = [p for p in proof.partials if depends_on(p.variable, params)]
    if len(moving) != 1 or moving[0].variable.type.ndim:
        return None
    place = proof.placeholders[proof.partials.index(moving[0])]
    finished: Any = proof.finished
    factor: Any = pytensor.grad(finished, place, disconnected_inputs="ignore")
    touched = set(ancestors([finished]))
    direct: tuple[Any, ...] = tuple(
        pytensor.grad(finished, p) if p in touched else None for p in params
    )
    used = set(ancestors([factor, *(d for d in direct if d is not None)]))
    partials = tuple(
        (p.variable, p.reduction == "avg", v)
        for p, v in zip(proof.partials, proof.placeholders, strict=True)
        if v in used
    )
    return Objective(
        moving[0].reduction == "avg",
        gradients(moving[0].variable, params, params),
        partials,
        factor,
        direct,
    )
