"""Every rule equals its oracle: members, centre, version after version, at any order."""

import functools
import itertools

import numpy as np
import oracles
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from oracles import Problem
from selection import examples

from synkhronos import rules
from synkhronos._errors import InputError
from synkhronos.extensions import updates
from synkhronos.testing import simulate

TOLERANCE = {"float32": 2e-5, "float64": 1e-12}
SCHEDULES = settings(
    max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
FEWER = settings(SCHEDULES, max_examples=examples(30))


def close(problem, found, expected):
    for value, other in zip(found, expected, strict=True):
        assert value.dtype == problem.dtype
        np.testing.assert_allclose(
            value, other, rtol=TOLERANCE[problem.dtype], atol=TOLERANCE[problem.dtype]
        )


def run(rule, problem, steps, speeds=None, **kwargs):
    return simulate(
        rule,
        problem.optimizer(),
        problem.gradient,
        speeds or [1.0] * problem.members,
        start=problem.start,
        steps=steps,
        rows=problem.rows,
        **kwargs,
    )


@st.composite
def problems(draw, momentum=(0.0, 0.8)):
    members = draw(st.integers(1, 3))
    return Problem(
        members,
        draw(st.sampled_from(["float32", "float64"])),
        seed=draw(st.integers(0, 999)),
        momentum=draw(st.sampled_from(momentum)),
        rows=draw(st.lists(st.integers(1, 5).map(float), min_size=members, max_size=members)),
    )


@st.composite
def runs(draw):
    """A problem, the steps of each member, and who dies when."""
    problem = draw(problems())
    steps = draw(st.lists(st.integers(0, 9), min_size=problem.members, max_size=problem.members))
    mortal = st.integers(0, problem.members - 1)
    deaths = draw(st.dictionaries(mortal, st.integers(0, 9), max_size=problem.members))
    return problem, steps, deaths


@st.composite
def schedules(draw):
    """A run, its period, and an order of all exchanges and deaths."""
    problem, steps, deaths = draw(runs())
    period = draw(st.integers(1, 4))
    counts = [len(oracles.events(period, n, deaths.get(r))) for r, n in enumerate(steps)]
    order = draw(st.permutations([r for r, n in enumerate(counts) for _ in range(n)]))
    return problem, order, period, steps, deaths


def members_of(problem, w):
    return list(w.astype(problem.dtype))


ROUNDS = [
    (rules.Average, {}, oracles.average),
    (rules.SlowMo, {"momentum": 0.6, "lr": 0.9}, oracles.slow_momentum),
    (rules.DiLoCo, {"lr": 0.7, "momentum": 0.9}, oracles.diloco),
    (rules.EASGD, {"alpha": 0.3}, oracles.elastic_meeting),
]


@pytest.mark.parametrize(
    ("rule", "numbers", "oracle"), ROUNDS, ids=lambda v: getattr(v, "__name__", "")
)
@FEWER
@given(problem=problems(), steps=st.integers(0, 12), period=st.integers(1, 5))
def test_round_rules(rule, numbers, oracle, problem, steps, period):
    meet = {"meet": True} if rule is rules.EASGD else {}
    found = run(rule(period=period, **numbers, **meet), problem, steps)
    if steps:
        w, versions = oracle(problem, steps, period, **numbers)
        close(problem, found.members, w)
    else:
        versions = [problem.start]
    close(problem, found.versions, versions)
    close(problem, [found.centre], versions[-1:])


def test_steps_without_rows():
    """They count alike in meetings, and change no centre by a quorum."""
    problem = Problem(2, rows=[0.0, 0.0])
    equal = run(rules.Average(2), Problem(2), 4)
    close(problem, run(rules.Average(2), problem, 4).versions, equal.versions)
    found = run(rules.Downpour(2, quorum=2), problem, 4)
    assert all((v == problem.start).all() for v in [*found.versions, *found.members])


@FEWER
@given(problem=problems(momentum=[0.0]), period=st.integers(1, 4), warmup=st.integers(0, 9))
def test_average_begins_to_count_after_the_warm_up(problem, period, warmup):
    found = run(rules.Average(period, warmup=warmup), problem, 10)
    w, versions = oracles.average(problem, 10, period, warmup)
    close(problem, found.members, w)
    close(problem, found.versions, versions)


@FEWER
@given(problem=problems(), period=st.integers(1, 4), seed=st.integers(0, 99))
def test_swap_moves_parameters_and_velocities(problem, period, seed):
    rule = rules.Swap(period, seed=seed)
    found = run(rule, problem, 9)
    w, versions = oracles.swap(problem, 9, period, lambda n: rule.partners(n, problem.members))
    close(problem, found.members, w)
    close(problem, found.versions, versions)


@pytest.mark.parametrize("members", [1, 2, 3, 4, 7])
def test_partners_are_disjoint_pairs_drawn_anew(members):
    rule = rules.Swap(seed=3)
    drawn = [rule.partners(n, members) for n in range(60)]
    for partners in drawn:
        assert [partners[p] for p in partners] == list(range(members))  # a pair each
        assert sum(p == r for r, p in enumerate(partners)) == members % 2
    assert drawn == [rules.Swap(seed=3).partners(n, members) for n in range(60)]
    met = {frozenset(pair) for partners in drawn for pair in enumerate(partners)}
    assert len(met) >= members * (members - 1) // 2  # each meets each other
    if members > 2:
        assert drawn != [rules.Swap(seed=4).partners(n, members) for n in range(60)]


TURNS = [
    (rules.EASGD, {"alpha": 0.4}, oracles.elastic, {"alpha": 0.4}),
    (rules.Downpour, {"scale": "inverse"}, oracles.downpour, {"inverse": True}),
    (rules.Downpour, {"scale": "none"}, oracles.downpour, {"inverse": False}),
    (
        rules.GEM,
        {"lr": 0.7, "momentum": 0.8, "kappa": 1.5},
        oracles.gem,
        {"lr": 0.7, "momentum": 0.8, "kappa": 1.5},
    ),
]
turns = pytest.mark.parametrize(
    ("rule", "numbers", "oracle", "given_numbers"),
    TURNS,
    ids=["EASGD", "Downpour", "Downpour, plain", "GEM"],
)


@turns
@SCHEDULES
@given(case=schedules())
def test_turns_in_any_order(rule, numbers, oracle, given_numbers, case):
    problem, order, period, steps, deaths = case
    found = run(rule(period=period, **numbers), problem, steps, schedule=order, deaths=deaths)
    w, versions = oracle(problem, order, period, steps, deaths, **given_numbers)
    close(problem, found.versions, versions)
    close(problem, found.members, w)
    close(problem, [found.centre], versions[-1:])
    assert found.steps == [min(n, deaths.get(r, n)) for r, n in enumerate(steps)]
    assert [e.version for e in found.log] == list(range(1, len(versions)))


def order_of_speeds(period, steps, deaths, speeds):
    """The order in which members exchange that never wait."""
    asks = [
        (count / speeds[rank], rank)
        for rank, n in enumerate(steps)
        for count, _ in oracles.events(period, n, deaths.get(rank))
    ]
    return [rank for _, rank in sorted(asks)]


@turns
@FEWER
@given(case=runs(), period=st.integers(1, 4), data=st.data())
def test_turns_at_any_speeds(rule, numbers, oracle, given_numbers, case, period, data):
    problem, steps, deaths = case
    speeds = data.draw(st.lists(st.sampled_from([0.5, 1.0, 4.0]), min_size=3, max_size=3))
    speeds = speeds[: problem.members]
    found = run(rule(period=period, **numbers), problem, steps, speeds, deaths=deaths)
    order = order_of_speeds(period, steps, deaths, speeds)
    w, versions = oracle(problem, order, period, steps, deaths, **given_numbers)
    close(problem, found.versions, versions)
    close(problem, found.members, w)


@turns
def test_a_run_that_stops_before_its_end(rule, numbers, oracle, given_numbers):
    problem = Problem(3)
    order = [2, 0, 2, 1]
    found = run(rule(period=2, **numbers), problem, 8, schedule=order)
    w, versions = oracle(problem, order, 2, [8, 8, 8], {}, **given_numbers)
    close(problem, found.versions, versions)
    close(problem, found.members, w)
    assert found.steps == [2, 2, 4]


@SCHEDULES
@given(
    case=runs(),
    period=st.integers(1, 3),
    needed=st.integers(1, 3),
    picks=st.lists(st.integers(0, 5), max_size=30),
)
def test_downpour_with_a_quorum_in_any_order(case, period, needed, picks):
    problem, steps, deaths = case
    who = itertools.chain(picks, itertools.count())

    def choose(present):
        return present[next(who) % len(present)]

    w, versions, order = oracles.quorum(problem, choose, period, steps, deaths, needed)
    rule = rules.Downpour(period, quorum=needed)
    found = run(rule, problem, steps, schedule=order, deaths=deaths)
    close(problem, found.versions, versions)
    close(problem, found.members, w)
    assert found.steps == [min(n, deaths.get(r, n)) for r, n in enumerate(steps)]


@FEWER
@given(case=runs(), period=st.integers(1, 3), needed=st.integers(1, 3), data=st.data())
def test_downpour_with_a_quorum_at_any_speeds(case, period, needed, data):
    """Nobody waits for ever, whoever ends and dies."""
    problem, steps, deaths = case
    speeds = data.draw(st.lists(st.sampled_from([0.5, 1.0, 4.0]), min_size=3, max_size=3))
    speeds = speeds[: problem.members]
    rule = rules.Downpour(period, quorum=needed)
    found = run(rule, problem, steps, speeds, cost=0.25, deaths=deaths)
    assert found.steps == [min(n, deaths.get(r, n)) for r, n in enumerate(steps)]
    assert not any(e.does == "wait" for e in found.log)
    closed = [e for e in found.log if "close" in e.does]
    votes = [e for e in found.log if "contribute" in e.does]
    for last, now in zip([0, *(e.version for e in closed)], closed, strict=False):
        ranks = [e.rank for e in votes if last < e.version <= now.version]
        assert len(set(ranks)) == len(ranks) >= min(needed, now.present)
    assert not votes or votes[-1].version <= closed[-1].version
    if not deaths:
        order = iter([e.rank for e in found.log])
        w, versions, _ = oracles.quorum(
            problem, lambda _: next(order), period, steps, deaths, needed
        )
        close(problem, found.versions, versions)
        close(problem, found.members, w)


AT_CENTRE = [
    (
        functools.partial(updates.momentum, learning_rate=0.6, momentum=0.5),
        oracles.momentum_at_centre(0.6, 0.5),
    ),
    (
        functools.partial(updates.adam, learning_rate=0.1, epsilon=0.01),
        oracles.adam_at_centre(0.1, 0.01),
    ),
]
at_centre = pytest.mark.parametrize(("optimizer", "oracle"), AT_CENTRE, ids=["momentum", "adam"])


@at_centre
@settings(SCHEDULES, max_examples=examples(10))
@given(case=schedules(), scale=st.sampled_from(["inverse", "none"]))
def test_an_optimizer_at_the_centre(optimizer, oracle, case, scale):
    problem, order, period, steps, deaths = case
    rule = rules.Downpour(period, optimizer, scale)
    found = run(rule, problem, steps, schedule=order, deaths=deaths)
    inverse = scale == "inverse"
    w, versions = oracles.downpour(problem, order, period, steps, deaths, inverse, oracle)
    close(problem, found.versions, versions)
    close(problem, found.members, w)


@at_centre
@settings(SCHEDULES, max_examples=examples(6))
@given(case=runs(), needed=st.integers(1, 3), picks=st.lists(st.integers(0, 5), max_size=30))
def test_an_optimizer_at_the_centre_with_a_quorum(optimizer, oracle, case, needed, picks):
    problem, steps, deaths = case
    who = itertools.chain(picks, itertools.count())

    def choose(present):
        return present[next(who) % len(present)]

    w, versions, order = oracles.quorum(problem, choose, 2, steps, deaths, needed, oracle)
    rule = rules.Downpour(2, optimizer, quorum=needed)
    found = run(rule, problem, steps, schedule=order, deaths=deaths)
    close(problem, found.versions, versions)
    close(problem, found.members, w)


@FEWER
@given(case=runs(), period=st.integers(1, 3), bound=st.integers(0, 3), data=st.data())
def test_downpour_with_a_bound(case, period, bound, data):
    """Nobody begins a step when it is too far ahead of the slowest one that is present."""
    problem, steps, deaths = case
    speeds = data.draw(st.lists(st.sampled_from([0.3, 1.0, 4.1]), min_size=3, max_size=3))
    speeds = speeds[: problem.members]
    done, ends = [0] * problem.members, [min(n, deaths.get(r, n)) for r, n in enumerate(steps)]

    def gradient(w, rank, step):
        assert step == done[rank]
        slowest = min(n for n, end in zip(done, ends, strict=True) if n < end)
        assert step <= slowest + bound
        done[rank] += 1
        return problem.gradient(w, rank, step)

    rule = rules.Downpour(period, bound=bound)
    found = simulate(
        rule, problem.optimizer(), gradient, speeds, start=problem.start, steps=steps, deaths=deaths
    )
    assert found.steps == done == ends
    order = [e.rank for e in found.log]
    w, versions = oracles.downpour(problem, order, period, steps, {}, True)
    close(problem, found.versions, versions)
    if not deaths:
        close(problem, found.members, w)


@FEWER
@given(problem=problems(), data=st.data())
def test_hogwild(problem, data):
    order = data.draw(st.permutations([r for r in range(problem.members) for _ in range(7)]))
    found = run(rules.Hogwild(), problem, 7, schedule=order)
    c, versions = oracles.hogwild(problem, order, fresh=True)
    close(problem, found.versions, versions)
    close(problem, [found.centre], [c])
    speeds = data.draw(st.permutations([0.5, 1.0, 4.0]))[: problem.members]
    found = run(rules.Hogwild(), problem, 7, speeds)
    order = order_of_speeds(1, [7] * problem.members, {}, speeds)
    _, versions = oracles.hogwild(problem, order, fresh=False)
    close(problem, found.versions, versions)


@SCHEDULES
@given(case=schedules(), probability=st.sampled_from([0.0, 0.3, 1.0]), seed=st.integers(0, 99))
def test_gossip_in_any_order(case, probability, seed):
    problem, _, _, steps, deaths = case
    counts = [min(n, deaths.get(r, n)) for r, n in enumerate(steps)]
    order = [r for r, n in enumerate(counts) for _ in range(n)]
    order = [order[i] for i in np.random.default_rng(seed).permutation(len(order))]
    rule = rules.GoSGD(probability, seed=seed)
    found = run(rule, problem, steps, schedule=order, deaths=deaths)
    sends = {(e.rank, e.step): e.to for e in found.log}
    assert len(sends) == len(found.log)
    w, a, _ = oracles.gossip(problem, order, steps, deaths, sends)
    close(problem, found.members, w)
    np.testing.assert_allclose(found.weights, a, rtol=1e-12)
    if a.sum():
        close(problem, [found.centre], [((a / a.sum()) @ w).astype(problem.dtype)])
    if not deaths:
        assert sum(found.weights) == pytest.approx(1, abs=1e-14)


def test_gossip_sends_as_its_chooser_says():
    """All that it chooses goes out, but for messages while the last one still lies in the slot."""
    problem, rule = Problem(3), rules.GoSGD(0.6, seed=5)
    order = [n % 3 for n in range(60)]
    found = run(rule, problem, 20, schedule=order)
    choose = [rule.chooser(r) for r in range(3)]
    chosen = []
    for n, rank in enumerate(order):
        ended = range(rank if n >= 57 else 0)
        to = choose[rank]([r for r in range(3) if r != rank and r not in ended])
        if to is not None:
            chosen.append((rank, n // 3 + 1, to))
    # in a round robin each receiver steps before the sender does again
    assert chosen == [(e.rank, e.step, e.to) for e in found.log]
    busy = run(rule, problem, 20, schedule=[0] * 5)
    assert [e.rank for e in busy.log] == [0]


def test_a_message_to_a_member_that_dies_goes_back():
    """Its sender merges it before its next step, or at once if it has ended."""
    problem, rule = Problem(2), rules.GoSGD(1.0)
    seen = []

    def gradient(w, rank, step):
        if rank == 0:
            seen.append(w.copy())
        return problem.gradient(w, rank, step)

    def gossip(steps):
        return simulate(
            rule,
            problem.optimizer(),
            gradient,
            [1.0, 0.4],
            start=problem.start,
            steps=steps,
            deaths={1: 1},  # at 2.5, while member 0 is in its third step
        )

    found = gossip([4, 9])
    assert [(e.rank, e.step) for e in found.log] == [(0, 1)]
    alone = [problem.start]
    for step in range(3):
        alone.append(alone[-1] - problem.lr * problem.gradient(alone[-1], 0, step))
    close(problem, seen, [*alone[:3], (alone[3] + alone[1]) / 2])
    assert found.weights == [0.5, 0]
    close(problem, [found.centre], found.members[:1])
    found = gossip([1, 9])
    assert found.weights == [0.5, 0]
    close(problem, found.members[:1], alone[1:2])


def test_a_message_between_two_that_die_is_lost():
    problem = Problem(3)
    rule = next(r for s in range(99) if (r := rules.GoSGD(1.0, seed=s)).chooser(0)([1, 2]) == 1)
    found = run(rule, problem, [9, 9, 1], [1.0, 0.4, 0.1], deaths={0: 2, 1: 1})
    assert [(e.rank, e.step, e.to) for e in found.log] == [(0, 1, 1)]
    assert found.weights == [0, 0, 1 / 3]
    close(problem, [found.centre], found.members[2:])


def test_staleness_is_what_others_have_committed():
    """Here, contributions to a quorum too; not one's own."""
    found = run(rules.Downpour(quorum=2), Problem(2), 2)
    assert [(e.rank, e.does, e.staleness) for e in found.log] == [
        (0, "contribute", 0),
        (1, "contribute and close", 1),
        (0, "read", 1),
    ] * 2


def test_turns_queue_and_messages_do_not():
    problem = Problem(2)
    found = run(rules.EASGD(2), problem, 4, cost=0.5)
    # asks at 2; ends at 2.5 and 3; asks at 4.5 and 5; the second does not wait again
    assert found.seconds == 5.5
    found = run(rules.Hogwild(), problem, 4, cost=0.5)
    assert found.seconds == 4
    found = run(rules.GoSGD(1.0), problem, 4, cost=0.5)
    assert found.seconds == 4 + 0.5 * max(sum(e.rank == r for e in found.log) for r in range(2))
    assert run(rules.GoSGD(1.0), Problem(3), 2, cost=10.0).seconds <= 22
    assert run(rules.Average(2), problem, 4, [1.0, 0.5], cost=0.5).seconds == 9


def test_the_same_arguments_give_the_same_bits():
    problem = Problem(3, momentum=0.5)
    for rule in (rules.EASGD(2), rules.GEM(), rules.GoSGD(0.5), rules.Hogwild(), rules.DiLoCo(3)):
        one, other = (run(rule, problem, 9, [1.0, 2.0, 3.0][::1]) for _ in range(2))
        assert one.log == other.log
        for a, b in zip(one.members + one.versions, other.members + other.versions, strict=True):
            assert a.tobytes() == b.tobytes()


def test_a_log_replays_to_the_same_bits():
    problem = Problem(3, momentum=0.5)
    for rule in (rules.EASGD(2), rules.GEM(3), rules.Downpour(2), rules.Downpour(2, quorum=2)):
        one = run(rule, problem, [9, 7, 12], [1.0, 2.0, 3.0], cost=0.1)
        other = run(rule, problem, [9, 7, 12], schedule=[e.rank for e in one.log])
        assert one.log == other.log
        for a, b in zip(one.members + one.versions, other.members + other.versions, strict=True):
            assert a.tobytes() == b.tobytes()


@pytest.mark.parametrize(
    ("rule", "kwargs", "text"),
    [
        (rules.Average(2), {"schedule": [0, 1]}, "no schedule"),
        (rules.Average(2), {"deaths": {1: 1}}, "no deaths"),
        (rules.Average(2), {"steps": [2, 3]}, "equally many steps"),
        (rules.EASGD(2), {"steps": [2]}, "1 steps"),
        (rules.EASGD(2), {"rows": [2, 1, 1]}, "3 rows"),
        (rules.EASGD(2), {"schedule": [0, 0, 0]}, r"names rank 0; at this time there are \[1\]"),
        (rules.EASGD(2), {"schedule": [7]}, r"names rank 7; at this time there are \[0, 1\]"),
        (rules.EASGD(2), {"deaths": {2: 1}}, "names a rank beyond the 2 members"),
        (rules.EASGD(2), {"speeds": [1.0, 0.0]}, "speeds above 0"),
        (rules.EASGD(2, alpha=0.9, meet=True), {}, "diverges"),
        (rules.Nodes(None, rules.Average(2)), {}, "is for several nodes"),
    ],
)
def test_what_the_simulator_refuses(rule, kwargs, text):
    problem = Problem(2)
    with pytest.raises(InputError, match=text):
        simulate(
            rule,
            problem.optimizer(),
            problem.gradient,
            **{"speeds": [1.0, 1.0], "start": problem.start, "steps": 4, **kwargs},
        )
