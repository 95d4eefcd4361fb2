"""Operations that were read as the user declares them, and the check of this."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytensor
from pytensor.graph.basic import Apply

from synkhronos._compiling.python_mode import python_mode
from synkhronos._errors import InputError
from synkhronos._proofs.walk import name_of
from synkhronos.pymc._reading.facts import Facts
from synkhronos.pymc._reading.rewrites import without_parameter_checks

_PLAIN = python_mode("none")
_CUTS = (1 / 7, 1 / 2)  # of the rows: parts of unequal lengths


@dataclass(frozen=True)
class Assumption:
    """An operation that was read as one that keeps rows apart."""

    node: Apply
    axes: tuple[int | None, ...]  # the row axis of each input; None: it has no rows
    output: int  # the number of the output, and `axis`, its row axis
    axis: int


def check(assumptions: Sequence[Assumption], facts: Facts) -> None:
    """Compare what the operations compute from all rows with what they compute from parts.

    Raises
    ------
    InputError
        An operation computes something else: it mixes rows.
    """
    if not assumptions:
        return
    draw = np.random.default_rng(0)
    given = [
        v + draw.uniform(-0.1, 0.1, np.shape(v)).astype(v.dtype) if v.dtype.kind == "f" else v
        for v in facts.start().values()
    ]
    for assumption in assumptions:
        node = assumption.node
        evaluate = pytensor.function(
            facts.inputs,
            without_parameter_checks(node.inputs),
            mode=_PLAIN,
            on_unused_input="ignore",
        )
        arrays = evaluate(*given)
        [rows] = {a.shape[x] for a, x in zip(arrays, assumption.axes, strict=True) if x is not None}
        whole = _computed(assumption, arrays)
        cuts = {max(1, int(rows * cut)) for cut in _CUTS}
        for lo, hi in itertools.pairwise(sorted({0, rows, *cuts})):
            part = [
                a if x is None else np.take(a, np.arange(lo, hi), axis=x)
                for a, x in zip(arrays, assumption.axes, strict=True)
            ]
            wanted = np.take(whole, np.arange(lo, hi), axis=assumption.axis)
            try:
                found = _computed(assumption, part)
            except Exception as exc:
                raise InputError(
                    f"row_wise: {name_of(node)} computes nothing from rows {lo} to {hi - 1} alone: "
                    f"{type(exc).__name__}: {exc}. It has to take any number of rows"
                ) from exc
            if np.shape(found) != wanted.shape or not np.allclose(
                found, wanted, rtol=1e-6, equal_nan=True
            ):
                raise InputError(
                    f"row_wise: {name_of(node)} computes other values from rows {lo} to {hi - 1} "
                    f"alone than from all {rows} rows. Its rows depend on one another: take it out "
                    "of row_wise"
                )


def _computed(assumption: Assumption, arrays: Sequence[np.ndarray]) -> np.ndarray:
    """The output of the operation for these inputs."""
    node = assumption.node
    inputs = [v.type.clone(shape=np.shape(a))() for v, a in zip(node.inputs, arrays, strict=True)]
    output = node.clone_with_new_inputs(inputs, strict=False).outputs[assumption.output]
    return np.asarray(pytensor.function(inputs, output, mode=_PLAIN)(*arrays))
