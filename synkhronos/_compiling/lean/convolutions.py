"""Convolutions of many rows as loops over the outputs of a row, which are vectorised.

PyTensor convolves each row by a function that computes one output after another, with as many
steps as the shorter operand has: four for an effect of four weeks.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.op import Op
from pytensor.tensor.basic import as_tensor, constant
from pytensor.tensor.blockwise import Blockwise
from pytensor.tensor.signal.conv import Convolve1d

from synkhronos._compiling.lean.axes import in_memory, of_data
from synkhronos._compiling.nodes import FLOATS, in_batches, without_axes
from synkhronos._libraries.library import usable


class Convolution(Op):
    """Rows of two arrays, convolved along the last axis; the other axes broadcast.

    The third input says whether there are all outputs, or only those of which no operand leaves the
    other one.
    """

    __props__ = ()

    def make_node(self, *inputs: Variable) -> Apply:
        out: Any = Blockwise(Convolve1d())(*inputs)
        return Apply(self, list(inputs), [out.type()])

    def perform(self, node: Apply, inputs: Sequence[Any], output_storage: Any) -> None:
        *rows, full = inputs
        convolve = functools.partial(np.convolve, mode="full" if full else "valid")
        found = np.vectorize(convolve, signature="(n),(k)->(o)")(*rows)
        output_storage[0][0] = found.astype(node.outputs[0].type.dtype, copy=False)


def convolve_rows(fgraph: FunctionGraph) -> None:
    """Replace PyTensor's convolutions, before operations on rows are prepared for numba."""
    found = [(n, full) for n in fgraph.toposort() if (full := _full_of(n)) is not None]
    if not found or not usable("synkhronos._compiling.lean.dispatch"):
        return
    for node, full in found:
        x, y = (_row_by_row(v) for v in node.inputs[:2])
        new = Apply(Convolution(), [x, y, full], [node.outputs[0].type()])
        fgraph.replace(
            node.outputs[0],
            new.outputs[0],
            reason="synkhronos_convolutions",
            import_missing=True,
        )


def _full_of(node: Apply) -> Any:
    """Whether a convolution has all outputs, as a number; None if it is none that is known here."""
    if type(in_batches(node)) is not Convolve1d:
        return None
    x, y, full = cast(list[Any], node.inputs)
    kinds = {v.type.dtype for v in (x, y, *node.outputs)}
    if len(kinds) > 1 or kinds.isdisjoint(FLOATS):
        return None
    full = without_axes(full)
    if isinstance(full, Constant) and np.size(full.data) == 1:
        return constant(np.array(np.all(full.data)))
    full = as_tensor(full)
    return full.dimshuffle() if all(full.type.broadcastable) else None


def _row_by_row(variable: Any) -> Any:
    """An operand; of what data alone give, a copy whose rows are one after another."""
    known = variable.owner is not None and of_data(variable)
    return in_memory(variable) if known else variable
