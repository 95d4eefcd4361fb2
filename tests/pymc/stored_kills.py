"""Runs in a folder that are killed and go on, by the hundred. scripts/chaos runs it; tests, a few.

    python tests/pymc/stored_kills.py [--kills N] [--seed N]

Half of the kills come at random moments, half at system calls of the store, spread over all that a
run makes. Half as many calls of the store fail for want of space. A run that was killed is called
again, and half of these calls are killed too. At the end its files are those of a run that nothing
has happened to, bit by bit. The moments of a long run are compared with those that are known.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import pymc as pm

import synkhronos as synk
from synkhronos.pymc._chains import chain_folder, stored_chains
from synkhronos.testing.killing import KILL, NEVER, Outcome, Stage, Trial, points

if __name__ != "scenario":  # whose path has no modules of tests
    from campaign import spread

CHANGING = "openat,mkdir,write,rename,unlink,fsync,close,flock"
# not write, by which nutpie wakes its threads, too
FAILING, FULL = "mkdir,rename,fsync", "error=ENOSPC"
DRAWS, BLOCK = 100, 20  # of a run that is killed
LONG, MOST_ERRORS = 2000, 5.0  # draws of each chain for moments, and their Monte Carlo errors
LIMIT = 60.0  # seconds of a run
_SEED = 8


def _conjugate() -> pm.Model:
    with pm.Model() as model:
        pm.Normal("y", pm.Normal("x", 0, 2), 1, observed=np.full(12, 1.5))
    return model


def _correlated() -> pm.Model:
    with pm.Model() as model:
        pm.MvNormal("x", np.array([1.0, -2.0, 0.0]), cov=COVARIANCE)
    return model


def _rate() -> pm.Model:
    with pm.Model() as model:
        pm.Poisson("y", pm.Gamma("x", 3, 2), observed=np.array([4, 1, 7, 2, 0]))
    return model


COVARIANCE = np.array([[1.0, 1.8, 0.0], [1.8, 4.0, 0.05], [0.0, 0.05, 0.01]])
# the arguments of `sample`, and the mean and the variance of x
_PRECISION = 12 + 1 / 4
MODELS = {
    "conjugate": (_conjugate, {}, 18 / _PRECISION, 1 / _PRECISION),
    "correlated": (_correlated, {"adaptation": "low_rank"}, [1, -2, 0], COVARIANCE.diagonal()),
    "rate": (_rate, {"target_accept": 0.9}, 17 / 7, 17 / 49),
}


class _Inline:
    """In place of pools of threads: strace follows the one thread of the scenario."""

    def __init__(self, threads: int) -> None:
        del threads

    def submit(self, function: Any) -> Future[None]:
        found: Future[None] = Future()
        found.set_result(function())
        return found

    def shutdown(self, cancel_futures: bool = False) -> None:
        """Nothing is left to do."""


def sampled(name: str, folder: str, draws: int = DRAWS) -> Any:
    """One call."""
    chain_folder.BLOCK = BLOCK
    _, nuts, *_ = MODELS[name]
    given = {"tune": 100, "chains": 2, "cores": 2, "random_seed": _SEED, "backend": "numba"}
    given |= {"progressbar": False, "quiet": True, "compute_convergence_checks": False}
    model = MODELS[name][0]()
    return synk.pymc.sample(draws, model=model, folder=folder, nuts=dict(nuts), **given)


def scenario(trial: Trial) -> None:
    """A call that is killed after some time, or by strace."""
    asked = json.loads(trial.argument)
    if after := asked["after"]:
        timer = threading.Timer(after, os.kill, (os.getpid(), signal.SIGKILL))
        timer.daemon = True
        timer.start()
    else:
        stored_chains.ThreadPoolExecutor = _Inline  # type: ignore[assignment, misc]
    trial.pause("call")
    try:
        sampled(asked["model"], asked["folder"])
    except synk.InputError as exc:
        trial.say(f"refused: {exc}")
    else:
        trial.say("finished")


def files_of(folder: Path) -> dict[str, bytes]:
    """The blocks that a folder holds."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*.npy"))}


class Campaign:
    """Kills of one model's runs; a wrong one is an AssertionError."""

    def __init__(self, stage: Stage, name: str, place: Path, draw: random.Random) -> None:
        self._stage, self._name, self._draw = stage, name, draw
        self._folder = place / f"{name}-run"
        self.counts: Counter[str] = Counter()
        whole = place / name
        began = time.monotonic()
        self._seconds = self._call(whole).ended - began
        self.expected = files_of(whole)
        assert len(self.expected) == 2 * (1 + DRAWS // BLOCK)

    def _call(
        self, folder: Path, k: int = 0, calls: str = CHANGING, fault: str = KILL, after: float = 0.0
    ) -> Outcome:
        said = {"model": self._name, "folder": str(folder), "after": after}
        victim = "call" if k else ""
        found = self._stage.trial(victim, k, calls, fault, json.dumps(said))
        assert not found.hung, found.printed
        left = [text for text in found.left if text.startswith("process")]
        assert not left, left  # temporary files are those of compilers, which do not know of kills
        told = fault == FULL and found.said("refused") is not None
        ended = told or found.status == signal.SIGKILL or found.said("finished") is not None
        assert ended, f"{found.events} {found.printed}"
        return found

    def points(self, count: int, calls: str, fault: str) -> Iterator[dict[str, Any]]:
        """System calls, spread over all of a run."""
        folder = self._folder.with_suffix(".seen")
        made = points(self._call(folder, NEVER, calls).made)
        shutil.rmtree(folder)
        for name, k in spread(made, count, self._draw):
            yield {"k": k, "calls": name, "fault": fault}

    def moments(self, count: int) -> Iterator[dict[str, Any]]:
        """Random moments of a run."""
        for _ in range(count):
            yield {"after": self._draw.uniform(0.0, self._seconds)}

    def run(self, **fault: Any) -> None:
        """A run that a fault comes to, and perhaps another, until it is whole."""
        found = self._call(self._folder, **fault)
        while found.said("finished") is None:
            self.counts["kills" if found.status == signal.SIGKILL else "full disks"] += 1
            there = files_of(self._folder)
            assert there.items() <= self.expected.items(), f"{fault}: blocks that differ"
            self.counts["blocks kept"] += len(there)
            again = next(self.moments(1)) if self._draw.random() < 0.5 else {}
            found = self._call(self._folder, **again)
            kept = files_of(self._folder)
            assert there.items() <= kept.items(), f"{fault}: lost {there.keys() - kept.keys()}"
        assert files_of(self._folder) == self.expected, f"{fault}: other draws"
        assert not list(self._folder.rglob(".*")), f"{fault}: leavings"
        self.counts["runs"] += 1

    def end(self) -> None:
        """Remove the folder of a run."""
        shutil.rmtree(self._folder, ignore_errors=True)


def misses(name: str, folder: Path) -> Mapping[str, float]:
    """How far the moments of a long run are from the known ones, in Monte Carlo errors."""
    import arviz_stats

    values = sampled(name, str(folder), LONG).posterior["x"]
    _, _, mean, variance = MODELS[name]
    found = {}
    for moment, draws, known in (
        ("mean", values, mean),
        ("variance", (values - np.asarray(mean)) ** 2, variance),
    ):
        error = arviz_stats.mcse(draws.to_dataset(name="x"), method="mean")["x"].values
        gap = np.abs(draws.mean(("chain", "draw")).values - np.asarray(known))
        found[moment] = float((gap / error).max())
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    draw, wrong = random.Random(asked.seed), 0
    each = -(-asked.kills // (2 * len(MODELS)))
    with tempfile.TemporaryDirectory() as place, Stage(__file__, LIMIT) as stage:
        for name in MODELS:
            campaign = Campaign(stage, name, Path(place), draw)
            faults = [*campaign.moments(each), *campaign.points(each, CHANGING, KILL)]
            for fault in (*faults, *campaign.points(each // 2, FAILING, FULL)):
                try:
                    campaign.run(**fault)
                except AssertionError as exc:
                    wrong += 1
                    print(f"{name}: {fault}: {exc}")
                campaign.end()
            gaps = misses(name, Path(place) / f"{name}-long")
            wrong += max(gaps.values()) > MOST_ERRORS
            said = ", ".join(f"{count:,} {what}" for what, count in campaign.counts.items())
            far = ", ".join(f"{moment} {gap:.1f}" for moment, gap in gaps.items())
            print(f"{name}: {said}; Monte Carlo errors: {far}", flush=True)
    print(f"{wrong} not as promised")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
elif __name__ == "scenario":  # what is imported before the fork is there in each trial
    import arviz_base  # noqa: F401
    import nutpie  # noqa: F401

    if not (_pid := os.fork()):  # keeps the compiled models, and its threads to itself
        for _name in MODELS:
            with tempfile.TemporaryDirectory() as _place:
                sampled(_name, _place, 20)
        os._exit(0)
    os.waitpid(_pid, 0)
