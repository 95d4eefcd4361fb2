"""Objectives for tests of `search`; their trials import this module."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

AT_IMPORT = sorted(os.sched_getaffinity(0))


class TrialPruned(Exception):
    """As Optuna's, whose name is what counts."""


def parabola(trial: Any) -> float:
    return float((trial.suggest_float("x", -5.0, 5.0) - 2) ** 2)


def place(trial: Any) -> float:
    """What the process finds of its slot."""
    import threadpoolctl

    trial.set_user_attr("at_import", AT_IMPORT)
    trial.set_user_attr("cores", list(trial.cores))
    trial.set_user_attr("blas", [p["num_threads"] for p in threadpoolctl.threadpool_info()])
    trial.set_user_attr("members", os.environ.get("SYNKHRONOS_MEMBERS"))
    trial.set_user_attr("settings", os.environ.get("SYNKHRONOS_START"))
    return 0.0


def group(trial: Any) -> float:
    """Starts a group, and leaves it open."""
    import numpy as np
    import pytensor.tensor as pt

    import synkhronos as synk

    size = synk.fork()
    x = pt.dvector("x")
    f = synk.function([x], (x.sum(), "sum"), mode="FAST_COMPILE")
    return float(size * 100 + f(np.arange(5.0)))


def by_number(trial: Any) -> Any:
    """Each trial ends in another way."""
    trial.suggest_float("x", 0, 1)
    ways = [
        lambda: 1.5,
        lambda: os.kill(os.getpid(), signal.SIGKILL),
        lambda: 1 / 0,
        lambda: float("nan"),
        lambda: (1.0, 2.0),
        lambda: "much",
        lambda: os._exit(3),
        lambda: trial.suggest_float("y", 2, 1),
        lambda: trial.set_user_attr("z", object()),
        lambda: os.write(trial._pipe._requests.fileno(), b"nonsense\n"),
        lambda: 0.5,
    ]
    return ways[trial.number]()


def kinds_of_values(trial: Any) -> Any:
    """Each trial returns another kind of value."""
    import numpy as np

    kinds = [np.array([1.5]), np.float32(0.5), np.array(2), None, np.array([1.0, 2.0]), True]
    return [*kinds, 10**400][trial.number]


def too_large(trial: Any) -> float:
    """Numbers that the sampler, the storage or a float cannot hold; then one that they can."""
    ways = [
        lambda: trial.suggest_int("n", 0, 10**400),
        lambda: trial.suggest_float("x", 0.0, float("inf"), step=0.5),
        lambda: trial.report(0.5, 2**70),
        lambda: trial.report(10**400, 0),
        lambda: trial.suggest_float("y", 0.0, 1.0),
    ]
    ways[trial.number]()
    return 1.0


def own_attributes(trial: Any) -> float:
    """Keeps values under names that the search might take for its own."""
    for name in ("owner", "again_of"):
        trial.set_user_attr(name, 0)
    return 1.0


def four_threads(trial: Any) -> float:
    """Each draws values from a range of its own; the number of wrong values, or of missing ones."""
    import threading

    right: list[float] = []

    def draw(low: int) -> None:
        for n in range(50):
            value = trial.suggest_float(f"{low}-{n}", low, low + 0.5)
            if low <= value <= low + 0.5:
                right.append(value)

    threads = [threading.Thread(target=draw, args=(n,), daemon=True) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20.0)
    return 200.0 - len(right)


def sleeps(trial: Any) -> float:
    time.sleep(1000)
    return 0.0


def forks(trial: Any) -> float:
    """A child ends as few should: it reports, returns, or leaves by an exception."""
    ended = []
    for how in ("report", "return", "exit"):
        if pid := os.fork():
            ended.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        elif how == "exit":
            sys.exit(3)
        else:
            if how == "report":
                trial.report(0.5, 0)
            return 7.0
    trial.set_user_attr("ended", ended)
    return 1.0


def told(trial: Any) -> float:
    """Reports until it is told to end."""
    for step, value in enumerate([0.5, 2.0, 3.0]):
        trial.report(value, step)
        if trial.should_prune():
            raise TrialPruned
    return 1.0


def fold_value(trial: Any) -> float:
    return float([1, 2, 6][trial.fold])


def two_folds(trial: Any) -> tuple[float, float]:
    return float(trial.fold), 10.0


def front(trial: Any) -> tuple[float, float]:
    x = trial.suggest_float("x", 0, 1)
    return x, 1 - x


def run_of_epochs(trial: Any) -> float:
    """As `fit` with the callback; the trainer notes whether it was stopped."""
    from types import SimpleNamespace

    stopped: list[str] = []
    event = SimpleNamespace(
        values={"columns": ["loss", "val_loss"]},
        trainer=SimpleNamespace(stop=stopped.append),
        epoch=0,
    )
    callback = trial.callback("val_loss")
    callback.on_start(event)
    epoch = 0
    while not stopped and epoch < 4:
        event.values = {"loss": 0.0} if epoch == 1 else {"loss": 0.0, "val_loss": 1.0 + epoch}
        event.epoch = epoch
        callback.on_epoch(event)
        epoch += 1
    return 9.0


def rendezvous(folder: Path, trial: Any) -> float:
    """Draws a value, says so in a file, and waits until the file `go` is there."""
    x = trial.suggest_float("x", -5.0, 5.0)
    (folder / f"pid-{trial.number}").write_text(str(os.getpid()))
    while not (folder / "go").exists():
        time.sleep(0.02)
    return float((x - 2) ** 2)


def first_then_sleeps(folder: Path, trial: Any) -> float:
    """The first trial ends when the second one has begun, which does not end."""
    if trial.number == 0:
        while not (folder / "begun").exists():
            time.sleep(0.02)
        return 0.0
    trial.suggest_float("x", 0, 1)
    (folder / "begun").write_text("")
    return sleeps(trial)


def deaf(trial: Any) -> float:
    """The first one asks for much, and reads no reply; the second one behaves."""

    if trial.number == 0:
        request = {"set": "a", "value": 0}
        for _ in range(100_000):
            trial._pipe.send(request)
        time.sleep(1000)
    return 1.0


def always_raises(trial: Any) -> float:
    raise LookupError("no such file")


def says_and_sleeps(folder: Path, trial: Any) -> float:
    """Draws a value, says so, and takes long."""
    trial.suggest_float("x", -5.0, 5.0)
    (folder / "begun").write_text("")
    time.sleep(6)  # an interrupt comes before; some pools wait for the end
    return 0.0


def parents(folder: Path, trial: Any) -> float:
    """Notes which process runs it, and which has started that; then it takes a while."""
    x = trial.suggest_float("x", -5.0, 5.0)
    with open(folder / "begun", "a") as file:
        file.write(f"{os.getppid()} {os.getpid()} {trial.number} {x!r}\n")
    time.sleep(0.5)
    return x
