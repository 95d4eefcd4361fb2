"""What saves cost: checkpoints by size, their restoring, and the folder of a run of `fit`.

    python benchmarks/saves.py [FOLDER] [--rounds N]

Milliseconds, medians, on FOLDER's disk (default: the folder for temporary files). Beside each save
stands a plain one: the same bytes by `numpy.save` to a new file, flushed to the disk, renamed.
"""

from __future__ import annotations

import argparse
import functools
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
from common import describe_machine, show

import synkhronos as synk
from synkhronos.extensions import make_train_function, updates
from synkhronos.extensions.checkpoints import Checkpoints
from synkhronos.training import Trainer

SIZES = {"8 kB": 1_000, "8 MB": 1_000_000, "80 MB": 10_000_000}  # float64 values
EPOCHS = 20


def milliseconds(call: Callable[[], Any]) -> float:
    began = time.perf_counter()
    call()
    return 1e3 * (time.perf_counter() - began)


def plain_save(folder: Path, values: np.ndarray[Any, Any]) -> None:
    """The least that a save must do to be whole after a crash."""
    with open(folder / "new.npy", "wb") as file:
        np.save(file, values)
        file.flush()
        os.fsync(file.fileno())
    os.replace(folder / "new.npy", folder / "plain.npy")


def of_checkpoints(folder: Path, rounds: int) -> list[list[Any]]:
    """A row for each size: a save, a save to restore, and the plain save."""
    rows = []
    for name, length in SIZES.items():
        w = pytensor.shared(np.random.default_rng(0).normal(size=length), name="w")
        kept = Checkpoints(folder / name.replace(" ", ""), [w], keep=2)
        times: dict[str, list[float]] = {"save": [], "restore": [], "plain": []}
        for step in range(rounds):
            times["save"].append(milliseconds(functools.partial(kept.save, step)))
            times["restore"].append(milliseconds(kept.restore))
            values = w.get_value(borrow=True)
            times["plain"].append(milliseconds(functools.partial(plain_save, folder, values)))
        rows.append([name, *[median(times[way]) for way in ("save", "restore", "plain")]])
    return rows


def of_fit(folder: Path, rounds: int) -> list[list[Any]]:
    """An epoch of ten steps of 1,000 parameters: without a folder, and with one."""
    x, w = pt.dmatrix("x"), pytensor.shared(np.zeros(1000), name="w")
    rule = functools.partial(updates.adam, learning_rate=1e-4)
    train = make_train_function(((x - w) ** 2).mean(), [w], x, None, rule)
    data = synk.data(np.ones((40, 1000)))
    ways: dict[str, dict[str, Any]] = {
        "nothing": {},
        "a checkpoint an epoch": {"save_every": None},
        "and one every 5 steps": {"save_every": 5},
    }
    times: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(rounds):
        for name, how in ways.items():
            path = folder / f"{turn} {name}" if how else None
            trainer = Trainer(train, folder=path, progress=False)
            run = functools.partial(trainer.fit, data, batch=4, epochs=EPOCHS, **how)
            times[name].append(milliseconds(run) / EPOCHS)
    return [[name, median(found)] for name, found in times.items()]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--rounds", type=int, default=11)
    options = parser.parse_args()
    describe_machine()
    for members in (1, 2):
        with synk.Group(members), tempfile.TemporaryDirectory(dir=options.folder) as place:
            title = f"checkpoints, {members} members"
            rows = of_checkpoints(Path(place), options.rounds)
            show(title, ["values", "save, ms", "restore, ms", "plain save, ms"], rows)
            title = f"fit, {members} members"
            show(title, ["kept", "epoch, ms"], of_fit(Path(place), options.rounds))


if __name__ == "__main__":
    main()
