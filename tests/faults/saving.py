"""Saves of checkpoints that something happens to, and what must be found in the folder afterwards.

`scenario` is for `synkhronos.testing.killing`; run as a program, it makes one save of each case,
for `powercut` to record.
"""

from __future__ import annotations

import os
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytensor

import synkhronos as synk
from synkhronos.extensions.batches import Batches
from synkhronos.extensions.checkpoints import Checkpoints

NEW = 99  # the stamp of what the save under test writes; those before it bear their step
LATER = 50  # the step of a save after all


@dataclass(frozen=True)
class Case:
    """A save and what is in its folder before."""

    before: tuple[int, ...]
    step: int
    keep: int = 2
    leavings: tuple[str, ...] = ()

    @property
    def latest(self) -> int | None:
        return self.before[-1] if self.before else None


CASES = {
    "first": Case((), 1),
    "next": Case((1, 2), 3),
    "again": Case((1, 2), 2),
    "lower": Case((10, 20), 15),
    "only": Case((1,), 2, keep=1),
    "after a kill": Case((1, 2), 3, leavings=(".tmp-step-00000003", ".tmp-step-00000001")),
}


class Run:
    """A training run's variables, all of whose values are made of one number, the stamp."""

    def __init__(self, folder: Path, case: Case) -> None:
        self.arrays = [pytensor.shared(np.zeros(n), name=f"a{n}") for n in (3, 500)]
        self.count = pytensor.shared(np.array(0, "int32"), name="count")
        self.rng = pytensor.shared(np.random.default_rng(0), name="rng")
        self.batches = Batches(1000, 1, shuffle=False)
        variables = [*self.arrays, self.count, self.rng]
        place = checkpoints_in(folder)
        self.checkpoints = Checkpoints(place, variables, self.batches, keep=case.keep)

    def set(self, stamp: int) -> None:
        for array in self.arrays:
            array.set_value(np.full(array.get_value().shape, float(stamp)))
        self.count.set_value(np.array(stamp, "int32"))
        self.rng.set_value(np.random.default_rng(stamp))
        self.batches.restore({**self.batches.state(), "row": stamp})

    def stamp(self) -> int:
        """The one number in everything."""
        found = {float(x) for array in self.arrays for x in array.get_value()}
        found |= {float(self.count.get_value()), float(self.batches.state()["row"])}
        assert len(found) == 1, f"of several checkpoints at once: {found}"
        stamp = int(found.pop())
        assert self.rng.get_value().normal() == np.random.default_rng(stamp).normal()
        return stamp


def checkpoints_in(folder: Path) -> Path:
    """Two folders below, neither of which is there at first."""
    return folder / "run" / "checkpoints"


def prepare(case: Case, folder: Path) -> None:
    """What is in the folder before the save."""
    folder.mkdir()
    run = Run(folder, case)
    for step in case.before:
        run.set(step)
        run.checkpoints.save(step, stamp=step)
    for name in case.leavings:
        left = checkpoints_in(folder) / name
        left.mkdir()
        (left / "arrays.safetensors").write_bytes(b"half of")


def save(case: Case, folder: Path) -> None:
    """The save under test."""
    run = Run(folder, case)
    run.set(NEW)
    run.checkpoints.save(case.step, stamp=NEW)


def judge(case: Case, folder: Path, saved: bool) -> str:
    """What is wrong with a folder after the save; nothing if it holds the old state or the new."""
    run = Run(folder, case)
    allowed = {NEW} if saved else {NEW, case.latest}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", synk.CheckpointWarning)  # an older one is restored
            found = run.checkpoints.restore()
    except synk.InputError:  # there is none
        if None not in allowed:
            return f"nothing is left of {allowed}"
    except (synk.CheckpointError, synk.CheckpointWarning) as exc:
        return f"damaged: {exc}"
    else:
        stamp = run.stamp()
        if found["stamp"] != stamp or stamp not in allowed:
            return f"found {stamp}, described as {found}, not {allowed}"
    return _swept(case, folder, run)


def _swept(case: Case, folder: Path, run: Run) -> str:
    """The next save clears everything away but the last checkpoints, which all load."""
    wanted = [*run.checkpoints.steps(), LATER][-case.keep :]
    run.set(LATER)
    run.checkpoints.save(LATER, stamp=LATER)
    steps = run.checkpoints.steps()
    names = sorted(p.name.removeprefix(".old-") for p in checkpoints_in(folder).iterdir())
    if names != sorted(f"step-{step:08d}" for step in steps) or steps != wanted:
        return f"after the next save there are {names}, of which {steps} count, not {wanted}"
    for step in steps:
        if run.checkpoints.restore(step)["stamp"] != run.stamp():
            return f"step {step} is another than it says"
    return ""


def scenario(trial: Any) -> None:
    """One save, in the folder and of the case that the trial is told."""
    name, _, folder = trial.argument.partition(" in ")
    case = CASES[name]
    run = Run(Path(folder), case)
    run.set(NEW)
    trial.pause("save")
    try:
        run.checkpoints.save(case.step, stamp=NEW)
    except OSError as exc:
        trial.say(f"OSError {exc.errno}: {exc}")
    else:
        trial.say("saved")


def main() -> None:
    """The save of each case, in folders of the cases' names; what is there already is prepared."""
    base = Path(sys.argv[1])
    for name, case in CASES.items():
        folder = base / name
        os.access(f"/{name}/begins", os.R_OK)  # a mark in a record of system calls
        save(case, folder)
        os.access(f"/{name}/saved", os.R_OK)


if __name__ == "__main__":
    main()
