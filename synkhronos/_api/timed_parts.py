"""Times a function in the master only, on all rows of a call and on fractions of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytensor
from pytensor.compile.mode import get_default_mode, predefined_modes
from threadpoolctl import threadpool_limits

from synkhronos._api.advice import PARTS, ROUND_SECONDS, Timing, seconds_of, seconds_of_parts
from synkhronos._api.group_function import GroupFunction
from synkhronos._engine.commands.call import BIG_BYTES
from synkhronos._engine.replicas import Variant
from synkhronos._errors import InputError
from synkhronos._plan.rows import Selection, Span

_LEAST_ROUND = 5e-6


class TimedParts:
    """The parts of one call, which this process computes by itself and without effects.

    Attributes
    ----------
    rows : int or None
        The rows of the call; None if its inputs are not scattered.
    """

    def __init__(
        self,
        function: GroupFunction,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        batch: Any,
    ) -> None:
        group, arguments = function.group, function.arguments
        self._group, self._function = group, function
        self._recipe = function.plan.recipe
        self._replica = group.member.replicas[function.number]
        given = arguments.bind(args, kwargs)
        self._selection, self.rows = arguments.select(given, batch)
        self._given = [np.asarray(v) if hasattr(v, "ref") else v for v in given]
        self._copied = [i for i in self._selection if not hasattr(given[i], "ref")]
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

    def compute(self, k: int) -> Callable[[], list[Any]]:
        """A function that computes the outputs of one k-th of the rows."""
        n = None if self.rows is None else max(1, self.rows // k)

        def run() -> list[Any]:
            arguments = [
                _cut(self._given[i], self._selection[i], n) if i in self._selection else v
                for i in self._function.arguments.order
                for v in [self._given[i]]
            ]
            sliceables = [np.asarray(s)[:n] for s in self._sliceables]
            lengths = (1 if n is None else n,)
            return self._replica.run(self._variant, arguments, sliceables, lengths).outputs

        return run

    def timing(
        self,
        called: Callable[[], Any] | None = None,
        shared: Callable[[], Any] | None = None,
    ) -> Timing:
        """The times of the call.

        Parameters
        ----------
        called : callable, optional
            Makes the call in the group, so that its other costs can be measured.
        shared : callable, optional
            Further work of a call, which the members divide equally whatever the rows.
        """
        with np.errstate(all="ignore"):
            threads = seconds_of(self.compute(1))
        added = 0.0
        if shared is not None:
            with threadpool_limits(1):
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
            between = ROUND_SECONDS + self._copying() + self._moving()
        return replace(timing, round=between)

    def _copying(self) -> float:
        """Seconds to copy arrays that are not Data into shared memory."""
        arrays = [_cut(self._given[i], self._selection[i], None) for i in self._copied]
        targets = [np.array(a) for a in arrays]

        def copy() -> None:
            for target, array in zip(targets, arrays, strict=True):
                np.copyto(target, array)

        return seconds_of(copy) if arrays else 0.0

    def _moving(self) -> float:
        """Seconds to move large outputs and gradients, about.

        Outputs are written to new memory, in a worker and in the master. Gradients are copied to
        memory that is used again.
        """
        kept = len(self._function.outputs.kept)
        found = list(map(np.asarray, self.compute(1)()))
        outputs, gradients = found[: len(found) - kept], found[len(found) - kept :]
        large = [v for v in outputs if v.nbytes >= BIG_BYTES]
        targets = [np.array(v) for v in gradients]

        def copy() -> None:
            for target, gradient in zip(targets, gradients, strict=True):
                np.copyto(target, gradient)

        seconds = 2 * seconds_of(lambda: [np.array(v) for v in large]) if large else 0.0
        return seconds + (seconds_of(copy) if gradients else 0.0)


def _name(mode: Any) -> str:
    """The name by which PyTensor knows a mode; else what the mode says of itself."""
    mode = mode or pytensor.config.mode
    if mode == "Mode":  # PyTensor's default
        return type(get_default_mode().linker).__name__.removesuffix("Linker").upper()
    known = (name for name, predefined in predefined_modes.items() if predefined == mode)
    return mode if isinstance(mode, str) else next(known, str(mode))


def _cut(value: Any, rows: Selection, n: int | None) -> Any:
    """The first n of the selected rows, as a view if they are contiguous; None: all."""
    mine = rows if n is None else rows.cut(0, n)
    if isinstance(mine, Span):
        return value[mine.start : mine.stop]
    return np.take(value, mine.rows, axis=0)
