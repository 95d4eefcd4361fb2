"""Animals that are caught or seen, whose states are summed out in Potentials.

The density of all animals is computed first. Those that were never seen, or were seen early, are
chosen from it afterwards: by a mask, by their numbers, by a slice.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
from kinds import Kind, N, rng


def histories(occasions: int = 5) -> tuple[np.ndarray, np.ndarray]:
    """Whether each animal was caught at each occasion, and whether it was ever."""
    r = rng()
    caught = r.integers(0, 2, (N, occasions)) * (r.uniform(size=(N, 1)) < 0.6)
    return caught, caught.any(axis=1)


def behaviour() -> pm.Model:
    """An animal that was caught is caught again with another probability, column by column."""
    caught, ever = histories()
    with pm.Model() as model:
        exists, first, again = (pm.Uniform(name) for name in ("exists", "first", "again"))
        y = pt.as_tensor(caught)
        p = pt.zeros(caught.shape)
        p = pt.set_subtensor(p[:, 0], first)
        for t in range(1, caught.shape[1]):
            p = pt.set_subtensor(p[:, t], pt.switch(y[:, t - 1], again, first))
        density = (y * pt.log(p) + (1 - y) * pt.log1p(-p)).sum(axis=1)
        seen = (pt.log(exists) + density[ever]).sum()
        never = pt.logaddexp(pt.log(exists) + density[~ever], pt.log1p(-exists)).sum()
        pm.Potential("histories", seen + never)
    return model


def effects() -> pm.Model:
    """An effect of each animal; those that were never caught are chosen by their numbers."""
    caught, ever = histories()
    times = caught.sum(axis=1)
    with pm.Model() as model:
        exists, mean, scale = pm.Beta("exists", 2, 2), pm.Normal("mean"), pm.HalfNormal("scale")
        logit = mean + scale * pm.Normal("effect", shape=N)
        living = pm.logp(pm.Bernoulli.dist(exists), 1)
        density = living + pm.logp(pm.Binomial.dist(n=5, logit_p=logit), times)
        pm.Potential("seen", density[np.flatnonzero(ever)].sum())
        unseen = living + pm.logp(pm.Binomial.dist(n=5, logit_p=logit), 0)
        either = [unseen[np.flatnonzero(~ever)], pt.full(int((~ever).sum()), pt.log1p(-exists))]
        pm.Potential("never", pt.logsumexp(pt.stack(either), axis=0).sum())
    return model


def occasions() -> pm.Model:
    """A probability of each occasion; all animals that were never caught have the same density."""
    caught, ever = histories()
    with pm.Model() as model:
        exists, p = pm.Uniform("exists"), pm.Uniform("p", shape=5)
        density = caught * pt.log(p)[None, :] + (1 - caught) * pt.log1p(-p)[None, :]
        seen = pt.log(exists) + density[ever].sum(axis=1)
        never = pt.logaddexp(pt.log(exists) + pt.log1p(-p).sum(), pt.log1p(-exists))
        pm.Potential("histories", seen.sum() + (~ever).sum() * never)
    return model


def ordered_by_release() -> pm.Model:
    """Tagged animals stand first, the others are a slice behind them, backwards."""
    r = rng()
    weight, times = r.normal(size=N), r.poisson(2, N)
    with pm.Model() as model:
        rate = pt.exp(pm.Normal("a") + pm.Normal("b") * weight)
        density = pm.logp(pm.Poisson.dist(rate), times)
        pm.Potential("tagged", density[:30].sum())
        pm.Potential("others", pt.logaddexp(density[:29:-1], -3.0).sum())
    return model


def emissions(r: np.random.Generator) -> tuple[Any, Any, np.ndarray]:
    """Parameters of a chain of two states, and what was observed: one of three signs."""
    move = pm.Dirichlet("move", np.ones((2, 2)))
    sign = pm.Dirichlet("sign", np.ones((2, 3)))
    return pt.log(move), pt.log(sign), r.integers(0, 3, (N, 6))


def chains_by_loop() -> pm.Model:
    """A chain of states in each animal, summed out by the forward algorithm."""
    with pm.Model() as model:
        move, sign, y = emissions(rng())
        forward = sign[:, y[:, 0]].T - np.log(2)
        for t in range(1, y.shape[1]):
            forward = pt.logsumexp(forward[:, :, None] + move[None], axis=1) + sign[:, y[:, t]].T
        pm.Potential("chains", pt.logsumexp(forward, axis=1).sum())
    return model


def chains_by_scan() -> pm.Model:
    """The same, in a loop of PyTensor over occasions, which carries all animals."""
    with pm.Model() as model:
        move, sign, y = emissions(rng())

        def step(now: Any, forward: Any, move: Any, sign: Any) -> Any:
            return pt.logsumexp(forward[:, :, None] + move[None], axis=1) + sign.T[now]

        first = sign.T[y[:, 0]] - np.log(2)
        forward = pytensor.scan(
            step,
            sequences=[y.T[1:]],
            outputs_info=first,
            non_sequences=[move, sign],
            return_updates=False,
        )
        pm.Potential("chains", pt.logsumexp(forward[-1], axis=1).sum())
    return model


KINDS = {
    "caught again, other chances, in a potential": Kind(behaviour, names=("histories",)),
    "caught, effects of animals, in potentials": Kind(effects, names=("never", "seen")),
    "caught, chances of occasions, in a potential": Kind(occasions, names=("histories",)),
    "animals in the order of release, in potentials": Kind(
        ordered_by_release, names=("others", "tagged")
    ),
    "hidden states of animals, summed out by a loop": Kind(chains_by_loop, names=("chains",)),
    "hidden states of animals, summed out by a scan": Kind(chains_by_scan, names=("chains",)),
}
