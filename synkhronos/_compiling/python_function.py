"""A function that Python evaluates, made when it is first called and left behind by pickles."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytensor
from pytensor.graph.basic import Variable

from synkhronos._compiling.python_mode import python_mode


class PythonFunction:
    """A function of arrays, whose graph is rewritten when it is first called in a process.

    Parameters
    ----------
    inputs, outputs : sequence of Variable
        Inputs that no output needs are allowed. Without outputs nothing is made.

    Examples
    --------
    >>> import pytensor.tensor as pt
    >>> x = pt.dvector("x")
    >>> [double] = PythonFunction([x], [2 * x])(np.ones(2))
    >>> double.tolist()
    [2.0, 2.0]
    """

    def __init__(self, inputs: Sequence[Variable], outputs: Sequence[Variable]) -> None:
        self._inputs, self._outputs = list(inputs), list(outputs)
        self._made: Callable[..., list[np.ndarray]] | None = None

    def __call__(self, *given: object) -> list[np.ndarray]:
        """The values of the outputs."""
        if not self._outputs:
            return []
        if self._made is None:
            self._made = pytensor.function(
                self._inputs, self._outputs, mode=python_mode(), on_unused_input="ignore"
            )
        return self._made(*given)

    def __getstate__(self) -> dict[str, object]:
        return {**vars(self), "_made": None}
