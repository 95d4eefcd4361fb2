"""Samplers draw through the members: in this process, in threads, in processes of their own."""

from __future__ import annotations

import logging
import os
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pymc as pm
import pytest
from selection import thorough
from user_scripts import run_script

import synkhronos as synk


def model_of(rows: int = 80) -> pm.Model:
    r = np.random.default_rng(4)
    with pm.Model() as model:
        b = pm.Normal("b", shape=2)
        pm.Poisson("y", pm.math.exp(r.normal(size=(rows, 2)) @ b), observed=r.poisson(1, rows))
    return model


def draw(model: pm.Model, **kwargs: Any) -> np.ndarray:
    """Draws of b, (chain, draw, 2)."""
    given = {"draws": 30, "tune": 30, "chains": 1, "cores": 1, "random_seed": 7} | kwargs
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trace = pm.sample(
            model=model, progressbar=False, quiet=True, compute_convergence_checks=False, **given
        )
    return np.asarray(trace.posterior["b"])


@pytest.fixture
def group() -> Iterator[synk.Group]:
    with synk.Group(2) as made:
        yield made


@pytest.mark.thorough  # in processes: tests/pymc/test_sample.py
def test_nuts_draws_the_same_from_run_to_run(group: synk.Group) -> None:
    model = model_of()
    with synk.pymc.parallel(model):
        first = draw(model)
        second = draw(model)
    np.testing.assert_array_equal(first, second)
    assert first.shape == (1, 30, 2)
    assert first.std() > 0


def test_divided_draws_begin_as_the_plain_ones(group: synk.Group) -> None:
    """Rounding differs, so a chain goes its own way in time; its first steps are the same."""
    model = model_of()
    plain = draw(model, draws=5, tune=0, discard_tuned_samples=False)
    with synk.pymc.parallel(model):
        divided = draw(model, draws=5, tune=0, discard_tuned_samples=False)
    np.testing.assert_allclose(divided, plain, rtol=1e-6)


@pytest.mark.thorough  # by `sample`: tests/pymc/test_sample.py
@pytest.mark.parametrize("members", [1, 2])
def test_chains_in_processes_have_groups_of_their_own(
    members: int, caplog: pytest.LogCaptureFixture
) -> None:
    """PyMC forks a process for each chain; what it draws is what this process draws alone."""
    model = model_of()
    with synk.pymc.parallel(model, members=2, members_per_chain=members):
        several = draw(model, chains=2, cores=2)
        again = draw(model, chains=2, cores=2)
    np.testing.assert_array_equal(several, again)
    with synk.pymc.parallel(model, members=members):
        in_turn = draw(model, chains=2, cores=1)
    np.testing.assert_array_equal(several, in_turn)


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize("start", ["spawn", *thorough("forkserver")])
def test_chains_in_fresh_processes(tmp_path: Path, start: str) -> None:
    out = run_script(
        tmp_path,
        f"""
        import warnings
        warnings.simplefilter("ignore")
        import numpy as np, pymc as pm, pytensor, synkhronos as synk

        def model_of():
            r = np.random.default_rng(4)
            with pm.Model() as model:
                b = pm.Normal("b", shape=2)
                mean = pm.math.exp(r.normal(size=(80, 2)) @ b)
                pm.Poisson("y", mean, observed=r.poisson(1, 80))
            return model

        if __name__ == "__main__":
            pytensor.config.mode = "FAST_COMPILE"
            model = model_of()
            given = dict(model=model, draws=10, tune=10, chains=2, random_seed=7, quiet=True)
            given |= dict(progressbar=False, compute_convergence_checks=False)
            with synk.pymc.parallel(model, members=2, members_per_chain=2, mode="FAST_COMPILE"):
                alone = pm.sample(cores=1, **given).posterior["b"]
                fresh = pm.sample(cores=2, mp_ctx="{start}", **given).posterior["b"]
            print("equal", np.array_equal(alone, fresh))
        """,
    )
    assert out.splitlines()[-1] == "equal True"


def test_the_plan_for_chains_is_told_stored_and_carried_out(
    plans: Callable[[], list[str]],
) -> None:
    model = model_of()
    with synk.pymc.parallel(model, members=2, chains=2, members_per_chain=2) as parallel:
        plan = parallel.plan
        assert plan is not None
        assert (plan.chains, plan.members) == (2, 2)
        assert plan.at_once == max(1, min(2, len(os.sched_getaffinity(0)) // 2))
        assert plans()[0].startswith("2 chains")
        given = {"draws": 10, "tune": 10, "random_seed": 7, "progressbar": False, "quiet": True}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            trace = parallel.sample(compute_convergence_checks=False, **given)
    assert trace.posterior.sizes == {"chain": 2, "draw": 10, "b_dim_0": 2}


def test_the_predicted_plan_is_one_of_those_that_fit() -> None:
    with synk.pymc.parallel(model_of(), members=2, chains=4) as parallel:
        plan = parallel.plan
        assert plan is not None
        assert plan.chains == 4
        assert 1 <= plan.members * plan.at_once <= max(2, plan.members)
        assert parallel.sampling["cores"] == plan.at_once
        assert parallel._evaluator is not None
        assert parallel._evaluator.members == plan.members


def test_slots_give_each_process_cores_of_its_own(tmp_path: Path) -> None:
    """Promise 16: the kernel gives back what a killed process has locked."""
    out = run_script(
        tmp_path,
        """
        import os, pickle, signal, time
        from synkhronos.pymc._group.evaluator import CoreSlots
        slots = CoreSlots([0, 1, 2, 3], 2)
        packed = pickle.dumps(slots)

        def in_a_child(spawned=False):
            end, start = os.pipe()
            if not (pid := os.fork()):
                if spawned:  # such a process inherits no descriptor
                    slots.close()
                found = pickle.loads(packed) if spawned else slots
                os.write(start, repr(found.take()).encode())
                time.sleep(60)
            os.close(start)
            return pid, os.read(end, 100).decode()

        def kill(pid):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)

        first, second = in_a_child(), in_a_child(spawned=True)
        print(first[1], second[1])
        kill(first[0])
        third = in_a_child()  # in the place of the first, which has ended
        print(third[1])
        kill(second[0]), kill(third[0])
        """,
    )
    assert out.splitlines() == ["[0, 1] [2, 3]", "[0, 1]"]


def test_chains_in_threads_say_that_they_take_turns(
    group: synk.Group, caplog: pytest.LogCaptureFixture
) -> None:
    model = model_of()
    caplog.set_level(logging.INFO, "synkhronos")
    inside, both = threading.Barrier(2, timeout=60), []
    with synk.pymc.parallel(model) as parallel:
        evaluator: Any = parallel._evaluator
        real = evaluator._group_likelihood

        class Waiting:
            group = real.group

            def __call__(self, *given: Any) -> Any:
                inside.wait()  # until the other one is here
                return real(*given)

        evaluator._group_likelihood = Waiting()
        threads = [
            threading.Thread(target=lambda: both.append(evaluator(np.zeros(2), [])))
            for _ in range(2)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        evaluator._group_likelihood = real
        evaluator(np.zeros(2), [])
    np.testing.assert_array_equal(both[0][0], both[1][0])
    lines = [r.getMessage() for r in caplog.records if "take turns" in r.getMessage()]
    assert len(lines) == 1
    assert "each evaluation uses all 2 members" in lines[0]


NUTPIE = """
    import warnings
    warnings.simplefilter("ignore")
    import numpy as np, pymc as pm, synkhronos as synk
    r = np.random.default_rng(4)
    with pm.Model() as model:
        b = pm.Normal("b", shape=2)
        pm.Poisson("y", pm.math.exp(r.normal(size=(80, 2)) @ b), observed=r.poisson(1, 80))
    given = dict(model=model, draws=400, tune=300, chains=2, cores=2, random_seed=7, quiet=True)
    given |= dict(progressbar=False, compute_convergence_checks=False, nuts_sampler="nutpie")
    plain = np.asarray(pm.sample(**given).posterior["b"])
    with synk.pymc.parallel(model, members=2):
        first = np.asarray(pm.sample(**given).posterior["b"])
        second = np.asarray(pm.sample(**given).posterior["b"])
    print("equal", np.array_equal(first, second))
    off = np.abs(first.mean((0, 1)) - plain.mean((0, 1))) / plain.std((0, 1))
    print("agrees", bool(off.max() < 0.35))  # six standard errors of 800 draws worth some 300
"""


@pytest.mark.thorough
@pytest.mark.slow
def test_nutpie_evaluates_in_threads(tmp_path: Path) -> None:
    """Two chains of nutpie are two threads: they take turns, and nothing hangs."""
    pytest.importorskip("nutpie", reason="nutpie is not installed (the extra: synkhronos[pymc])")
    out = run_script(tmp_path, NUTPIE)
    assert out.splitlines()[-2:] == ["equal True", "agrees True"]


JAX = """
    import warnings
    warnings.simplefilter("ignore")
    import numpy as np, pymc as pm, pytensor, synkhronos as synk
    pytensor.config.mode = "FAST_COMPILE"
    r = np.random.default_rng(4)
    with pm.Model() as model:
        b = pm.Normal("b", shape=2)
        pm.Poisson("y", pm.math.exp(r.normal(size=(80, 2)) @ b), observed=r.poisson(1, 80))
    given = dict(model=model, draws=300, tune=300, chains=2, random_seed=7, progressbar=False)
    given |= dict(quiet=True, compute_convergence_checks=False, nuts_sampler="numpyro")
    plain = np.asarray(pm.sample(**given).posterior["b"])
    with synk.pymc.parallel(model, members=2, mode="FAST_COMPILE") as parallel:
        rounds = parallel._evaluator._group_likelihood
        calls = []
        class Counted:
            group = rounds.group
            def __call__(self, *args):
                calls.append(1)
                return rounds(*args)
        parallel._evaluator._group_likelihood = Counted()
        divided = np.asarray(pm.sample(**given).posterior["b"])
    print("rounds", len(calls) > 1000)
    off = np.abs(divided.mean((0, 1)) - plain.mean((0, 1))) / plain.std((0, 1))
    print("agrees", bool(off.max() < 0.35))
"""


@pytest.mark.thorough
@pytest.mark.slow
def test_jax_samplers_call_back(tmp_path: Path) -> None:
    """In a process of its own: JAX must not run in this one."""
    pytest.importorskip("numpyro", reason="numpyro is not installed")
    out = run_script(tmp_path, JAX)
    assert out.splitlines()[-2:] == ["rounds True", "agrees True"]


@pytest.mark.slow
@pytest.mark.thorough
def test_jax_refuses_second_derivatives_and_gives_first_ones(tmp_path: Path) -> None:
    pytest.importorskip("jax")
    out = run_script(
        tmp_path,
        """
        import warnings
        warnings.simplefilter("ignore")
        import jax, numpy as np, pymc as pm, pytensor, synkhronos as synk
        from pymc.sampling.jax import get_jaxified_logp
        pytensor.config.mode = "FAST_COMPILE"
        with pm.Model() as model:
            mu = pm.Normal("mu", shape=9)
            pm.Normal("y", mu, 1, observed=np.arange(9.0))
        x = np.linspace(-1, 1, 9)
        plain = jax.grad(lambda v: get_jaxified_logp(model)([v]))(x)
        with synk.pymc.parallel(model, members=2, mode="FAST_COMPILE"):
            logp = get_jaxified_logp(model)
            print(np.allclose(jax.grad(lambda v: logp([v]))(x), plain))
            several = jax.vmap(jax.grad(lambda v: logp([v])))(np.stack([x, x + 1]))
            print(np.allclose(several[0], plain))
            try:
                jax.hessian(lambda v: logp([v]))(x)
            except Exception as exc:
                print(type(exc).__name__)
        """,
    )
    lines = out.splitlines()
    assert lines[-3:-1] == ["True", "True"]
    assert lines[-1] != ""
