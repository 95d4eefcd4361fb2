"""The checkpoints with the best values of one metric, in a folder of the run.

These rules hold here:

* The folder is the record: each checkpoint has the value of its metric and the direction among its
  entries. So no state of a run can name one that is gone, or forget one that is there.
* A checkpoint is removed or replaced only by the callback that wrote it. Callbacks never share a
  folder, and what has other entries is left alone.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

from synkhronos.extensions._saving.checkpoints import Checkpoints
from synkhronos.training._directions import Mode
from synkhronos.training._run.events import RunControl

_FIRST = "best"  # the folder of the first callback; those of others have the metric in their names
_MOST = {"min": "lowest", "max": "highest"}


class BestCheckpoints:
    """The checkpoints that one callback has written."""

    def __init__(self, files: Checkpoints, metric: str, mode: Mode) -> None:
        self._files = files  # of the folder
        self._metric = metric
        self._mode = mode
        self.kept = self._ranked(self._written())  # values and steps, the best one first

    @classmethod
    def of(cls, run: RunControl, metric: str, mode: Mode, owner: object) -> BestCheckpoints | None:
        """Those of an owner: in the folder that has such ones, or a new one.

        None if the run has no folder.
        """
        if run.checkpoints_in(_FIRST) is None:
            return None
        own = f"{_FIRST}-{_MOST[mode]}-{quote(metric, safe='')}"
        for name in (_FIRST, own):
            made = cls._in(run, name, metric, mode)
            if made.kept and run.claim(name, owner):
                return made
        return next(
            made
            for name in _names(own)
            if not (made := cls._in(run, name, metric, mode)).steps and run.claim(name, owner)
        )

    @classmethod
    def _in(cls, run: RunControl, name: str, metric: str, mode: Mode) -> BestCheckpoints:
        files = run.checkpoints_in(name)
        assert files is not None
        return cls(files, metric, mode)

    @property
    def folder(self) -> Path:
        """Where they are."""
        return self._files.folder

    @property
    def steps(self) -> list[int]:
        """The steps of all checkpoints in the folder, whoever wrote them."""
        return self._files.steps()

    def place(self, step: int) -> Path:
        """The folder of a checkpoint."""
        return self.folder / f"step-{step:08d}"

    def add(self, value: float, step: int, epoch: int, most: int) -> None:
        """Write one, and remove those that are not among the best any more."""
        self._files.save(step, **{self._metric: value, "epoch": epoch, "mode": self._mode})
        found = self._ranked([*((v, s) for v, s in self.kept if s != step), (value, step)])
        self.kept = found[:most]
        self._files.remove(*(s for _, s in found[most:]))

    def restore(self) -> None:
        """Give the variables the values of the best one."""
        self._files.restore(self.kept[0][1])

    def _written(self) -> Iterator[tuple[float, int]]:
        for step, entries in self._files.saved().items():
            value = entries.get(self._metric)
            mine = entries.get("mode", self._mode) == self._mode  # earlier versions did not say it
            if mine and isinstance(value, int | float) and math.isfinite(value):
                yield float(value), step

    def _ranked(
        self, found: Iterator[tuple[float, int]] | list[tuple[float, int]]
    ) -> list[tuple[float, int]]:
        return sorted(found, key=operator.itemgetter(0), reverse=self._mode == "max")


def _names(own: str) -> Iterator[str]:
    yield from (_FIRST, own)
    for number in itertools.count(2):
        yield f"{own}-{number}"
