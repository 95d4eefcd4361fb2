"""A function's latest call, posted again as it is while nothing but its rows changes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from synkhronos._api.data import Data, Staging
from synkhronos._engine.commands.call import Call
from synkhronos._engine.group import Group
from synkhronos._engine.variables import Entry
from synkhronos._host.arena import ArrayRef

_ROWS = np.dtype(np.int64)
_Place = tuple[np.ndarray, int]  # an array in the arena, and its offset there


@dataclass(frozen=True)
class _Made:
    """A call, and what must be the same for it to be right again."""

    call: Call
    how: Any
    stamps: tuple[int, ...]
    edition: int
    staged: tuple[_Place | None, ...]  # where each input's array was copied to; None: Data
    count: int | None  # of listed rows
    length: int  # of the data they are rows of


class Latest:
    """The latest call of a function; and the memory in which lists of rows are posted."""

    def __init__(self, group: Group, staging: Staging, order: Sequence[int]) -> None:
        self._group = group
        self._staging = staging
        self._order = order  # of the call's arguments: which inputs they are
        self._made: _Made | None = None
        self._memory: _Place = np.empty(0, _ROWS), 0

    def post(self, rows: np.ndarray) -> ArrayRef:
        """Leave a list of rows where the members read it, over that of the call before."""
        n, arena = len(rows), self._group.arena
        if len(self._memory[0]) < n:
            memory = arena.empty((n,), _ROWS)
            self._memory = memory, arena.offset(memory)
            self._made = None  # its rows lie in the memory that is freed here
        self._write(rows)
        return arena.ref(self._memory[0][:n], arena.generation)

    def _write(self, rows: np.ndarray) -> None:
        memory, offset = self._memory
        memory[: len(rows)] = rows
        self._group.arena.mark_dirty_range(offset, len(rows) * _ROWS.itemsize)

    def keep(self, call: Call, how: Any, args: Sequence[Any], batch: Any) -> None:
        """Remember a call, if its inputs are Data, and arrays that were copied as they are."""
        self._made = None
        if call.first or call.new or call.pieces:
            return
        staged = self._staged(call, args)
        if staged is None or (batch is not None and any([t is not None for t in staged])):
            return
        count = None
        if batch is not None:
            posted = {a.rows for a in call.arguments if type(a.rows) is ArrayRef}
            listed = [a for a in call.arguments if a.rows is not None]
            if len(posted) != 1 or any([type(a.rows) is not ArrayRef for a in listed]):
                return
            if any([a.minibatch for a in args]):  # whose rows are counted from the lowest one
                return
            [count] = posted.pop().shape
        length = min((len(a) for a in args if a.ndim), default=0)
        edition = self._group.member.edition
        self._made = _Made(call, how, _stamps(args), edition, staged, count, length)

    def _staged(self, call: Call, args: Sequence[Any]) -> tuple[_Place | None, ...] | None:
        """Where each array among the inputs was copied to; None: it is not that simple."""
        found: list[_Place | None] = [None] * len(args)
        for i, argument in zip(self._order, call.arguments, strict=True):
            value = args[i]
            if type(value) is Data:
                continue
            if type(value) is not np.ndarray or type(argument.source) is not ArrayRef:
                return None
            target = self._staging.latest(i, value.shape)
            if target is None or target.dtype != value.dtype:
                return None
            found[i] = target, argument.source.offset
        return tuple(found)

    def find(self, how: Any, args: Sequence[Any], batch: Any, entries: list[Entry]) -> Call | None:
        """The latest call, if this one is the same but for its rows, and no value has been set."""
        made = self._made
        if made is None or made.how != how or _stamps(args) != made.stamps:
            return None
        if made.edition != self._group.member.edition:
            return None
        for entry in entries:
            if entry.is_set:
                return None
        if batch is None:
            if made.count is not None:
                return None
            return made.call if self._copied(args, made.staged) else None
        return made.call if self._posted(batch, made) else None

    def _copied(self, args: Sequence[Any], staged: Sequence[_Place | None]) -> bool:
        """Whether all arrays are like those before; they are copied over them then."""
        for value, place in zip(args, staged, strict=True):
            if place is not None and (
                type(value) is not np.ndarray
                or value.dtype != place[0].dtype
                or value.shape != place[0].shape
            ):
                return False
        for value, place in zip(args, staged, strict=True):
            if place is not None:
                target, offset = place
                np.copyto(target, value)
                self._group.arena.mark_dirty_range(offset, target.nbytes)
        return True

    def _posted(self, batch: Any, made: _Made) -> bool:
        """Whether `batch` is a list of as many rows, all there; it is posted then."""
        if type(batch) is not np.ndarray or batch.dtype != _ROWS or batch.shape != (made.count,):
            return False
        if not made.count or batch.min() < 0 or batch.max() >= made.length:
            return False
        self._write(batch)
        return True


def _stamps(args: Sequence[Any]) -> tuple[int, ...]:
    return tuple([a._stamp if type(a) is Data else -1 for a in args])
