"""Work on a pool: its parts are items, as those of `map`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from synkhronos._errors import InputError, SynkhronosError
from synkhronos._transport.pools.chosen import pool_of
from synkhronos._transport.pools.pool import Pool
from synkhronos.pymc._after.store import Store
from synkhronos.pymc._after.work import InMemory, Target, Work
from synkhronos.pymc._map.bar import Bar
from synkhronos.pymc._map.packing import packed_for, packed_job
from synkhronos.pymc._map.parent import Ends, Item
from synkhronos.pymc._map.pooled import Job, PooledItems
from synkhronos.pymc._map.results import Folder

_PART_SECONDS = 0.25  # a batch of a second has some parts, and the last ones end together


def chosen(what: str, on: object, cores: object) -> Pool | None:
    """The pool for ``on=`` of the call `what`; None: processes of this machine.

    Raises
    ------
    InputError, InputTypeError, BackendMissing
    """
    if on is None:
        return None
    if cores is not None:
        raise InputError(f"{what}: cores= is for processes of this machine: leave it out, or on=")
    return pool_of(what, on, 1)


class Blocks:
    """Computes a part of a work, given by its first element and the one after its last."""

    def __init__(self, work: Work) -> None:
        self._work = work

    def __call__(self, item: tuple[int, int]) -> list[np.ndarray]:
        """The results of the part."""
        return self._work.computed(range(*item))


class PooledDivision:
    """A work, and the pool that computes it."""

    def __init__(self, work: Work, seconds: float, pool: Pool, what: str, bar: Bar) -> None:
        if not work.in_processes:
            raise InputError(
                f"{what}: on=: JAX computes on all cores of this process: leave on= out, or name "
                'another backend, such as backend="numba"'
            )
        self._work, self._seconds = work, seconds  # of one process for all parts
        self._pool, self._what, self._bar = pool, what, bar

    def empty(self, shape: Sequence[int], dtype: np.dtype | type) -> np.ndarray:
        """A new array for results."""
        return np.empty(shape, dtype)

    def run(self, target: Target) -> None:
        """Compute all parts, and put them in their places as they come.

        Raises
        ------
        SynkhronosError
            A part has failed, or the workers are gone.
        """
        work = self._work
        if not isinstance(target, Store):  # in which a part is a chunk
            work.shorten(math.ceil(_PART_SECONDS * work.total / max(self._seconds, 1e-9)))
        parts = {str(part.start): part for part in work.parts}
        head = packed_job(self._what, Blocks(work))
        packed = {
            name: packed_for(self._what, name, (part.start, part.stop))
            for name, part in parts.items()
        }
        items, begin = [], len(head)
        for name, data in packed.items():
            items.append(Item(name, (begin, begin + len(data)), ""))
            begin += len(data)
        folder = Folder(None)
        job = Job(b"".join([head, *packed.values()]), len(head), 1, 0, None)
        named = f"{self._what}: {work.counted}"
        places = _Places(named, parts, folder, target, self._bar)
        pooled = PooledItems(items, job, self._pool, folder, places, self._what)
        pooled.goes_on = (
            "What was written stays in the store: the same call goes on with it"
            if isinstance(target, Store)
            else work.if_lost
        )
        try:
            pooled.run()
        finally:
            target.note(work.before + places.done_count)


class _Places(Ends):
    """Takes the results of parts, and puts them where they belong."""

    def __init__(
        self, named: str, parts: Mapping[Any, range], folder: Folder, target: Target, bar: Bar
    ) -> None:
        self._named, self._parts, self._folder = named, parts, folder
        self._target, self._bar = target, bar
        self.done_count = 0

    def done(self, item: Item) -> None:
        """See `Ends`."""
        part = self._parts[item.name]
        found = self._folder.read(item.name)
        self._folder.forget(item.name)
        if isinstance(self._target, InMemory):
            for array, values in zip(self._target.arrays, found, strict=True):
                array[part.start : part.stop] = values
        else:
            for stored, values in zip(self._target.arrays, found, strict=True):
                stored.write(part, values)
        self.done_count += len(part)
        self._bar.show(self.done_count)

    def fail(self, item: Item, why: str, text: str = "") -> None:
        """See `Ends`.

        Raises
        ------
        SynkhronosError
        """
        part = self._parts[item.name]
        more = f"\n{text}" if text else ""
        raise SynkhronosError(
            f"{self._named} {part.start} to {part.stop - 1} have failed: {why}{more}"
        )
