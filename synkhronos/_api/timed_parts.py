"""Times a function in the master only, on all rows of a call and on fractions of them."""

from __future__ import annotations

import mmap
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytensor
from pytensor.compile.mode import get_default_mode, predefined_modes

from synkhronos._api.advice import PARTS, ROUND_SECONDS, Timing, seconds_of, seconds_of_parts
from synkhronos._api.data import Data
from synkhronos._api.group_function import GroupFunction
from synkhronos._api.request import Request
from synkhronos._engine.commands.call import BIG_BYTES
from synkhronos._engine.replicas import Variant
from synkhronos._errors import InputError
from synkhronos._host.thread_pools import ThreadLimits
from synkhronos._plan.rows import Span
from synkhronos._proofs.reductions import Reduction

_LEAST_ROUND = 5e-6
_COPIES = 3  # that a write, and a read from the cache of another core, take together


class TimedParts:
    """The parts of one call, which this process computes by itself and without effects."""

    def __init__(self, function: GroupFunction, asked: Request) -> None:
        group, arguments = function.group, function.arguments
        self._group, self._function = group, function
        self._recipe = function.plan.recipe
        self._replica = group.member.replicas[function.number]
        given = arguments.bind(asked.args, asked.kwargs)
        # the rows of the call; None if its inputs are not scattered
        self._selection, self.rows = arguments.select(given, asked.batch)
        self._given = [v.readable if isinstance(v, Data) else v for v in given]
        self._copied = [i for i in self._selection if not isinstance(given[i], Data)]
        self._sliceables = [s.container.storage[0] for s in self._recipe.sliceables]
        if self._sliceables and group.size > 1:
            raise InputError(
                f"advise: {function.what} has sliceable_shareds, of which each member has its own "
                "rows here: make it in a group of one, synk.fork(1)"
            )
        if self._sliceables:
            self.rows = len(self._sliceables[0])
        outputs = function.outputs
        self._variant = Variant(outputs.partials(outputs.subset(None)) + outputs.kept)

    def compute(self, k: int) -> Callable[[], list[object]]:
        """A function that computes the outputs of one k-th of the rows."""
        n = None if self.rows is None else max(1, self.rows // k)

        def run() -> list[object]:
            arguments = [self._part(i, n) for i in self._function.arguments.order]
            sliceables = [np.asarray(s)[:n] for s in self._sliceables]
            lengths = (1 if n is None else n,)
            return self._replica.run(self._variant, arguments, sliceables, lengths).outputs

        return run

    def _part(self, index: int, n: int | None) -> object:
        """The first n of an input's selected rows, as a member gets them; None: all."""
        value, rows = self._given[index], self._selection.get(index)
        if rows is None:
            return value
        mine = rows if n is None else rows.cut(0, n)
        if isinstance(mine, Span):
            return value[mine.start : mine.stop]
        buffer = self._replica.buffer(("advice", index), len(mine), value)
        return np.take(value, mine.rows, axis=0, out=buffer, mode="clip")

    def timing(
        self,
        # makes the call in the group, so that its other costs can be measured
        called: Callable[[], object] | None = None,
        # further work of a call, which the members divide equally whatever the rows
        shared: Callable[[], object] | None = None,
    ) -> Timing:
        """The times of the call."""
        with np.errstate(all="ignore"):
            threads = seconds_of(self.compute(1))
        added = 0.0
        if shared is not None:
            with ThreadLimits(1):
                added = seconds_of(shared)
        size, jax = self._group.size, self._recipe.jax
        inner = seconds_of(called) if called is not None and size > 1 else None
        if jax:
            whole = threads if inner is None else inner * size
            parts = {k: whole / k for k in PARTS}
        else:
            parts = seconds_of_parts(self.compute)
        plain = threads if jax else parts[1]
        parts = {k: t + added / k for k, t in parts.items()}
        timing = Timing(_name(self._recipe.mode), plain + added, threads + added, 0.0, parts, 0.0)
        if inner is not None:
            between = max(inner - timing.seconds(size), _LEAST_ROUND)
        else:
            meetings = 2 if self._function.outputs.kept else 1  # a step meets before its update
            between = meetings * ROUND_SECONDS + self._copying() + self._moving()
        return replace(timing, round=between)

    def _copying(self) -> float:
        """Seconds to copy arrays that are not Data into shared memory."""
        arrays = [np.array(self._part(i, None)) for i in self._copied]
        targets = [np.array(a) for a in arrays]

        def copy() -> None:
            for target, array in zip(targets, arrays, strict=True):
                np.copyto(target, array)

        return seconds_of(copy) if arrays else 0.0

    def _moving(self) -> float:
        """Seconds to move large outputs and gradients, about.

        Outputs that are gathered go through new shared memory, of which both sides get the pages.
        Others, and gradients, are copied to memory that is used again.
        """
        reductions = self._recipe.reductions
        kept = self._function.outputs.kept
        fresh: list[np.ndarray] = []
        used_again: list[np.ndarray] = []
        for i, value in zip(self._variant.outputs, self.compute(1)(), strict=True):
            array = np.asarray(value)
            if i in kept or array.nbytes >= BIG_BYTES:
                gathered = i not in kept and reductions[i] is Reduction.GATHER
                (fresh if gathered else used_again).append(array)
        targets = [np.array(v) for v in used_again]

        def move() -> None:
            for v in fresh:
                pages = np.frombuffer(mmap.mmap(-1, v.nbytes), v.dtype)
                pages[...] = v.ravel()
                np.array(pages)
            for target, v in zip(targets, used_again, strict=True):
                for _ in range(_COPIES):
                    np.copyto(target, v)

        return seconds_of(move) if fresh or used_again else 0.0


def _name(mode: Any) -> str:
    """The name by which PyTensor knows a mode; else that of what runs its operations."""
    mode = mode or pytensor.config.mode
    if isinstance(mode, str) and mode != "Mode":  # that is PyTensor's default
        return mode
    known = (name for name, predefined in predefined_modes.items() if predefined == mode)
    linker = get_default_mode().linker if mode == "Mode" else mode.linker
    return next(known, type(linker).__name__.removesuffix("Linker").upper())
