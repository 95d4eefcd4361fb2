"""The callbacks of a run: who is told of which event, and their states.

These rules hold here:

* Each callback is told of each event once. If one raises, those after it are told when the run goes
  on: an epoch must not count twice, nor be missed.
* A callback that has raised has been told. Only it knows how much of its work is done.
* The key of a state names the class, and what the callback adds. The order of the list matters only
  among callbacks with the same key.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from synkhronos._checks import shown
from synkhronos._errors import InputError, InputTypeError
from synkhronos.training._directions import Mode
from synkhronos.training._run.events import KINDS, Event
from synkhronos.training._run.watch import Watch

Handler = Callable[[Event], object]


def check_list(what: str, callbacks: object) -> None:
    """Raise unless these are several callbacks; `what` begins the message.

    Raises
    ------
    InputTypeError
    """
    if not isinstance(callbacks, list | tuple):
        raise InputTypeError(
            f"{what}: callbacks={shown(callbacks)}: give a list of them, as in callbacks=[mine]"
        )


class Subscribers:
    """The callbacks of a run: for each kind of event, who is told, in order.

    A callback is a function of an `Event`, which is told of all; or an object with methods
    ``on_start``, ``on_step``, ``on_validated``, ``on_epoch``, ``on_saved``, ``on_end``, or some of
    them. An object with ``state()`` and ``restore(state)`` is saved in checkpoints.
    """

    def __init__(self, callbacks: Sequence[object]) -> None:
        self._of: dict[str, list[tuple[str, Handler]]] = {kind: [] for kind in KINDS}
        self._saved: list[tuple[str, Any]] = []
        self._watches = [each for each in callbacks if isinstance(each, Watch)]
        self._untold: deque[tuple[str, Handler, Event]] = deque()
        for watch in self._watches:
            if sum(each is watch for each in self._watches) > 1:
                raise InputError(f"callbacks: {watch!r} is listed twice, and would count twice")
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
            self._saved.append((name, callback))

    def check(self, run: str, modes: Mapping[str, Mode | None]) -> dict[str, Mode]:
        """The values that callbacks watch, and the directions in which they do; nothing changes.

        Parameters
        ----------
        run : str
            The token of the run.
        modes : mapping
            The values of the run, and the directions of their metrics.

        Raises
        ------
        InputError
            A callback does not fit.
        """
        return {watch.metric: watch.check(run, modes) for watch in self._watches}

    def wants(self, kind: str) -> bool:
        """Whether anybody is told of this kind."""
        return bool(self._of[kind])

    def post(self, event: Event) -> None:
        """Note an event, of which `tell_rest` tells."""
        self._untold += [(name, handler, event) for name, handler in self._of[event.kind]]

    def tell_rest(self) -> None:
        """Tell all who have not been told yet."""
        while self._untold:
            _tell(*self._untold.popleft())

    def tell(self, event: Event) -> None:
        """Tell all who want to know; an exception gets the callback's name as a note."""
        self.post(event)
        self.tell_rest()

    def tell_start(self, event: Event) -> None:
        """Tell of the start; one that raises ends it, and the next start is another event."""
        for name, handler in self._of[event.kind]:
            _tell(name, handler, event)

    def tell_end(self, event: Event) -> None:
        """Tell everybody of the end, then raise the first exception."""
        raised: list[Exception] = []
        for name, handler in self._of[event.kind]:
            try:
                _tell(name, handler, event)
            except Exception as exc:
                raised.append(exc)
        if raised:
            raise raised[0]

    def state(self) -> dict[str, object]:
        """The states of all callbacks that have one, for JSON."""
        return {key: callback.state() for key, callback in self._by_key().items()}

    def restore(self, states: Mapping[str, object]) -> list[str]:
        """Give each callback its state, and forget whom events of later steps were kept from.

        Returns
        -------
        list of str
            What does not fit, for the user: callbacks without a state, states without a callback.
        """
        self._untold.clear()
        found = self._by_key()
        for key, callback in found.items():
            if key in states:
                callback.restore(states[key])
        new = [
            f"{key} has no state in the checkpoint: it begins anew"
            for key in found.keys() - states.keys()
        ]
        gone = [
            f"the checkpoint has a state of {key}, which this run lacks: the state is dropped"
            for key in states.keys() - found.keys()
        ]
        return sorted(new) + sorted(gone)

    def why_ended(self) -> list[str]:
        """Why the run has ended before, as the callbacks' states say it; empty if it goes on."""
        asked = [getattr(callback, "why_ended", None) for _, callback in self._saved]
        return [reason for ask in asked if callable(ask) and (reason := ask())]

    def _by_key(self) -> dict[str, Any]:
        """The callbacks with a state; the keys of watches are known once the run has begun."""
        found: dict[str, Any] = {}
        for name, callback in self._saved:
            own = getattr(callback, "state_key", "")
            first = key = f"{name}: {own}" if own else name
            n = 1
            while key in found:
                key, n = f"{first} {n}", n + 1
            found[key] = callback
        return found


def _tell(name: str, handler: Handler, event: Event) -> None:
    try:
        handler(event)
    except Exception as exc:
        exc.add_note(
            f"synkhronos: raised by the callback {name} at the event {event.kind!r} of "
            f"step {event.step}; all values are whole"
        )
        raise
