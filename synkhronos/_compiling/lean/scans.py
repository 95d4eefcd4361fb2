"""Loops over time whose states are a few numbers: HMM, GARCH, differential equations, learning.

PyTensor's code for numba calls a function of arrays in each step of a `Scan`: 0.5 to 3 us. Here a
step is a function of numbers in a loop over the arrays: 0.01 to 0.1 us. It compiles faster, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytensor.scalar as ps
from pytensor.compile.mode import Mode
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.op import Op
from pytensor.graph.rewriting.basic import get_active_mode
from pytensor.graph.traversal import ancestors
from pytensor.scalar.basic import ScalarType
from pytensor.scan.op import Scan
from pytensor.tensor.type import TensorType

from synkhronos._compiling.lean.numbers import Elements, Numbers, UnfitError, is_short
from synkhronos._compiling.lean.scan_loops import source
from synkhronos._compiling.lean.scan_places import Read, buffers, read_places, written_places
from synkhronos._compiling.where import rewriter_before
from synkhronos._libraries.library import usable

_REASON = "synkhronos_scans"
_LOOPS = 47.0  # operations become loops, and loops are joined


class NumberScan(Op):
    """A `Scan` whose step computes numbers.

    Its inputs are those of the scan, then long constants that steps look numbers up in.

    Attributes
    ----------
    scan : Scan
        It says what is computed.
    step : Composite
        (numbers) -> the elements of the inner outputs, one after the other. One more tells, if it
        is there, whether an index is out of bounds.
    reads : tuple of Read
        The inputs of the step.
    shapes : tuple of tuple of int
        Of the inner outputs.
    """

    __props__ = ("scan", "step", "reads", "shapes", "destroyed")

    def __init__(
        self,
        scan: Scan,
        step: ps.Composite,
        reads: Sequence[Read],
        shapes: Sequence[tuple[int, ...]],
    ) -> None:
        self.scan, self.step = scan, step
        self.reads, self.shapes = tuple(reads), tuple(shapes)
        traced = len(scan.info.mit_mot_in_slices) + scan.info.n_mit_sot + scan.info.n_sit_sot
        self.destroy_map = {k: v for k, v in scan.destroy_map.items() if k < traced}
        self.destroyed = tuple(self.destroy_map)

    def make_node(self, *inputs: Variable) -> Apply:
        node = self.scan.make_node(*inputs[: self.scan.info.n_outer_inputs])
        tables = inputs[self.scan.info.n_outer_inputs :]
        return Apply(self, [*node.inputs, *tables], [v.type() for v in node.outputs])

    def perform(self, node: Apply, inputs: Sequence[Any], output_storage: Any) -> None:
        from synkhronos._libraries.pytensor import compile_numba_function_src

        names = {"np": np, "step": self.step.impl}
        found = compile_numba_function_src(source(node), "scan", names)(*inputs)
        if len(output_storage) == 1:
            found = [found]
        for cell, value in zip(output_storage, found, strict=True):
            cell[0] = value


def scan_numbers(fgraph: FunctionGraph) -> None:
    """Replace scans whose inner graph is one of a few numbers that has code."""
    if not usable("synkhronos._compiling.lean.dispatch"):
        return
    mode = get_active_mode(fgraph)
    for node in fgraph.toposort():
        if isinstance(node.op, Scan) and (found := _of_numbers(node, mode)):
            pairs = list(zip(node.outputs, found.outputs, strict=True))
            fgraph.replace_all(pairs, reason=_REASON)


def _of_numbers(node: Apply, mode: Mode) -> Apply | None:
    """The same loop with a step of numbers; None if there is none."""
    scan: Any = node.op
    if scan.info.as_while:
        return None
    inner = scan.fgraph.unfreeze()
    rewriter_before(_LOOPS, mode).rewrite(inner)
    step = _Step(scan, node, inner.inputs)
    known = Numbers(step.known, step.look_up)
    try:
        outputs = known.of(inner.outputs)
    except (UnfitError, IndexError, ValueError):  # of the last two PyTensor tells when it runs
        return None
    shapes = [out.shape for out in outputs]
    if not step.keeps(shapes):
        return None
    numbers = [v for elements in outputs for v in elements.ravel()]
    numbers += [beyond] if (beyond := known.beyond()) is not None else []
    read, places = step.used(numbers)
    if not read:
        return None
    composite = ps.Composite(read, [ps.identity(v) for v in numbers])
    op = NumberScan(scan, composite, places, shapes)
    return op.make_node(*node.inputs, *step.tables)


class _Step:
    """The numbers that a step reads.

    Attributes
    ----------
    known : dict of Variable to array of Variable
        The elements of the inner inputs that are short.
    tables : list of Constant
        That elements are looked up in.
    """

    def __init__(self, scan: Scan, node: Apply, inputs: Sequence[Variable]) -> None:
        self.known: dict[Variable, Elements] = {}
        self.tables: list[Constant] = []
        self._inputs = list(inputs)
        self._info = scan.info
        self._reads: dict[Variable, tuple[int, tuple[Any, ...]]] = {}
        for at, (variable, place) in enumerate(zip(inputs, read_places(scan.info), strict=True)):
            shape = _shape(variable, node.inputs[place.outer])
            if isinstance(variable.type, TensorType | ScalarType) and is_short(shape):
                self.known[variable] = self._read(at, variable.type.dtype, shape, ())

    def _read(self, source: int, dtype: str, shape: Any, before: Sequence[Any]) -> Elements:
        found = np.empty(shape, object)
        for index in np.ndindex(*shape):
            found[index] = number = ps.get_scalar_type(dtype)()
            self._reads[number] = source, (*before, *index)
        return found

    def look_up(self, table: Variable, index: Sequence[Any]) -> Elements:
        """The elements of a part of a long array, of which steps read one after the other.

        Raises
        ------
        UnfitError
            The index is computed by the step, or the part is long.
        """
        rest = getattr(table.type, "shape", (None,))[len(index) :]
        given = all(isinstance(i, int) or self._is_given(i) for i in index)
        if not given or not is_short(rest):
            raise UnfitError
        if table in self._inputs:
            source = self._inputs.index(table)
        elif isinstance(table, Constant):
            source = len(self._inputs) + len(self.tables)
            self.tables.append(table)
        else:
            raise UnfitError
        return self._read(source, table.type.dtype, rest, index)

    def keeps(self, shapes: Sequence[tuple[int, ...]]) -> bool:
        """Whether inner outputs of these shapes fill the rows of the states that they replace."""
        places = zip(self._inputs, read_places(self._info), strict=True)
        states = {p.outer: self.known[v].shape for v, p in places if v in self.known}
        new = {buffer.outer for buffer in buffers(self._info) if buffer.is_new}
        written = zip(written_places(self._info), shapes, strict=True)
        return all(p.outer in new or states.get(p.outer) == shape for p, shape in written)

    def _is_given(self, number: Any) -> bool:
        """Whether a number is an element of an inner input whose place is known before."""
        _, where = self._reads.get(number, (0, (number,)))
        return all(isinstance(i, int) for i in where)

    def used(self, numbers: Sequence[Variable]) -> tuple[list[Variable], list[Read]]:
        """The numbers that these depend on, and where a step reads them."""
        needed = [v for v in ancestors(numbers) if v in self._reads]
        for _, index in [self._reads[v] for v in needed]:
            needed += [v for v in index if not isinstance(v, int)]
        needed = list(dict.fromkeys(needed))
        places = {v: (at,) for at, v in enumerate(needed)}
        reads = [self._reads[v] for v in needed]
        return needed, [Read(s, tuple(places.get(i, i) for i in index)) for s, index in reads]


def _shape(variable: Variable, outer: Variable) -> tuple[int | None, ...]:
    """The lengths of the axes of an inner input; None where one is not known."""
    shape = getattr(variable.type, "shape", ())
    known = getattr(outer.type, "shape", ())
    known = known[len(known) - len(shape) :]
    return tuple(b if a is None else a for a, b in zip(shape, known, strict=True))
