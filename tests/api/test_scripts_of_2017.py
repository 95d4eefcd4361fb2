"""What documented scripts of Synkhronos 2017 rely on, run with `theano` replaced by `pytensor`."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from modes import FAST

import synkhronos as synk
from synkhronos.extensions import (
    make_train_function,
    make_train_function_pytensor,
    updates,
)

X = np.random.default_rng(4).normal(size=(7, 3))
Y = X @ [1.0, 2.0, 3.0]
# PyTensor deprecates what scripts of that time use
pytestmark = [
    pytest.mark.usefixtures("lasting_groups"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


def shared(value: Any, name: str | None = None) -> Any:
    return pytensor.shared(np.asarray(value, "float64"), name=name)


def make(inputs: Any, outputs: Any = None, **options: Any) -> synk.Function:
    return synk.function(inputs, outputs, mode=FAST, **options)


def everywhere(variable: Any, size: int) -> list[Any]:
    return [synk.get_value(rank, variable).tolist() for rank in range(size)]


# minibatch Data


@pytest.mark.parametrize("kind", [list, tuple, np.array])
def test_a_list_goes_by_position_in_minibatch_data(group: synk.Group, kind: Any) -> None:
    x = pt.dmatrix("x")
    rows = np.array([[100.0], [200.0], [300.0]])
    found = make([x], x)(synk.data(rows, minibatch=True), batch=kind([7, 5, 6]))
    assert found.tolist() == rows.tolist()


# givens


def test_givens_reach_default_updates(group: synk.Group) -> None:
    """As in PyTensor: 1.0, where the value of s would give 5.0."""
    x, s, m = pt.dvector("x"), shared([5.0, 5.0], "s"), shared(0.0, "m")
    m.default_update = s.mean()
    f = make([x], x.sum() + m, givens=[(s, x)])
    f(np.ones(4))
    assert m.get_value() == 1.0


def test_default_updates_bring_in_others(group: synk.Group) -> None:
    """A default update may depend on a variable that has one too."""
    x, a, b = pt.dvector("x"), shared(0.0, "a"), shared(1.0, "b")
    a.default_update, b.default_update = a + b, 2 * b
    f = make([x], x.sum() + a)
    assert [f([1.0]), f([1.0]), f([1.0])] == [1.0, 2.0, 4.0]
    assert everywhere(b, group.size) == [8.0] * group.size


def test_without_default_updates(group2: synk.Group) -> None:
    x, a, b = pt.dvector("x"), shared(0.0, "a"), shared(0.0, "b")
    a.default_update, b.default_update = a + 1, b + 1
    make([x], x.sum() + a + b, no_default_updates=[a])([1.0])
    assert (a.get_value(), b.get_value()) == (0.0, 1.0)
    make([x], x.sum() + a + b, no_default_updates=True)([1.0])
    assert (a.get_value(), b.get_value()) == (0.0, 1.0)


@pytest.mark.parametrize("form", ["updates", "default_update"])
def test_dropout_with_givens(group2: synk.Group, form: str) -> None:
    """The generator's next state follows from the replaced graph, in functions and in training."""
    found = []
    for replaced in (False, True):
        x, given, w = pt.dmatrix("x"), pt.dmatrix("given"), shared(np.ones(3), "w")
        rng = pytensor.shared(np.random.default_rng(3), name="rng")
        following, mask = pt.random.bernoulli(0.5, size=x.shape, rng=rng, return_next_rng=True)
        loss = (((x * mask) @ w) ** 2).mean()
        options: dict[str, Any] = {"updates": [(rng, following)]}
        if form == "default_update":
            rng.default_update, options = following, {}
        if replaced:
            options["givens"] = [(x, 2 * given)]
        rows, inputs = (X, given) if replaced else (2 * X, x)
        f = make([inputs], loss, **options)
        losses = [float(f(rows)) for _ in range(3)]
        train = make_train_function(
            loss, [w], inputs, None, updates.sgd, 0.01, mode=FAST, **options
        )
        found.append(losses + [float(train(rows)) for _ in range(3)])
    assert found[0] == found[1]
    assert len(set(found[0])) == 6


def test_givens_reach_the_rule_and_its_updates(group: synk.Group) -> None:
    """In the group as in one process: loss, outputs, updates, default updates and the rate."""
    found = []
    for maker in (make_train_function, make_train_function_pytensor):
        x, y, w = pt.dmatrix("x"), pt.dvector("y"), shared(np.zeros(3), "w")
        given, factor = pt.dmatrix("given"), shared(1.0, "factor")
        rate, seen, last = shared(5.0, "rate"), shared(0.0, "seen"), shared(0.0, "last")
        last.default_update = factor * 3
        loss = (factor * (x @ w - y) ** 2).mean() + 0 * last
        train = maker(
            loss,
            [w],
            given,
            y,
            updates.sgd,
            learning_rate=rate,
            outputs=[(x.sum(), "sum")],
            updates=[(seen, factor * 10)],
            givens={x: given / 2, factor: np.float64(2.0), rate: np.float64(0.1)},
            mode=FAST,
        )
        losses = [[float(v) for v in train(X, Y)] for _ in range(3)]
        found.append([np.array(losses), w.get_value(), seen.get_value(), last.get_value()])
    for ours, serial in zip(*found, strict=True):
        np.testing.assert_allclose(ours, serial, rtol=1e-10)
    assert found[0][2:] == [20.0, 6.0]


def test_givens_of_another_dtype_name_floatx(group2: synk.Group) -> None:
    """What follows if floatX=float32 was left in THEANO_FLAGS."""
    x, data = pt.fmatrix("x"), shared(np.ones((2, 2)), "data")
    y = pt.fvector("y")
    for given in (data, np.ones((2, 2))):
        with pytest.raises(TypeError, match=r"x is .*float32.*float64.*PYTENSOR_FLAGS"):
            make([y], x.sum() + y.sum(), givens=[(x, given)])


# clones


def test_clones_are_one_variable(group: synk.Group) -> None:
    m = shared(0.0, "m")
    r = m.clone()
    x = pt.dvector("x")
    f = make([x], (r + 0 * x.sum(), "gather"), updates=[(m, r + 1)])
    rows = np.ones(group.size)
    for n in range(3):
        assert f(rows).tolist() == [n] * group.size
    assert everywhere(m, group.size) == everywhere(r, group.size) == [3.0] * group.size
    r.set_value(10.0)
    f(rows)
    assert everywhere(m, group.size) == [11.0] * group.size


def test_clones_in_other_functions_after_the_first_is_dropped(group2: synk.Group) -> None:
    x, m = pt.dvector("x"), shared(1.0, "m")
    r = m.clone()
    f, g = make([x], x.sum() * m), make([x], x.sum() * r)
    assert (f([1.0, 2.0]), g([1.0, 2.0])) == (3.0, 3.0)
    del f, m
    r.set_value(2.0)
    assert g([1.0, 2.0]) == 6.0
    assert everywhere(r, 2) == [2.0, 2.0]


def test_a_variable_and_its_clone_are_updated_twice(group2: synk.Group) -> None:
    m = shared(0.0, "m")
    with pytest.raises(synk.InputError, match="updated twice"):
        make([], updates=[(m, m + 1), (m.clone(), m + 2)])


# collectives


def test_scatter_of_different_lengths(group: synk.Group) -> None:
    a, b, c = (shared(np.zeros(1), name) for name in "abc")
    values = [np.arange(5.0), np.arange(3.0), np.arange(5.0) + 10]
    synk.scatter([a, b, c], values)
    for variable, value in zip((a, b, c), values, strict=True):
        assert synk.gather(variable, nd_up=0).tolist() == value.tolist()
        lengths = [len(part) for part in np.array_split(value, group.size)]
        assert synk.get_lengths(variable) == lengths
    synk.scatter([a, b], values[:2], batch=2)
    assert synk.gather(a, nd_up=0).tolist() == synk.gather(b, nd_up=0).tolist() == [0, 1]


def test_lists_of_one_variable(group2: synk.Group) -> None:
    """gather and reduce return the bare array, as for the variable itself."""
    s = shared([1.0, 2.0], "s")
    assert synk.gather([s]).tolist() == [[1, 2], [1, 2]]
    assert synk.reduce([s], "sum", in_place=False).tolist() == [2, 4]
    assert synk.reduce([s], "sum") is None


def test_none_among_the_values(group2: synk.Group) -> None:
    """The master's own value."""
    s, t = shared([0.0, 0.0], "s"), shared([3.0, 4.0], "t")
    synk.set_value(1, t, np.zeros(2))
    synk.broadcast([s, t], [np.ones(2), None])
    assert everywhere(s, 2) == [[1, 1]] * 2
    assert everywhere(t, 2) == [[3, 4]] * 2
    synk.scatter([s, t], [np.arange(4.0), None])
    assert everywhere(s, 2) == [[0, 1], [2, 3]]
    assert everywhere(t, 2) == [[3], [4]]


def test_output_subset_in_the_master(group2: synk.Group) -> None:
    x = pt.dvector("x")
    f = make([x], [x.sum(), x.mean(), 2 * x])
    total, rows = f.as_theano([1.0, 2.0], output_subset=[0, 2])
    assert (total, rows.tolist()) == (3.0, [2, 4])
    g = make([x], {"sum": x.sum(), "mean": x.mean()})
    assert g.as_theano([1.0, 2.0], output_subset=["mean"]) == {"mean": 1.5}
    with pytest.raises(synk.InputError, match="output_subset"):
        f.as_theano([1.0, 2.0], output_subset=[3])


# training functions


@pytest.mark.parametrize("maker", [make_train_function, make_train_function_pytensor])
def test_how_training_functions_are_called(group2: synk.Group, maker: Any) -> None:
    """train(x, y, rows) and train(x_data=, y_data=)."""
    x, y, w = pt.dmatrix("x"), pt.dvector("y"), shared(np.zeros(3), "w")
    train = maker(((x @ w - y) ** 2).mean(), [w], x, y, updates.sgd, 0.0, mode=FAST)
    rows = np.array([5, 0, 3])
    wanted, some = (Y**2).mean(), (Y[rows] ** 2).mean()
    np.testing.assert_allclose(train(X, Y, rows), some)
    np.testing.assert_allclose(train(X, Y, batch=rows), some)
    np.testing.assert_allclose(train(x_data=X, y_data=Y), wanted)
    np.testing.assert_allclose(train(X, y_data=Y, batch=rows), some)
    with pytest.raises(TypeError):
        train(X, Y, rows, 1)


def test_names_of_2017_give_way_to_those_of_inputs(group2: synk.Group) -> None:
    x, y, w = pt.dmatrix("y_data"), pt.dvector("x_data"), shared(np.zeros(3), "w")
    train = make_train_function(((x @ w - y) ** 2).mean(), [w], x, y, updates.sgd, 0.0, mode=FAST)
    np.testing.assert_allclose(train(x_data=Y, y_data=X), (Y**2).mean())


# idioms of losses, which need no warning (tests/proofs has their proofs)


def test_dropout_in_a_function(group: synk.Group) -> None:
    """Exact in distribution: each row has a mask of its own."""
    x = pt.dmatrix("x")
    rng = pytensor.shared(np.random.default_rng(3), name="rng")
    following, mask = pt.random.bernoulli(0.5, size=x.shape, rng=rng, return_next_rng=True)
    f = make([x], [(x * mask).mean(), mask, mask.sum()], updates=[(rng, following)])
    assert f.output_modes == ["avg", "gather", "sum"]
    mean, masks, total = f(X)
    assert (masks.shape, masks.sum()) == (X.shape, total)
    np.testing.assert_allclose(mean, (X * masks).mean())


def test_draws_that_are_not_one_for_each_row(group2: synk.Group) -> None:
    """Their reduction is not claimed."""
    x = pt.dvector("x")
    rng = pytensor.shared(np.random.default_rng(3), name="rng")
    _, noise = pt.random.normal(size=(2 * x.shape[0],), rng=rng, return_next_rng=True)
    with pytest.warns(synk.ReductionWarning, match="random"):
        make([x], noise.sum())


def test_idioms_without_a_warning(group2: synk.Group) -> None:
    x, y = pt.dmatrix("x"), pt.lmatrix("y")
    words, table = pt.lmatrix("words"), shared(np.arange(12.0).reshape(4, 3), "table")
    steps, w = pt.dtensor3("steps"), shared(np.ones((3, 2)), "w")
    p = pt.special.softmax(x, axis=1)
    embedded = table[words.T.flatten()].reshape((words.shape[1], words.shape[0], 3))
    outputs = [
        pt.mean(pt.eq(p.argmax(axis=1), y.flatten()), dtype="float32"),
        -pt.log(p[pt.arange(y.shape[0]), y.flatten()]).mean(),
        pt.dot(steps.dimshuffle(1, 0, 2), w).mean(),
        embedded.mean(axis=0),
    ]
    draw = np.random.default_rng(0)
    values = [
        X,
        draw.integers(0, 3, (7, 1)),
        draw.integers(0, 4, (7, 5)),
        draw.normal(size=(7, 2, 3)),
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        f = make([x, y, words, steps], outputs)
    serial = pytensor.function([x, y, words, steps], outputs, mode=FAST)
    for ours, wanted in zip(f(*values), serial(*values), strict=True):
        np.testing.assert_allclose(ours, wanted, rtol=1e-6)
