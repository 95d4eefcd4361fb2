"""Metrics that are exact over all rows: any number of members, parts and calls gives one value.

A metric is an expression of one call over all rows (its reduction is proved), or a `Metric`: sums
over rows, and a function of these sums. Sums add up over any number of calls, so a `Metric` also
serves data that are larger than memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Variable
from pytensor.tensor import TensorLike
from pytensor.tensor.variable import TensorVariable

from synkhronos._checks import check_integer, check_word, shown
from synkhronos._errors import InputTypeError
from synkhronos._public import belong_to
from synkhronos.training._directions import Mode


@dataclass(frozen=True)
class Metric:
    """Sums over rows, and the function that makes a value of them.

    Parameters
    ----------
    sums : sequence of Variable
        Each a sum over rows, of any shape.
    finish : callable
        From the sums over all rows, numpy arrays of float64 or of their own integer dtype, to the
        value.
    mode : {"min", "max"}, optional
        Whether lower or higher values are better, for callbacks that look at the metric.

    Raises
    ------
    InputError, InputTypeError
        `sums` are not variables, `finish` is not a function, or `mode` is another word.

    Examples
    --------
    The root of a mean of squares:

    >>> import numpy as np, pytensor.tensor as pt
    >>> from synkhronos.training.metrics import Metric
    >>> error = pt.vector("error")
    >>> rmse = Metric([(error**2).sum(), error.shape[0]], lambda s, n: np.sqrt(s / n), "min")
    """

    sums: Sequence[Variable]
    finish: Callable[..., object]
    mode: Mode | None = None

    reduction: ClassVar[str] = "sum"  # of `sums`: how parts of the rows are combined

    @staticmethod
    def of_moments(
        columns: Sequence[Variable],
        finish: Callable[[int, np.ndarray, np.ndarray], object],
        mode: Mode | None = None,
    ) -> Metric:
        """A function of the means of columns, and of the sums of products of their deviations.

        A variance or a correlation as a difference of sums loses its digits where the mean is large
        beside the spread. Here each part of the rows subtracts its own mean, and parts are merged
        by the differences of their means.

        Parameters
        ----------
        columns : sequence of vectors (rows)
        finish : callable
            From the number of rows n, the means (columns,) and the products (columns, columns),
            where ``products[i, j]`` is the sum of ``(a - mean(a)) * (b - mean(b))`` over all rows.
            So ``products / n`` is the covariance. Without rows, all are 0.
        mode : {"min", "max"}, optional

        Returns
        -------
        Metric

        Raises
        ------
        InputError, InputTypeError
            As for `Metric`; or a column is not a vector.

        Notes
        -----
        Source: Chan, Golub and LeVeque, Updating formulae and a pairwise algorithm for computing
        sample variances, 1979.

        Examples
        --------
        >>> import numpy as np, pytensor.tensor as pt
        >>> from synkhronos.training.metrics import Metric
        >>> def correlation(n, means, products):
        ...     return products[0, 1] / np.sqrt(products[0, 0] * products[1, 1])
        >>> metric = Metric.of_moments([pt.vector("a"), pt.vector("b")], correlation, "max")
        """
        return _Moments([_moments(columns)], finish, mode)

    def __post_init__(self) -> None:
        check_word("Metric: mode", self.mode, ("min", "max", None))
        found = self.sums
        if not isinstance(found, list | tuple) or not all(isinstance(s, Variable) for s in found):
            raise InputTypeError(
                f"Metric: sums={shown(found)}: give a list of variables, each a sum over rows"
            )
        if not found or not callable(self.finish):
            raise InputTypeError(
                "Metric: give at least one sum, and a function that takes one argument for each"
            )


@dataclass(frozen=True)
class _Moments(Metric):
    """Moments of each part of the rows, as rows of a matrix, which are merged at the end."""

    reduction: ClassVar[str] = "gather"

    def __post_init__(self) -> None:
        super().__post_init__()
        finish = self.finish
        object.__setattr__(self, "finish", lambda parts: finish(*_merged(parts)))


def _moments(columns: Sequence[Variable]) -> Variable:
    """The number of rows, the means and the sums of products of a part, as one row of a matrix."""
    if not isinstance(columns, list | tuple) or not columns:
        raise InputTypeError(f"Metric: columns={shown(columns)}: give a list of vectors")
    found = []
    for column in map(pt.as_tensor_variable, columns):
        if column.type.ndim != 1:
            raise InputTypeError(f"Metric: the column {column} is {column.type}: give a vector")
        found.append(pt.cast(column, "float64"))
    table = pt.stack(found, axis=1)
    n = _rows(table[:, 0]).astype("float64")
    means = table.sum(axis=0) / pt.maximum(n, 1)
    means += (table - means).sum(axis=0) / pt.maximum(n, 1)  # what the rounding of the sum has left
    apart = table - means
    return pt.concatenate([n[None], means, (apart.T @ apart).ravel()])[None, :]


def _merged(parts: np.ndarray) -> tuple[int, np.ndarray, np.ndarray]:
    """The number of rows, the means and the sums of products of all parts."""
    size = math.isqrt(parts.shape[1])  # 1 + k + k * k numbers
    n, means, products = 0.0, np.zeros(size), np.zeros((size, size))
    for part in parts:
        rows, own, inner = part[0], part[1 : 1 + size], part[1 + size :].reshape(size, size)
        if rows:
            far, whole = own - means, n + rows
            products = products + inner + np.outer(far, far) * (n * rows / whole)
            means = means + far * (rows / whole)
            n = whole
    return round(n), means, products


def accuracy(scores: TensorLike, labels: TensorLike) -> Metric:
    """The share of rows whose highest score is at their label.

    A row with a score that is not a number (NaN) has none, so it counts as wrong.

    Parameters
    ----------
    scores : matrix (rows, classes)
    labels : integer vector (rows), or matrix (rows, classes) with 1 at each row's class

    Examples
    --------
    >>> import pytensor.tensor as pt
    >>> from synkhronos.training import metrics
    >>> metric = metrics.accuracy(pt.matrix("scores"), pt.ivector("labels"))
    """
    scores, labels = _scores("accuracy", scores, labels)
    right = has_highest(scores, labels)
    return Metric([right.sum(dtype="int64"), _rows(labels)], _ratio, "max")


def top_k(scores: TensorLike, labels: TensorLike, k: int) -> Metric:
    """The share of rows whose label is among their k highest scores.

    A row with a score that is not a number (NaN) counts as wrong, and so does a label that is no
    class.

    Parameters
    ----------
    scores : matrix (rows, classes)
    labels : integer vector (rows), or matrix (rows, classes) with 1 at each row's class
    k : int, at least 1
        Of equal scores, those of lower classes count as higher.

    Examples
    --------
    >>> import pytensor.tensor as pt
    >>> from synkhronos.training import metrics
    >>> metric = metrics.top_k(pt.matrix("scores"), pt.ivector("labels"), 5)
    """
    k = check_integer("top_k: k", k, 1)
    scores, labels = _scores("top_k", scores, labels)
    classes = pt.arange(scores.shape[1])
    here = pt.eq(classes[None, :], labels[:, None])
    mine = pt.switch(here, scores, 0).sum(axis=1, keepdims=True)  # a product with inf would be NaN
    ahead = pt.gt(scores, mine)
    level = pt.and_(pt.eq(scores, mine), pt.lt(classes[None, :], labels[:, None]))
    counts = pt.and_(pt.gt(here.sum(axis=1), 0), _are_numbers(scores))
    right = pt.and_(counts, pt.lt(pt.or_(ahead, level).sum(axis=1), k))
    return Metric([right.sum(dtype="int64"), _rows(labels)], _ratio, "max")


def confusion(scores: TensorLike, labels: TensorLike, classes: int) -> Metric:
    """The confusion matrix: rows by label, columns by the class of the highest score.

    A row with a score that is not a number (NaN) has no highest one, and is in no column.

    Parameters
    ----------
    scores : matrix (rows, classes)
    labels : integer vector (rows), or matrix (rows, classes) with 1 at each row's class
    classes : int

    Examples
    --------
    >>> import pytensor.tensor as pt
    >>> from synkhronos.training import metrics
    >>> metric = metrics.confusion(pt.matrix("scores"), pt.ivector("labels"), 10)
    """
    scores, labels = _scores("confusion", scores, labels)
    there, found = (marks.astype("float64") for marks in _marks(scores, labels, classes))
    return Metric([there.T @ found], lambda table: table)


def f1(
    scores: TensorLike, labels: TensorLike, classes: int, average: str | None = "macro"
) -> Metric:
    """The harmonic mean of precision and recall.

    A row with a score that is not a number (NaN) predicts no class, so it is missed.

    Parameters
    ----------
    scores : matrix (rows, classes)
    labels : integer vector (rows), or matrix (rows, classes) with 1 at each row's class
    classes : int
    average : {"macro", "micro", "weighted"} or None
        "macro": the mean over classes; "weighted": weighted by the classes' rows; "micro": of all
        decisions together; None: one value for each class. A class without rows and without
        predictions has 0.

    Examples
    --------
    >>> import pytensor.tensor as pt
    >>> from synkhronos.training import metrics
    >>> metric = metrics.f1(pt.matrix("scores"), pt.ivector("labels"), classes=3)
    """
    check_word("f1: average", average, ("macro", "micro", "weighted", None))
    scores, labels = _scores("f1", scores, labels)

    def finish(right: np.ndarray, found: np.ndarray, there: np.ndarray) -> object:
        both = found + there
        if average == "micro":
            return 2 * right.sum() / max(both.sum(), 1)
        each = 2 * right / np.maximum(both, 1)
        if average is None:
            return each
        if average == "weighted":
            return (each * there).sum() / max(there.sum(), 1)
        # as scikit-learn: classes that are neither labels nor predictions do not count
        return each[both > 0].mean() if both.any() else 0.0

    there, found = _marks(scores, labels, classes)
    sums = [marks.sum(axis=0, dtype="int64") for marks in (pt.and_(there, found), found, there)]
    return Metric(sums, finish, None if average is None else "max")


def mse(predicted: TensorVariable, target: TensorVariable) -> Metric:
    """The mean of squared errors, over rows and columns.

    Parameters
    ----------
    predicted, target : variables of one shape

    Examples
    --------
    >>> import pytensor.tensor as pt
    >>> from synkhronos.training import metrics
    >>> metric = metrics.mse(pt.vector("predicted"), pt.vector("target"))
    """
    error = _error("mse", predicted, target)
    return Metric([pt.sqr(error).sum(), error.size], _ratio, "min")


def rmse(predicted: TensorVariable, target: TensorVariable) -> Metric:
    """The root of the mean of squared errors.

    Parameters
    ----------
    predicted, target : variables of one shape

    Examples
    --------
    >>> import pytensor.tensor as pt
    >>> from synkhronos.training import metrics
    >>> metric = metrics.rmse(pt.vector("predicted"), pt.vector("target"))
    """
    error = _error("rmse", predicted, target)
    return Metric([pt.sqr(error).sum(), error.size], lambda s, n: np.sqrt(_ratio(s, n)), "min")


def mae(predicted: TensorVariable, target: TensorVariable) -> Metric:
    """The mean of absolute errors.

    Parameters
    ----------
    predicted, target : variables of one shape

    Examples
    --------
    >>> import pytensor.tensor as pt
    >>> from synkhronos.training import metrics
    >>> metric = metrics.mae(pt.vector("predicted"), pt.vector("target"))
    """
    error = _error("mae", predicted, target)
    return Metric([abs(error).sum(), error.size], _ratio, "min")


def r2(predicted: TensorVariable, target: TensorVariable) -> Metric:
    """The coefficient of determination: 1 minus the share of the variance that is not explained.

    Parameters
    ----------
    predicted, target : vectors (rows)

    Notes
    -----
    Of the variance of a target that is large beside its spread, float64 keeps what the target
    itself has: with a mean of 10^8 standard deviations, 7 digits.

    Examples
    --------
    >>> import pytensor.tensor as pt
    >>> from synkhronos.training import metrics
    >>> metric = metrics.r2(pt.vector("predicted"), pt.vector("target"))
    """
    error = _error("r2", predicted, target)
    if error.type.ndim != 1:
        raise InputTypeError(f"r2: the target has {error.type.ndim} dimensions: give vectors")

    def finish(n: int, means: np.ndarray, products: np.ndarray) -> object:
        left, spread = products[0, 0] + n * means[0] ** 2, products[1, 1]
        if spread == 0:
            return 1.0 if left == 0 else 0.0
        return 1 - left / spread  # NaN if a number is

    return Metric.of_moments([error, target], finish, "max")


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else np.nan


def _rows(variable: TensorLike) -> TensorVariable:
    """The number of rows, as a sum over rows, which members can add up."""
    return pt.ones_like(variable, dtype="int64").sum()


def _scores(
    what: str, given: TensorLike, given_labels: TensorLike
) -> tuple[TensorVariable, TensorVariable]:
    scores, labels = pt.as_tensor_variable(given), pt.as_tensor_variable(given_labels)
    one_hot = labels.type.ndim == 2 and scores.type.ndim == 2
    if one_hot:
        classes, marked = scores.type.shape[1], labels.type.shape[1]
        one_hot = marked != 1 and (classes == marked or None in (classes, marked))
    numbers = labels.type.ndim == 1 and labels.type.dtype[0] in "iu"
    if scores.type.ndim != 2 or not (numbers or one_hot):
        raise InputTypeError(
            f"{what}: scores are {scores.type} and labels {labels.type}: give a matrix (rows, "
            "classes), and a vector of integers (rows) or a matrix with 1 at each row's class"
        )
    return scores, labels.argmax(axis=1) if one_hot else labels


def has_highest(scores: TensorVariable, labels: TensorVariable) -> TensorVariable:
    """Whether the highest of the scores, along the last axis, is at the label.

    False where one of them is NaN: there is no highest one then, and modes differ in what they
    take.
    """
    return pt.and_(pt.eq(scores.argmax(axis=-1), labels), _are_numbers(scores))


def _are_numbers(scores: TensorVariable) -> TensorVariable:
    """Whether no score along the last axis is NaN."""
    return pt.eq(pt.isnan(scores).sum(axis=-1), 0)


def _marks(
    scores: TensorVariable, labels: TensorVariable, classes: object
) -> tuple[TensorVariable, TensorVariable]:
    """Matrices (rows, classes) of bools: the class of the label, and that of the highest score."""
    each = pt.arange(check_integer("classes", classes, 1))[None, :]
    chosen = pt.and_(pt.eq(scores.argmax(axis=1)[:, None], each), _are_numbers(scores)[:, None])
    return pt.eq(labels[:, None], each), chosen


def _error(what: str, given: TensorLike, aim: TensorLike) -> TensorVariable:
    predicted, target = pt.as_tensor_variable(given), pt.as_tensor_variable(aim)
    if predicted.type.ndim != target.type.ndim:
        raise InputTypeError(
            f"{what}: the prediction is {predicted.type}, the target {target.type}: give variables "
            "of one shape"
        )
    return pt.cast(predicted, "float64") - pt.cast(target, "float64")


__all__ = ["Metric", "accuracy", "confusion", "f1", "mae", "mse", "r2", "rmse", "top_k"]

belong_to(__name__, [globals()[name] for name in __all__])
