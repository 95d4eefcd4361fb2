"""Operations inside a compiled function that combine values of all members.

All members compute a function with such an operation at the same time, each on its part. Outside
of a call, and in a group of one, the operation returns the value of the one member.
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
    """An operation that combines values of all members; all compute it in the same order."""


def has_collectives(variables: Iterable[Variable]) -> bool:
    """Whether one of these depends on a `CollectiveOp`."""
    for variable in ancestors(list(variables)):
        op = None if variable.owner is None else variable.owner.op
        if isinstance(op, CollectiveOp):
            return True
        if isinstance(op, HasInnerGraph) and has_collectives(op.inner_outputs):
            return True
    return False


@dataclass
class _Collective:
    """The communicator and weights during a call, and the first error."""

    communicator: Communicator
    fractions: Sequence[float]
    failure: BaseException | None = None


_lock = threading.RLock()  # two groups' functions may run in two threads
_running: list[_Collective] = []
_buffers: dict[int, np.ndarray] = {}  # communicators are fast with arrays that they know


@contextlib.contextmanager
def collective(communicator: Communicator, fractions: Sequence[float]) -> Iterator[None]:
    """A context in which operations combine the values of all members.

    `fractions` are the members' weights in a mean, in the order of ranks; their sum is 1.
    """
    with _lock:
        running = _Collective(communicator, tuple(fractions))
        _running.append(running)
        try:
            yield
        except Exception:
            if running.failure is None:
                raise
        finally:
            _running.remove(running)
        if running.failure is not None:
            raise running.failure


def is_collective() -> bool:
    """Whether operations combine values of all members now."""
    return bool(_running)


def mean_over_members(number: int, values: np.ndarray) -> np.ndarray:
    """The mean of the members' values, weighted by their rows; all call it in the same order.

    `number` identifies the operation; members check that all compute the same one.
    """
    if not _running:
        return values
    running = _running[-1]
    if running.failure is not None:
        raise running.failure
    try:
        return _mean(running, number, values)
    except BaseException as exc:
        running.failure = exc
        raise


def deferring_errors(combine: Callable[[np.ndarray], np.ndarray], values: np.ndarray) -> np.ndarray:
    """Return ``combine(values)``, or after an error the same values.

    For programs that log an exception that is raised in them: `collective` raises it when the
    program has ended.
    """
    try:
        return combine(values)
    except BaseException as exc:
        if not _running:
            raise
        _running[-1].failure = exc
        return values


def _mean(running: _Collective, number: int, values: np.ndarray) -> np.ndarray:
    n = values.size
    buffer = _buffers.setdefault(n, np.empty(n + 1))
    buffer[:n], buffer[n] = values.ravel(), number
    running.communicator.all_reduce([buffer], Reduction.AVG, running.fractions)
    if abs(buffer[n] - number) > 1e-6 * (1 + number):
        raise GroupError(
            f"operation {number} met other operations in other members: their graphs were compiled "
            "in a different order. This is a defect of Synkhronos: please report it"
        )
    return buffer[:n].reshape(values.shape).astype(values.dtype)
