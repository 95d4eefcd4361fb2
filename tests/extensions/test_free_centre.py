"""An optimizer at the centre of a free rule: its states, its numbers, what it cannot be."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from free_runs import FREE_RULES, at_centre, batches_of, counting, equal
from modes import FAST

import synkhronos as synk
from synkhronos import rules
from synkhronos.extensions import Batches, make_train_function, updates
from synkhronos.extensions.checkpoints import Checkpoints

pytestmark = pytest.mark.usefixtures("lasting_groups")

ROWS = np.random.default_rng(0).normal(size=(400, 3))
ADAM = FREE_RULES["centre"]


def made(rule: Any, **more: Any) -> Any:
    """A training function of two parameters, and its data."""
    x, y = pt.matrix("x", dtype="float64"), pt.vector("y", dtype="float64")
    w, b = pytensor.shared(np.zeros(3), name="w"), pytensor.shared(np.zeros(()), name="b")
    loss = ((x @ w + b - y) ** 2).mean()
    train = make_train_function(loss, [w, b], x, y, updates.sgd, 0.05, rule=rule, mode=FAST, **more)
    return train, train.build_inputs(ROWS, ROWS @ [3.0, 2.0, 1.0] + 1)


def values(train: Any) -> list[np.ndarray]:
    return [v.get_value() for v in (*train.params, *train.state)]


def test_a_run_goes_on_with_the_states(tmp_path: Path) -> None:
    """After a restart from a point, and in a second run: the same bits as without a break."""
    with synk.Group(1):
        whole, data = made(ADAM)
        with whole.start(*data, Batches(400, 20, seed=1), epochs=4) as run:
            run.wait()
        expected = values(whole)
        assert [v.name for v in whole.state] == [
            *("w.m at the centre", "b.m at the centre", "w.v at the centre", "b.v at the centre"),
            *("adam.t at the centre", "rows and exchanges (Downpour)"),
        ]
        assert at_centre(whole.state)[-1] == 40

        train, data = made(ADAM)
        batches = Batches(400, 20, seed=1)
        saved = Checkpoints(tmp_path, train, batches)
        with train.start(*data, batches, epochs=4) as run:
            for point in run.every(rows=800):
                saved.save(point)
                break
        restarted, data = made(ADAM)
        batches = Batches(400, 20, seed=1)
        Checkpoints(tmp_path, restarted, batches).restore()
        assert at_centre(restarted.state)[-1] == 20
        with restarted.start(*data, batches, epochs=2) as run:
            run.wait()

        twice, data = made(ADAM)
        batches = Batches(400, 20, seed=1)
        for _ in range(2):
            with twice.start(*data, batches, epochs=2) as run:
                run.wait()
        for other in (restarted, twice):
            for found, value in zip(values(other), expected, strict=True):
                assert found.tobytes() == value.tobytes()


def test_discarded_states(group2: synk.Group) -> None:
    train, data = made(ADAM)
    run = train.start(*data, batches_of(400, 20), epochs=1000)
    for point in run.every(rows=100):
        assert all(state.any() for state in at_centre(point.values))
        break
    run.discard()
    assert not any(value.any() for value in values(train))


def test_states_that_are_set(group2: synk.Group) -> None:
    """They are the user's, as all variables: here, a velocity that no displacement changes."""
    rule = rules.Downpour(1, functools.partial(updates.momentum, learning_rate=0.0, momentum=1.0))
    train, data = made(rule)
    velocity, other, counts = train.state
    velocity.set_value(np.full(3, 0.25))
    with train.start(*data, batches_of(400, 20)) as run:
        run.wait()
    assert (velocity.get_value() == 0.25).all()
    assert (train.params[0].get_value() == 0.25 * 20).all()
    assert other.get_value() == train.params[1].get_value() == 0
    assert counts.get_value()[1] == 20


def test_a_learning_rate_that_changes(group2: synk.Group) -> None:
    """Members read a shared scalar at each exchange; it is a setting, which checkpoints hold."""
    rate = pytensor.shared(1.0, name="rate")
    sgd = functools.partial(updates.sgd, learning_rate=rate)
    train, w, data = counting(rules.Downpour(1, sgd, "none"), 400)
    assert rate in train.settings
    with train.start(data, batches_of(400, 5)) as run:
        run.wait()
    assert (w.get_value() == -1).all()
    rate.set_value(0.0)
    with train.start(data, batches_of(400, 5)) as run:
        run.wait()
    assert (w.get_value() == -1).all()
    rate.set_value(2.0)
    with train.start(data, batches_of(400, 5)) as run:
        run.wait()
    assert (w.get_value() == -3).all()


def test_between_two_parameters(group2: synk.Group) -> None:
    """The room there does not become nan where a state starts above zero."""

    def adagrad(gradients: Any, params: Any) -> Any:
        found = {}
        for p, g in zip(params, gradients, strict=True):
            total = pytensor.shared(np.full_like(p.get_value(), 0.1), name=f"{p.name}.total")
            found[total] = total + g**2
            found[p] = p - 0.5 * g / pt.sqrt(found[total])
        return found

    train, ws, data = equal(rules.Downpour(1, adagrad), 60, 3)
    with train.start(data, batches_of(60, 2), epochs=20) as run:
        run.wait()
    assert not sum(found["refused"] for found in run.progress())
    assert all(0.5 < w.get_value().min() < w.get_value().max() + 1e-9 < 2 for w in ws)


def _by_norm(gradients: Any, params: Any) -> Any:
    return updates.sgd.rule(updates.total_norm_constraint(gradients, 1.0), params, 0.1)


def _two_rates(gradients: Any, params: Any) -> Any:
    rates = dict(zip(params, (0.1, 0.2), strict=True))
    return {p: p - rates[p] * g for p, g in zip(params, gradients, strict=True)}


def _two_rules(gradients: Any, params: Any) -> Any:
    found = updates.sgd.rule(gradients[:1], params[:1], 0.1)
    return found | updates.momentum.rule(gradients[1:], params[1:], 0.1)


def _first_only(gradients: Any, params: Any) -> Any:
    return updates.sgd.rule(gradients[:1], params[:1], 0.1)


def _of_an_input(gradients: Any, params: Any) -> Any:
    return updates.sgd.rule(gradients, params, pt.dscalar("step"))


@pytest.mark.parametrize(
    ("optimizer", "says"),
    [
        (_by_norm, r"of Downpour\(centre=_by_norm\) must work element by element"),
        (_two_rates, "must treat all parameters alike"),
        (_two_rules, "must treat all parameters alike"),
        (_first_only, "gives b no new value"),
        (_of_an_input, "depends on step: use a number or a shared scalar"),
        (updates.momentum, "learning_rate"),
        (functools.partial(updates.sgd, rate=1.0), "rate"),
        (lambda gradients, params: 3, "updates must be a dict"),
    ],
)
def test_what_cannot_be_at_the_centre(group2: synk.Group, optimizer: Any, says: str) -> None:
    with pytest.raises(synk.InputError, match=says):
        made(rules.Downpour(centre=optimizer))


def test_nesterov_is_warned_of(group2: synk.Group, caplog: pytest.LogCaptureFixture) -> None:
    for optimizer in (updates.nesterov_momentum, updates.momentum):
        caplog.clear()
        train, _ = made(rules.Downpour(1, functools.partial(optimizer, learning_rate=0.1)))
        train._warn_of_the_rule(20)
        warned = "Nesterov's momentum at the centre" in caplog.text
        assert warned == (optimizer is updates.nesterov_momentum)
