"""Values that a compiled function tells of before it ends, by operations of `ops._ready`.

The listener is that of the thread which calls the function. Outside of `listening` nobody is told.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from pytensor.graph.basic import Variable
from pytensor.graph.op import Op

Listener = Callable[[int, np.ndarray], None]


class TellingOp(Op):
    """The base of operations that tell of their value."""

    number: int  # by which the listener knows the value


def told_among(variables: Sequence[Variable]) -> dict[int, int]:
    """By number, the indices of those of which a function tells."""
    owners = [v.owner for v in variables]
    return {
        node.op.number: i
        for i, node in enumerate(owners)
        if node is not None and isinstance(node.op, TellingOp)
    }


class _Here(threading.local):
    listener: Listener | None = None


_here = _Here()


@contextlib.contextmanager
def listening(listener: Listener | None) -> Iterator[None]:
    """A context in which functions tell `listener` the number of each value, and the value."""
    before, _here.listener = _here.listener, listener
    try:
        yield
    finally:
        _here.listener = before


def listener() -> Listener | None:
    """The function that is told now."""
    return _here.listener


def tell(number: int, value: np.ndarray) -> None:
    """A value has been computed."""
    if _here.listener is not None:
        _here.listener(number, value)
