"""Meetings of all members inside a compiled function: they combine the values of an operation.

All members compute a function with such operations at the same time, each on its part, and come to
the same exchanges in the same order (`_engine.graph_collectives`). Outside of a call, and in a
group of one, each operation returns the value of the one member.

Members without rows come too. They contribute nothing, and get what the others get.

Weights
-------

An operation is a linear map of the members' values, X, or one of three variants with the diagonal
matrix W of the members' shares of the rows: X W (a mean, where X is a sum), W^-1 X W (the gradient
through X), W^-1 X. `Weighing` says which. See `synkhronos.ops` for the derivation.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from synkhronos._errors import InputError
from synkhronos._libraries.fork_safe_lock import ForkSafeLock
from synkhronos._plan.rows import edges as split
from synkhronos._proofs.reductions import Reduction, normalized, result_dtype
from synkhronos._transport.communicators.communicator import Communicator

_SMALL_BYTES = 2048  # communicators are fast with small arrays that they know
_KEEP = 256  # such arrays


class Weighing(NamedTuple):
    """Whether a member's share of the rows multiplies what it gives, and divides what it gets."""

    given: bool = False
    got: bool = False

    @property
    def transposed(self) -> Weighing:
        """Of the gradient through a linear map with this weighing."""
        return Weighing(not self.got, not self.given)


PLAIN = Weighing()


class _Exchanges:
    """The members that meet during a call, and the first error."""

    def __init__(
        self,
        communicator: Communicator,
        weights: Sequence[float] | None,
        members: tuple[int, ...] | None,
    ) -> None:
        self._communicator = communicator
        self.rank, self.size = communicator.rank, communicator.size
        self._weights = weights  # rows of those in `members`; None: all count the same
        self._members = members  # the ranks that have rows; None: all
        ranks = range(self.size) if members is None else members
        self._has_rows = self.rank in ranks
        shares = normalized([1.0] * len(ranks) if weights is None else weights)
        self._share = shares[list(ranks).index(self.rank)] if self._has_rows else 1.0
        self.failure: BaseException | None = None

    def all_reduced(self, values: np.ndarray, op: Reduction, weighing: Weighing) -> np.ndarray:
        if values.nbytes > _SMALL_BYTES:
            buffer = np.array(values, order="C")
        else:
            buffer = _buffer(values)
            buffer[...] = values
        if weighing.given:
            op = Reduction.AVG
        self._communicator.all_reduce([buffer], op, self._weights, self._members)
        if self._members is not None:
            buffer = self._sent_on([buffer])[0]
        found = buffer.copy() if values.nbytes <= _SMALL_BYTES else buffer
        return self._got(found, weighing)

    def gathered(self, values: np.ndarray, weighing: Weighing) -> np.ndarray:
        given = [np.asarray(self._given(values, weighing), order="C")]
        if self._members is None:
            [found] = self._communicator.all_gather(given)
        else:
            first, members = self._members[0], self._members
            [found] = self._sent_on(self._communicator.gather(given, first, members=members))
        return self._got(found, weighing)

    def scattered(
        self, values: np.ndarray, op: Reduction, weighing: Weighing, mine: int | None = None
    ) -> np.ndarray:
        """This member's rows of the reduced values: `mine` of them, or as parts are cut."""
        if weighing.given:
            op = Reduction.AVG
        edges = split(len(values), self.size) if mine is None else self._edges(mine)
        if edges[-1] != len(values):
            raise InputError(
                f"the members' parts have {edges[-1]} rows together, and the value has "
                f"{len(values)}"
            )
        if self._members is None:
            [found] = self._communicator.reduce_scatter(
                [np.asarray(values, order="C")], op, edges, self._weights
            )
        else:
            wide = np.array(values, result_dtype(values.dtype, op), order="C")
            self._communicator.all_reduce([wide], op, self._weights, self._members)
            [wide] = self._sent_on([wide])
            found = wide[edges[self.rank] : edges[self.rank + 1]].copy()
            if mine is not None and not self._has_rows:  # its own value fits the rest of the graph
                found = np.zeros((mine, *found.shape[1:]), found.dtype)
        return self._got(found, weighing)

    def _edges(self, mine: int) -> list[int]:
        count = np.array([mine if self._has_rows else 0], np.int64)
        [counts] = self._communicator.all_gather([count])
        return [0, *np.cumsum(counts).tolist()]

    def of_root(self, values: np.ndarray, root: int) -> np.ndarray:
        if not 0 <= root < self.size:
            raise InputError(
                f"broadcast from rank {root}: the group has ranks 0 to {self.size - 1}"
            )
        if self._members is not None and root not in self._members:
            raise InputError(
                f"broadcast from rank {root}: it has no rows in this call, so it has no value; "
                f"ranks {list(self._members)} have"
            )
        given = [np.asarray(values, order="C")] if self.rank == root else None
        found = self._communicator.broadcast(given, root)
        assert found is not None
        return np.array(found[0])

    def _sent_on(self, arrays: Any) -> list[np.ndarray]:
        """The arrays of the first member with rows, in all members."""
        assert self._members is not None
        first = self._members[0]
        found = self._communicator.broadcast(arrays if self.rank == first else None, first)
        assert found is not None
        return found

    def _given(self, values: np.ndarray, weighing: Weighing) -> np.ndarray:
        return values * values.dtype.type(self._share) if weighing.given else values

    def _got(self, values: np.ndarray, weighing: Weighing) -> np.ndarray:
        if weighing.got:
            values /= values.dtype.type(self._share)
        return values


_lock = ForkSafeLock()  # two groups' functions may run in two threads
_running: list[_Exchanges] = []
if hasattr(os, "register_at_fork"):  # Windows has no forks
    os.register_at_fork(after_in_child=_running.clear)  # a fork is no member of them
_buffers: dict[Any, np.ndarray] = {}


def _buffer(like: np.ndarray) -> np.ndarray:
    key = like.shape, like.dtype
    found = _buffers.get(key)
    if found is None:
        if len(_buffers) >= _KEEP:
            _buffers.clear()
        found = _buffers[key] = np.empty(like.shape, like.dtype)
    return found


@contextlib.contextmanager
def collective(
    communicator: Communicator, weights: Sequence[float] | None, members: tuple[int, ...] | None
) -> Iterator[None]:
    """A context in which operations combine the values of all members.

    `members` are the ranks that have rows (None: all), and `weights` how many these are (None: all
    count the same).
    """
    with _lock.held():
        running = _Exchanges(communicator, weights, members)
        _running.append(running)
        try:
            yield
        except Exception:
            if running.failure is None:
                raise
        finally:
            _running[:] = [each for each in _running if each is not running]  # a fork has none
        if running.failure is not None:
            raise running.failure


def place() -> tuple[int, int]:
    """This member's rank in the running call, and the number of members; (0, 1) outside."""
    return (_running[-1].rank, _running[-1].size) if _running else (0, 1)


def is_collective() -> bool:
    """Whether operations combine values of all members now."""
    return bool(_running)


def all_reduced(
    values: np.ndarray, op: Reduction = Reduction.SUM, weighing: Weighing = PLAIN
) -> np.ndarray:
    """The members' values, reduced."""
    return _exchanged(_Exchanges.all_reduced, values, op, weighing)


def gathered(values: np.ndarray, weighing: Weighing = PLAIN) -> np.ndarray:
    """The members' values, joined along axis 0 in the order of ranks."""
    return _exchanged(_Exchanges.gathered, values, weighing)


def scattered(
    values: np.ndarray,
    op: Reduction = Reduction.SUM,
    weighing: Weighing = PLAIN,
    mine: int | None = None,
) -> np.ndarray:
    """This member's rows of the reduced values: as parts are cut, or `mine` of them."""
    found = _exchanged(_Exchanges.scattered, values, op, weighing, mine)
    return found.astype(result_dtype(values.dtype, Reduction.AVG if weighing.given else op))


def of_root(values: np.ndarray, root: int) -> np.ndarray:
    """The value of one member."""
    return _exchanged(_Exchanges.of_root, values, root)


def mean_over_members(values: np.ndarray) -> np.ndarray:
    """The mean of the members' values, weighted by their rows."""
    return all_reduced(values, Reduction.AVG)


def _exchanged(combine: Callable[..., np.ndarray], values: np.ndarray, *how: object) -> np.ndarray:
    if not _running:
        return np.array(values)
    running = _running[-1]
    if running.failure is not None:
        raise running.failure
    try:
        return combine(running, values, *how)
    except BaseException as exc:
        running.failure = exc
        raise


def deferring_errors(
    combine: Callable[[np.ndarray], np.ndarray], values: np.ndarray, shape: Sequence[int]
) -> np.ndarray:
    """Return ``combine(values)``, or after an error an array of zeros.

    For programs that log an exception that is raised in them: `collective` raises it when the
    program has ended.
    """
    try:
        found = combine(values)
        if found.shape != tuple(shape):
            raise InputError(
                f"this member expects a value of shape {tuple(shape)}, and the members together "
                f"give one of {found.shape}: JAX fixes shapes when it compiles, so in mode JAX "
                "each member needs as many rows as the others (see part_lengths)"
            )
        return found
    except BaseException as exc:
        if not _running:
            raise
        if _running[-1].failure is None:
            _running[-1].failure = exc
        return np.zeros(shape, values.dtype)
