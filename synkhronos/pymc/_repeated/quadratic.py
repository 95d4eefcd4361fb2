"""A quadratic form: the form for a Normal with an affine location and one scale."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytensor.tensor as pt
from pytensor.tensor.variable import TensorVariable

from synkhronos._errors import InputError
from synkhronos.pymc._repeated.affine import Block, affine
from synkhronos.pymc._repeated.columns import PRODUCTS, DataOf, Lengths, RowTerms
from synkhronos.pymc._repeated.families import HALF_LOG_2_PI, NORMAL
from synkhronos.pymc._repeated.form import Form
from synkhronos.pymc._repeated.least_squares import least_squares

_MOST = 512  # coefficients: the matrix has 2 MB


@dataclass
class QuadraticForm(Form):
    """The squared distance from the least-squares solution, by the rows of R of a QR.

    It has a row for each coefficient, and one more for the smallest sum of squares. The number of
    the user's rows stands in the last.
    """

    data: DataOf
    lengths: Lengths  # those that indices need, then the coefficients of each block
    indexed: list[bool]  # of each block

    @staticmethod
    def of(terms: RowTerms) -> Form | None:
        """The form of a term; None if it is no Normal with an affine location and one scale."""
        given = None
        if len(terms.values) == 1 and terms.axes == [0] and terms.values[0].type.ndim == 1:
            given = NORMAL.of(terms.values[0])
        if given is None or not terms.is_data(given["value"]):
            return None
        fixed = [given["sigma"], *([] if terms.holds is None else [terms.holds])]
        if any(terms.has_rows(v) for v in fixed):
            return None
        found = affine(given["mu"], terms)
        if found is None or not found.blocks:
            return None
        width = sum(block.length for block in found.blocks)
        if width > _MOST or len(terms.rowed_data[0]) <= width:
            return None
        value = given["value"] - sum(found.offsets, start=pt.constant(0.0))
        root: TensorVariable = pt.matrix("root", dtype="float64")
        rest, rows, outside = (
            pt.vector(name, dtype="float64") for name in ("rest", "rows", "outside")
        )
        joined: TensorVariable = pt.matrix("joined", dtype="float64")
        centre: TensorVariable = pt.vector("centre", dtype="float64")
        coefficients = pt.concatenate(
            [block.coefficients.astype("float64") for block in found.blocks]
        )
        distance = rest - pt.dot(root, pt.dot(joined, coefficients) - centre)
        sigma = given["sigma"]
        total = -0.5 * pt.sqr(distance / sigma) - rows * (HALF_LOG_2_PI + pt.log(sigma)) + outside
        needed = [pair for block in found.blocks for pair in block.lengths]
        each = [block.coefficients.shape[0] for block in found.blocks]
        values = [value, *[v for block in found.blocks for v in _data(block)]]
        return QuadraticForm(
            places=[root, rest, rows, outside],
            whole=[*terms.whole, joined, centre],
            total=total.sum(),
            holds=terms.holds,
            left=width + 1,
            cost=(width + 1) * (1 + 2 * width / PRODUCTS),
            data=DataOf(values, terms.rowed, [*terms.whole, *[place for place, _ in needed]]),
            lengths=terms.lengths([*[length for _, length in needed], *each]),
            indexed=[block.index is not None for block in found.blocks],
        )

    def arrays(
        self, rowed: Sequence[np.ndarray], whole: Sequence[np.ndarray]
    ) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """The matrix and what is left; which coefficients are joined, and the solution."""
        numbers = self.lengths.of(whole)
        needed, each = numbers[: -len(self.indexed)], numbers[-len(self.indexed) :]
        count, width = len(rowed[0]), sum(each)
        value, *data = self.data.arrays(rowed, [*whole, *map(np.asarray, needed)])
        value = np.broadcast_to(value, count).astype(np.float64)
        infinite = np.isinf(value)
        values = iter(data)
        blocks = [
            Rows(length, next(values) if indexed else None, next(values), count)
            for length, indexed in zip(each, self.indexed, strict=True)
        ]

        def design(begin: int, end: int) -> np.ndarray:
            return np.column_stack([block.between(begin, end) for block in blocks])

        found = least_squares(design, np.where(infinite, 0.0, value), width)
        rows, outside = np.zeros(width + 1), np.zeros(width + 1)
        rows[-1], outside[-1] = count, -np.inf if infinite.any() else 0.0
        return [found.root, found.rest, rows, outside], [*whole, found.joined, found.centre]

    @property
    def described(self) -> str:
        """A phrase on the rows."""
        return f"{self.left - 1:,} coefficients (a quadratic form)"


class Rows:
    """The rows of the design of a block.

    Raises
    ------
    IndexError
        A row has no coefficient: numpy would count from the end.
    """

    def __init__(
        self, length: int, index: np.ndarray | None, factor: np.ndarray, rows: int
    ) -> None:
        self._length = length
        self._index = None if index is None else np.broadcast_to(index, rows)
        self._factor = np.broadcast_to(factor, (rows, *factor.shape[1:]))
        if index is None and factor.shape[1] != length:
            raise InputError(
                f"a design has {factor.shape[1]} columns, and there are {length} coefficients"
            )
        if index is not None and index.size and not 0 <= index.min() <= index.max() < length:
            raise IndexError(f"an index is beyond {length} coefficients")

    def between(self, begin: int, end: int) -> np.ndarray:
        """The rows of the design from `begin` to `end`."""
        factor = self._factor[begin:end]
        if self._index is None:
            return factor.astype(np.float64)
        found = np.zeros((end - begin, self._length))
        found[np.arange(end - begin), self._index[begin:end]] = factor
        return found


def _data(block: Block) -> list[TensorVariable]:
    return [block.factor] if block.index is None else [block.index, block.factor]
