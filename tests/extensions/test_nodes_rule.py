"""`rules.Nodes` in one node: rounds of a free rule, then a meeting."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from modes import FAST

import synkhronos as synk
from synkhronos import rules
from synkhronos.extensions import Batches, make_train_function, updates

ROWS = np.random.default_rng(0).normal(size=(240, 3))
TARGETS = ROWS @ [3.0, 2.0, 1.0]


def made(rule: rules.Rule, **more: Any) -> tuple[Any, Any, Any]:
    x, y = pt.matrix("x", dtype="float64"), pt.vector("y", dtype="float64")
    w = pytensor.shared(np.zeros(3), name="w")
    loss = ((x @ w - y) ** 2).mean()
    train = make_train_function(loss, [w], x, y, updates.sgd, 0.05, rule=rule, mode=FAST, **more)
    return train, w, train.build_inputs(ROWS, TARGETS)


def serial(order: list[np.ndarray], w: np.ndarray) -> np.ndarray:
    for rows in order:
        error = ROWS[rows] @ w - TARGETS[rows]
        w = w - 0.05 * 2 * ROWS[rows].T @ error / len(rows)
    return w


def epoch_of(seed: int, epoch: int) -> list[np.ndarray]:
    order = Batches(len(ROWS), 20, seed=seed).order(epoch)
    return [order[at : at + 20] for at in range(0, len(order), 20)]


def test_one_member_and_averages_train_serially() -> None:
    with synk.Group(1):
        train, w, data = made(rules.Nodes(rules.Downpour(), rules.Average(period=4)))
        batches = Batches(len(ROWS), 20, seed=3)
        order = epoch_of(3, 0) + epoch_of(3, 1)
        with train.start(*data, batches, epochs=2) as run:
            points = list(run.every(rows=80))
    assert [p.version for p in points] == [1, 2, 3, 4, 5, 6]
    assert [p.rows for p in points] == [80, 160, 240, 320, 400, 480]
    assert run.history[-1]["rows"] == run.rows == 480
    np.testing.assert_allclose(points[2].values[w], serial(epoch_of(3, 0), np.zeros(3)), 1e-12)
    np.testing.assert_allclose(w.get_value(), serial(order, np.zeros(3)), 1e-12)
    assert batches.state()["epoch"] == 2


def test_diloco_moves_the_centre_by_its_momentum() -> None:
    with synk.Group(1):
        train, w, data = made(rules.Nodes(rules.Downpour(), rules.DiLoCo(period=4)))
        with train.start(*data, Batches(len(ROWS), 20, seed=3), epochs=1) as run:
            run.wait()
    c, u = np.zeros(3), np.zeros(3)
    batches = epoch_of(3, 0)
    for at in range(0, len(batches), 4):
        displacement = c - serial(batches[at : at + 4], c)
        u = 0.9 * u + displacement
        c = c - 0.7 * (displacement + 0.9 * u)
    np.testing.assert_allclose(w.get_value(), c, 1e-12)
    [outer] = [v for v in train.state if v.name == "momentum of w (DiLoCo)"]
    np.testing.assert_allclose(outer.get_value(), u, 1e-12)


def test_a_synchronous_node_is_one_member(group2: synk.Group) -> None:
    """Without a rule inside: the same as a group without a rule, meeting after meeting."""
    for optimizer in (updates.momentum, updates.adam):
        found = []
        for rule in (rules.Nodes(None, rules.Average(period=3)), None):
            x, y = pt.matrix("x", dtype="float64"), pt.vector("y", dtype="float64")
            w = pytensor.shared(np.zeros(3), name="w")
            mean = pytensor.shared(np.zeros(3), name="mean")
            loss = ((x @ w - y) ** 2).mean() + 0.1 * (w**2).sum()
            train = make_train_function(
                *(loss, [w], x, y, optimizer, 0.05),
                rule=rule,
                updates=[(mean, 0.5 * mean + 0.5 * x.mean(axis=0), "avg", "all")],
                clip=lambda grads: [pt.clip(g, -1.5, 1.5) for g in grads],
                mode=FAST,
            )
            data = train.build_inputs(ROWS, TARGETS)
            batches = Batches(len(ROWS), 21, seed=2)
            if rule is None:
                for _ in range(2):
                    for rows in batches:
                        train(*data, batch=rows)
            else:
                with train.start(*data, batches, epochs=2) as run:
                    assert run.wait()
                assert run.rows == 2 * len(ROWS)
                # 24 batches, of which each is a step of both members; a meeting after three
                [counts] = [v for v in train.state if v.name.startswith("rows and exchanges")]
                assert counts.get_value().tolist() == [2 * len(ROWS), 8]
            found.append((w.get_value(), mean.get_value()))
        np.testing.assert_allclose(found[0][0], found[1][0], 1e-12)
        np.testing.assert_allclose(found[0][1], found[1][1], 1e-12)


@pytest.mark.parametrize("inside", [rules.EASGD(2), rules.Downpour(2, quorum=2), rules.Hogwild()])
def test_members_of_a_node_train_together(inside: rules.Rule, group2: synk.Group) -> None:
    mean = pytensor.shared(np.zeros(()), name="mean")
    x = pt.matrix("x", dtype="float64")
    y, w = pt.vector("y", dtype="float64"), pytensor.shared(np.zeros(3), name="w")
    train = make_train_function(
        *(((x @ w - y) ** 2).mean(), [w], x, y, updates.sgd, 0.05),
        rule=rules.Nodes(inside, rules.Average(period=6)),
        updates=[(mean, 0.5 * mean + 0.5 * (x**2).mean())],
        mode=FAST,
    )
    data = train.build_inputs(ROWS, TARGETS)
    with train.start(*data, Batches(len(ROWS), 10, seed=3), epochs=10) as run:
        first = next(iter(run.every(rows=240)))
        before = float(((TARGETS - ROWS @ first.values[w]) ** 2).mean())
        assert np.array_equal(first.values[w], w.get_value())  # between two rounds
        run.wait()
    assert run.rows == 10 * len(ROWS)  # though a quorum uses some of them again
    assert float(((TARGETS - ROWS @ w.get_value()) ** 2).mean()) < before
    assert 0.5 < float(mean.get_value()) < 1.5
    held = [synk.get_value(rank, w).tolist() for rank in range(synk.size())]
    assert held[0] == held[1]


def test_what_the_user_sets_is_where_the_next_round_begins(group2: synk.Group) -> None:
    train, w, data = made(rules.Nodes(rules.EASGD(2), rules.EASGD(period=3, meet=True)))
    batches = Batches(len(ROWS), 20, seed=3)
    with train.start(*data, batches, epochs=1) as run:
        run.wait()
    w.set_value(np.array([3.0, 2.0, 1.0]))
    with train.start(*data, batches, epochs=1) as run:
        run.wait()
    np.testing.assert_allclose(w.get_value(), [3.0, 2.0, 1.0], 1e-12)


def test_a_failed_round_changes_nothing(group2: synk.Group) -> None:
    x = pt.vector("x", dtype="float64")
    w = pytensor.shared(np.zeros(()), name="w")
    index = pt.cast(x.max(), "int64")
    loss = ((w - x) ** 2).mean() + 0 * pt.constant(np.zeros(3))[index]
    rule = rules.Nodes(rules.Downpour(), rules.Average(period=2))
    train = make_train_function(
        loss, [w], x, None, updates.sgd, 0.1, rule=rule, mode=FAST, reduction="avg"
    )
    rows = np.ones(40)
    data = train.build_inputs(rows)
    batches = Batches(40, 5, shuffle=False)
    with train.start(data, batches, epochs=1) as run:
        assert run.wait()
    kept = w.get_value()
    data[20:] = 7.0  # out of range: the second round of an epoch fails
    with train.start(data, batches, epochs=1) as run:
        points = []
        with pytest.raises(IndexError):
            points += list(run.every(rows=20))
    assert w.get_value() != kept  # by the first round
    held = w.get_value()
    assert batches.state()["row"] == 20
    data[20:] = 1.0
    with train.start(data, batches, epochs=1) as run:
        assert run.wait()
    assert run.rows == 20
    assert abs(w.get_value() - 1) < abs(held - 1)


def test_refusals(group2: synk.Group) -> None:
    with pytest.raises(synk.InputError, match="neither state= nor warmup="):
        made(rules.Nodes(rules.EASGD(2), rules.Average(4, warmup=2)))
    with pytest.raises(synk.InputTypeError, match="not a round rule"):
        rules.Nodes(rules.EASGD(2), rules.Downpour())  # type: ignore[arg-type]
    at_centre = rules.Downpour(centre=updates.sgd)
    with pytest.raises(synk.InputError, match="which between= moves too: leave centre= out"):
        rules.Nodes(at_centre, rules.Average(2))
    with pytest.raises(synk.InputError, match="no centre"):
        rules.Nodes(rules.GoSGD(), rules.Average(2))
    train, *_ = made(rules.Nodes(rules.EASGD(2), rules.Average(4)))
    with pytest.raises(synk.InputTypeError, match=r"Nodes\(.*no step of all members: call train"):
        train()
