"""How the gradients of a training step travel between nodes: all, the largest, or in 16 bits."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from synkhronos._checks import Checked, check_flag, check_integer, check_number, check_word, shown
from synkhronos._errors import DeprecatedWarning, InputError, InputTypeError
from synkhronos._transport.communicators.half_precision import FORMATS
from synkhronos._warnings import warn


@dataclass(frozen=True)
class Exchange(Checked):
    """The base of `TopK` and `HalfPrecision`."""

    def __str__(self) -> str:
        given = [f"{f.name}={getattr(self, f.name)!r}" for f in fields(self)]
        return f"{type(self).__name__}({', '.join(given)})"


@dataclass(frozen=True)
class TopK(Exchange):
    """Nodes exchange the largest elements of their gradients, and keep the rest for later.

    Each node adds its gradient to a residual, which is zero at first, and selects the k elements of
    the largest magnitude. The selected elements are added up over nodes. Of the sums, the k largest
    are the step's gradient; its other elements are zero. The elements that a node has contributed
    to it are set to zero in the residual. So nothing is lost: all else stays in the residual.

    Parameters
    ----------
    density : float, more than 0 and at most 1
        k is this share of the number of the parameters' elements, rounded up.

    Raises
    ------
    InputError, InputTypeError
        The density is out of range, or not a number.

    Notes
    -----
    The members of a node add up their gradients first, in shared memory. So the result depends on
    the number of nodes, and on the number of members only by rounding. A group on one node makes
    the same steps as a node without others. With density 1 a step is the dense one, up to rounding.

    If a gradient is not finite on some node, the gradient of the step is NaN everywhere, and
    residuals stay as they are. So ``guard="skip"`` of `fit` loses none of them.

    Residuals are states of the training function: ``residual of w`` has one row for each node, and
    `Checkpoints` save it. A group of another number of nodes gets their sum, on its first node.

    Cost: each node receives at most 6 k words (values and numbers of elements) in place of 2 n,
    after about 10 agreements of the leaders. A node's leader selects, in about 3 ns for each of
    the n elements. Memory of a node: two more vectors of n elements, and one for each node.

    Source: Li and Hoefler, Near-Optimal Sparse Allreduce for Distributed Deep Learning, PPoPP 2022,
    `arXiv:2201.07598 <https://arxiv.org/abs/2201.07598>`_, algorithms 1 and 2, where the residual
    contains the learning rate and the two thresholds are estimated; here both selections are exact.

    Examples
    --------
    >>> import numpy as np, pytensor, pytensor.tensor as pt, synkhronos as synk
    >>> from synkhronos.extensions import TopK, make_train_function, updates
    >>> x, w = pt.vector("x", dtype="float64"), pytensor.shared(np.zeros(2), name="w")
    >>> loss = (x.mean() * np.array([3.0, 1.0]) * w).sum()
    >>> with synk.Group(1):
    ...     train = make_train_function(
    ...         loss, [w], x, None, updates.sgd, 1.0, exchange=TopK(0.5), reduction="avg"
    ...     )
    ...     for _ in range(4):
    ...         value = train([1.0])
    ...     w.get_value().tolist(), [v.get_value().tolist() for v in train.state]
    ([-9.0, -4.0], [[[3.0, 0.0]]])
    """

    density: float

    def _check(self) -> None:
        check_number(*self._given("density"), above=0, most=1)

    def count(self, elements: int) -> int:
        """How many of these elements a node sends.

        >>> from synkhronos.extensions import TopK
        >>> TopK(0.01).count(1001)
        11
        """
        return min(elements, math.ceil(self.density * elements))


@dataclass(frozen=True)
class HalfPrecision(Exchange):
    """Nodes exchange gradients in 16 bits for each element, and add them up in their own dtype.

    Parameters
    ----------
    format : {"bf16", "fp16"}
        bfloat16 has float32's range and 8 bits of precision. IEEE half precision has 11 bits, and
        becomes infinite above 65,504.
    stochastic : bool
        Round up or down by chance, so that the expected value is the exact one: small gradients do
        not vanish in the sum of many steps. Otherwise to the nearest.
    seed : int, not negative
        Of the chance. It follows from this, the step and the node, so a resumed run has equal bits.

    Raises
    ------
    InputError, InputTypeError
        A field is out of range, or of another type.

    Notes
    -----
    Inside a node nothing is rounded: members read each other's gradients in place, so 16 bits would
    add two conversions and save no copy. On one node this exchange has no effect.

    Cost: half the bytes of float32. A conversion takes about 4 ns for each element, with chance
    about 8 (one core).

    Source of stochastic rounding: Gupta et al., Deep Learning with Limited Numerical Precision,
    `arXiv:1502.02551 <https://arxiv.org/abs/1502.02551>`_, section 3.

    Examples
    --------
    >>> from synkhronos.extensions import HalfPrecision
    >>> str(HalfPrecision(stochastic=True))
    "HalfPrecision(format='bf16', stochastic=True, seed=0)"
    """

    format: str = "bf16"
    stochastic: bool = False
    seed: int = 0

    def _check(self) -> None:
        check_word(*self._given("format"), FORMATS)
        check_flag(*self._given("stochastic"))
        check_integer(*self._given("seed"), 0)


def exchange_of(exchange: object, compress: object) -> Exchange | None:
    """The exchange that `exchange=` and `compress=` of a training function describe."""
    if compress not in (None, *FORMATS):
        raise InputError(f'compress={shown(compress)}: use exchange=HalfPrecision("fp16")')
    if compress is not None and exchange is not None:
        raise InputError(
            f"make_train_function: compress={compress!r} and exchange={exchange}: give the second "
            "one alone; compress= is its old spelling"
        )
    if compress is not None:
        warn(
            f'compress="{compress}" is an old spelling: write exchange=HalfPrecision("{compress}")',
            DeprecatedWarning,
        )
        return HalfPrecision(compress)
    if exchange is None:
        return None
    if isinstance(exchange, type) and issubclass(exchange, Exchange):
        raise InputTypeError(
            f"make_train_function: exchange={exchange.__name__} is a class: call it, as in "
            f"{exchange.__name__}({'0.01' if exchange is TopK else ''})"
        )
    if not isinstance(exchange, TopK | HalfPrecision):
        raise InputTypeError(
            f"make_train_function: exchange={shown(exchange)}: give TopK(density) or "
            "HalfPrecision(format), of synkhronos.extensions"
        )
    return exchange
