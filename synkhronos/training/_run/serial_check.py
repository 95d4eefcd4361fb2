"""Checks the first steps of a run: the same steps in serial PyTensor, on copies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytensor
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Variable
from pytensor.graph.replace import clone_replace
from pytensor.graph.traversal import ancestors

from synkhronos._engine.function_arguments import roots, substituted
from synkhronos._errors import InputError, SynkhronosError
from synkhronos.extensions.train import make_train_function_pytensor
from synkhronos.training._run.events import Event

BOUND = {"float32": 1e-5, "float16": 1e-2}  # relative; of other dtypes 1e-10


class SerialCheck:
    """Makes the first steps of a run again, by plain PyTensor, and compares: a callback.

    Parameters
    ----------
    steps : int
        How many.
    loss, params, inputs, optimizer, updates, givens, clip
        As for `fit`.
    rows_of : callable
        Gives the arguments and rows of the latest step.
    """

    def __init__(
        self,
        steps: int,
        loss: Variable,
        params: Sequence[SharedVariable],
        inputs: Sequence[Variable],
        optimizer: Callable[..., object],
        updates: object = None,
        givens: object = None,
        clip: Any = None,
        **options: Any,
    ) -> None:
        self.compared: list[float] = []  # for each step the relative difference of the losses
        self._steps = steps
        self._params = list(params)
        places = roots(inputs)
        [whole], changes = substituted([loss], updates, givens, inputs, places)
        shareds = [v for v in ancestors([whole]) if isinstance(v, SharedVariable)]
        shareds += [c.shared for c in changes]
        if any(not hasattr(v.type, "dtype") for v in shareds):
            raise InputError(
                "verify: the loss draws random numbers, and each member draws its own, so no "
                "serial step is the same: leave verify= out, or verify without dropout"
            )
        self._copies = {v: _copy(v) for v in dict.fromkeys([*params, *shareds])}
        replaced = list(self._copies.items())
        loss2, *new = clone_replace([whole, *(c.new for c in changes)], replace=replaced)
        pairs = [(self._copies[c.shared], n) for c, n in zip(changes, new, strict=True)]
        self._train = make_train_function_pytensor(
            loss2,
            [self._copies[p] for p in params],
            places,
            None,
            optimizer,
            updates=pairs,
            clip=clip,
            **options,
        )

    def on_start(self, event: Event) -> None:
        """Leave a resumed run alone: the copies are those of a run that begins."""
        if event.step:
            self._steps = 0

    def on_step(self, event: Event) -> None:
        """Make the same step, and compare."""
        if event.step > self._steps:
            return
        args, batch = event.trainer.latest
        found = self._train(*args, batch=batch)
        loss = float(found[0] if isinstance(found, list) else found)
        self.compared.append(_difference(event.values["loss"], loss))
        self._check(event, f"the loss of step {event.step}", self.compared[-1])
        if event.step == self._steps:
            worst = 0.0
            for param in self._params:
                ours, serial = param.get_value(), self._copies[param].get_value()
                worst = max(worst, _difference(ours, serial))
                self._check(event, f"{param.name} after {event.step} steps", worst)
            most = max(worst, *self.compared)
            event.trainer.say(f"verified: {event.step} steps equal the serial ones to {most:.1g}")

    def _check(self, event: Event, what: str, difference: float) -> None:
        dtype = str(self._params[0].type.dtype)
        bound = BOUND.get(dtype, 1e-10)
        if not difference <= bound:
            raise SynkhronosError(
                f"verify: {what} differs from the serial one by {difference:.3g} (relative; at "
                f"most {bound:g} for {dtype}). A reduction is not the one that the graph needs, "
                "which strict=True refuses, or the graph is not stable"
            )


def _copy(variable: Any) -> Any:
    value = np.array(variable.get_value(borrow=True))
    return pytensor.shared(value, name=variable.name, shape=variable.type.shape)


def _difference(ours: object, serial: object) -> float:
    """The largest difference, relative to the largest value."""
    a, b = np.asarray(ours, np.float64), np.asarray(serial, np.float64)
    scale = max(float(np.abs(b).max(initial=0.0)), 1e-30)
    return float(np.abs(a - b).max(initial=0.0)) / scale
