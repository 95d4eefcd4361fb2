"""What becomes of the trials of `search` if a worker of its pool is killed; as a program.

python search_kills.py KIND FOLDER
"""

from __future__ import annotations

import functools
import logging
import sys
from pathlib import Path

import objectives
import optuna
from pool_cases import opened
from pool_kills import at, gone, kill, wait_for

from synkhronos.search import open_study, search

TRIALS = 9


def main(kind: str, given: str) -> None:
    """Kill one of three workers while a trial runs: all trials have an end, and nothing is left."""
    logging.getLogger("synkhronos").setLevel(logging.ERROR)
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    folder = Path(given)
    begun = folder / "begun"

    def lines() -> list[list[str]]:
        found = begun.read_text().splitlines() if begun.exists() else []
        return [line.split() for line in found]

    study = open_study("a", folder / "a.journal")
    objective = functools.partial(objectives.parents, folder)
    with opened(kind, 3) as pool, at(lambda: next((int(w) for w, *_ in lines()), None), kill):
        search(objective, study, trials=TRIALS, on=pool)
    assert [trial.state.name for trial in study.trials] == ["COMPLETE"] * TRIALS
    for trial in study.trials:
        drawn = [x for _, _, number, x in lines() if int(number) == trial.number]
        assert set(drawn) == {repr(trial.params["x"])}, drawn  # the same if it ran again
        assert trial.value == trial.params["x"]
    assert TRIALS < len(lines()) <= 2 * TRIALS  # one has begun twice
    wait_for(lambda: all(gone(int(process)) for _, process, *_ in lines()))
    sys.stdout.write("as it must be\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
