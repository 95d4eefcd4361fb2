"""A PyMC model: its gradient and its sampling, plain and by Synkhronos."""

import os
import time

import arviz as az
import numpy as np
import pymc as pm
from comparing import Compared, check, in_turn, relative
from telling import say, telling

import synkhronos as synk

STATES = 50


def survey(rows):
    """Answers from 50 states: a logistic regression with an effect of each state."""
    rng = np.random.default_rng(1)
    state, age = rng.integers(STATES, size=rows), rng.normal(size=rows)
    score = rng.normal(0, 0.7, size=STATES)[state] + 0.5 * age
    yes = rng.random(rows) < 1 / (1 + np.exp(-score))
    with pm.Model() as model:
        spread = pm.HalfNormal("spread", 1)
        effect = pm.Normal("effect", 0, spread, shape=STATES)
        slope = pm.Normal("slope", 0, 1)
        pm.Bernoulli("yes", logit_p=effect[state] + slope * age, observed=yes)
    return model


def gradients(model):
    """Compare the plain gradient with the faster one on one core, and with that of members."""
    point = np.random.default_rng(2).normal(0, 0.1, size=STATES + 2)

    def gradient_of(some_model):
        function = some_model.logp_dlogp_function(ravel_inputs=True)
        function(point)  # compiles
        return lambda: function(point)[1]

    with telling("compiling the plain gradient"):
        plain = gradient_of(model)
    with telling("compiling the gradient of synk.pymc.fast(model)"):
        fast = gradient_of(synk.pymc.fast(model))
    members = synk.fork()
    say(f"compiling it in {members} members ...")
    with synk.pymc.parallel(model):
        divided = gradient_of(model)
        check("gradients", max(relative(g(), plain()) for g in (fast, divided)), 1e-10)
        ms = in_turn(200, plain, fast, divided)
    synk.close()
    yield Compared("a gradient, synk.pymc.fast on 1 core", ms[0], ms[1], "ms")
    yield Compared(f"a gradient, {members} members", ms[0], ms[2], "ms")


def sampling(model, draws):
    """Compare `pm.sample` with `synk.pymc.sample`: two chains each."""
    given = {"tune": draws, "chains": 2, "cores": min(2, len(os.sched_getaffinity(0)))}

    def sampled(sample):
        begin = time.perf_counter()
        with model:
            trace = sample(draws, **given, random_seed=1, progressbar=False)
        return time.perf_counter() - begin, az.summary(trace, round_to="none")

    with telling("2 chains by pm.sample"):
        seconds, plain = sampled(pm.sample)
    with telling("2 chains by synk.pymc.sample"):
        our_seconds, ours = sampled(synk.pymc.sample)
    errors = np.hypot(plain["mcse_mean"], ours["mcse_mean"])
    apart = (abs(plain["mean"] - ours["mean"]) / errors).max()
    check("posterior means, in their standard errors,", apart, 5)
    ess, our_ess = plain["ess_bulk"].min() / seconds, ours["ess_bulk"].min() / our_seconds
    yield Compared("2 chains, with compiling", seconds, our_seconds, "s")
    yield Compared("effective samples a second", ess, our_ess, "", more_is_better=True)
