"""Nothing above an input is computed, drawn, reduced or updated, as in pytensor.function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor import In

import synkhronos as synk
from synkhronos import ops
from synkhronos.extensions import make_local_train_function, make_train_function, updates
from synkhronos.extensions.train import make_train_function_pytensor

pytestmark = [
    pytest.mark.usefixtures("lasting_groups"),
    pytest.mark.filterwarnings("ignore:Setting default_update:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:The no_default_updates parameter:DeprecationWarning"),
]

MODE = "FAST_COMPILE"
ROWS = np.array([1.0, 2.0, 4.0])


def counted(value: Any) -> Any:
    """A variable that each use counts up."""
    s = pytensor.shared(value, name="counted")
    s.default_update = s + 1
    return s


# From an input v, and a variable with a default update: inputs, those to broadcast, outputs,
# givens, and arguments.
CUTS: dict[str, Callable[[Any, Any], tuple[Any, ...]]] = {
    "to broadcast": lambda v, s: ([], [b := 2 * s], [b + 1], None, [21.0]),
    "scattered": lambda v, s: ([b := v * s], [], [b.sum()], None, [ROWS]),
    "an output": lambda v, s: ([], [b := 2 * s], [b], None, [21.0]),
    "twice": lambda v, s: ([v], [b := 2 * s], [b, b * v.sum()], None, [ROWS, 21.0]),
    "each by another": lambda v, s: ([], [b := 2 * s, c := 3 * b], [b + c], None, [1.0, 5.0]),
    "with options": lambda v, s: ([], [In(b := 2 * s, name="b")], [b], None, [21.0]),
    "in a given": lambda v, s: ([v], [b := 2 * s], [v.sum() * s], {s: b + 1}, [ROWS, 21.0]),
    "a stream": lambda v, s: (
        [b := v + pytensor.shared(np.random.default_rng(1)).normal()[1]],
        [],
        [b.sum()],
        None,
        [ROWS],
    ),
    "a length": lambda v, s: (
        [b := pt.specify_shape(v * s, 3)],
        [],
        [b.sum(), b.shape[0]],
        None,
        [ROWS],
    ),
}


@pytest.mark.parametrize("case", CUTS)
def test_an_input_cuts_the_graph(group2: synk.Group, case: str) -> None:
    """Values, default updates and streams equal those of PyTensor."""
    found = []
    for make in ("pytensor", "synk"):
        s = counted(3.0)
        inputs, whole, outputs, givens, args = CUTS[case](pt.dvector("v"), s)
        if make == "synk":
            f: Any = synk.function(inputs, outputs, whole, givens=givens, mode=MODE)
            assert s not in f.get_shared()
            assert f.update_modes == {}
        else:
            f = pytensor.function([*inputs, *whole], outputs, givens=givens, mode=MODE)
        values = f(*args)
        np.testing.assert_array_equal(values, f(*args))
        if make == "pytensor" and case == "in a given":
            s.set_value(3.0)  # PyTensor cuts no givens
        found.append((values, s.get_value()))
    np.testing.assert_array_equal(found[1][0], found[0][0])
    assert found[1][1] == found[0][1] == 3.0


def test_a_collective_above_an_input_does_not_run(group2: synk.Group) -> None:
    """The function needs no meeting, so calls may be sliced."""
    x = pt.dvector("x")
    total = ops.all_reduce(x.sum())
    f = synk.function([x], [x.sum(), total], bcast_inputs=[total], mode=MODE)
    assert f(ROWS, 5.0, num_slices=2) == [7.0, 5.0]


def test_an_update_above_an_input_cuts_a_variable_of_its_own(group2: synk.Group) -> None:
    x, s = pt.dvector("x"), counted(3.0)
    b = 2 * s
    f = synk.function([x], x.sum() * b, bcast_inputs=[b], updates=[(s, s + b)], mode=MODE)
    assert f(ROWS, 1.0) == 7.0
    assert [float(synk.get_value(rank, s)) for rank in range(2)] == [4.0, 4.0]


def test_what_is_missing_below_an_input_is_missing(group2: synk.Group) -> None:
    x, y = pt.dvector("x"), pt.dvector("y")
    b = x * y
    with pytest.raises(synk.InputError, match="outputs or updates need x"):
        synk.function([b], b.sum() + x.sum())
    assert synk.function([b], b.sum(), mode=MODE)(ROWS) == 7.0


def trained(make: Callable[..., Any]) -> tuple[Any, ...]:
    """Two steps of a training function whose inputs are computed."""
    v, k = pt.dvector("v"), counted(2.0)
    w = pytensor.shared(1.0, name="w")
    x, scale = v * k, k * w
    loss = ((w * x - scale) ** 2).mean()
    options: dict[str, Any] = {} if make is make_local_train_function else {"bcast_inputs": [scale]}
    if not options:
        loss = ((w * x - 1.0) ** 2).mean()
    train = make(loss, [w], x, None, updates.sgd, 0.01, mode=MODE, **options)
    if make is not make_train_function_pytensor:
        assert train.inputs == [x]  # by which metrics are computed
    args = [] if not options else [3.0]
    losses = [float(train(np.ones(4), *args)) for _ in range(2)]
    return losses, float(w.get_value()), float(k.get_value())


@pytest.mark.parametrize(
    "make", [make_train_function, make_local_train_function, make_train_function_pytensor]
)
def test_training_functions_end_at_their_inputs(
    group2: synk.Group, make: Callable[..., Any]
) -> None:
    """No default update from above an input, and no gradient through it."""
    target = 1.0 if make is make_local_train_function else 3.0
    w, losses = 1.0, []
    for _ in range(2):
        losses.append((w - target) ** 2)
        w -= 0.01 * 2 * (w - target)
    found = trained(make)
    np.testing.assert_allclose(found[0], losses)
    np.testing.assert_allclose(found[1], w)
    assert found[2] == 2.0


def bad(givens: Any, **options: Any) -> Callable[[Any, Any, Any], Any]:
    return lambda v, w, x: synk.function([v], v.sum() + x, givens=givens(v, w, x), **options)


GIVENS: dict[str, tuple[Callable[[Any, Any, Any], Any], str]] = {
    "an input": (bad(lambda v, w, x: {v: v * 10, x: 1.0}), "v is an input, which cannot be"),
    "twice": (bad(lambda v, w, x: [(x, v[0]), (x, v[1])]), "x is replaced twice"),
    "a name": (bad(lambda v, w, x: {"x": v[0]}), "'x' is not a variable"),
    "dimensions": (bad(lambda v, w, x: {x: v}), "as many dimensions; or pass rebuild_strict"),
    "dimensions of an array": (bad(lambda v, w, x: {x: ROWS}), "as many dimensions"),
    "a dtype": (bad(lambda v, w, x: {x: v[0].astype("float32")}), "cast one of them"),
}


@pytest.mark.parametrize("case", GIVENS)
def test_givens_that_do_not_fit(group2: synk.Group, case: str) -> None:
    make, text = GIVENS[case]
    with pytest.raises(synk.InputError, match=text):
        make(pt.dvector("v"), pt.dmatrix("w"), pt.dscalar("x"))


@pytest.mark.parametrize(
    "train", [make_train_function, make_local_train_function, make_train_function_pytensor]
)
def test_training_functions_replace_no_input(group2: synk.Group, train: Any) -> None:
    x, w = pt.dvector("x"), pytensor.shared(1.0, name="w")
    with pytest.raises(synk.InputError, match="x is an input, which cannot be replaced"):
        train((w * x).mean(), [w], x, None, updates.sgd, 0.1, givens={x: x + 1})


@pytest.mark.parametrize("new", ["ndim", "dtype", "array"])
def test_givens_of_another_type(group2: synk.Group, new: str) -> None:
    """With rebuild_strict=False the graph is made anew for what replaces a variable."""
    v, w, f = pt.dvector("v"), pt.dmatrix("w"), pt.fvector("f")
    rows = np.ones((4, 2), "f" if new == "dtype" else "d")
    givens = {"ndim": {v: w}, "dtype": {v: f}, "array": {v: rows}}[new]
    inputs: Sequence[Any] = {"ndim": [w], "dtype": [f], "array": []}[new]
    args = [rows[:, 0] if new == "dtype" else rows] * len(inputs)
    options: dict[str, Any] = {"givens": givens, "rebuild_strict": False, "mode": MODE}
    found = synk.function(inputs, (v * 2).sum(), **options)(*args)
    wanted = pytensor.function(inputs, (v * 2).sum(), **options)(*args)
    assert found == wanted
    assert found.dtype == wanted.dtype


def test_default_updates_that_are_left_out(group2: synk.Group) -> None:
    """What PyTensor takes: a bool or a list."""
    for given in ((1,), [1], 1, 0, "a", np.True_, {1}):
        with pytest.raises(synk.InputTypeError, match="no_default_updates="):
            synk.function([], counted(0.0) * 2, no_default_updates=given)
    s = counted(0.0)
    with pytest.raises(synk.InputTypeError, match="give a bool, or a list"):
        synk.function([], s * 2, no_default_updates=(s,))
    for taken, after in [(None, 1.0), (False, 1.0), ([], 1.0), ([s], 0.0), (True, 0.0)]:
        s.set_value(0.0)
        synk.function([], s * 2, no_default_updates=taken, mode=MODE)()
        assert s.get_value() == after
