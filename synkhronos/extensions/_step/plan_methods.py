"""The methods that are the same for each training function of one plan."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from synkhronos._api.advice import Timing
from synkhronos._api.data import Data
from synkhronos._api.request import Request
from synkhronos.extensions._step.installed_step import InstalledStep


class PlanMethods:
    """Gradients, inputs and times of a training function, from its `InstalledStep`."""

    _planned: InstalledStep
    _instead: ClassVar[str] = (
        "save its values by extensions.checkpoints.Checkpoints(folder, train), or p.get_value() "
        "of each parameter, and make the function again"
    )

    def gradients(
        self, *args: Any, batch: Any = None, num_slices: int | str = 1, **kwargs: Any
    ) -> list[np.ndarray]:
        """Compute the gradients of the loss over all rows; no value changes.

        The parameters are those of a call of `TrainFunction`. If members train apart, the gradients
        are those at the centre.

        Returns
        -------
        list of numpy.ndarray
            One for each of `params`, before clipping.
        """
        return self._planned.gradients(args, kwargs, batch, num_slices)

    def build_inputs(
        self,
        *args: Any,
        force_cast: bool = False,
        oversize: float = 1.0,
        minibatch: bool | Sequence[bool] = False,
        **kwargs: Any,
    ) -> Data | tuple[Data, ...]:
        """Make one Data for each input, as `synkhronos.Function.build_inputs` does.

        Parameters
        ----------
        *args, **kwargs
            The arrays, in order or by name: x, y, `bcast_inputs`. ``x_data`` and ``y_data`` name x
            and y, too. An input that is None, or not given, gets empty Data: set its value later.
        force_cast, oversize
            As for `synkhronos.data`.
        minibatch : bool, or one for each input

        Returns
        -------
        Data, or tuple of Data

        Raises
        ------
        InputError, InputTypeError
            There are too many arrays, or one does not fit its input.

        Notes
        -----
        Cost: one copy of each array; no communication with the workers.

        Examples
        --------
        >>> import numpy as np, pytensor, pytensor.tensor as pt, synkhronos as synk
        >>> from synkhronos.extensions import make_train_function, updates
        >>> x, w = pt.vector("x", dtype="float64"), pytensor.shared(np.zeros(()), name="w")
        >>> with synk.Group(1):
        ...     train = make_train_function(((w - x) ** 2).mean(), [w], x, None, updates.sgd, 0.5)
        ...     train.build_inputs([1.0, 3.0])
        <synkhronos.Data 'x' float64 (2,)>
        """
        return self._planned.build_inputs(args, kwargs, force_cast, oversize, minibatch)

    def timed(self, asked: Request) -> tuple[str, int | None, Timing]:
        """Measure a step for `synk.advise`; changes no variable."""
        return self._planned.timed(asked)

    def seconds_alone(self, asked: Request) -> float:
        """Measure the gradients of a step in this process alone, with all its threads."""
        return self._planned.seconds_alone(asked)
