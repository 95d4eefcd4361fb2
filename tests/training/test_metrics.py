"""Metrics equal scikit-learn's: 1,003 rows, in one call and in many, by any number of members."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
import sklearn.metrics as theirs
from modes import FAST

import synkhronos as synk
from synkhronos.training import Evaluation, Metric, metrics
from synkhronos.training._run.feeds import Feed, Order

RNG = np.random.default_rng(0)
LABELS = RNG.integers(0, 5, 1003).astype("int32")
LABELS[LABELS == 3] = 2  # a class without rows
SCORES = RNG.normal(size=(1003, 5)) + 2 * np.eye(5)[LABELS]
SCORES[:, 4] -= 9  # and one without predictions
TARGETS = RNG.normal(size=1003) + 10
PREDICTED = TARGETS + RNG.normal(size=1003)
CHOSEN = SCORES.argmax(axis=1)

s, y = pt.dmatrix("scores"), pt.ivector("labels")
p, t = pt.dvector("predicted"), pt.dvector("target")
OURS: dict[str, Any] = {
    "accuracy": metrics.accuracy(s, y),
    "top_1": metrics.top_k(s, y, 1),
    "top_2": metrics.top_k(s, y, 2),
    "confusion": metrics.confusion(s, y, 5),
    "f1": metrics.f1(s, y, 5),
    "f1 micro": metrics.f1(s, y, 5, "micro"),
    "f1 weighted": metrics.f1(s, y, 5, "weighted"),
    "mse": metrics.mse(p, t),
    "rmse": metrics.rmse(p, t),
    "mae": metrics.mae(p, t),
    "r2": metrics.r2(p, t),
}
FOUND = {
    "accuracy": theirs.accuracy_score(LABELS, CHOSEN),
    "top_1": theirs.accuracy_score(LABELS, CHOSEN),
    "top_2": theirs.top_k_accuracy_score(LABELS, SCORES, k=2, labels=range(5)),
    "confusion": theirs.confusion_matrix(LABELS, CHOSEN, labels=range(5)),
    "f1": theirs.f1_score(LABELS, CHOSEN, average="macro", zero_division=0),
    "f1 micro": theirs.f1_score(LABELS, CHOSEN, average="micro"),
    "f1 weighted": theirs.f1_score(LABELS, CHOSEN, average="weighted", zero_division=0),
    "mse": theirs.mean_squared_error(TARGETS, PREDICTED),
    "rmse": theirs.root_mean_squared_error(TARGETS, PREDICTED),
    "mae": theirs.mean_absolute_error(TARGETS, PREDICTED),
    "r2": theirs.r2_score(TARGETS, PREDICTED),
}
INPUTS = [s, y, p, t]
DATA = (SCORES, LABELS, PREDICTED, TARGETS)


@pytest.fixture(autouse=True)
def _no_compiler() -> Iterator[None]:
    with pytensor.config.change_flags(mode=FAST):
        yield


def test_equal_to_scikit_learn(group: synk.Group) -> None:
    evaluate = Evaluation(INPUTS, OURS)
    with Feed(DATA, INPUTS, Order(97)) as feed:
        several = evaluate.over(feed)
    for found in (evaluate(*DATA), several):
        assert list(found) == list(FOUND)
        for name, value in FOUND.items():
            # R2 is 1 less a quotient, and may be near 0: the quotient has all digits
            ours, wanted = (1 - v if name == "r2" else v for v in (found[name], value))
            np.testing.assert_allclose(ours, wanted, rtol=1e-12, err_msg=name)


def test_expressions_over_several_calls(group2: synk.Group) -> None:
    """Means, sums, extremes, and values that no row changes."""
    w = pytensor.shared(np.full(3, 2.0))
    expressions = {"mean": p.mean(), "sum": (p**2).sum(), "max": p.max(), "min": p.min()}
    constant = {"norm": (w**2).sum()}
    evaluate = Evaluation([p], {**expressions, **constant})
    whole = evaluate(PREDICTED)
    with Feed([PREDICTED], [p], Order(97)) as feed:
        parts = evaluate.over(feed)
    assert whole.keys() == parts.keys()
    for name, value in whole.items():
        assert parts[name] == pytest.approx(value, rel=1e-12), name


def test_sums_over_several_calls_are_added_in_float64(group2: synk.Group) -> None:
    narrow = pt.fvector("narrow")
    rows = np.array([1 << 24, 1, 1, 1], "float32")  # a float32 of this size has no next integer
    given = {"expression": narrow.sum(), "metric": Metric([narrow.sum()], lambda total: total)}
    evaluate = Evaluation([narrow], given)
    with Feed([rows], [narrow], Order(1, shuffle=False)) as feed:
        assert evaluate.over(feed) == dict.fromkeys(given, float((1 << 24) + 3))


def test_few_rows(group2: synk.Group) -> None:
    """One row, so that a member has none; a constant target; all scores equal."""
    evaluate = Evaluation(INPUTS, OURS)
    one = evaluate(SCORES[:1], LABELS[:1], PREDICTED[:1], TARGETS[:1])
    assert one["accuracy"] == float(CHOSEN[0] == LABELS[0])
    assert one["r2"] == 0.0
    level = evaluate(0 * SCORES, LABELS, TARGETS, 0 * TARGETS + 1)
    assert level["top_2"] == (LABELS < 2).mean()
    assert level["r2"] == theirs.r2_score(0 * TARGETS + 1, TARGETS)
    same = evaluate(SCORES, LABELS, 0 * TARGETS + 1, 0 * TARGETS + 1)
    assert same["r2"] == 1.0


def test_f1_of_each_class(group2: synk.Group) -> None:
    [found] = Evaluation([s, y], {"f1": metrics.f1(s, y, 5, None)})(SCORES, LABELS).values()
    each = theirs.f1_score(LABELS, CHOSEN, average=None, labels=range(5), zero_division=0)
    np.testing.assert_allclose(found, each, rtol=1e-12)


def test_scores_that_are_infinite_or_no_numbers(group2: synk.Group) -> None:
    """Infinite scores have their place; a row with NaN is wrong in every metric of classes."""
    inf, nan = np.inf, np.nan
    scores = [[inf, 1, 0], [0, -inf, 2], [-inf, 0, 1], [0, 1, inf], [nan, 1, 0], [1, nan, nan]]
    labels = np.array([0, 2, 0, 0, 1, 0], "int32")
    found = Evaluation(
        [s, y],
        {
            "accuracy": metrics.accuracy(s, y),
            "top_1": metrics.top_k(s, y, 1),
            "top_2": metrics.top_k(s, y, 2),
            "confusion": metrics.confusion(s, y, 3),
            "f1": metrics.f1(s, y, 3, None),
        },
    )(np.array(scores), labels)
    assert found["accuracy"] == found["top_1"] == found["top_2"] == 2 / 6
    assert found["confusion"].tolist() == [[1, 0, 2], [0, 0, 0], [0, 0, 1]]
    assert found["f1"].tolist() == [2 / 5, 0, 2 / 4]


def test_a_label_that_is_no_class_is_wrong(group2: synk.Group) -> None:
    found = Evaluation([s, y], {"top_1": metrics.top_k(s, y, 1)})(
        np.array([[-1.0, -2.0], [-1.0, -2.0]]), np.array([0, 5], "int32")
    )
    assert found == {"top_1": 0.5}


def test_r2_of_a_target_that_is_no_number(group2: synk.Group) -> None:
    [found] = Evaluation([p, t], {"r2": metrics.r2(p, t)})(
        np.zeros(3), np.array([1.0, np.nan, 2.0])
    ).values()
    assert np.isnan(found)


def test_labels_may_be_one_hot(group2: synk.Group) -> None:
    """The values of labels as numbers; other numbers of classes are refused."""
    marked = pt.fmatrix("marked")
    made = {
        "accuracy": lambda labels: metrics.accuracy(s, labels),
        "top_2": lambda labels: metrics.top_k(s, labels, 2),
        "confusion": lambda labels: metrics.confusion(s, labels, 5),
        "f1": lambda labels: metrics.f1(s, labels, 5),
    }
    numbers = Evaluation([s, y], {k: f(y) for k, f in made.items()})(SCORES, LABELS)
    rows = np.eye(5, dtype="float32")[LABELS]
    found = Evaluation([s, marked], {k: f(marked) for k, f in made.items()})(SCORES, rows)
    assert numbers.keys() == found.keys()
    for name, value in numbers.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)
    for columns in (1, 4):
        with pytest.raises(synk.InputTypeError, match="a matrix with 1 at each row's class"):
            metrics.accuracy(
                pt.tensor("s", dtype="float64", shape=(None, 5)),
                pt.tensor("y", dtype="float32", shape=(None, columns)),
            )


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: metrics.accuracy(p, y),
        lambda: metrics.accuracy(s, p),
        lambda: metrics.top_k(s, y, 0),
        lambda: metrics.confusion(s, y, 0),
        lambda: metrics.f1(s, y, 5, "mean"),
        lambda: metrics.mse(s, t),
        lambda: metrics.r2(s, s),
    ],
)
def test_what_does_not_fit(wrong: Any) -> None:
    with pytest.raises((synk.InputError, synk.InputTypeError)):
        wrong()


def test_metrics_must_be_metrics(group2: synk.Group) -> None:
    for wrong in ({}, [p.mean()], {"a": 3}, {"a": (p, "avg", 1)}):
        with pytest.raises(synk.InputTypeError, match="metric"):
            Evaluation([p], wrong)  # type: ignore[arg-type]


def correlation(n: int, means: Any, products: Any) -> Any:
    assert n == len(TARGETS)
    return products[0, 1] / np.sqrt(products[0, 0] * products[1, 1])


def test_moments_of_large_values(group: synk.Group) -> None:
    """The spread is 10^-8 of the mean: in one call, in slices, and in batches of any size."""
    far, near = 1e8 + TARGETS, 1e8 + PREDICTED
    r2, c = theirs.r2_score(TARGETS, PREDICTED), np.corrcoef(TARGETS, PREDICTED)[0, 1]
    made = {"r2": metrics.r2(p, t), "c": Metric.of_moments([p, t], correlation)}
    evaluate = Evaluation([p, t], made, mode=FAST)
    found = [evaluate(near, far), evaluate._finished(evaluate._function(near, far, num_slices=3))]
    for size in (1003, 100):
        with Feed([near, far], [p, t], Order(size, shuffle=False)) as feed:
            found.append(evaluate.over(feed))
    for each in found:
        assert each == pytest.approx({"r2": r2, "c": c}, rel=1e-7)


def test_moments_of_few_rows(group2: synk.Group) -> None:
    """Members without rows count for nothing; no rows at all, and columns that are no vectors."""
    seen: list[Any] = []
    keep = Metric.of_moments([p, t], lambda n, m, q: seen.append((n, m.tolist(), q.tolist())))
    evaluate = Evaluation([p, t], {"all": keep}, mode=FAST)
    evaluate(np.array([3.0]), np.array([5.0]))
    evaluate(np.empty(0), np.empty(0))
    zeros = [[0.0, 0.0], [0.0, 0.0]]
    assert seen == [(1, [3.0, 5.0], zeros), (0, [0.0, 0.0], zeros)]
    with pytest.raises(synk.InputTypeError, match="give a vector"):
        Metric.of_moments([s], correlation)
    with pytest.raises(synk.InputTypeError, match="give a list of vectors"):
        Metric.of_moments(p, correlation)  # type: ignore[arg-type]
