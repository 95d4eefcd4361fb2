"""The likelihood in this process alone: its data in the model's graph, and an evaluation."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Variable
from pytensor.graph.traversal import toposort
from pytensor.link.basic import Container
from pytensor.tensor import TensorVariable
from pytensor.tensor.elemwise import DimShuffle

from synkhronos._compiling.data.aligned import aligned
from synkhronos._compiling.python_mode import python_mode
from synkhronos._warnings import log
from synkhronos.pymc._density.containers import follow
from synkhronos.pymc._density.density import density
from synkhronos.pymc._density.likelihood import DividedTerms, Likelihood
from synkhronos.pymc._reading.facts import is_smooth
from synkhronos.pymc._repeated.indices import UnsettledIndexError

_PLAIN = python_mode("canonicalize", "stabilize")


class DataInGraph:
    """The data of a likelihood, as variables of the model's graph.

    They are constants. If data are settable, those that depend on data that the user can set are
    shared variables of their own, which are computed anew when the user sets data.
    """

    def __init__(self, likelihood: Likelihood, settable: bool) -> None:
        self._parts = likelihood.parts
        self._orders = [_orders(part) for part in self._parts]
        self._refused: Container | None = None  # data with an index that chooses no element
        of_shapes = [v for part in self._parts for v in part.of_shapes]
        self._dims = {v.container for v in of_shapes if not v.type.ndim}  # lengths of dims
        shared = settable and any(part.shareds for part in self._parts)
        # a factor of the log-density: 1, or NaN as long as data do not fit together, as while one
        # after another gets another number of rows. None if no data can be set
        self.valid = pytensor.shared(np.float64(1)) if shared else None
        # of each part of the likelihood
        self.variables = [
            [
                _variable(array, place, settable and can_change)
                for array, place, can_change in zip(
                    _arrays(part, orders), _places(part), part.settable, strict=True
                )
            ]
            for part, orders in zip(self._parts, self._orders, strict=True)
        ]
        if shared:
            self.valid.tag.kept = self  # with each graph and function that reads it
            for part in self._parts:
                for each in part.shareds:
                    follow(each, self.refresh)

    def refresh(self, changed: Container) -> None:
        """Compute them anew, since the data in a container were set.

        An index that was refused is refused once: data that are set before it is set anew are not
        at fault. Neither is a dim that gets shorter before its index.

        Raises
        ------
        IndexError
            An index chooses no element. The log-density is NaN until other data are set.
        """
        self.valid.set_value(np.float64(np.nan))  # until all of them are known
        try:
            arrays = [
                _arrays(part, orders) if part.shareds else []
                for part, orders in zip(self._parts, self._orders, strict=True)
            ]
        except (ValueError, UnsettledIndexError) as exc:  # also of what computes data from data
            log.debug("the log-density is NaN until data fit together: %s", exc)
            return
        except IndexError:
            if self._refused not in (None, changed) or changed in self._dims:
                return
            self._refused = changed
            raise
        self._refused = None
        for variables, found in zip(self.variables, arrays, strict=True):
            for variable, array in zip(variables if found else [], found, strict=True):
                if isinstance(variable, SharedVariable):
                    variable.set_value(array, borrow=True)
        self.valid.set_value(np.float64(1))


def _arrays(part: DividedTerms, orders: Sequence[list[int]]) -> list[np.ndarray]:
    """The data of a part; in memory their axes are in these orders, from a cache line on."""
    rowed, whole = part.arrays()
    return [_in_order(a, order) for a, order in zip([*rowed, *whole], orders, strict=True)]


def _in_order(array: np.ndarray, order: list[int]) -> np.ndarray:
    if order == sorted(order):
        return aligned(array)
    moved = np.ascontiguousarray(array.transpose(order))
    return aligned(moved).transpose(np.argsort(order))


def _places(part: DividedTerms) -> list[Variable]:
    """The placeholders of these arrays in the graph of the part."""
    return [*part.scattered[len(part.latents) :], *part.broadcast[1:]]


def _orders(part: DividedTerms) -> list[list[int]]:
    """The order in which loops have the axes of each of these arrays: rows need not be first."""
    places = _places(part)
    found: dict[Variable, list[int]] = {}
    for node in toposort([part.value, *part.by_pieces.values(), *part.by_latents]):
        if isinstance(node.op, DimShuffle):
            order = [axis for axis in node.op.new_order if axis != "x"]
            if len(order) == node.inputs[0].type.ndim:
                found.setdefault(node.inputs[0], order)
    return [found.get(place, list(range(place.type.ndim))) for place in places]


def _variable(array: np.ndarray, place: TensorVariable, settable: bool) -> TensorVariable:
    if not settable:
        return pt.constant(array)
    shape = tuple(1 if is_one else None for is_one in place.type.broadcastable)
    return pytensor.shared(array, borrow=True, shape=shape)


def sources_of(likelihood: Likelihood) -> list[TensorVariable]:
    """The pieces of theta, and the latents, in the model's graph."""
    return [*[p.variable for p in likelihood.pieces], *likelihood.latents]


class InProcess:
    """Evaluates a likelihood in this process; in the form that `prove` compares."""

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
