"""The estimators: scikit-learn's own checks, groups, pickles, and networks of the user's own."""

from __future__ import annotations

import pickle
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import joblib
import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from doc_examples import check_examples, modules_of
from modes import FAST
from public_names import check_public_names
from pytensor.compile.mode import register_mode
from selection import thorough
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import (
    check_regressors_int,
    check_regressors_train,
    parametrize_with_checks,
)

import synkhronos as synk
from synkhronos.sklearn import SynkClassifier, SynkRegressor
from synkhronos.training import Net

# a mode by name, as estimators are cloned and compared; FAST itself has no name elsewhere
register_mode("BARE", FAST.clone())
QUICK: dict[str, Any] = {"mode": "BARE", "members": 1, "random_state": 0}

# Checks of scikit-learn that fail, and why they may. There are none.
EXPECTED: dict[str, str] = {}
ACCURATE = {"check_classifiers_train", "check_classifiers_classes"}  # what they predict is judged


# one layer compiles in half of the time of two
@parametrize_with_checks([SynkClassifier((), **QUICK)], expected_failed_checks=lambda _: EXPECTED)
def test_checks_of_the_classifier(estimator: Any, check: Any) -> None:
    """All of scikit-learn's own, without exceptions."""
    check(clone(estimator).set_params(epochs=60 if check.func.__name__ in ACCURATE else 8))


@pytest.mark.thorough  # the lines are those of one layer
@parametrize_with_checks(
    [SynkClassifier((16,), epochs=8, **QUICK)], expected_failed_checks=lambda _: EXPECTED
)
def test_checks_of_a_classifier_of_two_layers(estimator: Any, check: Any) -> None:
    check(estimator)


@pytest.mark.thorough  # the lines are those of the classifier
@parametrize_with_checks(
    [SynkRegressor((16,), epochs=20, **QUICK)], expected_failed_checks=lambda _: EXPECTED
)
def test_checks_of_the_regressor(estimator: Any, check: Any) -> None:
    check(estimator)


@pytest.mark.parametrize("check", [check_regressors_int, check_regressors_train])
def test_what_only_regressors_have(check: Any) -> None:
    check("SynkRegressor", SynkRegressor((16,), epochs=20, **QUICK))


def rows(n: int = 90) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(0)
    X = draw.normal(size=(n, 2)) + 3 * np.array([[0, 0], [1, 0], [0, 1]])[np.arange(n) % 3]
    return X, np.array(["ant", "bee", "cat"])[np.arange(n) % 3]


@pytest.mark.parametrize("members", [2, *thorough(3)])
def test_members_do_not_matter(members: int) -> None:
    X, y = rows()
    one = SynkClassifier((8,), epochs=10, **QUICK).fit(X, y)
    more = clone(one).set_params(members=members).fit(X, y)
    np.testing.assert_allclose(more.predict_proba(X), one.predict_proba(X), rtol=1e-9)
    assert more.score(X, y) > 0.8
    assert (one.predict(X) == one.classes_[one.predict_proba(X).argmax(1)]).all()
    np.testing.assert_allclose(one.predict_proba(X).sum(axis=1), 1)
    assert len(one.history_) == 10


def test_the_current_group_is_used_and_left_open() -> None:
    X, y = rows()
    synk.fork(2)
    group = synk.current_group()
    model = SynkClassifier((), epochs=1, mode="BARE").fit(X, y)
    assert synk.current_group() is group
    with pytest.raises(synk.InputError, match="members=3, and the current group has 2"):
        model.set_params(members=3).fit(X, y)
    synk.close()
    assert model.predict(X).shape == (90,)


def test_a_pickle_holds_no_group_and_no_function() -> None:
    X, y = rows()
    model = SynkClassifier((4,), epochs=2, **QUICK).fit(X, y)
    data = pickle.dumps(model)
    assert b"pytensor" not in data
    again = pickle.loads(data)
    np.testing.assert_array_equal(again.predict_proba(X), model.predict_proba(X))


def test_in_pipelines_and_searches_of_scikit_learn() -> None:
    X, y = rows()
    model = make_pipeline(StandardScaler(), SynkClassifier((), epochs=2, **QUICK))
    grid = {"synkclassifier__rate": [1e-5, 0.1]}
    found = GridSearchCV(model, grid, cv=2).fit(X, y)
    assert found.best_params_ == {"synkclassifier__rate": 0.1}


@pytest.mark.parametrize("how", ["pool", "search", *thorough("joblib", "forked")])
def test_fits_in_threads(how: str) -> None:
    """Each has a group of its own and waits for the others, or all use the current one in turn."""
    X, y = rows()
    model = SynkClassifier((4,), epochs=2, **QUICK)
    wanted = clone(model).fit(X, y).params_
    if how == "forked":
        synk.fork(1)
    if how == "search":
        with joblib.parallel_config("threading", n_jobs=2):
            grid = {"rate": [1e-5, 0.1]}
            found = GridSearchCV(model, grid, cv=2, error_score="raise").fit(X, y)
        assert found.best_params_ == {"rate": 0.1}
        return
    if how == "joblib":
        with joblib.parallel_config("threading", n_jobs=2):
            models = joblib.Parallel()(joblib.delayed(clone(model).fit)(X, y) for _ in range(3))
    else:
        with ThreadPoolExecutor(2) as pool:
            models = list(pool.map(lambda _: clone(model).fit(X, y), range(3)))
    for each in models:
        for a, b in zip(each.params_, wanted, strict=True):
            np.testing.assert_array_equal(a, b)


def cubic(columns: int, outputs: int) -> Net:
    x, y = pt.dmatrix("x"), pt.dvector("y")
    w = pytensor.shared(np.zeros(columns), name="w")
    return Net(loss=((x**3 @ w - y) ** 2).mean(), params=[w], inputs=[x, y], outputs=x**3 @ w)


def test_a_network_of_the_users_own() -> None:
    X = np.random.default_rng(0).uniform(-1, 1, (60, 2))
    y = X**3 @ [1.0, -2.0]
    model = SynkRegressor(net=cubic, rate=0.1, epochs=30, batch=20, **QUICK).fit(X, y)
    assert model.score(X, y) > 0.99
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.predict(X), model.predict(X))


def normalised(columns: int, outputs: int) -> Net:
    """Columns less a running mean, which the steps change and no gradient does."""
    x, y = pt.dmatrix("x"), pt.dvector("y")
    w = pytensor.shared(np.zeros(columns), name="w")
    mean = pytensor.shared(np.zeros(columns), name="mean")
    scores = (x - mean) @ w
    new = 0.5 * mean + 0.5 * x.mean(axis=0)
    return Net(
        loss=((scores - y) ** 2).mean(),
        params=[w],
        inputs=[x, y],
        outputs=scores,
        updates=[(mean, new, "avg", "all")],
    )


def test_a_pickle_has_all_values_that_the_outputs_need() -> None:
    X = np.random.default_rng(0).normal(size=(60, 2)) + 5
    model = SynkRegressor(net=normalised, rate=0.01, epochs=3, batch=20, **QUICK)
    model.fit(X, X @ [1.0, -2.0])
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.predict(X), model.predict(X))
    assert [p.shape for p in model.params_] == [(2,)]


class Tasks:
    """A callback of scikit-learn that notes its calls, and stops the fit after some epochs."""

    def __init__(self, most: int = 99) -> None:
        self.most, self.calls, self.scores = most, list[str](), list[float]()

    def setup(self, estimator: Any, context: Any) -> None:
        self.calls.append(f"setup {context.max_subtasks}")

    def teardown(self, estimator: Any, context: Any) -> None:
        self.calls.append("teardown")

    def on_fit_task_begin(self, estimator: Any, context: Any) -> None:
        self.calls.append(f"begin {context.task_name}")

    def on_fit_task_end(
        self, estimator: Any, context: Any, *, X: Any, y: Any, fitted_estimator: Any
    ) -> bool:
        self.calls.append(f"end {context.task_name}")
        self.scores.append(fitted_estimator.score(X, y))
        return context.task_name == "epoch" and context.task_id + 1 == self.most


@pytest.mark.parametrize(("members", "most", "made"), [(1, 99, 3), (2, 2, 2)])
def test_callbacks_of_scikit_learn(members: int, most: int, made: int) -> None:
    """Each epoch is a task with the estimator as it is then; one that is true ends the fit."""
    X, y = rows()
    tasks = Tasks(most)
    plain = SynkClassifier((4,), epochs=3, **{**QUICK, "members": members})
    model = clone(plain).set_callbacks(tasks).fit(X, y)
    each = ["begin epoch", "end epoch"] * made
    assert tasks.calls == ["setup 3", "begin fit", *each, "end fit", "teardown"]
    assert len(model.history_) == made
    for epochs, score in enumerate(tasks.scores[:-1], 1):
        assert clone(plain).set_params(epochs=epochs).fit(X, y).score(X, y) == score
    assert tasks.scores[-1] == tasks.scores[-2] == model.score(X, y)


def test_callbacks_in_a_search() -> None:
    """Of two rates, two folds and the last fit, which is that of the best rate."""
    X, y = rows()
    tasks = Tasks()
    model = SynkClassifier((), epochs=2, **QUICK).set_callbacks(tasks)
    found = GridSearchCV(model, {"rate": [1e-5, 0.1]}, cv=2).fit(X, y)
    assert tasks.calls.count("end epoch") == 2 * 2 * 2 + 2
    assert found.score(X, y) == tasks.scores[-1]


def test_a_rule_of_the_users_own() -> None:
    X, y = rows()

    def sgd(grads: Any, params: Any) -> list[tuple[Any, Any]]:
        return [(p, p - 0.1 * g) for p, g in zip(params, grads, strict=True)]

    model = SynkClassifier((), optimizer=sgd, epochs=60, members=1, mode=FAST, random_state=0)
    assert model.fit(X, y).score(X, y) > 0.8


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"optimizer": "adamm"}, "optimizer='adamm': one of .*; did you mean adam"),
        ({"epochs": 0}, "epochs=0"),
        ({"batch": 0}, "size=0|batch=0"),
        ({"net": 3}, "net=3: a function of columns and outputs"),
        ({"net": lambda columns, outputs: 3}, "net returned 3, which has no loss"),
        ({"net": lambda c, o: Net(loss=1, params=[], inputs=[])}, "without two inputs"),
    ],
)
def test_wrong_parameters(given: dict[str, Any], message: str) -> None:
    with pytest.raises(synk.InputError, match=message):
        SynkClassifier(**{**QUICK, **given}).fit(*rows())


def test_without_scikit_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    import synkhronos.sklearn

    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(synk.BackendMissing, match=r'pip install "synkhronos\[sklearn\]"'):
        synkhronos.sklearn.SynkRegressor  # noqa: B018


@pytest.mark.thorough  # what they show: the other tests
@pytest.mark.parametrize("name", modules_of("synkhronos.sklearn"))
def test_examples_of_docstrings(name: str) -> None:
    check_examples(name)


def test_public_names_say_the_package_that_users_import() -> None:
    check_public_names("synkhronos.sklearn")


@pytest.mark.parametrize(
    ("layers", "text"),
    [
        (5, "SynkRegressor: layers=5: give the units of each hidden layer"),
        ((4, 0), r"SynkRegressor: layers\[1\]=0: give an integer of at least 1"),
        ("ab", "SynkRegressor: layers='ab'"),
    ],
)
def test_layers(layers: Any, text: str) -> None:
    with pytest.raises((synk.InputError, synk.InputTypeError), match=text):
        SynkRegressor(layers, members=1).fit(np.zeros((3, 2)), np.zeros(3))
