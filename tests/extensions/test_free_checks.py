"""Wrong arguments of free rules: a clear error, before anything has changed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from free_runs import batches_of, counting, equal
from modes import FAST

import synkhronos as synk
from synkhronos import extensions, rules
from synkhronos.extensions import make_train_function, updates

pytestmark = pytest.mark.usefixtures("lasting_groups")

PLAIN = rules.Downpour(1, scale="none")

STARTS: dict[str, tuple[Callable[..., Any], str]] = {
    "nothing": (lambda t, d, b: t.start(), "takes the inputs, then the Batches, found None"),
    "no batches": (lambda t, d, b: t.start(d), "then the Batches, found"),
    "batches first": (lambda t, d, b: t.start(b, d), "then the Batches, found"),
    "rows": (lambda t, d, b: t.start(d, np.arange(3)), "then the Batches, found"),
    "no data": (lambda t, d, b: t.start(b), "missing"),
    "arrays": (lambda t, d, b: t.start(np.arange(40), b), "takes Data for inputs with rows"),
    "arrays by name": (lambda t, d, b: t.start(b, rows=np.arange(40)), "takes Data for inputs"),
    "too much": (lambda t, d, b: t.start(d, d, b), "takes 1 inputs, found 2"),
    "too few rows": (
        lambda t, d, b: t.start(d, batches_of(41, 5)),
        "has 40 rows, the batches are of 41",
    ),
    "too few rows by name": (
        lambda t, d, b: t.start(batches_of(41, 5), rows=d),
        "has 40 rows, the batches are of 41",
    ),
    "epochs 0": (
        lambda t, d, b: t.start(d, b, epochs=0),
        "epochs=0: give an integer of at least 1",
    ),
    "epochs half": (lambda t, d, b: t.start(d, b, epochs=0.5), "epochs=0.5"),
    "epochs flag": (lambda t, d, b: t.start(d, b, epochs=True), "epochs=True"),
    "share": (lambda t, d, b: t.start(d, b, share="fair"), "share='fair': use"),
    "share list": (lambda t, d, b: t.start(d, b, share=["fixed"]), "share="),
    "least 0": (
        lambda t, d, b: t.start(d, b, least=0),
        "least=0: give an integer of at least 1 and at most 2, of the members",
    ),
    "least 3": (
        lambda t, d, b: t.start(d, b, least=3),
        "least=3: give an integer of at least 1 and at most 2, of the members",
    ),
    "least flag": (lambda t, d, b: t.start(d, b, least=True), "least=True"),
    "stall text": (lambda t, d, b: t.start(d, b, stall_warning="1"), "stall_warning=.1"),
    "stall nan": (lambda t, d, b: t.start(d, b, stall_warning=np.nan), "stall_warning=nan"),
    "stall 0": (lambda t, d, b: t.start(d, b, stall_warning=0), "stall_warning=0"),
    "record": (lambda t, d, b: t.start(d, b, record="yes"), "record='yes': give True or False"),
    "unknown": (lambda t, d, b: t.start(d, b, periods=3), "periods"),
}


def test_wrong_starts(group2: synk.Group) -> None:
    train, w, data = counting(PLAIN, 40)
    batches = batches_of(40, 5)
    before = batches.state()
    for name, (call, says) in STARTS.items():
        with pytest.raises((synk.InputError, TypeError), match=says) as caught:
            call(train, data, batches)
        assert isinstance(caught.value, synk.InputError) or name == "unknown", name
        assert not w.get_value().any(), name
        assert batches.state() == before, name
    with train.start(data, batches) as run:
        run.wait()
    np.testing.assert_array_equal(w.get_value(), -1)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({}, "give one of rows, exchanges and seconds"),
        ({"rows": 1, "seconds": 1}, "give one of"),
        ({"rows": 0}, "every: rows=0: give a number of more than 0"),
        ({"seconds": -1.0}, "seconds"),
        ({"seconds": float("nan")}, "seconds"),
        ({"exchanges": "3"}, "exchanges"),
    ],
)
def test_wrong_intervals(given: dict[str, Any], says: str) -> None:
    with synk.Group(1):
        train, _, data = counting(PLAIN, 40)
        with train.start(data, batches_of(40, 5)) as run:
            with pytest.raises(synk.InputError, match=says):
                run.every(**given)
            for bad in ("1", float("nan"), -1.0):
                with pytest.raises(synk.InputError, match="timeout"):
                    run.wait(timeout=bad)
            assert run.rows == 0


def test_wrong_numbers(group2: synk.Group) -> None:
    for rule, good in ((rules.EASGD(2), {"alpha": 0.3}), (PLAIN, None), (rules.Hogwild(), None)):
        train, _, data = equal(rule, 20)
        with train.start(data, batches_of(20, 5)) as run:
            for bad in ({"alpha": 7.0}, {"alpha": "x"}, {"alpha": np.nan}, {"period": 3}, {"x": 1}):
                with pytest.raises(synk.InputError):
                    run.set(**bad)
            if good:
                run.set(**good)
            run.wait()


def test_functions_that_free_rules_refuse(group2: synk.Group) -> None:
    x = pt.matrix("x", dtype="float64")
    w = pytensor.shared(np.zeros(3), name="w")
    count = pytensor.shared(0.0, name="count")

    def made(loss: Any = None, rule: Any = PLAIN, optimizer: Any = updates.sgd, **more: Any) -> Any:
        loss = ((x @ w) ** 2).mean() if loss is None else loss
        return make_train_function(loss, [w], x, None, optimizer, 0.1, rule=rule, mode=FAST, **more)

    wrong: list[tuple[dict[str, Any], str]] = [
        ({"outputs": [x.sum()]}, "there are no outputs beside the loss"),
        ({"rule": rules.EASGD}, r"call it, as in rules\.EASGD\(\)"),
        ({"rule": "EASGD"}, "is not a rule"),
        ({"compress": "float16"}, "compress"),
        ({"updates": [(count, x.sum(), "sum", "all")]}, "updates of count|sum"),
        (
            {"rule": rules.Hogwild(), "optimizer": updates.sgd, "clip": _by_norm},
            "element by element",
        ),
    ]
    for given, says in wrong:
        with pytest.raises((synk.InputError, TypeError, ValueError), match=says):
            made(**given)
    assert not w.get_value().any()


def _by_norm(gradients: Any) -> Any:
    norm = pt.sqrt(sum((g**2).sum() for g in gradients))
    return [g / pt.maximum(norm, 1.0) for g in gradients]


def test_a_group_that_has_ended() -> None:
    with synk.Group(2):
        train, w, data = counting(PLAIN, 40)
    with pytest.raises(synk.GroupError):
        train.start(data, batches_of(40, 5))
    assert not w.get_value().any()


def test_a_group_that_is_closed_meanwhile() -> None:
    train_of = []
    with synk.Group(2) as group:
        train, _, data = counting(PLAIN, 4000)
        train_of.append(train)
        run = train.start(data, batches_of(4000, 2), epochs=1000)
        assert not run.wait(timeout=0.02)
        group.close()
        with pytest.raises(synk.GroupError):
            run.wait()
        run.progress()


def test_members_that_hardly_exchange_are_warned_of(group2: synk.Group) -> None:
    x, w = pt.vector("x", dtype="float64"), pytensor.shared(np.zeros(()), name="w")
    for rule, text in (
        (rules.EASGD(2, alpha=0), r"EASGD\(period=2, alpha=0\) members never exchange"),
        (rules.Downpour(period=5), "8 batches are fewer than 5 for each of 2 members"),
    ):
        train = make_train_function(
            ((w - x) ** 2).mean(), [w], x, None, updates.sgd, 0.1, rule=rule, mode=FAST
        )
        data = train.build_inputs(np.ones(40))
        with pytest.warns(synk.UnusedWarning, match=text):
            run = train.start(data, synk.extensions.Batches(40, 5), epochs=1)
        assert run.wait()


@pytest.mark.parametrize(
    ("rule", "kind", "run_kind"),
    [
        (None, extensions.TrainFunction, None),
        (rules.SlowMo(), extensions.RoundFunction, None),
        (rules.EASGD(2, meet=True), extensions.RoundFunction, None),
        (rules.EASGD(2), extensions.FreeFunction, extensions.Run),
        (rules.Hogwild(), extensions.FreeFunction, extensions.Run),
        (
            rules.Nodes(rules.EASGD(2), rules.Average(2)),
            extensions.NodesFunction,
            extensions.NodesRun,
        ),
    ],
    ids=str,
)
def test_the_rule_decides_the_kind_of_function_and_run(
    group2: synk.Group, rule: Any, kind: type, run_kind: type | None
) -> None:
    x, w = pt.vector("x", dtype="float64"), pytensor.shared(np.zeros(()), name="w")
    train = make_train_function(
        ((w - x) ** 2).mean(), [w], x, None, updates.sgd, 0.1, rule=rule, mode=FAST
    )
    assert type(train) is kind
    if run_kind is not None:
        with pytest.raises(synk.InputTypeError, match=r"no step of all members: call train\.start"):
            train(np.ones(40))
        data = train.build_inputs(np.ones(40))
        with train.start(data, batches_of(40, 2), epochs=2) as run:
            assert type(run) is run_kind
            for point in run.every(rows=30):
                assert type(point) is extensions.Point
                break
            run.wait()
