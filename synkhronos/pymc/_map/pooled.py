"""The items of a call on a pool: they go out in batches, and their results come back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from synkhronos._transport.pools.batches import TRIES, Batches
from synkhronos._transport.pools.pool import Pool
from synkhronos._transport.pools.stations import versions_here
from synkhronos.pymc._map.batches import run_batch
from synkhronos.pymc._map.pace import AHEAD, Pace, batch_size
from synkhronos.pymc._map.parent import Ends, Item
from synkhronos.pymc._map.results import Folder, write_result

# What decides whether a worker can read a function, and gives the same numbers
PACKAGES = ("synkhronos", "pytensor", "pymc", "nutpie", "numpy", "numba", "cloudpickle")


@dataclass(frozen=True)
class Job:
    """A call, as all of its batches know it.

    `data` are the bytes of `fit`, whose number is `length`, and then of the items.
    """

    data: bytes
    length: int
    members: int
    entropy: int
    limit: float | None

    def common(self) -> dict[str, object]:
        """All that a worker needs beside `fit` and items, as values that any version can read."""
        return {
            "versions": versions_here(PACKAGES),
            "members": self.members,
            "entropy": str(self.entropy),
            "limit": self.limit,
        }


class PooledItems(Batches[Sequence[Item]]):
    """Runs items on a pool, until each has ended.

    An item whose worker ends comes once again, in a batch of its own. Then it has failed.
    """

    def __init__(
        self,
        items: Sequence[Item],
        job: Job,
        pool: Pool,
        folder: Folder,
        ends: Ends,
        what: str = "map",  # names the call in errors
    ) -> None:
        super().__init__(what, pool, run_batch, job.common(), AHEAD)
        self._left = list(items)[::-1]
        self._lost: list[Item] = []  # to come again, each in a batch of its own
        self._tries: dict[Item, int] = {}
        self._job = job
        self._folder = folder
        self._ends = ends
        self._pace = Pace()
        self.goes_on = folder.goes_on

    def head(self) -> bytes:
        """See `Batches`: `fit`."""
        return self._job.data[: self._job.length]

    def wants_more(self) -> bool:
        """See `Batches`."""
        return bool(self._left or self._lost)

    def next(self, slots: int) -> Sequence[Item]:
        """See `Batches`: items of about a second, or one that was lost."""
        if not self._left:
            return [self._lost.pop()]
        count = batch_size(self._pace.seconds, len(self._left), slots)
        return [self._left.pop() for _ in range(count)]

    def given(self, batch: Sequence[Item]) -> dict[str, object]:
        """See `Batches`."""
        return {"items": [self._packed(item) for item in batch]}

    def _packed(self, item: Item) -> tuple[str, str, bytes]:
        begin, end = item.at
        return str(item.name), item.digest, self._job.data[begin:end]

    def take(self, batch: Sequence[Item], found: Mapping[str, Any]) -> None:
        """See `Batches`; for exceptions see `Ends`."""
        self._pace.note(seconds for *_, seconds in found["ends"])
        for item, (packed, why, text, _) in zip(batch, found["ends"], strict=True):
            if packed is None:
                self._ends.fail(item, why, text)
            else:
                # some 10 ms to force it to the disk would be the limit of all workers together
                write_result(self._folder.path, item.name, packed, lasting=False)
                self._ends.done(item)

    def lost(self, batch: Sequence[Item], exc: Exception) -> None:
        """See `Batches`; for exceptions see `Ends`."""
        for item in batch:
            self._tries[item] = self._tries.get(item, 1) + 1
            if self._tries[item] > TRIES:
                self._ends.fail(item, f"its worker has ended {TRIES} times: {exc}")
            else:
                self._lost.append(item)
