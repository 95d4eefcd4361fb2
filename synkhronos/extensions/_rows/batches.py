"""Batches of row numbers: shuffled, each row once in an epoch; they can be saved and continued."""

from __future__ import annotations

import hashlib
import operator
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from synkhronos._checks import (
    check_flag,
    check_integer,
    check_word,
    is_integer,
    options_checked,
    shown,
)
from synkhronos._errors import InputError, InputTypeError

# they determine the order, and must not change between runs
_SAME = ("n", "seed", "shuffle", "blocks", "window")
_ONLY_OF_BLOCKS = ("blocks", "window")  # not in the state of batches without blocks


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
    blocks : sequence of int, optional
        The numbers of rows that are stored together, in the order of the rows: those of the chunks,
        row groups or files of a source (`synkhronos.training.sources` offers `.blocks`). Each epoch
        then goes through the blocks in another order, and mixes the rows of `window` of them at
        each moment. So a reader that keeps this many blocks decodes each of them once.
    window : int, at least 1
        How many blocks are mixed: 1 shuffles inside of blocks only. It has no effect without
        `blocks`.

    Raises
    ------
    InputError, InputTypeError
        A number is out of range, `size` is larger than `n` and `last` is "drop", or the blocks do
        not have `n` rows.

    Notes
    -----
    Cost: 8 bytes for each row; a sort of n numbers at the start of an epoch (0.1 s for 10^6 rows).

    With blocks, the block whose turn is b gets the interval from b to b + window, cut to
    [window - 1, number of blocks]. Its rows come at uniform moments of the interval. So exactly
    `window` blocks are open at each moment, and one new block is opened for each that ends.

    Examples
    --------
    >>> batches = Batches(5, 2, shuffle=False)
    >>> [(batches.epoch, rows.tolist()) for rows in batches]
    [(0, [0, 1]), (0, [2, 3]), (0, [4])]
    >>> len(batches), batches.epoch
    (3, 1)
    >>> Batches(8, 8, blocks=[2, 2, 2, 2], window=1).order(0).tolist()
    [6, 7, 1, 0, 3, 2, 4, 5]
    """

    @options_checked
    def __init__(
        self,
        n: int,
        size: int,
        seed: int = 0,
        shuffle: bool = True,
        last: Literal["keep", "drop"] = "keep",
        blocks: Sequence[int] | None = None,
        window: int = 8,
    ) -> None:
        if hasattr(n, "__len__") and not is_integer(n):
            raise InputTypeError(
                f"Batches: n is the number of rows, found {shown(n)}: write len(array)"
            )
        self.n = check_integer("Batches: n", n, 1)
        self.size = check_integer("Batches: size", size, 1)
        self.seed = check_integer("Batches: seed", seed, 0)
        self.shuffle = check_flag("Batches: shuffle", shuffle)
        check_word("Batches: last", last, ("keep", "drop"))
        if last == "drop" and size > n:
            raise InputError(
                f'Batches: {n} rows do not fill one batch of {size}, and last="drop" leaves none'
            )
        self.last = last
        self.window = check_integer("Batches: window", window, 1)
        self.blocks = None if blocks is None else _block_lengths(blocks, self.n)
        self._epoch = 0
        self._row = 0  # rows of the epoch that loops have had
        self._walk: EpochWalk | None = None

    @property
    def epoch(self) -> int:
        """The number of the current epoch; between two loops, that of the next one."""
        return self._epoch

    @property
    def row(self) -> int:
        """The rows of the current epoch in the batches so far, that at hand included."""
        return self._row

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
        if self.blocks is not None:
            how += f", {len(self.blocks)} blocks, {self.window} of them mixed"
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
        moments = bits.random_raw(self.n)
        if self.blocks is not None:
            moments = _moments(moments, bits.random_raw(len(self.blocks)), self.blocks, self.window)
        return np.argsort(moments, kind="stable")

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
        found = {
            "n": self.n,
            "size": self.size,
            "seed": self.seed,
            "shuffle": self.shuffle,
            "last": self.last,
            "epoch": self._epoch + ended,
            "row": 0 if ended else self._row,
        }
        return found | self._state_of_blocks()

    def alike(self) -> Batches:
        """Batches with the same orders, at the start of epoch 0; they can be pickled.

        >>> batches = Batches(4, 2, seed=3)
        >>> batches.alike().order(5).tolist() == batches.order(5).tolist()
        True
        """
        return Batches(
            *(self.n, self.size, self.seed, self.shuffle, self.last, self.blocks, self.window)
        )

    def _state_of_blocks(self) -> dict[str, Any]:
        """The blocks as a state has them: a digest of their lengths, which may be many."""
        if self.blocks is None:
            return {}
        digest = hashlib.sha256(np.asarray(self.blocks, "<i8").tobytes()).hexdigest()
        return {"blocks": digest[:16], "window": self.window}

    def restore(self, state: Mapping[str, object]) -> None:
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
            found = {key: state[key] for key in _SAME if key not in _ONLY_OF_BLOCKS}
            found |= {key: state.get(key) for key in _ONLY_OF_BLOCKS}
            epoch, row = operator.index(state["epoch"]), operator.index(state["row"])
        except (TypeError, KeyError, AttributeError) as exc:
            raise InputError(
                f"Batches: {shown(state)} is not a state of batches ({exc!r})"
            ) from None
        own = dict.fromkeys(_SAME) | self.state()
        other = [key for key in _SAME if found[key] != own[key]]
        if other:
            saved = ", ".join(f"{key}={shown(found[key])}" for key in other)
            mine = ", ".join(f"{key}={own[key]}" for key in other)
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
        # the order must survive whatever the user does to a batch
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


def _block_lengths(given: Sequence[int], n: int) -> tuple[int, ...]:
    try:
        found = tuple([operator.index(length) for length in given])
    except TypeError:
        raise InputTypeError(
            f"Batches: blocks={shown(given)} are not the numbers of rows in each block"
        ) from None
    if any(length < 0 for length in found) or sum(found) != n:
        raise InputError(
            f"Batches: the {len(found)} blocks have {sum(found)} rows (the shortest "
            f"{min(found, default=0)}), and n={n}"
        )
    return found


def _moments(
    rows: np.ndarray, blocks: np.ndarray, lengths: Sequence[int], window: int
) -> np.ndarray:
    """When each row comes, from random 64-bit words for the rows and for the blocks.

    Products and sums of doubles are the same numbers on all machines, so the order is, too.
    """
    used = np.asarray(lengths) > 0
    count = int(used.sum())
    window = min(window, count)
    turn = np.zeros(len(lengths))
    turn[np.flatnonzero(used)[np.argsort(blocks[used], kind="stable")]] = np.arange(count)
    opens, ends = np.maximum(turn, window - 1), np.minimum(turn + window, count)
    uniform = (rows >> np.uint64(11)) * 2.0**-53
    return np.repeat(opens, lengths) + uniform * np.repeat(ends - opens, lengths)
