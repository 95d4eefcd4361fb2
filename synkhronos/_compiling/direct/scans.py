"""The loop of a scan whose steps compute numbers; the scan says where a step reads and writes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from llvmlite import ir

from synkhronos._compiling.direct.arrays import View, array_of, new_array
from synkhronos._compiling.direct.code import Array, Code
from synkhronos._compiling.direct.program import Program
from synkhronos._compiling.direct.scalars import BOOL, Number, Scalars
from synkhronos._compiling.lean.scan_places import (
    Place,
    Read,
    buffers,
    read_places,
    written_places,
)
from synkhronos._compiling.lean.scans import NumberScan

_BIT, _WORD = ir.IntType(1), ir.IntType(64)
type Index = tuple[int | ir.Value, ...]


class ScanLoop:
    """Writes the loop.

    Parameters
    ----------
    op : NumberScan
    steps : int

    Attributes
    ----------
    given : list of int
        The inputs that steps read.
    carried : list of int
        The inputs whose last value alone is kept.
    """

    def __init__(self, op: NumberScan, steps: int) -> None:
        info = op.scan.info
        self._op, self._steps = op, steps
        self._read, self._written = read_places(info), written_places(info)
        self._buffers = [buffer.outer for buffer in buffers(info)]
        self._shapes = {p.outer: s for p, s in zip(self._written, op.shapes, strict=True)}
        self.carried = [p.outer for p in self._written if p.kind == "carried"]
        places = map(self._place_of, op.reads)
        self.given = [p.outer for p in places if p.kind in ("row", "whole")]
        self.given = sorted({*self.given, *self.carried})

    def _place_of(self, read: Read) -> Place:
        if read.source < len(self._read):
            return self._read[read.source]
        table = self._op.scan.info.n_outer_inputs + read.source - len(self._read)
        return Place("whole", table)

    def __call__(self, code: Code, given: Sequence[Array], into: Sequence[Array]) -> ir.Value:
        """Append the instructions; whether an index was out of bounds."""
        self._code, self._scalars = code, Scalars(code.builder, code.flags)
        self._failed = code.slot(_BIT(0))
        self._arrays = dict(zip(self.given, given, strict=True))
        outs = [*self._buffers, *self.carried]
        self._outs = dict(zip(outs, into, strict=True))
        self._slots: dict[Index, ir.Value] = {}
        for outer in self.carried:
            for index in np.ndindex(self._shapes[outer]):
                number = self._cast(self._load(self._arrays[outer], index), outer)
                self._slots[outer, *index] = code.slot(number.value)
        known: dict[int, Number] = {}
        once = [self._is_once(read) for read in self._op.reads]
        self._look(known, once, True)
        with code.each(0, self._steps) as at:
            self._at = at
            self._look(known, once, False)
            numbers = [known[i] for i in range(len(self._op.reads))]
            self._store(self._scalars.applied(self._op.step, numbers, ()))
        for outer in self.carried:
            for index in np.ndindex(self._shapes[outer]):
                value = code.builder.load(self._slots[outer, *index])
                self._save(Number(value, self._outs[outer].dtype), self._outs[outer], index)
        return code.builder.load(self._failed)

    def _is_once(self, read: Read) -> bool:
        """Whether a number is the same in all steps."""
        chosen = [self._op.reads[i[0]] for i in read.where if isinstance(i, tuple)]
        return self._place_of(read).kind == "whole" and all(map(self._is_once, chosen))

    def _look(self, known: dict[int, Number], once: Sequence[bool], wanted: bool) -> None:
        """Read numbers; those that tell where others are come first."""
        reads = list(enumerate(self._op.reads))
        reads.sort(key=lambda pair: any(isinstance(i, tuple) for i in pair[1].where))
        for at, read in reads:
            if once[at] is wanted:
                known[at] = self._number(read, known)

    def _number(self, read: Read, known: dict[int, Number]) -> Number:
        place = self._place_of(read)
        if place.kind == "carried":
            outer = place.outer
            value = self._code.builder.load(self._slots[outer, *read.where])
            return Number(value, self._outs[outer].dtype)
        array = (self._outs if place.kind == "tap" else self._arrays)[place.outer]
        index = tuple(
            self._within(known[i[0]], array.shape[axis]) if isinstance(i, tuple) else i
            for axis, i in enumerate(read.where)
        )
        if place.kind == "row":
            index = self._at, *index
        elif place.kind == "tap":
            index = self._row(place, array), *index
        return self._load(array, index)

    def _row(self, place: Place, array: Array) -> ir.Value:
        """The row of a buffer in a step; short buffers are circular."""
        b, length = self._code.builder, array.shape[0]
        row = b.add(self._at, _WORD(place.offset))
        return row if self._steps + place.offset <= length else b.urem(row, _WORD(length))

    def _within(self, number: Number, length: int) -> ir.Value:
        """An index that may count from the end; 0 for one that is out of bounds."""
        b = self._code.builder
        at = self._scalars.cast(number, "int64").value
        at = b.select(b.icmp_signed("<", at, _WORD(0)), b.add(at, _WORD(length)), at)
        beyond = b.icmp_unsigned(">=", at, _WORD(length))
        self._fail(beyond)
        return b.select(beyond, _WORD(0), at)

    def _fail(self, wrong: ir.Value) -> None:
        b = self._code.builder
        b.store(b.or_(b.load(self._failed), wrong), self._failed)

    def _store(self, computed: Sequence[Number]) -> None:
        """Write what a step has computed; the last number may tell that an index was wrong."""
        places = [
            (place, index)
            for place, shape in zip(self._written, self._op.shapes, strict=True)
            for index in np.ndindex(shape)
        ]
        for (place, index), number in zip(places, computed, strict=False):
            kept = self._cast(number, place.outer)
            if place.kind == "carried":
                self._code.builder.store(kept.value, self._slots[place.outer, *index])
            else:
                out = self._outs[place.outer]
                self._save(kept, out, (self._row(place, out), *index))
        for number in computed[len(places) :]:
            self._fail(self._scalars.cast(number, BOOL).value)

    def _cast(self, number: Number, outer: int) -> Number:
        return self._scalars.cast(number, self._outs[outer].dtype)

    def _load(self, array: Array, index: Index) -> Number:
        value = self._code.load(array, *index)
        if array.dtype == BOOL:
            value = self._code.builder.icmp_unsigned("!=", value, value.type(0))
        return Number(value, array.dtype)

    def _save(self, number: Number, array: Array, index: Index) -> None:
        value = number.value
        if array.dtype == BOOL:
            value = self._code.builder.zext(value, ir.IntType(8))
        self._code.store(value, array, *index)


def in_order(program: Program, rows: View, steps: int, ends: int | None) -> View:
    """The rows of a buffer in order after these steps; those of no step are zeros."""
    if ends is None:
        return rows
    length, end = rows.shape[0], steps + ends
    if length > end:
        rest = rows.part([slice(end, None)])
        program.copied(array_of(np.zeros((), rows.dtype)), rest)
    if not 1 < length < end or not end % length:
        return rows
    out, first = new_array(rows.shape, rows.dtype), end % length
    program.copied(rows.part([slice(first, None)]), out.part([slice(length - first)]))
    program.copied(rows.part([slice(first)]), out.part([slice(length - first, None)]))
    return out
