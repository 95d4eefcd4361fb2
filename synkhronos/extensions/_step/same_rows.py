"""Calls of a training function that take the same first rows again and again."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from synkhronos._api.data import Data
from synkhronos._errors import BatchWarning
from synkhronos._warnings import warn

INTEGERS = frozenset([int, *(np.dtype(c).type for c in np.typecodes["AllInteger"])])
_CALLS = 10  # in a row; fewer are usual when a script tries a function out
_SAMPLE = 64  # elements


class SameRows:
    """Counts calls with an integer batch on the same inputs, and warns once.

    In a call an integer means the first rows, but in `fit` the rows of each step.
    """

    def __init__(self, inputs: int) -> None:
        self._inputs = inputs  # how many inputs have rows; in a call they come first
        self._told: list[bool] = []
        self._ids: tuple[int, ...] = ()
        self._found: list[Callable[[], object]] = []
        self._samples: list[bytes] = []
        self._batch: object = None
        self._calls = 0

    def share(self, others: Iterable[SameRows]) -> None:
        """Let these warn once together."""
        for other in others:
            other._told = self._told

    def note(
        self, what: str, args: Sequence[object], kwargs: Mapping[str, object], batch: object
    ) -> None:
        """Count a call with an integer batch."""
        if self._told:
            return
        given = ((*args, *kwargs.values()) if kwargs else args)[: self._inputs]
        ids = tuple(map(id, given))
        if ids != self._ids or batch != self._batch:
            self._begin(given, ids, batch)
        self._calls += 1
        if self._calls == _CALLS:
            self._warn(what, given, batch)
            self._calls = 0

    def _begin(self, given: Sequence[object], ids: tuple[int, ...], batch: object) -> None:
        self._ids, self._batch, self._calls = ids, batch, 0
        self._found = [_reference(value) for value in given]
        self._samples = [_sample(value) for value in given]

    def _warn(self, what: str, given: Sequence[object], batch: Any) -> None:
        # an id alone may be that of a new object, in the memory of one that is gone
        same = all(ref() is value for ref, value in zip(self._found, given, strict=True))
        rows = max(map(_length, given), default=0)
        same = same and self._samples == [_sample(value) for value in given]
        if not same or not 0 < batch < rows:
            self._ids = ()
            return
        self._told.append(True)
        warn(
            f"{what}: each of the last {_CALLS} calls has taken the first {batch} of the same "
            f"{rows} rows: in a call, batch={batch} means these. extensions.Batches({rows}, "
            f"{batch}) yields other rows for each call, as fit(batch={batch}) does by itself; "
            f"batch=slice(0, {batch}) says that these rows are meant",
            BatchWarning,
        )


def _reference(value: object) -> Callable[[], object]:
    """A function that returns the object while it exists; arrays are not kept alive."""
    try:
        return weakref.ref(value)
    except TypeError:  # lists and numbers
        return lambda: value


def _sample(value: object) -> bytes:
    """The first elements: others show that the script has written other rows there."""
    known = isinstance(value, np.ndarray | Data)
    return np.asarray(value).flat[:_SAMPLE].tobytes() if known else b""


def _length(value: object) -> int:
    shape = getattr(value, "shape", None)
    if shape is None:
        return len(value) if isinstance(value, list | tuple) else 0
    return int(shape[0]) if shape else 0
