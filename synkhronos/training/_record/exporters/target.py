"""A program that takes the lines of a run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path


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
