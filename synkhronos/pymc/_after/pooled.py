"""A calculation on a pool: its blocks of draws are items, as those of `map`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from synkhronos._errors import InputError, SynkhronosError
from synkhronos._transport.pools.chosen import pool_of
from synkhronos._transport.pools.pool import Pool
from synkhronos.pymc._after.calculation import Calculation
from synkhronos.pymc._after.store import Store
from synkhronos.pymc._after.work import InMemory, Target
from synkhronos.pymc._map.bar import Bar
from synkhronos.pymc._map.packing import packed_for, packed_job
from synkhronos.pymc._map.parent import Ends, Item
from synkhronos.pymc._map.pooled import Job, PooledItems
from synkhronos.pymc._map.results import Folder

_BLOCK_SECONDS = 0.25  # a batch of a second has some blocks, and the last ones end together


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
    """Computes a block of draws, given by its first draw and the one after its last."""

    def __init__(self, own: Calculation) -> None:
        self._own = own

    def __call__(self, item: tuple[int, int]) -> list[np.ndarray]:
        """The values of each output."""
        draws = [self._own.values(draw) for draw in range(*item)]
        return [np.stack(values) for values in zip(*draws, strict=True)]


class PooledDivision:
    """A calculation, and the pool that computes it."""

    def __init__(self, own: Calculation, seconds: float, pool: Pool, what: str, bar: Bar) -> None:
        if not own.in_processes:
            raise InputError(
                f"{what}: on=: JAX computes on all cores of this process: leave on= out, or name "
                'another backend, such as backend="numba"'
            )
        self._own, self._seconds = own, seconds  # of all its draws
        self._pool, self._what, self._bar = pool, what, bar

    def empty(self, shape: Sequence[int], dtype: np.dtype | type) -> np.ndarray:
        """A new array for results."""
        return np.empty(shape, dtype)

    def run(self, target: Target) -> None:
        """Compute all blocks, and put them in their places as they come.

        Raises
        ------
        SynkhronosError
            A block has failed, or the workers are gone.
        """
        own = self._own
        if not isinstance(target, Store):  # in which a block is a chunk
            wanted = math.ceil(_BLOCK_SECONDS * own.draws / max(self._seconds, 1e-9))
            own.block = min(own.block, wanted)
        parts = {str(part.start): part for part in own.parts}
        head = packed_job(self._what, Blocks(own))
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
        places = _Places(self._what, parts, folder, target, self._bar)
        pooled = PooledItems(items, job, self._pool, folder, places, self._what)
        pooled.goes_on = (
            "What was written stays in the store: the same call goes on with it"
            if isinstance(target, Store)
            else "With store= the results so far would stay, and the same call would go on"
        )
        try:
            pooled.run()
        finally:
            target.note(own.before + places.done_draws)


class _Places(Ends):
    """Takes the results of blocks, and puts them where they belong."""

    def __init__(
        self, what: str, parts: Mapping[Any, range], folder: Folder, target: Target, bar: Bar
    ) -> None:
        self._what, self._parts, self._folder = what, parts, folder
        self._target, self._bar = target, bar
        self.done_draws = 0

    def done(self, item: Item) -> None:
        """See `Ends`."""
        draws = self._parts[item.name]
        found = self._folder.read(item.name)
        self._folder.forget(item.name)
        if isinstance(self._target, InMemory):
            for array, values in zip(self._target.arrays, found, strict=True):
                array[draws.start : draws.stop] = values
        else:
            for stored, values in zip(self._target.arrays, found, strict=True):
                stored.write(draws, values)
        self.done_draws += len(draws)
        self._bar.show(self.done_draws)

    def fail(self, item: Item, why: str, text: str = "") -> None:
        """See `Ends`.

        Raises
        ------
        SynkhronosError
        """
        draws = self._parts[item.name]
        more = f"\n{text}" if text else ""
        raise SynkhronosError(
            f"{self._what}: draws {draws.start} to {draws.stop - 1} have failed: {why}{more}"
        )
