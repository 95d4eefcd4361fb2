"""Arena memory in which a function's calls leave numpy arrays and lists of rows for the members."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from synkhronos._api.data import Data
from synkhronos._engine.commands.call import Call
from synkhronos._host.arena import Arena, ArrayRef
from synkhronos._plan.rows import Picks, Selection

_ROWS = np.dtype(np.int64)
_least, _largest = np.minimum.reduce, np.maximum.reduce
_Place = tuple[np.ndarray, int]  # an array in the arena, and its offset there


class Staging:
    """The memory, used again from call to call: one array for each input, one for lists of rows."""

    def __init__(self, arena: Arena) -> None:
        self._arena = arena
        self._inputs: dict[int, np.ndarray] = {}
        self._rows = np.empty(0, _ROWS)

    def copy(self, index: int, value: np.ndarray, rows: Selection) -> ArrayRef:
        """Copy rows of input `index` over those of the previous call."""
        shape = (len(rows), *value.shape[1:])
        count = int(np.prod(shape, dtype=np.int64))
        memory = self._inputs.get(index)
        if memory is None or memory.size < count:
            memory = self._inputs[index] = self._arena.empty((max(1, count),), value.dtype)
        target = memory[:count].reshape(shape)
        if isinstance(rows, Picks):
            np.take(value, rows.rows, axis=0, out=target, mode="clip")
        else:
            np.copyto(target, value[rows.start : rows.stop])
        self._arena.mark_dirty(target)
        return self._arena.ref(target, self._arena.generation)

    def post(self, rows: np.ndarray) -> ArrayRef:
        """Copy a list of rows over that of the previous call."""
        if len(self._rows) < len(rows):
            self._rows = self._arena.empty((len(rows),), _ROWS)
        target = self._rows[: len(rows)]
        np.copyto(target, rows)
        self._arena.mark_dirty(target)
        return self._arena.ref(target, self._arena.generation)

    def staged(
        self, call: Call, order: Sequence[int], args: Sequence[Any], batch: object
    ) -> Staged | None:
        """Places that a repetition of `call` must write; None unless all are Data, arrays, rows.

        Parameters
        ----------
        call : Call
        order : sequence of int
            Which inputs the call's arguments are.
        args : sequence of object
            The inputs, as the user passed them.
        batch : object
            As the user passed it.
        """
        places = self._places(call, order, args)
        if places is None:
            return None
        if batch is None:
            return Staged(self._arena, places, None, 0)
        listed = [a for a in call.arguments if a.rows is not None]
        posted = {a.rows for a in listed if type(a.rows) is ArrayRef}
        if len(posted) != 1 or any([type(a.rows) is not ArrayRef for a in listed]):
            return None
        # minibatch Data use other rows than those listed
        if any([p is not None for p in places]) or any([a.minibatch for a in args]):
            return None
        [ref] = posted
        length = min((len(a) for a in args if a.ndim), default=0)
        return Staged(self._arena, places, (self._rows[: ref.shape[0]], ref.offset), length)

    def _places(
        self, call: Call, order: Sequence[int], args: Sequence[object]
    ) -> tuple[_Place | None, ...] | None:
        found: list[_Place | None] = [None] * len(args)
        for i, argument in zip(order, call.arguments, strict=True):
            value = args[i]
            if type(value) is Data:
                continue
            if type(value) is not np.ndarray or type(argument.source) is not ArrayRef:
                return None
            memory, count = self._inputs.get(i), math.prod(value.shape)
            if memory is None or memory.size < count or memory.dtype != value.dtype:
                return None
            found[i] = memory[:count].reshape(value.shape), argument.source.offset
        return tuple(found)


@dataclass(frozen=True)
class Staged:
    """Memory that a call has filled for the members; a repetition of the call overwrites it."""

    arena: Arena
    inputs: tuple[_Place | None, ...]  # where each input was copied to; None for Data
    rows: _Place | None  # where the list of rows was copied to; None: the call takes all rows
    length: int  # rows of the Data that are listed

    def rewrite(self, args: Sequence[object], batch: object) -> bool:
        """Write new arrays and rows, if they have the shapes and dtypes of the previous ones."""
        if batch is not None:
            return self.rows is not None and self._rewrite_rows(batch, *self.rows)
        return self.rows is None and self._rewrite_inputs(args)

    def _rewrite_inputs(self, args: Sequence[Any]) -> bool:
        # all are compared before one is copied: where one does not fit, all are staged anew
        for value, place in zip(args, self.inputs, strict=True):
            if place is not None and (
                type(value) is not np.ndarray
                or value.dtype != place[0].dtype
                or value.shape != place[0].shape
            ):
                return False
        for value, place in zip(args, self.inputs, strict=True):
            if place is not None:
                target, offset = place
                np.copyto(target, value)
                self.arena.mark_dirty_range(offset, target.nbytes)
        return True

    def _rewrite_rows(self, batch: object, target: np.ndarray, offset: int) -> bool:
        if type(batch) is list and len(batch) == len(target):
            try:
                batch = np.array(batch)
            except ValueError:  # a ragged list
                return False
        if type(batch) is not np.ndarray or batch.dtype != _ROWS or batch.shape != target.shape:
            return False
        # numpy's methods `min` and `max` are Python functions around these
        if not len(batch) or _least(batch) < 0 or _largest(batch) >= self.length:
            return False
        target[:] = batch
        self.arena.mark_dirty_range(offset, target.nbytes)
        return True
