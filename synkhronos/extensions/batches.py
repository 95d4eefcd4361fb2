"""Batches of row numbers: shuffled, each row once in an epoch; they can be saved and continued."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import numpy as np

from synkhronos._errors import InputError, InputTypeError, options_checked, shown

_SAME = ("n", "seed", "shuffle")  # they determine the order, and must not change between runs


class Batches:
    """The rows 0 to n-1 in batches, in another order in each epoch.

    Each `for` loop is one epoch. If a loop ends early, the next loop begins the next epoch. `state`
    and `restore` continue in the middle of an epoch. The position is a number of rows, so batches
    of another `size` can continue there.

    Parameters
    ----------
    n : int, at least 1
        The number of rows.
    size : int, at least 1
        The number of rows in a batch.
    seed : int, not negative
        The order of an epoch depends only on the seed and the epoch's number, not on other draws
        or the version of numpy.
    shuffle : bool
        False: every epoch in the order 0 to n-1.
    last : {"keep", "drop"}
        "keep": the last batch may be shorter. "drop": rows that do not fill a batch are not used.

    Raises
    ------
    InputError, InputTypeError
        A number is out of range, or `size` is larger than `n` and `last` is "drop".

    Notes
    -----
    Cost: 8 bytes for each row; a sort of n numbers at the start of an epoch (0.1 s for 10^6 rows).

    Examples
    --------
    >>> batches = Batches(5, 2, shuffle=False)
    >>> [(batches.epoch, rows.tolist()) for rows in batches]
    [(0, [0, 1]), (0, [2, 3]), (0, [4])]
    >>> len(batches), batches.epoch
    (3, 1)
    """

    @options_checked
    def __init__(
        self,
        n: int,
        size: int,
        seed: int = 0,
        shuffle: bool = True,
        last: Literal["keep", "drop"] = "keep",
    ) -> None:
        self.n = _integer("n", n, 1)
        self.size = _integer("size", size, 1)
        self.seed = _integer("seed", seed, 0)
        if not isinstance(shuffle, bool | np.bool_):
            raise InputTypeError(f"Batches: shuffle={shown(shuffle)} is neither True nor False")
        if last not in ("keep", "drop"):
            raise InputError(f'Batches: last={shown(last)}: use "keep" or "drop"')
        if last == "drop" and size > n:
            raise InputError(
                f'Batches: {n} rows do not fill one batch of {size}, and last="drop" leaves none'
            )
        self.shuffle = bool(shuffle)
        self.last = last
        self._epoch = 0
        self._row = 0  # rows of the epoch that loops have had
        self._walk: EpochWalk | None = None

    @property
    def epoch(self) -> int:
        """The number of the current epoch; between two loops, that of the next one."""
        return self._epoch

    def __len__(self) -> int:
        """The number of batches in an epoch."""
        return self._count(0)

    def __iter__(self) -> Iterator[np.ndarray]:
        walk = self.walk()
        for number in range(len(walk)):
            if not walk.step(number):
                return
            yield walk.rows(number)
        walk.finish()

    def __repr__(self) -> str:
        how = f"seed {self.seed}" if self.shuffle else "not shuffled"
        return (
            f"<synkhronos.Batches of {self.size} of {self.n} rows, {how}, last={self.last!r}, "
            f"epoch {self._epoch}>"
        )

    def walk(self) -> EpochWalk:
        """Begin an epoch, as a loop does."""
        broken_off = self._walk is not None and self._walk.begun
        if broken_off or not self._count(self._row):
            self._epoch, self._row = self._epoch + 1, 0
        self._walk = EpochWalk(self, self._epoch, self._row)
        return self._walk

    def order(self, epoch: int) -> np.ndarray:
        """The rows of an epoch in their order, int64.

        >>> Batches(4, 2).order(0).tolist() == Batches(4, 1).order(0).tolist()
        True
        """
        if not self.shuffle:
            return np.arange(self.n)
        # numpy keeps the raw numbers of its bit generators as they are in all versions; it makes
        # no such promise for `permutation`
        bits = np.random.PCG64(np.random.SeedSequence(self.seed, spawn_key=(epoch,)))
        return np.argsort(bits.random_raw(self.n), kind="stable")

    def state(self) -> dict[str, Any]:
        """The position in the epoch, as a dict for JSON.

        Inside a loop: the batch after the one at hand.

        Examples
        --------
        >>> batches = Batches(4, 1, shuffle=False)
        >>> for rows in batches:
        ...     if rows[0] == 1:
        ...         break
        >>> resumed = Batches(4, 1, shuffle=False)
        >>> resumed.restore(batches.state())
        >>> [rows.tolist() for rows in resumed]
        [[2], [3]]
        """
        ended = not self._count(self._row)
        return {
            "n": self.n,
            "size": self.size,
            "seed": self.seed,
            "shuffle": self.shuffle,
            "last": self.last,
            "epoch": self._epoch + ended,
            "row": 0 if ended else self._row,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue where the state was taken; a loop under way ends at its next step.

        Another `size` or `last` is allowed: the rows of the epoch that are left come in the
        same order, in batches of the new size.

        Raises
        ------
        InputError
            The state is of other rows, another seed, or no state at all. Nothing has changed then.
        """
        self._epoch, self._row = self._check(state)
        self._walk = None

    def _check(self, state: Mapping[str, Any]) -> tuple[int, int]:
        """The epoch and the row of a state, if `restore` would take it."""
        try:
            found = {key: state[key] for key in _SAME}
            epoch, row = operator.index(state["epoch"]), operator.index(state["row"])
        except (TypeError, KeyError) as exc:
            raise InputError(
                f"Batches: {shown(state)} is not a state of batches ({exc!r})"
            ) from None
        other = [key for key in _SAME if found[key] != getattr(self, key)]
        if other:
            saved = ", ".join(f"{key}={shown(found[key])}" for key in other)
            mine = ", ".join(f"{key}={getattr(self, key)}" for key in other)
            raise InputError(
                f"Batches: the state is of batches with {saved}, and these have {mine}; the order "
                "of the rows would be another one. Make them as they were"
            )
        if epoch < 0 or not 0 <= row < self.n:
            raise InputError(f"Batches: the state says epoch {epoch}, row {row} of {self.n}")
        return epoch, row

    def _count(self, row: int) -> int:
        """How many batches come after this many rows."""
        left = self.n - row
        return left // self.size if self.last == "drop" else -(-left // self.size)


class EpochWalk:
    """One pass through an epoch, from a row on. `rows` may be asked for from any thread."""

    def __init__(self, batches: Batches, epoch: int, row: int) -> None:
        self.epoch = epoch
        self.begun = False
        self._batches = batches
        self._row = row
        self._size = batches.size
        self._length = batches._count(row)
        self._order = batches.order(epoch)

    def __len__(self) -> int:
        return self._length

    def span(self, number: int) -> tuple[int, int]:
        """Where in the order a batch begins and ends."""
        start = self._row + number * self._size
        return start, min(start + self._size, len(self._order))

    def rows(self, number: int) -> np.ndarray:
        """The rows of a batch."""
        start, stop = self.span(number)
        return self._order[start:stop].copy()

    def step(self, number: int) -> bool:
        """Note that a batch is handed out; False once `restore` has ended the pass."""
        current = self._batches._walk
        if current is None:
            return False
        if current is not self:
            raise InputError(
                f"{self._batches!r}: another loop has begun; one loop at a time goes through them"
            )
        self._batches._row = self.span(number)[1]
        self.begun = True
        return True

    def finish(self) -> None:
        """The loop has come to its end."""
        if self._batches._walk is self:
            self._batches._walk = None
            self._batches._epoch, self._batches._row = self.epoch + 1, 0


def _integer(name: str, value: Any, least: int) -> int:
    try:
        found = operator.index(value)
    except TypeError:
        found = None
    if found is None or isinstance(value, bool | np.bool_):
        if name == "n" and hasattr(value, "__len__"):
            raise InputTypeError(
                f"Batches: n is the number of rows, found {shown(value)}: write len(array)"
            )
        raise InputTypeError(f"Batches: {name}={shown(value)} is not an integer")
    if found < least:
        raise InputError(f"Batches: {name}={found}: at least {least} is needed")
    return found
