"""Free rules in real groups: replayed bit by bit, and equal to what they must equal."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
import pytest
from free_runs import FREE_RULES, TURN_RULES, Slowed, Twin, batches_of, counting, flat
from modes import FAST
from selection import thorough
from training_cases import RULES, Net

import synkhronos as synk
from synkhronos import rules
from synkhronos.extensions import make_train_function
from synkhronos.extensions._apart.free.claims import BatchOrder, RowsOfBatches
from synkhronos.testing import simulate

pytestmark = pytest.mark.usefixtures("lasting_groups")

N, SIZE = 96, 8
TYPICAL = ("downpour", "easgd", "quorum", "centre")  # one of each kind of merge


def run_of(net: Net, name: str, rule: Any, mode: Any = FAST, **options: Any) -> Any:
    """A training function, its data and a fresh order of batches."""
    optimizer, given = RULES[name]
    train = make_train_function(
        *(net.loss, net.params, net.x, net.y, optimizer), rule=rule, mode=mode, **given, **options
    )
    x, y = net.data(N)
    return train, (x, y), train.build_inputs(x, y)


@pytest.mark.each_choice
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam"])
@pytest.mark.parametrize("name", [n if n in TYPICAL else thorough(n)[0] for n in TURN_RULES])
def test_a_replay_has_the_same_bits(
    group: synk.Group, name: str, optimizer: str, dtype: str
) -> None:
    """The centre at the end, and all points; the last period is not whole."""
    rule, net = TURN_RULES[name], Net(dtype)
    twin = Twin(net, *RULES[optimizer], group.size)
    train, (x, y), data = run_of(net, optimizer, rule)
    batches = batches_of(N, SIZE)
    order = BatchOrder.of(batches, 3)
    with train.start(*data, batches, epochs=3, share="fixed", record=True) as run:
        points = list(run.every(exchanges=4))
    found = twin.replay(train.rule, run.log, order, x, y)
    assert flat(net.values()).tobytes() == found.centre.tobytes()
    for point in points:
        values = flat([point.values[p] for p in net.params])
        assert values.tobytes() == found.versions[point.version].tobytes(), point.version
    assert [d["exchanges"] for d in run.progress()] == [
        sum(e.rank == rank and e.does not in ("read", "wait") for e in found.log)
        for rank in range(group.size)
    ]
    for rank, entries in run.log.items():
        mine = [(e.step, e.staleness, e.does) for e in found.log if e.rank == rank]
        assert [(e[1], e[2], e[4]) for e in entries] == mine


@pytest.mark.thorough
def test_a_replay_of_compiled_code(group2: synk.Group) -> None:
    """In the mode that users have."""
    net = Net()
    twin = Twin(net, *RULES["sgd"], 2)
    train, (x, y), data = run_of(net, "sgd", rules.EASGD(2), mode=None)
    order = BatchOrder.of(batches_of(N, SIZE), 2)
    with train.start(*data, batches_of(N, SIZE), epochs=2, share="fixed", record=True) as run:
        run.wait()
    found = twin.replay(train.rule, run.log, order, x, y).centre
    np.testing.assert_allclose(flat(net.values()), found, rtol=1e-12)


def test_a_log_that_cannot_be_repeated() -> None:
    log = {0: [(1, 2, 0, 1, "exchange", (0, 1)), (5, 4, 0, 1, "exchange", (2, 3))]}
    found = {"speeds": [1.0], "schedule": log, "start": np.ones(1)}
    with pytest.raises(synk.InputError, match="cannot repeat this log: at version 2 rank 0"):
        simulate(rules.EASGD(2), lambda w, g, rank: None, lambda w, rank, step: w, **found)
    with pytest.raises(synk.InputError, match=r"GoSGD\(\) has no turns"):
        simulate(rules.GoSGD(), lambda w, g, rank: None, lambda w, rank, step: w, **found)


def test_gossip_is_replayed(group: synk.Group) -> None:
    """What each member has sent, merged and computed gives its values; weights add up to 1."""
    size, rule, net = group.size, rules.GoSGD(0.5, seed=3), Net()
    twin = Twin(net, *RULES["momentum"], size)
    train, (x, y), data = run_of(net, "momentum", rule)
    batches = batches_of(N, SIZE)
    rows = RowsOfBatches(BatchOrder.of(batches, 3))
    with train.start(*data, batches, epochs=3, share="fixed", record=True) as run:
        run.wait()
    w = [twin.start.copy() for _ in range(size)]
    weights, done = [1 / size] * size, [0] * size
    left = {rank: list(entries) for rank, entries in run.log.items()}
    sent: dict[tuple[int, int], Any] = {}
    steps = [found["steps"] for found in run.progress()]
    assert sum(steps) == 3 * N // SIZE
    while any(left.values()):
        before = {rank: len(entries) for rank, entries in left.items()}
        for rank, entries in left.items():
            while entries:
                does, other, number, at = entries[0]
                if does == "merge" and (other, number) not in sent:
                    break  # its sender has not come so far
                for step in range(done[rank], at):
                    w[rank] = twin.step(rank, w[rank], x, y, rows[rank + size * step])
                done[rank] = at
                if does == "send":
                    weights[rank] /= 2
                    sent[rank, number] = w[rank].copy(), weights[rank]
                else:
                    value, weight = sent.pop((other, number))
                    rule.merge(w[rank], weights[rank], value, weight)
                    weights[rank] += weight
                entries.pop(0)
        assert before != {rank: len(entries) for rank, entries in left.items()}
    assert not sent
    for rank in range(size):
        for step in range(done[rank], steps[rank]):
            w[rank] = twin.step(rank, w[rank], x, y, rows[rank + size * step])
    assert sum(weights) == pytest.approx(1, abs=1e-15)
    mean = w[0] * (weights[0] / sum(weights))
    for value, weight in zip(w[1:], weights[1:], strict=True):
        mean += value * (weight / sum(weights))
    assert flat(net.values()).tobytes() == mean.tobytes()


@pytest.mark.parametrize("name", ["downpour", "hogwild", "gosgd", "quorum", "bound"])
def test_one_member_is_serial_training(name: str) -> None:
    with synk.Group(1):
        net = Net()
        twin = Twin(net, *RULES["momentum"], 1)
        train, (x, y), data = run_of(net, "momentum", FREE_RULES[name])
        batches = batches_of(N, 10)
        with train.start(*data, batches, epochs=2) as run:
            run.wait()
        w = twin.start
        for rows in [
            r for epoch in (0, 1) for r in np.split(batches.order(epoch), range(10, N, 10))
        ]:
            w = twin.step(0, w, x, y, rows)
        np.testing.assert_allclose(flat(net.values()), w, rtol=1e-12, atol=1e-14)


def test_a_quorum_of_all_is_synchronous(group: synk.Group) -> None:
    """With period 1 and SGD: each version is a step on the rows of all members."""
    size, net, other = group.size, Net(), Net()
    train, (x, y), data = run_of(net, "sgd", rules.Downpour(1, quorum=size))
    plain, *_ = run_of(other, "sgd", None)
    batches = batches_of(N, SIZE)
    rows = RowsOfBatches(BatchOrder.of(batches, 2))
    with train.start(*data, batches, epochs=2, record=True) as run:
        run.wait()
    used = defaultdict(list)
    closed = sorted(e[0] for log in run.log.values() for e in log if "close" in e[4])
    for log in run.log.values():
        for version, *_, does, numbers in log:
            if "contribute" in does:
                used[next(c for c in closed if c >= version)] += numbers
    assert sorted(b for numbers in used.values() for b in numbers) == list(range(24))
    for _, numbers in sorted(used.items()):
        plain(x, y, batch=np.concatenate([rows[b] for b in numbers]))
    np.testing.assert_allclose(flat(net.values()), flat(other.values()), rtol=1e-9)


@pytest.mark.parametrize("slow", ["master", "workers"])
def test_a_bound_of_zero_keeps_members_within_one_step(slow: str) -> None:
    with synk.Group(2):
        slowed = Slowed(**{slow: 0.002})
        train, _, data = counting(rules.Downpour(1, bound=0), 200, slowed)
        with train.start(data, batches_of(200, 5)) as run:
            apart = [
                abs(a["steps"] - b["steps"])
                for _ in run.every(exchanges=4)
                for a, b in [run.progress()]
                if a["present"] and b["present"]
            ]
        first, second = (found["steps"] for found in run.progress())
        assert first + second == 40
        assert max(apart, default=0) <= 1


def test_members_that_have_been_absent_hold_nobody_back(group2: synk.Group) -> None:
    """A bound counts from the time at which the master comes back."""
    train, _, data = counting(rules.Downpour(1, bound=0), 400, Slowed(workers=0.001, master=0.001))
    with train.start(data, batches_of(400, 2)) as run:
        while run.progress()[1]["steps"] < 40:
            run.centre()
        ahead = run.progress()[1]["steps"] - run.progress()[0]["steps"]
        run.wait()
        first, second = (found["steps"] for found in run.progress())
    assert first + second == 200
    assert second - first >= ahead - 3  # it has not caught up, while the other waits
