"""Never different mathematics without a word: what warns, at the user's line, and what does not."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from modes import FAST

import synkhronos as synk
from synkhronos.extensions import make_train_function, updates

pytestmark = pytest.mark.usefixtures("lasting_groups")

X = np.random.default_rng(2).normal(size=(7, 3))
Y = X @ [1.0, 2.0, 3.0]


def shared(value: Any, name: str | None = None) -> Any:
    return pytensor.shared(np.asarray(value, "float64"), name=name)


class Regression:
    """A least-squares loss of scattered rows, its parameters and their gradient."""

    def __init__(self) -> None:
        self.x, self.y = pt.dmatrix("x"), pt.dvector("y")
        self.w = shared(np.zeros(3), "w")
        self.loss = ((self.x @ self.w - self.y) ** 2).mean()
        self.gradient = pytensor.grad(self.loss, self.w)

    def function(self, *changes: tuple[Any, ...]) -> synk.Function:
        return synk.function([self.x, self.y], self.loss, updates=list(changes), mode=FAST)


def everywhere(variable: Any, size: int) -> list[Any]:
    return [synk.get_value(rank, variable) for rank in range(size)]


def line_of(told: pytest.WarningsRecorder) -> str:
    """The text of the line that a warning names."""
    [warning] = told
    with open(warning.filename) as file:
        return list(file)[warning.lineno - 1].strip()


def test_an_unproved_reduction_names_the_scattered_inputs(group2: synk.Group) -> None:
    """One of them may be a value that every member needs whole."""
    x, y, w = pt.dmatrix("x"), pt.dvector("y"), pt.dvector("w")
    with pytest.warns(
        synk.ReductionWarning, match=r"over the rows of x, w can be proved \(Matmul: "
    ):
        synk.function([x, y, w], [(x @ w).mean(), y.sum()], mode=FAST)


@pytest.mark.each_choice
@pytest.mark.parametrize("name", ["std", "var"])
def test_a_spread_is_exact_from_means(group: synk.Group, name: str) -> None:
    """The warning of pt.std and pt.var gives the form that is exact, and that does not warn."""
    z = pt.dvector("z")
    with pytest.warns(synk.ReductionWarning, match="which is exact") as told:
        synk.function([z], getattr(z, name)(), mode=FAST)
    form = str(told[0].message).partition("or compute ")[2].removesuffix(", which is exact")
    f = synk.function([z], eval(form, {"pt": pt, "z": z}), mode=FAST)
    np.testing.assert_allclose(f(Y), getattr(Y, name)())


def test_a_local_step_of_sgd_warns_at_the_users_line(group: synk.Group) -> None:
    """The drop-in conversion: each member would follow its own rows."""
    r = Regression()
    step = r.w - 0.1 * r.gradient
    with pytest.warns(synk.LocalUpdateWarning) as told:
        synk.function([r.x, r.y], r.loss, updates=[(r.w, step)], mode=FAST)  # the line
    assert line_of(told).endswith("# the line")
    text = str(told[0].message)
    assert "values of w will differ" in text
    assert '(w, new, "avg", "all")' in text
    assert '(w, new, "avg", "local")' in text


def test_for_all_it_is_the_serial_step(group: synk.Group) -> None:
    r, alone = Regression(), Regression()
    f = r.function((r.w, r.w - 0.1 * r.gradient, "avg", "all"))
    serial = pytensor.function(
        [alone.x, alone.y],
        alone.loss,
        updates=[(alone.w, alone.w - 0.1 * alone.gradient)],
        mode=FAST,
    )
    for _ in range(4):
        np.testing.assert_allclose(f(X, Y), serial(X, Y), rtol=1e-12)
    for value in everywhere(r.w, group.size):
        np.testing.assert_allclose(value, alone.w.get_value(), rtol=1e-12)


def test_local_on_purpose(group2: synk.Group) -> None:
    """2017's meaning, said: each member's step by its own rows, and no warning."""
    r = Regression()
    r.function((r.w, r.w - 0.1 * r.gradient, "avg", "local"))(X, Y)
    for rank, (x, y) in enumerate(((X[:4], Y[:4]), (X[4:], Y[4:]))):
        wanted = 0.1 * 2 * x.T @ y / len(y)
        np.testing.assert_allclose(synk.get_value(rank, r.w), wanted, rtol=1e-12)


def test_local_updates_in_slices_without_a_reduction(group2: synk.Group) -> None:
    """None: as inferred."""
    x, total = pt.dvector("x"), shared(0.0, "total")
    f = synk.function([x], updates=[(total, total + x.sum(), None, "local")], mode=FAST)
    f(np.arange(6.0), num_slices=3)
    assert [float(v) for v in everywhere(total, 2)] == [3.0, 12.0]


@pytest.mark.parametrize("wrong", [("avg", "some"), (None, "all"), ("gather", "all")])
def test_wrong_scopes(group2: synk.Group, wrong: tuple[Any, Any]) -> None:
    r = Regression()
    with pytest.raises(synk.InputError, match="all"):
        r.function((r.w, r.w - r.gradient, *wrong))


UNWARNED: dict[str, Callable[[Regression, Any], tuple[Any, ...]]] = {
    "the gradient, as in 2017": lambda r, v: (v, r.gradient),
    "the gradient, reduced over slices": lambda r, v: (v, r.gradient, "avg"),
    "no rows": lambda r, v: (v, 0.9 * v + r.w),
    "only the number of columns": lambda r, v: (v, v * r.x.shape[1]),
}


@pytest.mark.parametrize("kind", UNWARNED)
def test_updates_that_are_not_warned_of(group2: synk.Group, kind: str) -> None:
    r = Regression()
    r.function(UNWARNED[kind](r, shared(np.zeros(3), "v")))  # warnings are errors


def test_a_clone_is_the_variable(group2: synk.Group) -> None:
    r = Regression()
    with pytest.warns(synk.LocalUpdateWarning, match="values of w"):
        r.function((r.w.clone(), r.w - r.gradient))


def test_several_variables_are_told_of_together(group2: synk.Group) -> None:
    """Momentum: the velocity reads itself, the parameter itself."""
    r, v = Regression(), shared(np.zeros(3), "v")
    step = 0.9 * v - 0.1 * r.gradient
    with pytest.warns(synk.LocalUpdateWarning, match="values of v, w") as told:
        r.function((v, step), (r.w, r.w + step))
    assert len(told) == 1


def test_for_all_what_is_not_affine_is_told_of(group2: synk.Group) -> None:
    """The mean of squares of the parts' gradients is not the square of the mean."""
    r, a = Regression(), shared(np.zeros(3), "a")
    with pytest.warns(synk.ReductionWarning, match="value of a is a nonlinear expression"):
        r.function((a, 0.9 * a + r.gradient**2, "avg", "all"))


WRONG: dict[str, tuple[Callable[[Any], Any], str, str]] = {
    "mean, summed": (lambda x: x.mean(), "sum", "a mean over rows"),
    "sum, averaged": (lambda x: x.sum(), "avg", "a sum over rows"),
    "maximum, averaged": (lambda x: x.max(), "avg", "a maximum over rows"),
    "rows, averaged": (lambda x: 2 * x, "avg", "one value for each row"),
    "root of a mean, averaged": (lambda x: pt.sqrt((x**2).mean()), "avg", "nonlinear"),
    "quotient of sums, averaged": (lambda x: x[:, 0].sum() / x[:, 1].sum(), "avg", "nonlinear"),
    "mean and maximum, averaged": (lambda x: x.mean() + x.max(), "avg", "maximum"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_named_reductions_that_are_provably_wrong(group2: synk.Group, kind: str) -> None:
    make, op, meaning = WRONG[kind]
    x = pt.dmatrix("x")
    with pytest.warns(synk.ReductionWarning, match=f"{meaning}.*depends on their number") as told:
        synk.function([x], (make(x), op), mode=FAST)  # the line
    assert line_of(told).endswith("# the line")


RIGHT: dict[str, tuple[Callable[[Any], Any], str | None]] = {
    "mean": (lambda x: x.mean(), "avg"),
    "mean and penalty": (lambda x: x.mean() + 3.0, "avg"),
    "a line of means": (lambda x: pt.stack([x.mean(), (x**2).mean()]), "avg"),
    "sum": (lambda x: x.sum(), "sum"),
    "sum of zeros": (lambda x: (0.0 * x).sum(), "avg"),
    "maximum": (lambda x: x.max(), "max"),
    "maximum, cut off": (lambda x: pt.minimum(x.max(), 0.5), "max"),
    "each part's mean": (lambda x: x.mean(), "gather"),
    "the master's": (lambda x: x.mean(), None),
    "not proved": (lambda x: x.std(), "avg"),
    "no rows": (lambda x: x.shape[1], "max"),
    "a density, checked": (lambda x: pt.switch((x > -1).all(), x.sum(), -np.inf), "sum"),
}


@pytest.mark.parametrize("kind", RIGHT)
def test_named_reductions_that_are_not_warned_of(group2: synk.Group, kind: str) -> None:
    make, op = RIGHT[kind]
    x = pt.dmatrix("x")
    synk.function([x], (make(x), op), mode=FAST)  # warnings are errors


def test_without_inference_nothing_is_judged() -> None:
    x = pt.dmatrix("x")
    with synk.Group(2, infer=False):
        f = synk.function([x], [(x.max(), "avg"), (x.mean(), "sum")], mode=FAST)
        assert f(np.array([[1.0], [3.0]])) == [2.0, 4.0]


@pytest.mark.parametrize("batch", [[], slice(7, 9), 0, np.zeros(7, bool), slice(5, 2)])
def test_batches_without_rows(group2: synk.Group, batch: Any) -> None:
    x = pt.dmatrix("x")
    f = synk.function([x], x.sum(), mode=FAST)
    f(X, batch=[0, 3])
    with pytest.warns(synk.BatchWarning, match="selects none of the 7 rows") as told:
        assert f(X, batch=batch) == 0.0  # the line
    assert line_of(told).endswith("# the line")
    assert f(X[:0]) == 0.0  # no batch, no warning


def test_a_batch_beyond_the_rows_in_training(group2: synk.Group) -> None:
    """The loss is nan, no parameter changes, and it is said."""
    r = Regression()
    train = make_train_function(r.loss, [r.w], r.x, r.y, updates.sgd, 0.1, mode=FAST)
    train(X, Y)
    before = r.w.get_value()
    with pytest.warns(synk.BatchWarning):
        assert np.isnan(train(X, Y, batch=slice(10, 20)))
    np.testing.assert_array_equal(r.w.get_value(), before)


def test_a_vector_loss(group2: synk.Group) -> None:
    """The error, and no warning of something else before it."""
    r = Regression()
    with pytest.raises(synk.InputTypeError, match="give a 0-d variable"):
        make_train_function((r.x @ r.w - r.y) ** 2, [r.w], r.x, r.y, updates.sgd, 0.1)


def test_unused_inputs(group2: synk.Group) -> None:
    x, z = pt.dmatrix("x"), pt.dvector("z")
    with pytest.warns(synk.UnusedWarning, match="input z"):
        synk.function([x, z], x.sum(), on_unused_input="warn", mode=FAST)


def test_filters_by_class_and_line(group2: synk.Group) -> None:
    """One filter for all; a default filter tells once of a line."""
    r = Regression()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("default")
        warnings.simplefilter("ignore", synk.ReductionWarning)
        for _ in range(2):
            f = synk.function([r.x], [(r.x.sum(), "avg")], mode=FAST)
        for _ in range(3):
            f(X, batch=[])
    assert [w.category for w in told] == [synk.BatchWarning]
    assert told[0].filename == __file__
    assert all(
        issubclass(getattr(synk, name), synk.SynkhronosWarning)
        for name in synk.__all__
        if name.endswith("Warning")
    )
