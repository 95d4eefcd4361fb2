"""The likelihood in this process alone: its data in the model's graph, and an evaluation."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor.link.basic import Container

from synkhronos._engine.python_mode import python_mode
from synkhronos.pymc._containers import follow
from synkhronos.pymc._density import density
from synkhronos.pymc._likelihood import DividedTerms, Likelihood
from synkhronos.pymc._repeated._indices import UnsettledIndexError
from synkhronos.pymc._rows import is_smooth

log = logging.getLogger("synkhronos")

_PLAIN = python_mode("canonicalize", "stabilize")


class DataInGraph:
    """The data of a likelihood, as variables of the model's graph.

    They are constants. If data are settable, those that depend on data that the user can set are
    shared variables of their own, which are computed anew when the user sets data.

    Parameters
    ----------
    likelihood : Likelihood
    settable : bool

    Attributes
    ----------
    variables : list of list of Variable
        Of each part of the likelihood.
    valid : Variable, or None
        A factor of the log-density: 1, or NaN as long as data do not fit together, as while one
        after another gets another number of rows. None if no data can be set.
    """

    def __init__(self, likelihood: Likelihood, settable: bool) -> None:
        self._parts = likelihood.parts
        self._refused: Container | None = None  # data with an index that chooses no element
        shared = settable and any(part.shareds for part in self._parts)
        self.valid: Any = pytensor.shared(np.float64(1)) if shared else None
        self.variables = [
            [_variable(array, settable and bool(part.shareds)) for array in _arrays(part)]
            for part in self._parts
        ]
        if shared:
            self.valid.tag.kept = self  # with each graph and function that reads it
            for part in self._parts:
                for each in part.shareds:
                    follow(each, self.refresh)

    def refresh(self, changed: Container) -> None:
        """Compute them anew, since the data in a container were set.

        An index that was refused is refused once: data that are set before it is set anew are not
        at fault.

        Raises
        ------
        IndexError
            An index chooses no element. The log-density is NaN until other data are set.
        """
        self.valid.set_value(np.float64(np.nan))  # until all of them are known
        try:
            arrays = [_arrays(part) if part.shareds else [] for part in self._parts]
        except (ValueError, UnsettledIndexError) as exc:  # also of what computes data from data
            log.debug("the log-density is NaN until data fit together: %s", exc)
            return
        except IndexError:
            if self._refused not in (None, changed):
                return
            self._refused = changed
            raise
        self._refused = None
        for variables, found in zip(self.variables, arrays, strict=True):
            for variable, array in zip(variables if found else [], found, strict=True):
                variable.set_value(array, borrow=True)
        self.valid.set_value(np.float64(1))


def _arrays(part: DividedTerms) -> list[np.ndarray]:
    rowed, whole = part.arrays()
    return [*rowed, *whole]


def _variable(array: np.ndarray, settable: bool) -> Any:
    if not settable:
        return pt.constant(array)
    shape = (None,) * array.ndim
    return pytensor.shared(array, borrow=True, shape=shape)


def sources_of(likelihood: Likelihood) -> list[Any]:
    """The pieces of theta, and the latents, in the model's graph."""
    return [*[p.variable for p in likelihood.pieces], *likelihood.latents]


class InProcess:
    """Evaluates a likelihood in this process; in the form that `prove` compares.

    Parameters
    ----------
    likelihood : Likelihood
    data : DataInGraph
    """

    def __init__(self, likelihood: Likelihood, data: DataInGraph) -> None:
        self.likelihood = likelihood
        places = [v.type() for v in sources_of(likelihood)]
        outputs = density(likelihood, data.variables, places)
        self._function = pytensor.function(places, outputs, mode=_PLAIN, on_unused_input="ignore")

    def __call__(
        self, theta: np.ndarray, latents: Sequence[np.ndarray]
    ) -> tuple[np.ndarray, list[np.ndarray]]:
        """[log-density, gradient by theta], and the gradients by latents."""
        pieces = self.likelihood.pieces
        cut = [theta[p.start : p.stop].reshape(p.shape).astype(p.variable.dtype) for p in pieces]
        value, *gradients = self._function(*cut, *latents)
        flat = np.concatenate([[value], np.zeros(theta.size)])
        smooth = [p for p in pieces if is_smooth(p.variable)]
        for p, gradient in zip(smooth, gradients, strict=False):
            flat[1 + p.start : 1 + p.stop] = gradient.ravel()
        return flat, gradients[len(smooth) :]

    def compile_beside(
        self, theta: np.ndarray, latents: Sequence[np.ndarray], work: Callable[[], object]
    ) -> None:
        """Do `work`; nothing else compiles here meanwhile."""
        work()
