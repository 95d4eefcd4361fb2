"""What each rule keeps, equals and tends to, and where it ceases to be stable."""

import itertools
from math import pi, sin

import numpy as np
import oracles
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import Problem
from selection import examples

from synkhronos import rules
from synkhronos.rules._base import Turn
from synkhronos.testing import Simulation, simulate


def sgd(lr):
    def inner(w, gradient, rank):
        w -= lr * gradient

    return inner


def momentum(lr, beta, nesterov=False):
    velocities = {}

    def inner(w, gradient, rank):
        v = velocities[rank] = beta * velocities.get(rank, 0.0) + gradient
        w -= lr * (gradient + beta * v if nesterov else v)

    return inner


def adam(lr):
    states = {}

    def inner(w, gradient, rank):
        m, s, n = states.get(rank, (0.0, 0.0, 0))
        m, s, n = 0.9 * m + 0.1 * gradient, 0.99 * s + 0.01 * gradient**2, n + 1
        states[rank] = m, s, n
        w -= lr * (m / (1 - 0.9**n)) / (np.sqrt(s / (1 - 0.99**n)) + 1e-8)

    return inner


OPTIMIZERS = {
    "sgd": lambda: sgd(0.1),
    "heavy ball": lambda: momentum(0.1, 0.8),
    "Nesterov": lambda: momentum(0.1, 0.8, nesterov=True),
    "Adam": lambda: adam(0.1),
}


def curved(w, rank, step):
    """Return gradients of no quadratic, another one for each member and step."""
    return np.sin(w * (1 + rank)) + 0.3 * np.cos(step + rank + np.arange(len(w)))


def apart(rule, inner, members, steps, gradient=curved, start=None, **kwargs):
    start = np.linspace(-1, 1, 4) if start is None else start
    speeds = kwargs.pop("speeds", [1.0] * members)
    found = simulate(rule, inner, gradient, speeds, start=start, steps=steps, **kwargs)
    assert type(found) is Simulation
    return found


def synchronous(inner, members, steps, gradient=curved, start=None):
    """Return the parameters of serial training with the members' mean gradient, after each step."""
    w = np.linspace(-1, 1, 4) if start is None else start.copy()
    found = [w.copy()]
    for step in range(steps):
        inner(w, sum(gradient(w, r, step) for r in range(members)) / members, 0)
        found.append(w.copy())
    return found


def quadratic(curvature=1.0):
    return lambda w, rank, step: curvature * w


class TestEqualities:
    @pytest.mark.parametrize("name", OPTIMIZERS)
    @pytest.mark.parametrize("members", [1, 2, 3])
    def test_average_after_each_step_is_synchronous_training(self, name, members):
        """By rules that are linear in the gradient; so not by Adam, but in its warm-up."""
        expected = synchronous(OPTIMIZERS[name](), members, 12)
        found = apart(rules.Average(), OPTIMIZERS[name](), members, 12).versions
        if name == "Adam" and members > 1:
            assert np.abs(found[-1] - expected[-1]).max() > 1e-3
        else:
            np.testing.assert_allclose(found, expected, rtol=0, atol=3e-15)
        found = apart(rules.Average(5, warmup=12), OPTIMIZERS[name](), members, 12).versions
        np.testing.assert_allclose(found, expected, rtol=0, atol=3e-15)

    @pytest.mark.parametrize(
        "rule", [rules.DiLoCo(4, lr=1, momentum=0), rules.SlowMo(4, momentum=0)]
    )
    def test_without_outer_momentum_is_average(self, rule):
        found = apart(rule, momentum(0.1, 0.8), 3, 14)
        expected = apart(rules.Average(4), momentum(0.1, 0.8), 3, 14)
        np.testing.assert_allclose(found.versions, expected.versions, atol=1e-15)

    def test_diloco_after_each_step_is_synchronous_nesterov(self):
        found = apart(rules.DiLoCo(1, lr=0.7, momentum=0.9), sgd(0.2), 3, 15)
        expected = synchronous(momentum(0.7 * 0.2, 0.9, nesterov=True), 3, 15)
        np.testing.assert_allclose(found.versions, expected, atol=1e-14)

    def test_slowmo_after_each_step_is_synchronous_heavy_ball(self):
        found = apart(rules.SlowMo(1, momentum=0.6, lr=0.9), sgd(0.2), 3, 15)
        expected = synchronous(momentum(0.9 * 0.2, 0.6), 3, 15)
        np.testing.assert_allclose(found.versions, expected, atol=1e-14)

    @pytest.mark.parametrize("nesterov", [False, True])
    def test_block_wise_model_updates(self, nesterov):
        """BMUF with classical momentum is SlowMo; the start points with Nesterov's are DiLoCo."""
        eta, zeta, members = 0.7, 0.8, 3
        rule = rules.DiLoCo if nesterov else rules.SlowMo
        found = apart(rule(5, momentum=eta, lr=zeta), momentum(0.1, 0.5), members, 20)
        inner, model = momentum(0.1, 0.5), np.linspace(-1, 1, 4)
        start, delta, starts = model.copy(), np.zeros(4), [model.copy()]
        for block in range(4):
            w = [start.copy() for _ in range(members)]
            for step, rank in itertools.product(range(5 * block, 5 * block + 5), range(members)):
                inner(w[rank], curved(w[rank], rank, step), rank)
            delta = eta * delta + zeta * (sum(w) / members - start)
            model = model + delta
            start = model + eta * delta if nesterov else model
            starts.append(start)
        np.testing.assert_allclose(found.versions, starts, atol=1e-14)

    def test_delayed_nesterov_from_one_start_is_diloco(self):
        random = np.random.default_rng(1)
        c, u, w = random.normal(size=5), random.normal(size=5), random.normal(size=(4, 5))
        arrivals, rho, mu = c - w, 0.7, 0.9
        expected = c.copy()
        for d in arrivals:
            expected -= rho * d / 4
        expected -= rho * mu * (mu * u + arrivals.mean(0))
        rules.DiLoCo(lr=rho, momentum=mu).meeting(list(w), c, [u], w.mean(0), 4)
        np.testing.assert_allclose(c, expected, rtol=1e-14)

    @pytest.mark.parametrize(
        "rule",
        [
            rules.Average(3),
            rules.DiLoCo(3, lr=1, momentum=0),
            rules.Swap(3),
            rules.Downpour(3),
            rules.Downpour(3, scale="none"),
            rules.Downpour(3, quorum=2),
            rules.Downpour(3, bound=0),
            rules.Hogwild(),
            rules.GoSGD(0.9),
        ],
        ids=str,
    )
    def test_one_member_trains_as_ever(self, rule):
        found = apart(rule, momentum(0.1, 0.8), 1, 10)
        expected = synchronous(momentum(0.1, 0.8), 1, 10)
        np.testing.assert_allclose(found.centre, expected[-1], atol=1e-14)

    @settings(max_examples=examples(20), deadline=None)
    @given(st.lists(st.sampled_from([0.4, 1.0, 3.0]), min_size=1, max_size=4), st.integers(1, 4))
    def test_a_quorum_of_all_is_synchronous(self, speeds, period):
        """At any speeds: with period 1 and SGD as the mean gradient, else as Average."""
        members = len(speeds)
        rows = [float(r + 1) for r in range(members)]
        rule = rules.Downpour(period, quorum=members)
        found = apart(rule, sgd(0.1), members, 8, speeds=speeds, rows=rows)
        expected = apart(rules.Average(period), sgd(0.1), members, 8, rows=rows).versions
        closed = [e.version for e in found.log if "close" in e.does]
        versions = [found.versions[n] for n in (0, *closed)]
        np.testing.assert_allclose(versions, expected, atol=1e-14)
        if period == 1:
            equal = apart(rule, sgd(0.1), members, 8, speeds=speeds)
            np.testing.assert_allclose(
                equal.centre, synchronous(sgd(0.1), members, 8)[-1], atol=1e-14
            )

    @pytest.mark.parametrize("rule", [rules.EASGD(3, alpha=0), rules.EASGD(3, alpha=0, meet=True)])
    def test_alpha_0_is_independent_runs(self, rule):
        found = apart(rule, momentum(0.1, 0.8), 3, 11)
        assert all((v == found.versions[0]).all() for v in found.versions)
        self.check_independent(found)

    def test_gossip_that_never_sends_is_independent_runs(self):
        found = apart(rules.GoSGD(0.0), momentum(0.1, 0.8), 3, 11)
        assert found.log == []
        self.check_independent(found)

    def check_independent(self, found):
        for rank, w in enumerate(found.members):
            alone = synchronous(
                momentum(0.1, 0.8), 1, 11, lambda w, _, step, rank=rank: curved(w, rank, step)
            )
            assert (w == alone[-1]).all()


class TestElasticForces:
    def exchange(self, alpha, w, c):
        new = np.empty_like(c)
        rules.EASGD(alpha=alpha).exchange(Turn(0, 1.0, 2, []), w, [], [c], [new])
        return new

    def test_an_exchange_keeps_the_sum(self):
        random = np.random.default_rng(2)
        for alpha in (0.0, 0.2, 0.5, 1.0):
            w, c = random.normal(size=(2, 50))
            old = w.copy()
            new = self.exchange(alpha, w, c)
            np.testing.assert_allclose(w + new, old + c, atol=1e-15)
            if alpha == 0.5:
                np.testing.assert_allclose([w, new], [(old + c) / 2] * 2, atol=1e-15)
            if alpha == 1:
                np.testing.assert_allclose([w, new], [c, old], atol=1e-15)

    @pytest.mark.parametrize("members", [2, 3, 5])
    def test_a_meeting_keeps_the_sum(self, members):
        random = np.random.default_rng(members)
        for alpha in (0.0, 0.9 / members, 1 / members):
            w, c = list(random.normal(size=(members, 50))), random.normal(size=50)
            mean, total = sum(w) / members, sum(w) + c
            rules.EASGD(alpha=alpha, meet=True).meeting(w, c, [], mean, members)
            np.testing.assert_allclose(sum(w) + c, total, atol=1e-14)
            if alpha == 1 / members:  # beta = 1
                np.testing.assert_allclose(c, mean, atol=1e-14)


class TestGossip:
    def test_weights_and_weighted_parameters_are_kept(self):
        """Messages under way included, at each step of a run."""
        members, steps = 4, 12
        problem = Problem(members, seed=3)
        rule = next(
            rule
            for rule in map(lambda s: rules.GoSGD(0.5, seed=s), itertools.count())
            if all(rule.chooser(r)([0, 1]) is None for r in range(members))
        )  # nobody sends after its first step, the only one that changes parameters
        random = np.random.default_rng(0)
        problem.gradient = lambda w, rank, step: problem.optima[rank] if step == 0 else 0 * w
        late = random.permutation([r for r in range(members) for _ in range(steps - 1)])
        order = [*range(members), *late.tolist()]
        moved = problem.start - problem.lr * problem.optima.mean(0)
        under_way = 0
        for length in range(members, len(order) + 1):
            found = simulate(
                rule,
                problem.optimizer(),
                problem.gradient,
                [1.0] * members,
                schedule=order[:length],
                start=problem.start,
                steps=steps,
            )
            sends = {(e.rank, e.step): e.to for e in found.log}
            _, _, letters = oracles.gossip(problem, order[:length], [steps] * members, {}, sends)
            pairs = [*zip(found.weights, found.members, strict=True), *letters]
            under_way += len(letters)
            assert sum(a for a, _ in pairs) == pytest.approx(1, abs=1e-14)
            np.testing.assert_allclose(sum(a * w for a, w in pairs), moved, atol=1e-14)
        assert under_way > 20
        assert not letters
        np.testing.assert_allclose(found.centre, moved, atol=1e-14)

    def test_probability_and_receivers(self):
        choose = rules.GoSGD(0.25, seed=1).chooser(2)
        drawn = [choose([0, 1, 3]) for _ in range(8000)]
        sent = [to for to in drawn if to is not None]
        assert abs(len(sent) - 2000) < 4 * (8000 * 0.25 * 0.75) ** 0.5
        assert all(abs(sent.count(to) - len(sent) / 3) < 90 for to in (0, 1, 3))
        again = rules.GoSGD(0.25, seed=1).chooser(2)
        assert [again([0, 1, 3]) for _ in range(100)] == drawn[:100]
        for other in (rules.GoSGD(0.25, seed=1).chooser(1), rules.GoSGD(0.25, seed=2).chooser(2)):
            assert [other([0, 1, 3]) for _ in range(100)] != drawn[:100]
        always, never = rules.GoSGD(1).chooser(0), rules.GoSGD(0).chooser(0)
        assert all(always([5]) == 5 and never([5]) is None for _ in range(100))
        assert always([]) is None


def grows(versions):
    """Return whether a run from 1 diverges: it must end far above or far below."""
    size = np.abs(np.array(versions[-20:])).max()
    assert not 1e-3 < size < 1e3, f"neither converged nor diverged: {size:g}"
    return size > 1


class TestStability:
    @pytest.mark.parametrize("members", [1, 2, 3, 4, 8])
    def test_plain_downpour_round_robin(self, members):
        """Recurrence c(n+1) = c(n) - r c(n-p+1), stable below 2 sin(pi/(4p-2))."""
        limit = 2 * sin(pi / (4 * members - 2))
        for factor in (0.95, 1.05):
            r = factor * limit
            rule = rules.Downpour(scale="none")
            found = apart(rule, sgd(r), members, 1200, quadratic(), np.ones(1))
            c = np.array(found.versions)[:, 0]
            n = np.arange(members, 200)
            np.testing.assert_allclose(
                c[n + 1],
                c[n] - r * c[n - members + 1],
                rtol=1e-9,
                atol=1e-9 * np.abs(c[:200]).max(),
            )
            assert grows(found.versions) == (factor > 1)

    @pytest.mark.parametrize("members", [2, 3, 4, 8, 32])
    def test_inverse_scaling_converges_where_plain_diverges(self, members):
        for scale in ("none", "inverse"):
            rule, steps = rules.Downpour(10, scale=scale), max(600, 9000 // members)
            found = apart(rule, sgd(0.1), members, steps, quadratic(), np.ones(1))
            assert grows(found.versions) == (scale == "none" and members >= 3)

    @pytest.mark.parametrize("members", [1, 2, 3, 8])
    def test_elastic_meetings_where_the_loss_is_flat(self, members):
        limit = 2 / (members + 1)
        for factor in (0.95, 1.05):
            if factor * limit > 1:
                continue
            rule = rules.EASGD(alpha=factor * limit, meet=True)
            w, c = list(np.random.default_rng(0).normal(size=(members, 3))), np.zeros(3)
            for _ in range(300):
                rule.meeting(w, c, [], sum(w) / members, members)
            assert (max(np.abs(c).max(), np.abs(w).max()) > 1e6) == (factor > 1)

    @pytest.mark.parametrize("members", [1, 2, 8, 32])
    def test_gem_converges_where_plain_downpour_diverges(self, members):
        for rule in (rules.GEM(), rules.Downpour(scale="none")):
            found = apart(rule, sgd(0.3), members, 300, quadratic(), np.ones(1))
            assert grows(found.versions) == (rule != rules.GEM() and members >= 8)

    def radius(self, members, alpha, lr):
        """Return the spectral radius of a round robin where all take a step, with curvature 1."""
        *w, c = np.eye(members + 1)  # each parameter as a function of all at first
        for member in w:
            member -= lr * member
            new = np.empty_like(c)
            rules.EASGD(alpha=alpha).exchange(Turn(0, 1.0, members, []), member, [], [c], [new])
            c = new
        return np.abs(np.linalg.eigvals([*w, c])).max()

    @pytest.mark.parametrize("members", [1, 2, 3, 8])
    def test_elastic_exchanges_between_two_steps(self, members):
        for alpha, lr in itertools.product([0.01, 0.2, 0.5, 0.8, 0.95, 1.0], [0.05, 1.0, 1.95]):
            assert self.radius(members, alpha, lr) < 1
        for alpha in (0.01, 1.0):
            assert self.radius(members, alpha, 2.05) > 1
        for lr, diverges in ((1.9, False), (2.1, True)):
            rule = rules.EASGD(1, alpha=1)
            found = apart(rule, sgd(lr), members, 250, quadratic(), np.ones(1))
            assert grows(found.versions) == diverges


class TestLimits:
    """Where runs tend to."""

    A, B, LR = np.array([0.5, 1.0, 2.0]), np.array([1.0, -2.0, 4.0]), 0.2

    def limit(self, rule, steps=1500):
        def gradient(w, rank, step):
            return self.A[rank] * (w - self.B[rank])

        return apart(rule, sgd(self.LR), 3, steps, gradient, np.zeros(1)).centre[0]

    @pytest.mark.parametrize("period", [1, 4, 20])
    def test_fixed_points(self, period):
        r = 1 - (1 - self.LR * self.A) ** period
        expected = (r * self.B).sum() / r.sum()
        steps = 300 * period
        for rule in (
            rules.Average(period),
            rules.DiLoCo(period, lr=0.7, momentum=0.5),
            rules.SlowMo(period, momentum=0.5),
        ):
            assert self.limit(rule, steps) == pytest.approx(expected, rel=1e-9)
        optimum = (self.A * self.B).sum() / self.A.sum()
        assert (abs(expected - optimum) < 1e-12) == (period == 1)

    @pytest.mark.parametrize("period", [1, 4, 20])
    @pytest.mark.parametrize("alpha", [0.05, 0.3, 0.45])
    def test_fixed_points_of_elastic_meetings(self, period, alpha):
        r = 1 - (1 - self.LR * self.A) ** period
        q = r / (r + alpha / (1 - alpha))
        expected = (q * self.B).sum() / q.sum()
        found = self.limit(rules.EASGD(period, alpha=alpha, meet=True), 800 * period)
        assert found == pytest.approx(expected, rel=1e-9)

    @pytest.mark.parametrize("period", [1, 5, 13])
    def test_variance_of_the_mean_is_that_of_synchronous_training(self, period):
        """lr sigma^2 / (p h (2 - lr h)) for each period; each element of the vector is a run."""
        members, lr, h, sigma = 3, 0.3, 0.8, 2.0
        random = np.random.default_rng(7)

        def gradient(w, rank, step):
            return h * w + sigma * random.standard_normal(len(w))

        found = apart(rules.Average(period), sgd(lr), members, 65, gradient, np.zeros(20_000))
        expected = lr * sigma**2 / (members * h * (2 - lr * h))
        # the standard error of a variance of 20,000 values is 1 %
        assert found.centre.var() == pytest.approx(expected, rel=0.045)

    @settings(max_examples=examples(15), deadline=None)
    @given(st.lists(st.floats(0.2, 5.0), min_size=1, max_size=6), st.integers(1, 3))
    def test_mean_staleness_is_the_number_of_others(self, speeds, period):
        """At any speeds: each version of another member makes each member older by one."""
        steps = [max(period, round(n * 200 / period) * period) for n in speeds]
        found = apart(
            rules.Downpour(period), sgd(0.0), len(speeds), steps, speeds=speeds, start=np.ones(1)
        )
        count = len(found.log)
        last = {e.rank: e.version for e in found.log}
        unread = sum(count - n for n in last.values())  # versions that a member has never seen
        total = sum(e.staleness for e in found.log)
        assert total + unread == (len(speeds) - 1) * count
        assert total / count == pytest.approx(len(speeds) - 1, abs=0.1 * len(speeds))

    def test_bound_0_keeps_clocks_within_one_step(self):
        clocks, ahead = [0, 0, 0], []

        def gradient(w, rank, step):
            clocks[rank] += 1
            ahead.append(max(clocks) - min(clocks))
            return curved(w, rank, step)

        found = apart(rules.Downpour(2, bound=0), sgd(0.1), 3, 20, gradient, speeds=[1.0, 7.0, 2.5])
        assert max(ahead) == 1
        assert found.seconds == pytest.approx(20)  # all go as fast as the slowest

    def test_one_slow_member_holds_up_those_who_meet_only(self):
        """2 members, one twice slower: seconds for as many steps of all."""
        speeds = [1.0, 0.5]
        met = apart(rules.Average(10), sgd(0.1), 2, 60, speeds=speeds)
        free = apart(rules.EASGD(10), sgd(0.1), 2, [80, 40], speeds=speeds)
        assert (met.seconds, free.seconds) == (120, 80)
        assert sum(met.steps) == sum(free.steps)


class TestVectors:
    """An engine gives a rule chunks of vectors, the old centre and room for the new one."""

    TURNS = (
        rules.EASGD(alpha=0.3),
        rules.Downpour(),
        rules.Downpour(scale="none"),
        rules.Downpour(quorum=2),
        rules.GEM(),
    )

    @pytest.mark.parametrize("dtype", ["float32", "float64"])
    @pytest.mark.parametrize("rule", TURNS, ids=str)
    def test_exchanges_in_chunks(self, rule, dtype):
        """The same bits; the old centre stays; garbage in the new one does not matter."""
        random = np.random.default_rng(4)
        for waiting, votes in itertools.product([False, True] if rule.counts else [False], [0, 1]):
            turn = Turn(
                2, 3.0, 3, [5.0, votes + waiting, 4.0 * votes][: len(rule.counts)], 5.0, waiting
            )
            rule.plan(turn)
            if turn.does == "wait":
                continue
            shape = (1 + len(rule.own) + 1 + len(rule.beside), 40)
            first = random.normal(size=shape).astype(dtype)

            def exchange(size, first=first, turn=turn):
                vectors, room = first.copy(), np.full((1 + len(rule.beside), 40), np.nan, dtype)
                n = 1 + len(rule.own)
                for lo in range(0, 40, size):
                    w, *own = (v[lo : lo + size] for v in vectors[:n])
                    centre = [v[lo : lo + size] for v in vectors[n:]]
                    rule.exchange(turn, w, own, centre, [v[lo : lo + size] for v in room])
                assert (vectors[n:] == first[n:]).all()
                assert np.isfinite(room).all()
                return np.concatenate([vectors, room])

            assert exchange(40).tobytes() == exchange(7).tobytes()

    @pytest.mark.parametrize("dtype", ["float32", "float64"])
    @pytest.mark.parametrize(
        "rule",
        [rules.Average(), rules.SlowMo(), rules.DiLoCo(), rules.EASGD(alpha=0.3, meet=True)],
        ids=str,
    )
    def test_meetings_in_chunks(self, rule, dtype):
        first = np.random.default_rng(4).normal(size=(5 + len(rule.outer), 40)).astype(dtype)

        def meeting(size):
            vectors = first.copy()
            for lo in range(0, 40, size):
                *w, mean, centre = (v[lo : lo + size] for v in vectors[:5])
                outer = [v[lo : lo + size] for v in vectors[5:]]
                rule.meeting(w, centre, outer, mean, 3)
            assert (vectors[3] == first[3]).all()  # the mean
            return vectors

        assert meeting(40).tobytes() == meeting(7).tobytes()

    def test_turns_of_a_quorum(self):
        """Three of four: two contribute, one closes, one is late; then all begin anew."""
        rule, counts = rules.Downpour(quorum=3), [0.0, 0.0, 0.0]

        def turn(read=0.0, waiting=False, present=4):
            nonlocal counts
            made = Turn(0, 2.0, present, list(counts), read, waiting)
            assert not waiting or rule.ready(made) == (
                counts[0] > read or counts[1] >= min(3, present)
            )
            rule.plan(made)
            counts = made.counts
            return made.does, made.refused, made.waits, made.closes, *counts

        assert turn() == ("contribute", False, True, 0, 0, 1, 2)
        assert turn() == ("contribute", False, True, 0, 0, 2, 4)
        assert turn(waiting=True) == ("wait", False, True, 0, 0, 2, 4)
        assert turn() == ("contribute and close", False, False, 6, 1, 0, 0)
        assert turn(waiting=True) == ("read", False, False, 0, 1, 0, 0)
        assert turn() == ("read", True, False, 0, 1, 0, 0)  # late
        assert turn(read=1.0) == ("contribute", False, True, 0, 1, 1, 2)
        assert turn(read=1.0) == ("contribute", False, True, 0, 1, 2, 4)
        assert turn(1.0, True, present=2) == ("close", False, False, 4, 2, 0, 0)  # two have ended
        assert turn(read=2.0, present=1) == ("contribute and close", False, False, 2, 3, 0, 0)
