"""Batches that a thread of the master reads, for all members."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from synkhronos._api.data import Data
from synkhronos._api.make_data import data
from synkhronos._engine.group import Group
from synkhronos._errors import InputError
from synkhronos.extensions._rows.batches import Batches, EpochWalk
from synkhronos.extensions._rows.reader import BatchReader, Read
from synkhronos.extensions._rows.source import Source

Kind = tuple[tuple[int, ...], np.dtype]


class MasterSets:
    """Sets of Data, one for each batch that is read or in use."""

    def __init__(
        self,
        group: Group,
        sources: Sequence[Source],
        batches: Batches,
        sort: bool,
        count: int,
        several: bool,
    ) -> None:
        self.several = self._listed = several  # whether a batch is a tuple of Data
        self.skipped = 0  # rows that were left out so far
        self.sets: list[tuple[Data, ...]] = []
        self.count = count
        self._group = group
        self._sources = sources
        self._batches = batches
        self._sort = sort
        kinds = [s.kind for s in sources if s.kind is not None]
        if len(kinds) == len(sources):
            self._allocate(kinds)

    def loop(self, walk: EpochWalk) -> MasterLoop:
        """Begin an epoch."""
        shuffled = self._batches.shuffle
        reader = BatchReader(self._sources, shuffled, walk, self._sort, self._group)
        return MasterLoop(self, reader, walk)

    def drop(self) -> None:
        """Use these Data no more: an abandoned thread may still write there."""
        self.sets = []

    def fill(self, number: int, epoch: int, read: Read) -> tuple[Data, ...]:
        """The Data of a batch, after what the thread could not write to them has been copied."""
        if not self.sets:
            self.several = self._listed or read.several
            self._allocate([(a.shape[1:], a.dtype) for a in read.arrays if a is not None])
        slot = self.sets[number % self.count]
        if len(slot) != len(read.arrays):
            raise InputError(
                f"Loader: the sources gave {len(read.arrays)} arrays for batch {number + 1} of "
                f"epoch {epoch + 1}, and {len(slot)} before"
            )
        for d, array in zip(slot, read.arrays, strict=True):
            if array is not None:
                d.set_value(array)
            else:  # it is there already
                d.wrote()
        return slot

    def _allocate(self, kinds: Sequence[Kind]) -> None:
        rows = min(self._batches.size, self._batches.n)
        with self._group.active():
            self.sets = [
                tuple([data(shape=(rows, *shape), dtype=dtype) for shape, dtype in kinds])
                for _ in range(self.count)
            ]


class MasterLoop:
    """One epoch."""

    def __init__(self, sets: MasterSets, reader: BatchReader, walk: EpochWalk) -> None:
        self._sets = sets
        self._reader = reader
        self._walk = walk
        self.rows = np.zeros(0, np.int64)  # the rows of the batch that was taken last
        self.start, self.stop, self.check = reader.start, reader.stop, reader.check

    def take(self, number: int) -> tuple[Data, ...] | None:
        """Ask for batches further ahead, and wait for this one; None if no row of it is left."""
        count = self._sets.count
        # at first all sets, then the one that the loop has just left
        for ahead in range(count) if not number else [number + count - 1]:
            if ahead < len(self._walk):
                self._give(ahead)
        read = self._reader.take()
        self._sets.skipped += read.lost
        self.rows = read.rows
        return self._sets.fill(number, self._walk.epoch, read) if len(read.rows) else None

    def _give(self, number: int) -> None:
        start, stop = self._walk.span(number)
        sets = self._sets.sets
        slot = sets[number % self._sets.count] if sets else ()
        for d in slot:
            # in the loop's thread: the one that reads changes no shape and no memory
            d.set_length(stop - start)
        self._reader.todo.put((number, [d.writable for d in slot]))
