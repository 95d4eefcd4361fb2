"""Trials of ``synk train``: a config, and values drawn for some of its keys."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from synkhronos._errors import InputError
from synkhronos._host import files
from synkhronos.search._spaces import Space, override
from synkhronos.search._trial import Trial
from synkhronos.training.config import Config, read


@dataclass(frozen=True)
class ConfigObjective:
    """Trains as a config says, with the values that a trial draws.

    Parameters
    ----------
    path : str
        Of the TOML file.
    values : tuple of str
        In place of those of the file, as in ``synk train``.
    spaces : tuple of Space
    metric : str
        The value of the last validation, or epoch, that the trial returns; and of each before, that
        it reports.
    members : int or None
        In place of the config's.
    """

    path: str
    values: tuple[str, ...]
    spaces: tuple[Space, ...]
    metric: str
    members: int | None = None

    def __call__(self, trial: Trial) -> float:
        """Train; the value of the trial."""
        from synkhronos.training.configured import train

        drawn = {space.key: space.drawn(trial) for space in self.spaces}
        found = self.config(drawn, trial.number)
        run = train(found, members=self.members, callbacks=[trial.callback(self.metric)])
        values = [value for value in run.history[self.metric] if value is not None]
        return float(values[-1])

    def config(self, drawn: Mapping[str, object], number: int | None = None) -> Config:
        """The config with these values, in a folder of the trial's own if it has a number.

        Raises
        ------
        InputError
            It is not possible.
        """
        texts = [*self.values, *(override(key, value) for key, value in drawn.items())]
        found = read(self.path, texts)
        if number is None:
            return found
        texts.append("progress=false")
        if found.folder is not None:
            texts.append(override("folder", os.path.join(found.folder, f"trial-{number}")))
        return read(self.path, texts)

    def check(self) -> None:
        """Read the config with the ends of all ranges, before any process starts.

        Raises
        ------
        InputError
            A key does not exist, or a value is not possible.
        """
        if not self.spaces:
            raise InputError("nothing to search: give a key and a range, as in batch~32,64,128")
        keys = [space.key for space in self.spaces]
        for key in keys:
            if keys.count(key) > 1:
                raise InputError(f"{key}~: given twice")
        first = {space.key: (space.choices or (space.low,))[0] for space in self.spaces}
        for space in self.spaces:
            for value in space.choices or (space.low, space.high):
                self.config({**first, space.key: value})

    def write_best(self, path: Path, study: Any) -> None:
        """Write the config of the study's best trial, all at once.

        Raises
        ------
        OSError
        """
        best = study.best_trial
        head = f"# Trial {best.number} of the study {study.study_name!r}: "
        head += f"{self.metric} is {best.value!r}.\n"
        text = head + self.config(best.params).toml()
        files.write(path, text)
