"""A trial, as the objective sees it in its own process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from synkhronos._errors import InputError
from synkhronos._transport.processes.slot_pipe import Pipe


class Trial:
    """The argument of an objective: it draws values, reports, and hears whether to stop early.

    The methods have the names and arguments of Optuna's. They ask the parent over a pipe, which
    takes about a millisecond with SQLite.

    Attributes
    ----------
    number : int
        Of the trial, from 0.
    params : dict
        The values drawn so far.
    cores : tuple of int
        The cores of the slot. This process runs only on them. Empty on a pool, ``search(on=)``.
    members : int or None
        As given to `search`; ``fork()`` without arguments follows it.
    fold, folds : int
        The fold at hand, from 0, and the number of folds; 0 of 1 without folds.

    Examples
    --------
    ::

        def objective(trial):
            rate = trial.suggest_float("rate", 1e-4, 1e-1, log=True)
            synk.fork()
            ...
            trainer = fit(..., callbacks=[trial.callback("val_loss")])
            return trainer.history[-1]["val_loss"]
    """

    def __init__(self, pipe: Pipe, task: dict[str, Any]) -> None:
        self._pipe = pipe
        self._told = False
        self._pruned = False
        self.number: int = task["number"]
        self.cores: tuple[int, ...] = tuple(task["cores"])
        self.members: int | None = task["members"]
        self.folds: int = task["folds"]
        self.fold = 0
        self.params: dict[str, object] = {}

    def suggest_float(
        self, name: str, low: float, high: float, *, step: float | None = None, log: bool = False
    ) -> float:
        """Draw a number from `low` to `high`.

        Raises
        ------
        InputError
            Optuna refuses the range.
        """
        found = self._drawn("float", name, low=low, high=high, step=step, log=log)
        return float(found)

    def suggest_int(
        self, name: str, low: int, high: int, *, step: int = 1, log: bool = False
    ) -> int:
        """Draw an integer from `low` to `high`, both included.

        Raises
        ------
        InputError
            Optuna refuses the range.
        """
        return int(self._drawn("int", name, low=low, high=high, step=step, log=log))

    def suggest_categorical(self, name: str, choices: Sequence[object]) -> Any:
        """Draw one of several numbers, texts, truth values or None.

        Raises
        ------
        InputError
        """
        return self._drawn("categorical", name, choices=list(choices))

    def report(self, value: float, step: int) -> None:
        """Report a value on the way; then `should_prune` says whether to stop.

        Parameters
        ----------
        value : float
        step : int
            Such as the epoch, from 0.

        Raises
        ------
        InputError
            The study has several objectives, or trials have folds, which are reports themselves.
        """
        if self.folds > 1:
            raise InputError("report: each fold is a report; leave report() out")
        self.tell_fold(value, step)

    def tell_fold(self, value: object, step: int) -> None:
        """Report a value, also that of a fold."""
        self._told = bool(self._ask({"report": value, "step": step})["prune"])

    def should_prune(self) -> bool:
        """Whether to stop early, as told after the latest report; then raise optuna.TrialPruned."""
        return self._told

    def set_user_attr(self, key: str, value: object) -> None:
        """Keep a value with the trial in the study: a number, a text, or lists and dicts of them.

        Raises
        ------
        InputTypeError
            JSON has no such value.
        """
        self._ask({"set": key, "value": value})

    def callback(self, metric: str = "val_loss") -> Callback:
        """A callback for `fit`, which reports a value of each epoch, and stops a pruned run.

        The trial counts as pruned when the objective has returned. With folds it does nothing.

        Parameters
        ----------
        metric : str
            The name of the value in the history.
        """
        return Callback(self, metric)

    def split(self, n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
        """The rows to train on and the rows to validate on, in this fold.

        Each of the n rows is validated in one fold. Rows are shuffled, alike in all trials.

        Parameters
        ----------
        n : int
        seed : int

        Returns
        -------
        (int array, int array)

        Raises
        ------
        InputError
            There are no folds, or fewer rows than folds.
        """
        return split(n, self.fold, self.folds, seed)

    @property
    def pruned(self) -> bool:
        """Whether the callback has stopped a run."""
        return self._pruned

    def stop_early(self) -> None:
        """Count as pruned, whatever the objective returns."""
        self._pruned = True

    def _drawn(self, kind: str, name: str, **arguments: object) -> Any:
        request = {"suggest": kind, "name": name, "arguments": arguments}
        value = self.params[name] = self._ask(request)["value"]
        return value

    def _ask(self, request: dict[str, Any]) -> dict[str, object]:
        reply = self._pipe.ask(request)
        if "error" in reply:
            raise InputError(f"trial {self.number}: {reply['error']}")
        return reply


class Callback:
    """Reports a value of each epoch to the parent of the search; made by `Trial.callback`."""

    def __init__(self, trial: Trial, metric: str) -> None:
        self._trial = trial
        self._metric = metric

    def on_start(self, event: Any) -> None:
        """Refuse a name that no value of this run has."""
        known = event.values["columns"]
        if self._metric not in known:
            raise InputError(
                f"trial.callback: there is no value {self._metric!r}; there are {', '.join(known)}"
            )

    def on_epoch(self, event: Any) -> None:
        """Report, and stop the run if the trial is pruned."""
        value = event.values.get(self._metric)
        if value is None or self._trial.folds > 1:  # an epoch without validation
            return
        self._trial.report(value, event.epoch)
        if self._trial.should_prune():
            self._trial.stop_early()
            event.trainer.stop("the search has pruned this trial")


def split(n: int, fold: int, folds: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Rows to train on, and rows of this fold; both in ascending order.

    >>> split(5, fold=0, folds=2)
    (array([0, 1]), array([2, 3, 4]))
    """
    if folds < 2 or n < folds:
        raise InputError(f"split: {n} rows in {folds} folds: give search(folds=) from 2 to {n}")
    order = np.random.default_rng(seed).permutation(n)
    held = np.sort(np.array_split(order, folds)[fold])
    return np.setdiff1d(np.arange(n), held), held
