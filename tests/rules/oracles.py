"""Every rule again in plain numpy: from the table of equations, not from `synkhronos.rules`.

An oracle gets a `Problem` and who exchanges when. It returns the parameters of the members, one row
each, and the versions of the centre.
"""

import itertools
import math
from dataclasses import dataclass, field

import numpy as np


@dataclass
class Problem:
    """Noisy quadratics, another one for each member, which members descend by heavy ball."""

    members: int
    dtype: str = "float64"
    size: int = 3
    seed: int = 0
    lr: float = 0.1
    momentum: float = 0.0
    rows: list = field(default_factory=list)

    def __post_init__(self):
        random = np.random.default_rng(self.seed)
        self.start = random.normal(size=self.size).astype(self.dtype)
        self.curvature = random.uniform(0.3, 1.5, self.size).astype(self.dtype)
        self.optima = random.normal(size=(self.members, self.size)).astype(self.dtype)
        self.noise = random.normal(size=(self.members, 64, self.size)).astype(self.dtype)
        self.rows = self.rows or [1.0] * self.members

    def gradient(self, w, rank, step):
        return self.curvature * (w - self.optima[rank]) + self.noise[rank, step]

    def optimizer(self):
        """Return the update rule, with velocities of its own, as `simulate` takes it."""
        velocities = np.zeros((self.members, self.size), self.dtype)

        def inner(w, gradient, rank):
            velocities[rank] = self.momentum * velocities[rank] + gradient
            w -= self.lr * velocities[rank]

        return inner

    def begin(self):
        """Return the parameters and the velocities of all members at first."""
        return np.tile(self.start, (self.members, 1)), np.zeros_like(self.optima)

    def train(self, w, v, rank, first, last):
        """Make a member's steps `first` to ``last - 1`` in place."""
        for step in range(first, last):
            v[:] = self.momentum * v + self.gradient(w, rank, step)
            w -= self.lr * v


def events(period, steps, death=None):
    """Return (steps, whether it exchanges) of a member: each period, at its end, at its death."""
    counts = [n for n in range(1, steps + 1) if n % period == 0 or n == steps]
    if death is None or death > steps:
        return [(n, True) for n in counts]
    if death == 0:
        return []
    return [(n, True) for n in counts if n < death] + [(death, False)]


def meetings(problem, steps, period, warmup=0):
    """Yield parameters, velocities and rows since the last meeting, for the oracle to change."""
    w, v = problem.begin()
    last = 0
    for step in range(1, steps + 1):
        for rank in range(problem.members):
            problem.train(w[rank], v[rank], rank, step - 1, step)
        if step <= warmup or (step - warmup) % period == 0 or step == steps:
            rows = np.array(problem.rows) * (step - last)
            last = step
            yield w, v, (rows / rows.sum())[:, None].astype(problem.dtype)


def average(problem, steps, period, warmup=0):
    versions = [problem.start]
    for w, _, share in meetings(problem, steps, period, warmup):
        versions.append((share * w).sum(0))
        w[:] = versions[-1]
    return w, versions


def slow_momentum(problem, steps, period, momentum, lr):
    c, u = problem.start, np.zeros_like(problem.start)
    versions = [c]
    for w, _, share in meetings(problem, steps, period):
        u = momentum * u + (c - (share * w).sum(0)) / problem.lr
        c = c - lr * problem.lr * u
        w[:] = c
        versions.append(c)
    return w, versions


def diloco(problem, steps, period, momentum, lr):
    c, u = problem.start, np.zeros_like(problem.start)
    versions = [c]
    for w, _, share in meetings(problem, steps, period):
        d = (share * (c - w)).sum(0)
        u = momentum * u + d
        c = c - lr * (d + momentum * u)
        w[:] = c
        versions.append(c)
    return w, versions


def elastic_meeting(problem, steps, period, alpha):
    versions = [problem.start]
    for w, _, _ in meetings(problem, steps, period):
        force = alpha * (w - versions[-1])
        w -= force
        versions.append(versions[-1] + force.sum(0))
    return w, versions


def swap(problem, steps, period, partners):
    """`partners` has, for each meeting, the member that each member exchanges with."""
    versions = [problem.start]
    for number, (w, v, share) in enumerate(meetings(problem, steps, period)):
        versions.append((share * w).sum(0))
        w[:], v[:] = w[partners(number)], v[partners(number)]
    return w, versions


def turns(problem, w, v, order, period, steps, deaths):
    """Yield who exchanges in the given order, when it has made its steps."""
    made = [0] * problem.members
    left = [events(period, steps[r], deaths.get(r)) for r in range(problem.members)]
    for rank in order:
        count, lives = left[rank].pop(0)
        problem.train(w[rank], v[rank], rank, made[rank], count)
        made[rank] = count
        if lives:
            yield rank


def elastic(problem, order, period, steps, deaths, alpha):
    w, v = problem.begin()
    c = problem.start
    versions = [c]
    for rank in turns(problem, w, v, order, period, steps, deaths):
        d = alpha * (w[rank] - c)
        w[rank] -= d
        c = c + d
        versions.append(c)
    return w, versions


def subtracted(start):
    """Return how a displacement moves the centre; so do the optimizers at the centre below."""
    return lambda c, d: c - d


def momentum_at_centre(rate, momentum):
    def begin(start):
        velocity = np.zeros_like(start)

        def step(c, d):
            velocity[:] = momentum * velocity - rate * d
            return c + velocity

        return step

    return begin


def adam_at_centre(rate, epsilon, beta1=0.9, beta2=0.999):
    def begin(start):
        m, v, count = np.zeros_like(start), np.zeros_like(start), itertools.count(1)

        def step(c, d):
            t = next(count)
            m[:] = beta1 * m + (1 - beta1) * d
            v[:] = beta2 * v + (1 - beta2) * d**2
            corrected = rate * math.sqrt(1 - beta2**t) / (1 - beta1**t)
            return c - corrected * m / (np.sqrt(v) + epsilon)

        return step

    return begin


def downpour(problem, order, period, steps, deaths, inverse, at_centre=subtracted):
    w, v = problem.begin()
    c, move = problem.start, at_centre(problem.start)
    versions = [c]
    read, seen = np.tile(c, (problem.members, 1)), [0] * problem.members
    for rank in turns(problem, w, v, order, period, steps, deaths):
        stale = len(versions) - 1 - seen[rank]
        c = move(c, (read[rank] - w[rank]) / (max(1, stale) if inverse else 1))
        w[rank] = read[rank] = c
        versions.append(c)
        seen[rank] = len(versions) - 1
    return w, versions


def gem(problem, order, period, steps, deaths, lr, momentum, kappa):
    w, v = problem.begin()
    c = problem.start
    versions = [c]
    read, last = np.tile(c, (problem.members, 1)), np.tile(c, (problem.members, 1))
    m = np.zeros_like(read)
    for rank in turns(problem, w, v, order, period, steps, deaths):
        u = -lr * (read[rank] - w[rank])
        m[rank] = momentum * m[rank] + u
        z = c - last[rank]
        factor = np.clip((kappa * abs(m[rank]) - abs(z)) / (abs(u) + 1e-12), 0, 5)
        last[rank] = c
        c = c + factor * u
        w[rank] = read[rank] = c
        versions.append(c)
    return w, versions


def quorum(problem, choose, period, steps, deaths, needed, at_centre=subtracted):
    """Return parameters, versions and the order of turns; `choose` says who of those present.

    A member that has contributed waits. Its next turn looks whether it may go on.
    """
    c, version, given, move = problem.start, 0, [], at_centre(problem.start)
    versions, order = [c], []
    w, v = problem.begin()
    read = np.full(problem.members, 0)
    origin = w.copy()
    made, waits = [0] * problem.members, [False] * problem.members
    left = [events(period, steps[r], deaths.get(r)) for r in range(problem.members)]
    while present := [r for r in range(problem.members) if left[r]]:
        rank = choose(present)
        order.append(rank)
        count, lives = left[rank][0]
        old = version, len(given)
        if not waits[rank]:
            problem.train(w[rank], v[rank], rank, made[rank], count)
            if read[rank] == version and lives:
                given.append((w[rank] - origin[rank], (count - made[rank]) * problem.rows[rank]))
                waits[rank] = True
            made[rank] = count
        if waits[rank] and read[rank] == version and len(given) >= min(needed, len(present)):
            mean = sum(d * n for d, n in given) / sum(n for _, n in given)
            c, version, given = move(c, -mean.astype(problem.dtype)), version + 1, []
        if (version, len(given)) != old:
            versions.append(c)
        if not lives:
            left[rank] = []
        elif read[rank] < version:
            w[rank] = origin[rank] = c
            read[rank], waits[rank] = version, False
            left[rank].pop(0)
    return w, versions, order


def hogwild(problem, order, fresh):
    """`fresh`: a gradient is that of the centre now, not of the centre after the last own step."""
    c, (_, v) = problem.start.copy(), problem.begin()
    versions, made = [c.copy()], [0] * problem.members
    seen = np.tile(c, (problem.members, 1))
    for rank in order:
        seen[rank] = c if fresh else seen[rank]
        v[rank] = problem.momentum * v[rank] + problem.gradient(seen[rank], rank, made[rank])
        c -= problem.lr * v[rank]
        made[rank] += 1
        seen[rank] = c
        versions.append(c.copy())
    return c, versions


def gossip(problem, order, steps, deaths, sends):
    """`sends` has the receiver for each (rank, step) after which a message goes out.

    Returns parameters, weights, and the messages (weight, parameters) that are still under way.
    """
    w, v = problem.begin()
    a = np.array([float(deaths.get(r) != 0) for r in range(problem.members)]) / problem.members
    made, boxes = [0] * problem.members, {r: {} for r in range(problem.members)}

    def merge(rank, letters):
        for b, x in letters if a[rank] else ():
            w[rank] = (a[rank] * w[rank] + b * x) / (a[rank] + b)
            a[rank] += b

    for rank in order:
        merge(rank, [boxes[rank].pop(k) for k in sorted(boxes[rank])])
        problem.train(w[rank], v[rank], rank, made[rank], made[rank] + 1)
        made[rank] += 1
        if made[rank] == deaths.get(rank):
            a[rank] = 0
            for sender, letter in boxes.pop(rank).items():
                merge(sender, [letter])
        elif (rank, made[rank]) in sends:
            assert all(rank not in box for box in boxes.values()), "the slot is taken"
            a[rank] /= 2
            boxes[sends[rank, made[rank]]][rank] = (a[rank], w[rank].copy())
        if made[rank] == steps[rank] and rank in boxes:
            merge(rank, [boxes[rank].pop(k) for k in sorted(boxes[rank])])
    return w, a, [letter for box in boxes.values() for letter in box.values()]
