"""Operations inside a compiled function that meet those of the other members.

A function that holds such an operation is computed by all members at once, each on its part.
Outside of a call, and in a group of one, there is nobody to meet: means are those of one member.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from pytensor.graph.basic import Variable
from pytensor.graph.op import HasInnerGraph, Op
from pytensor.graph.traversal import ancestors

from synkhronos._errors import GroupError
from synkhronos._plan.reductions import Reduction
from synkhronos._transport.communicators.communicator import Communicator


class CollectiveOp(Op):
    """An operation that all members compute together, in the same order."""


def has_collectives(variables: Iterable[Variable]) -> bool:
    """Whether members meet while they compute these."""
    for variable in ancestors(list(variables)):
        op = None if variable.owner is None else variable.owner.op
        if isinstance(op, CollectiveOp):
            return True
        if isinstance(op, HasInnerGraph) and has_collectives(op.inner_outputs):
            return True
    return False


@dataclass
class _Meeting:
    """Who meets, and what became of it."""

    communicator: Communicator
    fractions: Sequence[float]
    failure: BaseException | None = None


_lock = threading.RLock()  # two groups' functions may run in two threads
_held: list[_Meeting] = []
_buffers: dict[int, np.ndarray] = {}  # the same arrays again are what communicators are fast with


@contextlib.contextmanager
def collective(communicator: Communicator, fractions: Sequence[float]) -> Iterator[None]:
    """A context in which operations combine the values of all members.

    `fractions` are the members' weights in a mean, in the order of ranks; their sum is 1.
    """
    with _lock:
        meeting = _Meeting(communicator, tuple(fractions))
        _held.append(meeting)
        try:
            yield
        except Exception:
            if meeting.failure is None:
                raise
        finally:
            _held.remove(meeting)
        if meeting.failure is not None:
            raise meeting.failure


def is_collective() -> bool:
    """Whether there is anybody to meet."""
    return bool(_held)


def mean_over_members(number: int, values: np.ndarray) -> np.ndarray:
    """The mean of the members' values, weighted by their rows; all call it in the same order.

    `number` identifies the operation; members check that all compute the same one.
    """
    if not _held:
        return values
    meeting = _held[-1]
    if meeting.failure is not None:
        raise meeting.failure
    try:
        return _mean(meeting, number, values)
    except BaseException as exc:
        meeting.failure = exc
        raise


def deferring_errors(meet: Callable[[np.ndarray], np.ndarray], values: np.ndarray) -> np.ndarray:
    """What members make of these values; where that fails, the same values.

    For programs that log what is raised in them: `held` raises it when they have ended.
    """
    try:
        return meet(values)
    except BaseException as exc:
        if not _held:
            raise
        _held[-1].failure = exc
        return values


def _mean(meeting: _Meeting, number: int, values: np.ndarray) -> np.ndarray:
    n = values.size
    buffer = _buffers.setdefault(n, np.empty(n + 1))
    buffer[:n], buffer[n] = values.ravel(), number
    meeting.communicator.all_reduce([buffer], Reduction.AVG, meeting.fractions)
    if abs(buffer[n] - number) > 1e-6 * (1 + number):
        raise GroupError(
            f"operation {number} met other operations in other members: their graphs were compiled "
            "into another order, which is a defect of Synkhronos: please report it"
        )
    return buffer[:n].reshape(values.shape).astype(values.dtype)
