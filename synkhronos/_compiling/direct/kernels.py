"""Which steps share a loop."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from synkhronos._compiling.direct.arrays import Buffer, Shape, View
from synkhronos._compiling.direct.steps import Accumulate, Check, Gather, Map, Scatter, Step, Whole

_MOST_STEPS = 60  # of a loop


@dataclass(eq=False)
class Kernel:
    """Steps for the elements of one space, without axes of length 1.

    Attributes
    ----------
    made : dict of Buffer to View
        What its steps compute for the element of a step of the loop, while it is in registers.
    """

    space: Shape
    steps: list[Step] = field(default_factory=list)
    made: dict[Buffer, View] = field(default_factory=dict)
    stored: set[Buffer] = field(default_factory=set)  # of what is made: others read it

    @property
    def is_whole(self) -> bool:
        """Whether it is one operation on whole arrays, and no loop over elements."""
        return isinstance(self.steps[0], Whole)

    def holds(self, view: View) -> bool:
        """Whether these elements are computed by the same step of the loop."""
        return _squeezed(view) == _squeezed(self.made.get(view.buffer))


def _squeezed(view: View | None) -> object:
    if view is None:
        return None
    axes = [a for a, n in enumerate(view.shape) if n != 1]
    return [(view.shape[a], view.strides[a]) for a in axes], view.offset


def kernels(steps: Sequence[Step], wanted: Sequence[View]) -> list[Kernel]:
    """Loops in an order, each with as many steps as it can have.

    Parameters
    ----------
    steps : sequence of Step
        In an order.
    wanted : sequence of View
        Arrays that are read after all loops.
    """
    found: list[Kernel] = []
    readers: dict[Buffer, int] = {}  # the last kernel that reads or writes it
    writers: dict[Buffer, list[int]] = {}
    for step in _needed(steps, wanted):
        space = tuple(n for n in step.space if n != 1)
        place = _place(step, space, found, readers, writers)
        if place is None:
            place = len(found)
            found.append(Kernel(space))
        kernel = found[place]
        for view in _reads(step):
            held = view.buffer in kernel.made and kernel.holds(view) and not _is_table(step, view)
            for at in writers.get(view.buffer, ()):
                if at != place or _is_table(step, view) or not (held or not space):
                    found[at].stored.add(view.buffer)
            readers[view.buffer] = max(place, readers.get(view.buffer, 0))
        kernel.steps.append(step)
        for view in step.writes:
            if isinstance(step, Map | Gather) and view.buffer not in writers:
                kernel.made[view.buffer] = view
            else:
                for at in [*writers.get(view.buffer, ()), place]:
                    found[at].stored.add(view.buffer)
            writers.setdefault(view.buffer, []).append(place)
            readers[view.buffer] = max(place, readers.get(view.buffer, 0))
    for view in wanted:
        for at in writers.get(view.buffer, ()):
            found[at].stored.add(view.buffer)
    return found


def _needed(steps: Sequence[Step], wanted: Sequence[View]) -> list[Step]:
    """The steps that something follows from: lengths of arrays are known without theirs."""
    needed = {view.buffer for view in wanted}
    found = []
    for step in reversed(steps):
        if isinstance(step, Check) or not needed.isdisjoint(view.buffer for view in step.writes):
            # what is written in part stays in other parts
            needed.update(view.buffer for view in (*_reads(step), *step.writes))
            found.append(step)
    return found[::-1]


def _place(
    step: Step,
    space: Shape,
    found: Sequence[Kernel],
    readers: dict[Buffer, int],
    writers: dict[Buffer, list[int]],
) -> int | None:
    """The first kernel that a step can be in; None if there is none.

    The kernel of numbers has no loop: its steps follow each other.
    """
    if isinstance(step, Whole):
        return None
    first = 0
    for view in _reads(step):
        for at in writers.get(view.buffer, ()):
            aligned = found[at].holds(view) and not _is_table(step, view)
            alone = len(writers[view.buffer]) == 1
            together = found[at].space == space and (not space or (aligned and alone))
            first = max(first, at if together else at + 1)
    for view in step.writes:
        if view.buffer in readers:
            at = readers[view.buffer]
            first = max(first, at if not space and not found[at].space else at + 1)
    for at in range(first, len(found)):
        kernel = found[at]
        if kernel.is_whole or kernel.space != space or len(kernel.steps) >= _MOST_STEPS:
            continue
        if not space or not any(map(_is_serial, [step, *kernel.steps])):
            return at
    return None


def _is_serial(step: Step) -> bool:
    """Whether a step has a loop of its own: LLVM does not vectorise one with such a step."""
    return isinstance(step, Accumulate | Scatter)


def _is_table(step: Step, view: View) -> bool:
    return isinstance(step, Gather | Scatter) and view is step.table


def _reads(step: Step) -> Iterator[View]:
    yield from step.reads
    if isinstance(step, Gather | Scatter):
        yield step.table
