"""What members and variables hold after meetings of round rules, and between them; checkpoints."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from apart import Alone, Apart
from modes import FAST
from training_cases import RULES, Net

import synkhronos as synk
from synkhronos import rules
from synkhronos.extensions import Batches, make_train_function, updates
from synkhronos.extensions.checkpoints import Checkpoints

pytestmark = pytest.mark.usefixtures("lasting_groups")

ADAM, OPTIONS = RULES["adam"]


def both(
    group: synk.Group, rule: Any, name: str = "adam"
) -> tuple[Any, Net, Apart, Callable[..., None]]:
    """A training function, its net, the members one after the other, and a step of both."""
    function, options = RULES[name]
    net, twin = Net(), Apart(group.size, rule, function, options)
    train = make_train_function(
        net.loss, net.params, net.x, net.y, function, rule=rule, mode=FAST, **options
    )
    x, y = net.data(23)

    def step(count: int = 1) -> None:
        for _ in range(count):
            train(x, y)
            twin.step(x, y)

    return train, net, twin, step


def same(found: Any, wanted: Any) -> None:
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)


def states_of(train: Any, twin: Apart) -> list[Any]:
    """The optimizer's states, in the order of the plain functions'."""
    by_name = {v.name: v for v in train.state}
    return [by_name[v.name] for v in twin.members[0].states]


@pytest.mark.each_choice
@pytest.mark.parametrize("rule", [rules.DiLoCo(3), rules.Average(3), rules.Swap(3)], ids=str)
def test_meet_publishes_the_mean_of_the_states(group: synk.Group, rule: Any) -> None:
    """Members go on with their own; a second meeting without a step moves nothing."""
    train, net, twin, step = both(group, rule)
    mine = states_of(train, twin)
    first = Alone.get(mine)
    step(4)
    same(Alone.get(mine), first)
    states = [Alone.get(m.states) for m in twin.members]
    weights = np.array(synk.part_lengths(23)) / 23
    train.meet()
    twin.meet()
    same(Alone.get(mine), [sum(w * v for w, v in zip(weights, s, strict=True))
                           for s in zip(*states, strict=True)])  # fmt: skip
    step(7)
    train.meet()
    twin.meet()
    same(net.values(), twin.centre)


def test_a_second_meeting_only_publishes_the_states(group: synk.Group) -> None:
    """It has no steps from which the centre could move; DiLoCo's momentum would move it."""
    train, net, twin, step = both(group, rules.DiLoCo(3))
    step(3)
    centre = net.values()
    for _ in range(2):
        train.meet()
        states = [Alone.get(m.states) for m in twin.members]
        same(
            Alone.get(states_of(train, twin)),
            [np.mean(s, axis=0) for s in zip(*states, strict=True)],
        )
        for a, b in zip(net.values(), centre, strict=True):
            np.testing.assert_array_equal(a, b)
    assert train.state[-1].get_value().tolist() == [3, 1]
    step(4)
    train.meet()
    twin.meet()
    same(net.values(), twin.centre)


@pytest.mark.each_choice
@pytest.mark.parametrize("state", ["keep", "average", "reset"])
@pytest.mark.parametrize("when", [3, 4])
def test_all_go_on_from_a_parameter_that_was_set(group: synk.Group, state: str, when: int) -> None:
    """Also between meetings; kept states stay the members' own, others are the last meeting's."""
    train, net, twin, step = both(group, rules.Average(3, state=state))
    step(3)
    at_meeting = [Alone.get(m.states) for m in twin.members]
    step(when - 3)
    values = [0.5 * c for c in twin.centre]
    for p, value in zip(net.params[:2], values, strict=False):
        p.set_value(value)
    new = [*values[:2], *twin.centre[2:]]
    for member, states in zip(twin.members, at_meeting, strict=True):
        Alone.put(member.net.params, new)
        if state != "keep":
            Alone.put(member.states, states)
    twin.centre, twin.since = [np.array(v) for v in new], 0
    twin.rows[:] = 0
    step(4)
    train.meet()
    twin.meet()
    same(net.values(), twin.centre)


@pytest.mark.parametrize("which", ["vector", "count"])
def test_all_go_on_from_a_state_that_was_set(group2: synk.Group, which: str) -> None:
    """Then the members take all states of the variables: `meet` first."""
    train, net, twin, step = both(group2, rules.Average(3))
    step(2)
    train.meet()
    twin.meet()
    mine = states_of(train, twin)
    chosen = next(v for v in mine if (v is train.state[len(mine) - 1]) == (which == "count"))
    assert (chosen.type.ndim == 0) == (which == "count")
    chosen.set_value(chosen.get_value() + 1)
    for member in twin.members:
        Alone.put(member.states, Alone.get(mine))
    step(4)
    train.meet()
    twin.meet()
    same(net.values(), twin.centre)


def test_set_changes_the_rules_numbers(group2: synk.Group) -> None:
    train, net, twin, step = both(group2, rules.SlowMo(2), "sgd")
    step(3)
    train.set(lr=0.5, momentum=0)
    twin.rule = rules.SlowMo(2, momentum=0, lr=0.5)
    step(3)
    same(net.values(), twin.centre)
    for numbers, error in (({"period": 3}, synk.InputError), ({"lr": -1}, synk.InputError),
                           ({"lr": "1"}, synk.InputTypeError)):  # fmt: skip
        with pytest.raises(error):
            train.set(**numbers)
    step(2)
    same(net.values(), twin.centre)


def test_the_warm_up_hands_its_states_over(group: synk.Group) -> None:
    """Synchronous steps, then all go on from these parameters and states."""
    net, serial = Net(), Net()
    train = make_train_function(
        *(net.loss, net.params, net.x, net.y, ADAM), rule=rules.Average(2, warmup=3), mode=FAST,
        **OPTIONS,
    )  # fmt: skip
    twin = make_train_function(
        *(serial.loss, serial.params, serial.x, serial.y, ADAM), mode=FAST, **OPTIONS
    )
    x, y = net.data(6 * group.size)
    for step in range(3):
        assert train(x, y) == twin(x, y)
        train.meet()
        for a, b in zip(net.values(), serial.values(), strict=True):
            np.testing.assert_array_equal(a, b, err_msg=str(step))
    train(x, y)
    count = train.state[2 * len(net.params)]
    assert count.get_value() == 3
    for a, b in zip(net.values(), serial.values(), strict=True):
        np.testing.assert_array_equal(a, b)
    train.meet()
    assert train.state[-1].get_value().tolist() == [4, 1]
    assert count.get_value() == 4


class Run:
    """Something to train, with dropout and a running mean, and its checkpoints."""

    def __init__(self, folder: Path, rule: Any) -> None:
        x = pt.matrix("x", dtype="float64")
        v, w = (pytensor.shared(np.full(3, i + 1.0), name=n) for i, n in enumerate("vw"))
        rng = pytensor.shared(np.random.default_rng(3), name="rng")
        mean = pytensor.shared(np.zeros(3), name="mean")
        after, drawn = pt.random.uniform(size=x.shape, rng=rng, return_next_rng=True)
        loss = ((((x - mean) * pt.lt(drawn, 0.5) @ w) * v.sum() - 1) ** 2).mean()
        self.train = make_train_function(
            *(loss, [v, w], x, None, updates.adam, 0.01),
            updates=[(rng, after), (mean, 0.9 * mean + 0.1 * x.mean(axis=0))],
            rule=rule,
            mode=FAST,
        )
        self.variables = [v, w, mean, *self.train.state]
        self.data = self.train.build_inputs(np.random.default_rng(0).normal(size=(40, 3)))
        self.batches = Batches(40, 8, seed=2)
        self.checkpoints = Checkpoints(folder, self.train, batches=self.batches)

    def make(self, steps: int) -> None:
        rows = iter(self.batches)
        for i, batch in enumerate(rows):
            self.train(self.data, batch=batch)
            if i + 1 == steps:
                break

    def values(self) -> list[np.ndarray]:
        return Alone.get(self.variables)


@pytest.mark.each_choice
@pytest.mark.parametrize(
    "rule",
    [
        rules.Average(3, state="average", warmup=2),
        rules.Average(3, state="reset"),
        rules.SlowMo(3, state="average"),
        rules.DiLoCo(3, state="reset"),
    ],
    ids=str,
)
def test_a_run_is_resumed_to_the_last_bit(group2: synk.Group, tmp_path: Path, rule: Any) -> None:
    """Saved after `meet`; the warm-up does not begin again."""
    first = Run(tmp_path, rule)
    named = [v.name for v in first.train.state]
    assert len(named) == len(set(named))
    first.make(5)
    first.train.meet()
    first.checkpoints.save(5)
    first.make(4)
    first.train.meet()
    second = Run(tmp_path, rule)
    second.checkpoints.restore()
    second.make(4)
    second.train.meet()
    for a, b in zip(first.values(), second.values(), strict=True):
        np.testing.assert_array_equal(a, b)


def test_statistics_that_no_graph_reads_are_saved(group2: synk.Group, tmp_path: Path) -> None:
    x, w = pt.matrix("x", dtype="float64"), pytensor.shared(np.ones(3), name="w")
    last = pytensor.shared(np.zeros(3), name="last")
    train = make_train_function(
        *(((x @ w) ** 2).mean(), [w], x, None, updates.sgd, 0.01),
        updates=[(last, x.mean(axis=0))],
        rule=rules.Average(1),
        mode=FAST,
    )
    train(np.full((4, 3), 2.0))
    checkpoints = Checkpoints(tmp_path, train)
    checkpoints.save(1)
    last.set_value(np.zeros(3))
    checkpoints.restore()
    assert last.get_value().tolist() == [2, 2, 2]
