"""Which lengths in a graph are the number of rows, whatever data the user sets later.

A loop over sequences cuts them to their shortest length. Where all of them have the rows, this cut
takes every row, and a member may leave it out. A length that the user wrote as a number is another
matter: new data may be longer, and the model would take a part of it.

A length is computed from lengths of arrays by minima, comparisons, choices, sums and differences,
so it is a function in straight pieces. They meet at constants of the graph, or at sums and
differences of two. If the function is the number of rows there, beside them and beyond, it is so
everywhere.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping

import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.replace import clone_replace
from pytensor.graph.traversal import ancestors, toposort
from pytensor.raise_op import CheckAndRaise
from pytensor.scalar import basic as ps
from pytensor.tensor import TensorVariable
from pytensor.tensor.basic import MakeVector, ScalarFromTensor, TensorFromScalar
from pytensor.tensor.elemwise import DimShuffle, Elemwise
from pytensor.tensor.math import All
from pytensor.tensor.rewriting.shape import ShapeFeature
from pytensor.tensor.shape import Shape, Shape_i
from pytensor.tensor.subtensor import Subtensor

from synkhronos._compiling.python_mode import python_mode

_PIECEWISE = (ps.Minimum, ps.Maximum, ps.Switch, ps.Add, ps.Sub, ps.Cast, ps.Identity)
_COMPARED = (ps.LT, ps.LE, ps.GT, ps.GE, ps.EQ, ps.NEQ, ps.AND, ps.OR, ps.Invert)
_PLAIN = python_mode("none")
_MOST_CONSTANTS = 16  # in the graph of a length


class Counts:
    """Decides which lengths are the number of rows."""

    def __init__(self, rows: int, shapes: Mapping[Variable, tuple[int, ...]]) -> None:
        self._rows = rows  # their number in the present data
        self._shapes = shapes  # the shape of each variable
        self._known: dict[Variable, bool] = {}

    def is_count(self, length: TensorVariable) -> bool:
        """Whether an integer scalar is the number of rows, also of other data."""
        if length not in self._known:
            self._known[length] = self._decide(length)
        return self._known[length]

    def _decide(self, length: TensorVariable) -> bool:
        graph = _by_lengths(length)
        count = pt.lscalar("rows")
        leaves: dict[Variable, Variable] = {}
        numbers: set[int] = set()
        for node in toposort([graph]):
            if isinstance(node.op, Shape_i):
                leaf = node.inputs[0]
                known = self._shapes.get(leaf)
                if leaf.owner is not None or known is None:
                    return False
                number = known[node.op.i]
                numbers.add(number)
                leaves[node.outputs[0]] = (
                    count if number == self._rows else pt.constant(number, dtype="int64")
                )
            elif not _is_piecewise(node):
                return False
        [found] = clone_replace([graph], replace=leaves)
        loose = [v for v in ancestors([found]) if v.owner is None and v is not count]
        if count not in set(ancestors([found])) or not all(isinstance(v, Constant) for v in loose):
            return False
        numbers |= {int(n) for v in loose for n in np.ravel(v.data)}
        if len(numbers) > _MOST_CONSTANTS:
            return False
        measured = pytensor.function([count], found, mode=_PLAIN)
        return all(_equals(measured, n) for n in _tried(numbers | {self._rows}))


def _by_lengths(length: TensorVariable) -> TensorVariable:
    """The same length, computed from the lengths of inputs and shared variables."""
    while True:
        asked = [
            node
            for node in toposort([length])
            if isinstance(node.op, Shape)
            or (isinstance(node.op, Shape_i) and node.inputs[0].owner is not None)
        ]
        if not asked:
            return length
        shapes = ShapeFeature()
        inferred = {}
        for node in asked:
            lengths = shapes.shape_tuple(node.inputs[0])
            found = pt.stack(lengths) if isinstance(node.op, Shape) else lengths[node.op.i]
            if node.outputs[0] in ancestors([found]):  # PyTensor does not know it
                return length
            inferred[node.outputs[0]] = found
        # the lengths of inputs of other lengths that are asked for: those are replaced next time
        [length] = clone_replace([length], replace=inferred)


def _is_piecewise(node: Apply) -> bool:
    """Whether an operation computes sums, choices and comparisons of lengths, or passes one on."""
    if isinstance(node.op, Elemwise):
        return isinstance(node.op.scalar_op, _PIECEWISE + _COMPARED)
    passes = MakeVector | ScalarFromTensor | TensorFromScalar | DimShuffle | Subtensor | All
    return isinstance(node.op, passes | CheckAndRaise)


def _tried(constants: set[int]) -> Iterator[int]:
    """Numbers of rows where two pieces may meet, beside them, and beyond."""
    pairs = itertools.product({0, *constants}, repeat=2)
    meet = {n for a, b in pairs for n in (a + b, a - b)}
    beside = {n + d for n in meet for d in (-1, 0, 1)} | {4 * max(constants) + 7}
    yield from sorted(n for n in beside if n >= 1)


def _equals(measured: Callable[[int], np.ndarray], rows: int) -> bool:
    try:
        return int(measured(rows)) == rows
    except (AssertionError, ValueError, IndexError):
        return False
