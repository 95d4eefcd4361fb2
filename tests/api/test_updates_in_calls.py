"""What calls change: slices, draws and default updates; and what the master notices by itself."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from modes import FAST
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op

import synkhronos as synk
from synkhronos._api import auto_slices
from synkhronos._api.request import Request
from synkhronos._engine.variables import Registry

# The mechanics of local updates; `test_warnings.py` holds what is warned of.
pytestmark = [
    pytest.mark.usefixtures("lasting_groups"),
    pytest.mark.filterwarnings("ignore::synkhronos.LocalUpdateWarning"),
]


Array = np.ndarray
ROWS = np.random.default_rng(5).normal(size=(11, 3))


def make(inputs: Any, outputs: Any = None, **options: Any) -> synk.Function:
    return synk.function(inputs, outputs, mode=options.pop("mode", FAST), **options)


def shared(value: Any, name: str | None = None) -> Any:
    return pytensor.shared(np.asarray(value), name=name)


def everywhere(variable: Any, size: int) -> list[Array]:
    return [synk.get_value(rank, variable) for rank in range(size)]


def same(found: Any, wanted: Any) -> None:
    np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=1e-13)


PROVED: dict[str, tuple[Any, Callable[[Any, Any], Any]]] = {
    "accumulated sum": (np.zeros(3), lambda s, x: s + x.sum(axis=0)),
    "counted rows": (0, lambda s, x: s + x.shape[0]),
    "running max": (-np.inf, lambda s, x: pt.maximum(s, x.max())),
    "running mean": (0.0, lambda s, x: 0.9 * s + 0.1 * x.mean()),
    "masked mean": (1.0, lambda s, x: s * pt.switch(x > 0, x, 0.0).sum() / (x > 0).sum()),
    "span": (0.0, lambda s, x: x.max() - x.min()),
    "accumulated gradient": (
        np.ones(3),
        lambda s, x: s + pytensor.grad(((x * s) ** 2).sum() + (s**2).sum(), s),
    ),
    "rows": (np.zeros((1, 3)), lambda s, x: x * 2 + 1),
    "rows over a total": (np.zeros((1, 3)), lambda s, x: x / x.sum()),
}


@pytest.mark.each_choice
@pytest.mark.parametrize("kind", PROVED)
def test_slices_of_updates_change_nothing(group: synk.Group, kind: str) -> None:
    """A new value that can be proved is the one of the whole part, for any number of slices."""
    start, new = PROVED[kind]
    s, x = shared(start, "s"), pt.matrix("x", dtype="float64")
    f = make([x], x.sum(), updates=[(s, new(s, x))])
    found = []
    for num_slices in (1, 2, 5):
        synk.broadcast(s, start)
        for _ in range(2):
            same(f(ROWS, num_slices=num_slices), ROWS.sum())
        found.append(everywhere(s, group.size))
        assert all(v.dtype == np.asarray(start).dtype for v in found[-1])
    for sliced in found[1:]:
        for value, whole in zip(sliced, found[0], strict=True):
            same(value, whole)


NONE: dict[str, Callable[[Any], Any]] = {
    "sum and a term": lambda x: x.sum() + 1,
    "span": lambda x: x.max() - x.min(),
    "ratio": lambda x: (x**2).sum() / x.sum(),
}


@pytest.mark.each_choice
@pytest.mark.parametrize("kind", NONE)
def test_slices_of_the_masters_own_value(group: synk.Group, kind: str) -> None:
    """Outputs of reduction None, finished over the slices of the master's part."""
    x = pt.matrix("x", dtype="float64")
    f = make([x], [(NONE[kind](x), None), x.mean()])
    whole, mean = f(ROWS)
    for num_slices in (2, 3, 9):
        found = f(ROWS, num_slices=num_slices)
        same(found[0], whole)
        same(found[1], mean)


def test_slices_that_prove_nothing_are_refused(
    group: synk.Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before anything moves; "auto" takes one slice; with a name it is the user's own mean."""
    x, s = pt.matrix("x", dtype="float64"), shared(0.0, "s")
    f = make([x], updates=[(s, s + x.std())], name="spread")
    with pytest.raises(synk.InputError, match=r"num_slices=2.*new value of s.*\(variable, new, "):
        f(ROWS, num_slices=2)
    assert everywhere(s, group.size) == [0.0] * group.size
    f(ROWS)
    whole = everywhere(s, group.size)
    monkeypatch.setattr(auto_slices, "BUDGET_BYTES", 50)
    synk.broadcast(s, 0.0)
    f(ROWS, num_slices="auto")
    assert everywhere(s, group.size) == whole
    make([x], updates=[(s, s + x.std(), "avg")])(ROWS, num_slices=2)
    g = make([x], [(x.std(), None), x.sum()])
    with pytest.raises(synk.InputError, match="reduction None"):
        g(ROWS, num_slices=2)
    same(g(ROWS, num_slices=2, output_subset=[1])[0], ROWS.sum())


def test_slices_without_inference_are_averaged() -> None:
    """fork(infer=False): as in 2017."""
    with synk.Group(1, infer=False):
        x, s = pt.matrix("x", dtype="float64"), shared(0.0, "s")
        make([x], updates=[(s, s + x.sum())])(ROWS[:10], num_slices=2)
        same(s.get_value(), ROWS[:10].sum() / 2)


@pytest.mark.parametrize("beside", ["alone", "beside rows"])
def test_draws_keep_their_distribution(group: synk.Group, beside: str) -> None:
    """A draw that no rows are in is the master's own: a mean of draws would have another spread."""
    rng = pytensor.shared(np.random.default_rng(1))
    after, z = pt.random.normal(0, 1, size=(20_000,), rng=rng, return_next_rng=True)
    last, coin = pt.random.bernoulli(0.5, size=(100,), rng=after, return_next_rng=True)
    x = pt.matrix("x", dtype="float64")
    inputs, given = ([x], [ROWS]) if beside == "beside rows" else ([], [])
    f = make(inputs, [z, coin, x.sum() if inputs else z[0]], updates=[(rng, last)])
    serial_rng = np.random.default_rng(1)
    for _ in range(2):
        drawn, tossed, _ = f(*given)
        assert abs(drawn.std() - 1) < 0.03
        assert set(np.unique(tossed)) == {0, 1}
        same(drawn, serial_rng.normal(0, 1, 20_000))
        same(tossed, serial_rng.binomial(1, 0.5, 100))


def test_draws_that_meet_rows_are_drawn_apart(group: synk.Group) -> None:
    """Noise for each row: every member has its own, and means are as of one draw."""
    rng = pytensor.shared(np.random.default_rng(2))
    x = pt.vector("x", dtype="float64")
    after, z = pt.random.normal(0, 1, size=x.shape, rng=rng, return_next_rng=True)
    f = make([x], [(x + z, "gather"), ((x + z).mean(), "avg")], updates=[(rng, after)])
    noisy, mean = f(np.zeros(30_000))
    assert abs(noisy.std() - 1) < 0.03
    assert len(np.unique(noisy)) == 30_000
    same(mean, noisy.mean())


@pytest.mark.each_choice
@pytest.mark.parametrize("without", [True, "list", False])
def test_default_updates(group: synk.Group, without: Any) -> None:
    """no_default_updates is honoured; the others are made once, in all members, or not at all."""
    c, d, x = shared(0.0, "c"), shared(0.0, "d"), pt.vector("x", dtype="float64")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        c.default_update, d.default_update = c + 1, d + 1
    options = {} if without is False else {"no_default_updates": [c] if without == "list" else True}
    f = make([x], pt.sqrt(x.sum()) + 0 * (c + d), **options)
    f(np.ones(4))
    same(f(np.ones(4), num_slices=2), 2.0)
    assert everywhere(c, group.size) == [0.0 if without else 2.0] * group.size
    assert everywhere(d, group.size) == [0.0 if without is True else 2.0] * group.size
    f.as_pytensor(np.ones(4))
    assert float(d.get_value()) == (0.0 if without is True else 3.0)


FIXED: dict[str, Callable[[Any], Any]] = {
    "mean": lambda x: x.mean(),
    "means of rows": lambda x: (x * 2).mean(axis=1),
    "means of columns": lambda x: x.mean(axis=0),
    "count": lambda x: x.shape[0] * 1.0,
    "one less": lambda x: x.sum() / (x.shape[0] - 1),
}


@pytest.mark.each_choice
@pytest.mark.parametrize("kind", FIXED)
@pytest.mark.parametrize("columns", [3, None])
def test_lengths_fixed_in_types(group: synk.Group, kind: str, columns: int | None) -> None:
    """A row length in an input's type is that of the whole, not of a part or a slice."""
    x = pt.tensor("x", dtype="float64", shape=(11, columns))
    f = make([x], FIXED[kind](x))
    wanted = pytensor.function([x], FIXED[kind](x), mode=FAST)(ROWS)
    same(f(ROWS), wanted)
    same(f(ROWS, num_slices=2), wanted)
    same(f.as_pytensor(ROWS), wanted)
    with pytest.raises(synk.InputTypeError):
        f(ROWS[:5])
    same(make([x], (x.mean(), "avg"))(ROWS), ROWS.mean())


def test_lengths_fixed_in_types_of_sliceables(group: synk.Group) -> None:
    """The same for rows that batch_s and slices select of shared variables."""
    s = pytensor.shared(ROWS, "s", shape=(11, 3))
    f = make([], [s.mean(), (s.mean(), "avg")], sliceable_shareds=[s])
    for options, rows in [
        ({}, ROWS),
        ({"num_slices": 3}, ROWS),
        ({"batch_s": slice(0, 2)}, ROWS[:2]),
        ({"batch_s": [3, 4, 9], "num_slices": 2}, ROWS[[3, 4, 9]]),
    ]:
        same(f(**options), [rows.mean()] * 2)


class Locked(Op):
    """An operation that cannot be pickled."""

    __props__ = ()

    def __init__(self) -> None:
        self.lock = threading.Lock()

    def make_node(self, x: Any) -> Apply:
        return Apply(self, [x], [x.type()])

    def perform(self, node: Any, inputs: Any, output_storage: Any) -> None:
        output_storage[0][0] = inputs[0].copy()


def test_a_function_that_cannot_travel_stops_no_other(group2: synk.Group) -> None:
    """It raises when it is called, or shipped by name of all; nothing else does."""
    x, w = pt.matrix("x", dtype="float64"), shared(np.ones(3), "w")
    bad = make([x], (Locked()((x * w).sum()), "sum"), name="bad")
    good = make([x], (x * w).sum(), name="good")
    for _ in range(2):
        same(good(ROWS), ROWS.sum())
        with pytest.raises(synk.InputError, match=r"bad.*Locked"):
            bad(ROWS)
        synk.broadcast(w)
        with pytest.raises(synk.InputError, match="bad"):
            synk.distribute()
    later = make([x], x.sum())
    same(later(ROWS), ROWS.sum())


def test_a_value_that_cannot_travel_stops_no_other(group2: synk.Group) -> None:
    """A shared variable of any kind: the next one is told to the members under its number."""
    x, w = pt.matrix("x", dtype="float64"), shared(np.full(3, 2.0), "w")
    lock = pytensor.shared(threading.Lock(), "lock")
    bad = make([x], x.sum(), updates=[(lock, lock)], name="bad")
    with pytest.raises(synk.InputError, match="lock"):
        bad(ROWS)
    same(make([x], (x * w).sum())(ROWS), ROWS.sum() * 2)


def test_reductions_that_have_run_in_python_travel(group2: synk.Group) -> None:
    """They keep a ufunc of their own, which does not pickle (the gradient of a product)."""
    x, w = pt.matrix("x", dtype="float64"), shared(np.ones(3), "w")
    gradient = pytensor.grad((x @ w).prod(), w)
    first = make([x], (gradient, "avg"))(ROWS)
    same(make([x], (gradient * 2, "avg"))(ROWS), first * 2)


@pytest.mark.parametrize("mode", [FAST, "NUMBA"])
@pytest.mark.parametrize("shape", [(), (3,), (40, 50), (7, 100, 9)])
def test_updates_of_plain_functions_are_noticed(
    group2: synk.Group, mode: str, shape: tuple[int, ...]
) -> None:
    """They write into the value in place; the others get the new one, in calls and collectives."""
    w = shared(np.zeros(shape), "w")
    step = pytensor.function([], updates=[(w, w + 1)], mode=mode)
    f = make([], w.sum() * 1.0)
    g = make([pt.vector("x", dtype="float64")], (w.max(), "gather"), on_unused_input="ignore")
    for n in range(1, 4):
        step()
        assert g(np.ones(2)).tolist() == [n, n]
        same(f(), n * np.prod(shape))
    step()
    assert (synk.get_value(1, w) == 4).all()
    synk.all_reduce(w, "sum")
    assert (synk.get_value(1, w) == 8).all()
    step()
    assert g(np.ones(2)).tolist() == [9, 9]
    synk.all_reduce(w, "sum")
    assert (w.get_value() == 18).all()


def test_what_commands_change_in_place_is_not_sent_again(group2: synk.Group) -> None:
    """An all_reduce writes into values; the master does not take that for the user's doing."""
    w = shared(np.ones(5), "w")
    x = pt.vector("x", dtype="float64")
    f = make([x], (x * w.sum()).sum())
    d = synk.data(np.ones(4))
    f(d)
    for _ in range(3):
        synk.all_reduce(w, "sum")
        same(f(d), 4 * w.get_value().sum())
        [entry] = f._function.entries
        assert not entry.is_set
        assert f._function.make(Request([d])).new is None


def test_a_variable_of_two_groups_is_one(group2: synk.Group) -> None:
    """What one group does to it, in place or not, reaches the other with its next command."""
    w, x = shared(np.ones(2_000), "w"), pt.vector("x", dtype="float64")
    with synk.Group(2) as other:
        with group2.active():
            step = make([], updates=[(w, w + 1)])
            step()
            synk.all_reduce(w)
        with other.active():
            g = make([x], (w.max() + 0 * x.sum(), "gather"))
        changes: list[Callable[[], Any]] = [
            lambda: synk.all_reduce(w, "sum"),
            step,
            lambda: synk.all_reduce(w, "sum"),
            lambda: synk.set_value(0, w, np.concatenate([[9.0], w.get_value()[1:]])),
        ]
        for change in changes:
            with group2.active():
                change()
            with other.active():
                assert g(np.ones(2)).tolist() == [w.get_value().max()] * 2


def test_running_values_of_a_deep_network_are_marked_in_linear_time(
    group2: synk.Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of 30 running values depends on all before it, as those of normalised layers do."""
    x, total = pt.vector("x"), pt.constant(0.0)
    running = [pytensor.shared(float(i), name=f"running{i}") for i in range(30)]
    news = []
    for value in running:
        total = total + value
        news.append((value, total + x.sum()))
    f = synk.function([x], x.sum(), updates=news, mode=FAST)
    f(np.ones(4))
    looked_up = []
    found = Registry.of
    monkeypatch.setattr(Registry, "of", lambda self, v: looked_up.append(v) or found(self, v))
    f(np.ones(4))
    assert len(running) <= len(looked_up) < 5 * len(running)
