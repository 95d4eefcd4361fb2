"""Operations that the user declares to be computed row by row, and the check of this."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytensor
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op
from pytensor.graph.traversal import ancestors

from synkhronos._checks import shown
from synkhronos._compiling.python_mode import python_mode
from synkhronos._errors import InputError, InputTypeError
from synkhronos._proofs.walk import name_of
from synkhronos.pymc._reading.rewrites import without_parameter_checks

_PLAIN = python_mode("none")
_CUTS = (1 / 7, 1 / 2)  # of the rows: parts of unequal lengths


@dataclass(frozen=True)
class Assumption:
    """An operation that was read as one that keeps rows apart.

    Attributes
    ----------
    node : Apply
    axes : tuple of (int or None)
        The row axis of each input; None: it has no rows.
    output : int
        The number of the output, and `axis`, its row axis.
    """

    node: Apply
    axes: tuple[int | None, ...]
    output: int
    axis: int


class Declared:
    """The nodes of a model that the user has declared.

    Parameters
    ----------
    model : pymc.Model
    row_wise : sequence
        Classes of operations, and names of observed variables and Potentials.

    Raises
    ------
    InputError, InputTypeError
        An entry is neither.
    """

    def __init__(self, model: Any, row_wise: Sequence[object]) -> None:
        if isinstance(row_wise, str) or not isinstance(row_wise, Sequence):
            raise InputTypeError(
                f"row_wise={shown(row_wise)}: give a list of classes of operations, or of names of "
                "observed variables and Potentials"
            )
        known = [variable.name for variable in (*model.observed_RVs, *model.potentials)]
        self._kinds: tuple[type, ...] = ()
        self.names: list[str] = []
        for entry in row_wise:
            if isinstance(entry, type) and issubclass(entry, Op):
                self._kinds += (entry,)
            elif isinstance(entry, str) and entry in known:
                self.names.append(entry)
            else:
                raise InputError(
                    f"row_wise: {shown(entry)} is neither the class of an operation nor one of the "
                    f"observed variables and Potentials ({', '.join(known)})"
                )
        self._nodes: set[Apply] = set()

    def note(self, name: str, terms: Sequence[Any]) -> None:
        """All operations of these terms belong to what is declared, if their variable is."""
        if name in self.names:
            self._nodes.update(v.owner for v in ancestors(list(terms)) if v.owner is not None)

    def __contains__(self, node: Apply) -> bool:
        return isinstance(node.op, self._kinds) or node in self._nodes


def check(model: Any, assumptions: Sequence[Assumption]) -> None:
    """Compare what the operations compute from all rows with what they compute from parts.

    Raises
    ------
    InputError
        An operation computes something else: it mixes rows.
    """
    point = model.initial_point(0)
    draw = np.random.default_rng(0)
    given = [
        v + draw.uniform(-0.1, 0.1, np.shape(v)).astype(v.dtype) if v.dtype.kind == "f" else v
        for v in (point[variable.name] for variable in model.value_vars)
    ]
    for assumption in assumptions:
        node = assumption.node
        evaluate = pytensor.function(
            model.value_vars,
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
