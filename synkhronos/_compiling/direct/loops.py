"""The loop of a kernel, as a function of the addresses of its buffers.

A number that a step makes stays in a register for the steps after it, and is stored where another
kernel reads it. Accumulators of reductions are in registers too, where LLVM finds them. Each index
is compared with the length of its axis, unless all of them are known to be within it: one that is
not reads the first element, and the function returns that it has failed. Rows that add to few
elements do so in copies of these, in turn. An operation on whole arrays writes its own
loops.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytensor.scalar as ps
from llvmlite import ir

from synkhronos._compiling.direct.arrays import Buffer, View
from synkhronos._compiling.direct.bounds import Bounds
from synkhronos._compiling.direct.code import Array, Code
from synkhronos._compiling.direct.kernels import Kernel
from synkhronos._compiling.direct.scalars import (
    BOOL,
    Number,
    Scalars,
    is_real,
    stored_type,
)
from synkhronos._compiling.direct.steps import (
    Accumulate,
    Check,
    Gather,
    Map,
    Reduce,
    Scatter,
    Step,
    Whole,
)
from synkhronos._compiling.direct.unfit import UnfitError

_WORD = ir.IntType(64)
_BYTE = ir.IntType(8)
_ALIGNED = 64  # bytes
_COPIES = (8, 4, 2)  # of a table to which rows add in turn
_MOST_COPIED = 1 << 11  # numbers of all copies, in the processor's first cache


def buffers_of(kernel: Kernel) -> list[Buffer]:
    """The buffers that a kernel reads or writes in memory."""
    found: dict[Buffer, None] = {}
    for step in kernel.steps:
        views = [*step.reads, *step.writes]
        if isinstance(step, Gather | Scatter):
            views.append(step.table)
        for view in views:
            if _in_memory(kernel, view.buffer):
                found[view.buffer] = None
    return list(found)


def parts_of(kernel: Kernel) -> list[tuple[Buffer, int]]:
    """Parts of buffers that begin at an element, where a kernel only reads several of a buffer.

    Each has an address of its own. Else LLVM takes the elements of one part from the step before of
    another, in registers, which is slower: those of a time series with lags.
    """
    written = {view.buffer for step in kernel.steps for view in step.writes}
    found: dict[Buffer, dict[int, None]] = {}
    for step in kernel.steps:
        for view in step.reads:
            if any(view.strides) and view.buffer not in written and _in_memory(kernel, view.buffer):
                found.setdefault(view.buffer, {})[view.offset] = None
    return [(buffer, at) for buffer, starts in found.items() if len(starts) > 1 for at in starts]


def _in_memory(kernel: Kernel, buffer: Buffer) -> bool:
    return buffer.constant is None and (buffer not in kernel.made or buffer in kernel.stored)


class Loop:
    """Writes the function of a kernel.

    Parameters
    ----------
    module : ir.Module
    name : str
    kernel : Kernel
    flags : sequence of str
    bounds : tuple
        Indices that are known to be within an axis.
    """

    def __init__(
        self, module: ir.Module, name: str, kernel: Kernel, flags: Sequence[str], bounds: Bounds
    ) -> None:
        self._module, self._kernel, self._bounds = module, kernel, bounds
        self.buffers, self.parts = buffers_of(kernel), parts_of(kernel)
        given = [*self.buffers, *(buffer for buffer, _ in self.parts)]
        kinds = [stored_type(buffer.dtype).as_pointer() for buffer in given]
        self.function = ir.Function(module, ir.FunctionType(_WORD, kinds), name)
        self.function.linkage = "internal"
        self.function.attributes.add("noinline")
        self.function.attributes.add("nounwind")
        for argument in self.function.args:
            argument.add_attribute("noalias")
        self._address = dict(zip(self.buffers, self.function.args, strict=False))
        self._begun = dict(zip(self.parts, self.function.args[len(self.buffers) :], strict=True))
        self._b = ir.IRBuilder(self.function.append_basic_block("entry"))
        self._code = Code(self._b, flags)
        [first, *_] = kernel.steps
        if isinstance(first, Whole):
            self._write_whole(first)
            return
        self._axes, self._lengths = _order(kernel)
        self._write()

    def _write_whole(self, step: Whole) -> None:
        code = self._code
        failed = code.slot(ir.IntType(1)(0))
        axes = len(step.batch)
        views = [*step.reads, *step.into]
        starts = [self._pointer(view.buffer, _WORD(view.offset)) for view in views]

        def write(index: Sequence[ir.Value]) -> None:
            arrays = []
            for view, start in zip(views, starts, strict=True):
                first = Array(start, view.shape[:axes], view.strides[:axes])
                start = code.place(first, *index)
                arrays.append(Array(start, view.shape[axes:], view.strides[axes:], view.dtype))
            given, into = arrays[: len(step.reads)], arrays[len(step.reads) :]
            if (found := step.write(code, given, into)) is not None:
                self._b.store(self._b.or_(self._b.load(failed), found), failed)

        self._loops(step.batch, 0, [], write)
        self._b.ret(self._b.zext(self._b.load(failed), _WORD))

    def _write(self) -> None:
        builder = self._b
        self._s = Scalars(builder, self._code.flags)
        self._wrong: ir.Value | None = None
        if any(isinstance(step, Gather | Scatter | Check) for step in self._kernel.steps):
            self._wrong = builder.alloca(ir.IntType(1))
            builder.store(ir.Constant(ir.IntType(1), 0), self._wrong)
        # accumulators, and the loop that they are for
        self._kept: dict[Reduce, tuple[ir.Value, int]] = {}
        for step in self._kernel.steps:
            if isinstance(step, Reduce):
                self._prepare(step)
        if copies := self._copies():
            self._add_in_turn(copies)
        else:
            self._nest(0, [])
        if self._wrong is None:
            builder.ret(_WORD(0))
        else:
            builder.ret(builder.zext(builder.load(self._wrong), _WORD))

    def _prepare(self, step: Reduce) -> None:
        """Make an accumulator in a register, or fill the memory of the result."""
        reduced = self._reduced(step)
        depth = len(reduced)
        while depth and reduced[depth - 1]:
            depth -= 1
        if not any(reduced[:depth]):
            place = self._b.alloca(stored_type(step.within))
            self._kept[step] = place, depth
            return
        if step.within != step.into.dtype:
            raise UnfitError(f"sums of {step.into.dtype} in {step.within}")
        number = self._identity(step)
        shape = [1 if r else n for n, r in zip(self._lengths, reduced, strict=True)]

        def fill(index: Sequence[ir.Value]) -> None:
            self._store(number, step.into, index)

        self._loops(shape, 0, [], fill)

    def _reduced(self, step: Reduce) -> list[bool]:
        """Whether each loop is over an axis that the result has no more."""
        return [axis in step.reduced for axis in self._axes_of(step)]

    def _axes_of(self, step: Step) -> list[int]:
        """The axis of a step for each loop."""
        long = [axis for axis, n in enumerate(step.space) if n != 1]
        return [long[axis] for axis in self._axes]

    def _identity(self, step: Reduce) -> Number:
        dtype = step.within
        if isinstance(step.op, ps.Add | ps.OR | ps.XOR):
            return self._s.constant(0, dtype)
        if isinstance(step.op, ps.Mul):
            return self._s.constant(1, dtype)
        if isinstance(step.op, ps.AND):
            return self._s.constant(1 if dtype == BOOL else -1, dtype)
        if isinstance(step.op, ps.Maximum | ps.Minimum):
            low = isinstance(step.op, ps.Maximum)
            if is_real(dtype):
                return self._s.constant(-math.inf if low else math.inf, dtype)
            if dtype == BOOL:
                return self._s.constant(not low, dtype)
            ends = np.iinfo(dtype)
            return self._s.constant(ends.min if low else ends.max, dtype)
        raise UnfitError(f"reduction by {step.op}")

    def _nest(self, depth: int, index: list[ir.Value]) -> None:
        """The loops from one on, with what is done before and after them."""
        mine = [step for step, (_, of) in self._kept.items() if of == depth]
        for step in mine:
            self._save(self._identity(step), self._kept[step][0])
        if depth == len(self._lengths):
            self._body(index)
        else:
            with self._code.counted(self._lengths[depth]) as at:
                self._nest(depth + 1, [*index, at])
        zero = [_WORD(0)] * (len(self._lengths) - depth)
        for step in mine:
            number = self._restore(self._kept[step][0], step.within)
            self._store(self._s.cast(number, step.into.dtype), step.into, [*index, *zero])

    def _loops(
        self,
        lengths: Sequence[int],
        depth: int,
        index: list[ir.Value],
        body: Callable[[Sequence[ir.Value]], None],
    ) -> None:
        if depth == len(lengths):
            body(index)
        elif lengths[depth] == 1:
            self._loops(lengths, depth + 1, [*index, _WORD(0)], body)
        else:
            with self._code.counted(lengths[depth]) as at:
                self._loops(lengths, depth + 1, [*index, at], body)

    def _body(self, index: Sequence[ir.Value]) -> None:
        made: dict[Buffer, Number] = {}
        for step in self._kernel.steps:
            given = [self._read(view, index, made) for view in step.reads]
            if isinstance(step, Map):
                kinds = [view.dtype for view in step.into]
                found = self._s.applied(step.op, given, kinds)
                for view, number in zip(step.into, found, strict=True):
                    self._put(self._s.cast(number, view.dtype), view, index, made)
            elif isinstance(step, Gather):
                place = self._place(step, given, index)
                self._put(self._loaded(step.table.buffer, place), step.into, index, made)
            elif isinstance(step, Scatter):
                self._scatter(step, given, index)
                made.pop(step.table.buffer, None)
            elif isinstance(step, Accumulate):
                self._add_up(step, given[0], index)
            elif isinstance(step, Reduce):
                self._accumulate(step, given[0], index)
            elif isinstance(step, Check):
                self._refuse(self._b.not_(self._s.cast(given[0], BOOL).value))

    def _put(
        self, number: Number, view: View, index: Sequence[ir.Value], made: dict[Buffer, Number]
    ) -> None:
        first = self._kernel.made.get(view.buffer) is view
        if first:
            made[view.buffer] = number
        else:
            made.pop(view.buffer, None)
        if not first or view.buffer in self._kernel.stored:
            self._store(number, view, index)

    def _read(self, view: View, index: Sequence[ir.Value], made: dict[Buffer, Number]) -> Number:
        if view.buffer in made and self._kernel.holds(view):
            return made[view.buffer]
        constant = view.buffer.constant
        if constant is not None and len(constant) == 1:
            return self._s.constant(constant[0], view.dtype)
        begin = self._begun.get((view.buffer, view.offset)) if any(view.strides) else None
        if begin is not None:
            place = self._element(replace(view, offset=0), index)
            return self._restore(self._b.gep(begin, [place], inbounds=True), view.dtype)
        return self._loaded(view.buffer, self._element(view, index))

    def _accumulate(self, step: Reduce, number: Number, index: Sequence[ir.Value]) -> None:
        number = self._s.cast(number, step.within)
        if step in self._kept:
            place, _ = self._kept[step]
            now = self._s.combined(step.op, self._restore(place, step.within), number)
            self._save(now, place)
            return
        now = self._s.combined(
            step.op, self._loaded(step.into.buffer, self._element(step.into, index)), number
        )
        self._store(now, step.into, index)

    def _add_up(self, step: Accumulate, number: Number, index: Sequence[ir.Value]) -> None:
        b, view = self._b, step.into
        number = self._s.cast(number, view.dtype)
        [at] = [
            at for axis, at in zip(self._axes_of(step), index, strict=True) if axis == step.axis
        ]
        here = self._element(view, index)
        first = b.icmp_unsigned("==", at, _WORD(0))
        before = b.select(first, here, b.sub(here, _WORD(view.strides[step.axis])))
        more = self._s.combined(step.op, self._loaded(view.buffer, before), number)
        found = b.select(first, number.value, more.value)
        self._save(Number(found, view.dtype), self._pointer(view.buffer, here))

    def _scatter(self, step: Scatter, given: Sequence[Number], index: Sequence[ir.Value]) -> None:
        *indices, number = given
        place, dtype = self._place(step, indices, index), step.table.dtype
        number = self._s.cast(number, dtype)
        if step.adds:
            number = self._s.combined(ps.add, self._loaded(step.table.buffer, place), number)
        self._save(number, self._pointer(step.table.buffer, place))

    def _copies(self) -> int:
        """How many copies of a table the rows add to in turn; 0 if they add to itself."""
        step, *others = self._kernel.steps
        if others or not isinstance(step, Scatter) or not step.adds or len(self._lengths) != 1:
            return 0
        table = step.table
        if not is_real(table.dtype) or table != View.whole(table.buffer, table.shape):
            return 0
        most = min(self._lengths[0], _MOST_COPIED)
        return next((n for n in _COPIES if n * table.buffer.size <= most), 0)

    def _add_in_turn(self, copies: int) -> None:
        """Add to copies of a table, each row to the next one, and then these to the table.

        To add to an element takes as long as to write it and to read it again, where the row before
        has added to the same one. Rows mostly are in the order of their groups.
        """
        b, [step], [rows] = self._b, self._kernel.steps, self._lengths
        assert isinstance(step, Scatter)
        table, size = step.table, step.table.buffer.size
        zero = self._s.constant(0, table.dtype)
        start = b.alloca(stored_type(table.dtype), copies * size)
        with self._code.counted(copies * size) as at:
            self._save(zero, b.gep(start, [at], inbounds=True))
        parts = [Buffer(size, table.dtype) for _ in range(copies)]
        steps = [replace(step, table=replace(table, buffer=part)) for part in parts]
        for number, part in enumerate(parts):
            self._address[part] = b.gep(start, [_WORD(number * size)], inbounds=True)

        def add(number: int, row: ir.Value) -> None:
            given = [self._read(view, [row], {}) for view in step.reads]
            self._scatter(steps[number], given, [row])

        whole = rows // copies * copies
        with self._code.counted(rows // copies) as turn:
            first = b.mul(turn, _WORD(copies))
            for number in range(copies):
                add(number, b.add(first, _WORD(number)))
        for row in range(whole, rows):
            add(row - whole, _WORD(row))
        with self._code.counted(size) as at:
            place = self._pointer(table.buffer, at)
            numbers = [self._loaded(part, at) for part in parts]
            self._save(
                self._s.folded(ps.add, [self._restore(place, table.dtype), *numbers], table.dtype),
                place,
            )

    def _place(
        self, step: Gather | Scatter, indices: Sequence[Number], index: Sequence[ir.Value]
    ) -> ir.Value:
        """The number of the element of a table that indices name; 0 for what is out of bounds."""
        b, table, rest = self._b, step.table, iter(step.rest)
        loops = {axis: at for axis, at in zip(self._axes_of(step), index, strict=True)}
        found: ir.Value = _WORD(table.offset)
        for length, stride, number in zip(table.shape, table.strides, step.placed, strict=True):
            if number is None:
                at = loops.get(next(rest), _WORD(0))
            else:
                at = self._s.cast(indices[number], "int64").value
                if (step.reads[number].buffer, length) in self._bounds:
                    found = b.add(found, b.mul(at, _WORD(stride)))
                    continue
                if not indices[number].dtype.startswith("u"):
                    last = b.add(at, _WORD(length))
                    at = b.select(b.icmp_signed("<", at, _WORD(0)), last, at)
                beyond = b.icmp_unsigned(">=", at, _WORD(length))
                self._refuse(beyond)
                at = b.select(beyond, _WORD(0), at)
            found = b.add(found, b.mul(at, _WORD(stride)))
        return found

    def _refuse(self, wrong: ir.Value) -> None:
        assert self._wrong is not None
        before = self._b.load(self._wrong)
        self._b.store(self._b.or_(before, wrong), self._wrong)

    def _element(self, view: View, index: Sequence[ir.Value]) -> ir.Value:
        """The number of the element of a buffer."""
        long = [axis for axis, n in enumerate(view.shape) if n != 1]
        found: ir.Value = _WORD(view.offset)
        for axis, at in zip(self._axes, index, strict=True):
            stride = view.strides[long[axis]]
            if stride:
                found = self._b.add(found, self._b.mul(at, _WORD(stride)))
        return found

    def _pointer(self, buffer: Buffer, place: ir.Value) -> ir.Value:
        start = self._address[buffer] if buffer.constant is None else self._table(buffer)
        return self._b.gep(start, [place], inbounds=True)

    def _table(self, buffer: Buffer) -> ir.Value:
        """The address of an array that stays."""
        assert buffer.constant is not None
        if buffer not in self._address:
            contents = bytearray(buffer.constant.tobytes())
            array = ir.ArrayType(_BYTE, len(contents))
            name = self._module.get_unique_name("constant")
            made = ir.GlobalVariable(self._module, array, name)
            made.linkage, made.global_constant, made.align = "internal", True, _ALIGNED
            made.initializer = ir.Constant(array, contents)
            self._address[buffer] = made.bitcast(stored_type(buffer.dtype).as_pointer())
        return self._address[buffer]

    def _loaded(self, buffer: Buffer, place: ir.Value) -> Number:
        return self._restore(self._pointer(buffer, place), buffer.dtype)

    def _store(self, number: Number, view: View, index: Sequence[ir.Value]) -> None:
        self._save(number, self._pointer(view.buffer, self._element(view, index)))

    def _restore(self, place: ir.Value, dtype: str) -> Number:
        value = self._b.load(place)
        if dtype == BOOL:
            value = self._b.icmp_unsigned("!=", value, ir.Constant(_BYTE, 0))
        return Number(value, dtype)

    def _save(self, number: Number, place: ir.Value) -> None:
        value = number.value
        if number.dtype == BOOL:
            value = self._b.zext(value, _BYTE)
        self._b.store(value, place)


def _order(kernel: Kernel) -> tuple[list[int], list[int]]:
    """The axes of the space in the order of the loops, and the lengths of these.

    Axes that follow each other in the memory of all arrays have one loop, which is known by the
    last one. The innermost loop is over the axis whose elements lie next to each other.
    """
    space = kernel.space
    serial = [s for s in kernel.steps if isinstance(s, Accumulate | Scatter)]
    if any(isinstance(s, Accumulate) or not s.adds for s in serial):
        return [*range(len(space))], [*space]
    known: dict[tuple[int, ...], bool] = {}  # strides, and whether they are of memory
    for step in kernel.steps:
        long = [axis for axis, n in enumerate(step.space) if n != 1]
        for view in [*step.reads, *([] if isinstance(step, Scatter) else step.writes)]:
            strides = tuple(view.strides[axis] for axis in long)
            in_memory = _in_memory(kernel, view.buffer) or view.buffer.constant is not None
            known[strides] = known.get(strides, False) or in_memory
    axes: list[int] = []
    lengths: list[int] = []
    apart = any(isinstance(s, Gather | Scatter) for s in kernel.steps)
    for axis, n in enumerate(space):
        if axes and not apart and all(s[axes[-1]] == n * s[axis] for s in known):
            axes[-1], lengths[-1] = axis, n * lengths[-1]
        else:
            axes.append(axis)
            lengths.append(n)
    steps = [sum(abs(s[axis]) for s, in_memory in known.items() if in_memory) for axis in axes]
    order = sorted(range(len(axes)), key=lambda at: -steps[at])
    return [axes[at] for at in order], [lengths[at] for at in order]
