"""A program that takes the lines of a run, and the numbers of a line."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from synkhronos.training._record.run_folder import is_number


class Target(ABC):
    """Takes the lines of one run, from its beginning.

    Parameters
    ----------
    run : Path
        The folder of the run.
    folder : Path, or None
        Where to write; None: the usual place.
    """

    @abstractmethod
    def __init__(self, run: Path, folder: Path | None) -> None: ...

    @property
    @abstractmethod
    def place(self) -> str:
        """Where it writes, for a person."""

    @abstractmethod
    def take(self, lines: Sequence[Mapping[str, object]]) -> None:
        """Take further lines, in their order. They can be read there when this returns.

        After a line ``resumed`` of step n, those before it with a larger step no longer count.
        """

    @abstractmethod
    def close(self, ended: bool) -> None:
        """End; `ended` says whether the run has."""


MANY = 64  # numbers of a list; a longer one, such as a large table of confusions, is left out
_OWN = ("kind", "time", "step", "epoch")


def numbers_of(line: Mapping[str, object]) -> dict[str, float]:
    """The numbers and truth values of a line; those in objects and lists by their path."""
    return {
        name: float(value)
        for key, item in line.items()
        if key not in _OWN
        for name, value in _named(key, item)
    }


def finite(value: object, otherwise: float) -> float:
    """A number that a step or a time can be, or another one."""
    return value if is_number(value) and math.isfinite(value) else otherwise


def _named(name: str, value: object) -> Iterator[tuple[str, int | float]]:
    if isinstance(value, bool) or is_number(value):
        yield name, value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _named(f"{name}/{key}", item)
    elif isinstance(value, list) and len(value) <= MANY:
        for i, item in enumerate(value):
            yield from _named(f"{name}/{i}", item)
