"""The text of loops whose steps compute numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from pytensor.graph.basic import Apply
from pytensor.scalar.basic import ScalarType
from pytensor.scan.op import ScanInfo

from synkhronos._compiling.lean.scan_places import (
    Buffer,
    Place,
    Read,
    buffers,
    read_places,
    written_places,
)

VERSION = 2  # part of the key of cached machine code: change it whenever the code changes
_BEYOND = "a step of a scan reads or writes at an index that is out of bounds"


def source(node: Apply) -> str:
    """The text of a function `scan` that computes a `NumberScan`: its inputs -> its outputs.

    It calls a function `step`: numbers -> the elements of the inner outputs.
    """
    return "\n".join(_Source(node).lines())


class _Source:
    """The text. Names begin with a (input), b (rows), n (their number), k (the row of a step).

    They begin with c (carried), x (what a step reads) and y (what it computes).
    """

    def __init__(self, node: Apply) -> None:
        op: Any = node.op
        info: ScanInfo = op.scan.info
        self._op = op
        self._dtypes = [v.type.dtype for v in node.outputs]
        self._inputs = [v.type for v in node.inputs]
        self._read, self._written = read_places(info), written_places(info)
        self._buffers = buffers(info)
        self._shapes = {p.outer: s for p, s in zip(self._written, op.shapes, strict=True)}
        self._carried = [p.outer for p in self._written if p.kind == "carried"]

    def lines(self) -> Iterator[str]:
        """The lines of the text."""
        yield f"def scan({', '.join(f'a{at}' for at in range(len(self._inputs)))}):"
        yield "    steps = a0.item()"
        for at, buffer in enumerate(self._buffers):
            yield from self._begun(at, buffer)
        for outer in self._carried:
            for index in np.ndindex(self._shapes[outer]):
                yield f"    {_carried(outer, index)} = a{outer}[{_text(index)}]"
        once = [self._is_once(read) for read in self._op.reads]
        yield from self._reads(1, once, True)
        yield "    for i in range(steps):"
        yield from self._rows()
        yield from self._reads(2, once, False)
        yield from self._step()
        for buffer in self._buffers:
            yield from self._ended(buffer)
        for dtype, outer in zip(self._dtypes[len(self._buffers) :], self._carried, strict=True):
            yield f"    b{outer} = np.empty({self._shapes[outer]}, np.{dtype})"
            for index in np.ndindex(self._shapes[outer]):
                yield f"    b{outer}[{_text(index)}] = {_carried(outer, index)}"
        written = [*(buffer.outer for buffer in self._buffers), *self._carried]
        yield f"    return {', '.join(f'b{outer}' for outer in written)}"

    def _begun(self, at: int, buffer: Buffer) -> Iterator[str]:
        """A buffer before the first step."""
        o = buffer.outer
        if buffer.is_new:
            yield f"    n{o} = a{o}.item()"
            shape = "".join(f"{n}, " for n in (f"n{o}", *self._shapes[o]))
            yield f"    b{o} = np.empty(({shape}), np.{self._dtypes[at]})"
            return
        yield f"    b{o} = a{o}{'' if at in self._op.destroy_map else '.copy()'}"
        yield f"    n{o} = b{o}.shape[0]"

    def _ended(self, buffer: Buffer) -> Iterator[str]:
        """A buffer after the last step: its rows are in order, and those of no step are zeros."""
        if buffer.ends is None:
            return
        b, n = f"b{buffer.outer}", f"n{buffer.outer}"
        yield f"    end = steps + {buffer.ends}"
        yield f"    if 1 < {n} < end and end % {n}:"
        yield f"        {b} = np.concatenate(({b}[end % {n}:], {b}[:end % {n}]))"
        yield f"    if {n} > end:"
        yield f"        {b}[end:] = 0"

    def _rows(self) -> Iterator[str]:
        """The rows of the buffers that a step reads and writes; short buffers are circular."""
        taps = {p[1:] for p in (*self._read, *self._written) if p.kind == "tap"}
        for outer, offset in sorted(taps):
            k, n = f"k{outer}_{offset}", f"n{outer}"
            yield f"        {k} = i + {offset}"
            yield f"        if {k} >= {n}:"  # a division takes as long as the rest of a short step
            yield f"            {k} %= {n}"

    def _step(self) -> Iterator[str]:
        """A step, and what it writes."""
        places = [
            self._place(place, index)
            for place, shape in zip(self._written, self._op.shapes, strict=True)
            for index in np.ndindex(shape)
        ]
        computed = [f"y{at}" for at in range(self._op.step.nout)]
        given = ", ".join(f"x{at}" for at in range(len(self._op.reads)))
        yield f"        {', '.join(computed)} = step({given})"
        if len(computed) > len(places):
            yield f"        if {computed.pop()}:"
            yield f"            raise IndexError({_BEYOND!r})"
        yield from (f"        {p} = {y}" for p, y in zip(places, computed, strict=True))

    def _is_once(self, read: Read) -> bool:
        """Whether a number is the same in all steps."""
        if read.source < len(self._read) and self._read[read.source].kind != "whole":
            return False
        chosen = [self._op.reads[i[0]] for i in read.where if isinstance(i, tuple)]
        return all(map(self._is_once, chosen))

    def _reads(self, depth: int, once: Sequence[bool], wanted: bool) -> Iterator[str]:
        """The numbers that are read once, or in each step; those that tell where come first."""
        reads = list(enumerate(self._op.reads))
        reads.sort(key=lambda pair: any(isinstance(i, tuple) for i in pair[1].where))
        for at, read in reads:
            if once[at] is wanted:
                yield from ("    " * depth + line for line in self._number(at, read))

    def _number(self, at: int, read: Read) -> Iterator[str]:
        """The lines that read a number; numbers of data that tell where may be out of bounds."""
        index = tuple(f"x{i[0]}" if isinstance(i, tuple) else i for i in read.where)
        if read.source < len(self._read):
            place = self._read[read.source]
        else:
            table = self._op.scan.info.n_outer_inputs + read.source - len(self._read)
            place = Place("whole", table)
        for axis, i in enumerate(index):
            if isinstance(i, str):
                n = f"a{place.outer}.shape[{axis}]"
                yield f"if {i} < -{n} or {i} >= {n}:"
                yield f"    raise IndexError({_BEYOND!r})"
        yield f"x{at} = {self._place(place, index)}"

    def _place(self, place: Place, index: tuple[Any, ...]) -> str:
        """The text of an element."""
        kind, outer, offset = place
        if kind == "row":
            return f"a{outer}[{_text(('i', *index))}]"
        if kind == "tap":
            return f"b{outer}[{_text((f'k{outer}_{offset}', *index))}]"
        if kind == "carried":
            return _carried(outer, index)
        if isinstance(self._inputs[outer], ScalarType):
            return f"a{outer}"
        return f"a{outer}[{_text(index)}]"


def _carried(outer: int, index: tuple[Any, ...]) -> str:
    return "_".join(map(str, (f"c{outer}", *index)))


def _text(index: tuple[Any, ...]) -> str:
    return ", ".join(map(str, index)) or "()"
