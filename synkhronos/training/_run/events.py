"""Events of a training run, and who is told of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pytensor.compile.sharedvalue import SharedVariable

from synkhronos._checks import shown
from synkhronos._errors import InputTypeError
from synkhronos.extensions._saving.checkpoints import Checkpoints
from synkhronos.extensions._step.training_function import TrainingFunction

KINDS = ("start", "step", "epoch", "validated", "saved", "end")


class RunControl(ABC):
    """The trainer as callbacks see it between two steps; `Trainer` documents it."""

    train: TrainingFunction

    @property
    @abstractmethod
    def completed(self) -> bool:
        """Whether the run has ended by `stop` or after all epochs."""

    @property
    @abstractmethod
    def latest(self) -> tuple[tuple[object, ...], object]:
        """The inputs of the latest step, and the rows of them."""

    @abstractmethod
    def stop(self, reason: str = ...) -> None:
        """End the run after the step at hand."""

    @abstractmethod
    def say(self, text: str) -> None:
        """Show a line."""

    @abstractmethod
    def values(self) -> dict[SharedVariable, Any]:
        """Copies of the values that training changes."""

    @abstractmethod
    def checkpoints_in(self, name: str) -> Checkpoints | None:
        """Checkpoints in a folder of their own, if the run has one."""


@dataclass(frozen=True)
class Event:
    """An event of a run.

    Attributes
    ----------
    kind : str
        "start": before the first step. "step": after each step. "validated": after each
        validation. "epoch": after each epoch, and its validation. "saved": after each checkpoint.
        "end": after the last step, also if an exception ends the run.
    trainer : Trainer
        ``trainer.stop(reason)`` ends the run.
    step : int
        Steps so far.
    epoch : int
        The number of the epoch, from 0; that of the one that has ended, for "epoch". Printed lines
        and `History` count from 1.
    values : dict
        "start": columns, the names of the values of an epoch. "step": loss, rows. "validated":
        val_loss and the other metrics, with the prefix ``val_``. "epoch": loss (the mean over the
        rows of the epoch, each before its update), rows, seconds (of steps, with the
        compiling of the first one), and the values of the validation.
        "saved": path. "end": reason.
    seconds : float
        Since the start of the run.
    """

    kind: str
    trainer: RunControl
    step: int
    epoch: int
    values: Mapping[str, Any]
    seconds: float


Handler = Callable[[Event], object]


class Subscribers:
    """The callbacks of a run: for each kind of event, who is told, in order.

    A callback is a function of an `Event`, which is told of all; or an object with methods
    ``on_start``, ``on_step``, ``on_validated``, ``on_epoch``, ``on_saved``, ``on_end``, or some of
    them. An object with ``state()`` and ``restore(state)`` is saved in checkpoints.
    """

    def __init__(self, callbacks: Sequence[object]) -> None:
        self._of: dict[str, list[tuple[str, Handler]]] = {kind: [] for kind in KINDS}
        self._states: dict[str, Any] = {}
        for callback in callbacks:
            self._add(callback)

    def _add(self, callback: object) -> None:
        name = getattr(callback, "__name__", None) or type(callback).__name__
        if isinstance(callback, type):
            raise InputTypeError(f"callbacks: {shown(callback)} is a class: make an object of it")
        methods = {kind: getattr(callback, f"on_{kind}", None) for kind in KINDS}
        told = {kind: method for kind, method in methods.items() if callable(method)}
        if not told:
            if not callable(callback):
                raise InputTypeError(
                    f"callbacks: {shown(callback)} is not a function of an event, and has no "
                    f"method on_{', on_'.join(KINDS)}"
                )
            told = dict.fromkeys(KINDS, callback)
        for kind, method in told.items():
            self._of[kind].append((name, method))
        if callable(getattr(callback, "state", None)) and hasattr(callback, "restore"):
            same = sum(key.partition(" ")[0] == name for key in self._states)
            self._states[f"{name} {same}" if same else name] = callback

    def wants(self, kind: str) -> bool:
        """Whether anybody is told of this kind."""
        return bool(self._of[kind])

    def tell(self, event: Event) -> None:
        """Tell all who want to know; an exception gets the callback's name as a note."""
        for name, handler in self._of[event.kind]:
            try:
                handler(event)
            except Exception as exc:
                exc.add_note(
                    f"synkhronos: raised by the callback {name} at the event {event.kind!r} of "
                    f"step {event.step}; all values are whole"
                )
                raise

    def state(self) -> dict[str, object]:
        """The states of all callbacks that have one, for JSON."""
        return {name: callback.state() for name, callback in self._states.items()}

    def restore(self, states: Mapping[str, object]) -> None:
        """Give each callback its state; one that was not saved stays as it is."""
        for name, callback in self._states.items():
            if name in states:
                callback.restore(states[name])
