"""A member that fails is heard in whatever thread samples, by each sampler."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pymc as pm
import pytest
from comparing import IN_PYTHON, points
from selection import thorough
from user_scripts import run_script

import synkhronos as synk
from synkhronos._libraries.library import tell
from synkhronos.pymc._density import failures


def model_of(rows: int = 60) -> pm.Model:
    r = np.random.default_rng(4)
    with pm.Model() as model:
        b = pm.Normal("b", shape=2)
        pm.Poisson("y", pm.math.exp(r.normal(size=(rows, 2)) @ b), observed=r.poisson(1, rows))
    return model


class Failing:
    """Replaces the likelihood of a division: a worker dies at an evaluation, or an error is raised.

    Parameters
    ----------
    divided : Parallel
    at : int
        The number of the evaluation, from 1.
    error : Exception, optional
        Instead of a death.
    """

    def __init__(
        self, divided: synk.pymc.Parallel, at: int, error: Exception | None = None
    ) -> None:
        assert divided._evaluator is not None
        self._inner, self._at, self._error = divided._evaluator._group_likelihood, at, error
        self.group, self.count = self._inner.group, 0
        divided._evaluator._group_likelihood = self

    def __call__(self, *given: Any) -> Any:
        self.count += 1
        if self.count == self._at:
            if self._error is not None:
                raise self._error
            [worker] = self.group.channel.workers
            os.kill(worker.pid, signal.SIGKILL)
        return self._inner(*given)


def sample_by_nuts(model: pm.Model) -> Any:
    return pm.sample(
        model=model,
        **{"draws": 2000, "tune": 1000, "chains": 1, "cores": 1, "random_seed": 3},
        **{"nuts_sampler": "pymc", "progressbar": False, "quiet": True},
        compute_convergence_checks=False,
    )


SAMPLERS: dict[str, Callable[[pm.Model], Any]] = {
    "pymc": sample_by_nuts,
    "fit": lambda model: pm.fit(2000, model=model, progressbar=False, random_seed=1),
    "find_MAP": lambda model: pm.find_MAP(model=model, progressbar=False),
    "smc": lambda model: pm.sample_smc(
        100, model=model, chains=1, cores=1, progressbar=False, random_seed=1
    ),
}


def by_thread(call: Callable[[], Any]) -> Any:
    """What a thread returns or raises."""
    found: list[Any] = []

    def work() -> None:
        try:
            found.append(call())
        except BaseException as exc:
            found.append(exc)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    if isinstance(found[0], BaseException):
        raise found[0]
    return found[0]


def by_pool(call: Callable[[], Any]) -> Any:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(call).result()


def by_asyncio(call: Callable[[], Any]) -> Any:
    return asyncio.run(asyncio.to_thread(call))


CALLERS: dict[str, Callable[[Callable[[], Any]], Any]] = {
    "thread": by_thread,
    "pool": by_pool,
    "asyncio": by_asyncio,
    "main": lambda call: call(),
}


@pytest.mark.thorough
@pytest.mark.parametrize("caller", CALLERS)
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_a_death_is_raised_in_any_thread(sampler: str, caller: str) -> None:
    """Promise 2. The model is divided in the main thread, and sampled in another one."""
    model = model_of()
    with warnings.catch_warnings(), synk.pymc.parallel(model, members=2) as divided:
        warnings.simplefilter("ignore")
        failing = Failing(divided, 3)
        with pytest.raises(synk.WorkerDied, match="SIGKILL"):
            CALLERS[caller](lambda: SAMPLERS[sampler](model))
        assert failing.count < 50
        with pytest.raises(synk.WorkerDied):
            model.compile_logp(mode=IN_PYTHON)(points(model, 1)[0])


def test_what_jax_raises_in_place_of_a_members_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """JAX raises an error of its own, which has the text of the one in its callback."""
    replacing = type("JaxRuntimeError", (Exception,), {"__module__": "jaxlib._jax"})
    model = model_of()

    def sample(*args: object, **kwargs: object) -> None:
        try:
            model.compile_logp(mode=IN_PYTHON)(points(model, 1)[0])
        except ZeroDivisionError as exc:
            raise replacing(str(exc)) from None
        raise replacing("another")

    def fails() -> None:
        with synk.pymc.parallel(model, members=1) as divided:
            Failing(divided, 1, ZeroDivisionError("here"))
            sample()

    with pytest.raises(ZeroDivisionError, match="here"):
        fails()
    monkeypatch.setattr("synkhronos.pymc._group.parallel.pm_sample", sample)
    with synk.pymc.parallel(model, members=1) as divided:
        Failing(divided, 1, ZeroDivisionError("here"))
        with pytest.raises(ZeroDivisionError, match="here"):
            divided.sample()
        with pytest.raises(replacing, match="another"):
            divided.sample()


SCRIPT = """
    import asyncio, os, sys, threading, warnings
    from concurrent.futures import ThreadPoolExecutor
    warnings.simplefilter("ignore")
    import numpy as np, pymc as pm, synkhronos as synk
    from synkhronos.pymc._density.nutpie import compiled_soon
    from synkhronos.pymc._group.likelihood import GroupLikelihood
    r = np.random.default_rng(4)
    x, (sampler, way, caller, fault, at) = r.normal(size=(60, 2)), sys.argv[1:]
    with pm.Model() as model:
        b = pm.Normal("b", shape=2)
        pm.Poisson("y", pm.math.exp(x @ b), observed=r.poisson(1, 60))
    plain, count, begun = GroupLikelihood.__call__, [0], []

    def call(self, *args):
        count[0] += bool(begun)
        if count[0] == int(at):
            if fault == "error":
                raise ZeroDivisionError("here")
            os.kill(self.group.channel.workers[0].pid, 9)
        return plain(self, *args)

    GroupLikelihood.__call__ = call
    given = dict(draws=2000, tune=1000, chains=1, progressbar=False, random_seed=1, quiet=True)
    given |= dict(nuts_sampler=sampler, compute_convergence_checks=False, model=model)
    if sampler == "nutpie-jax":
        given |= dict(nuts_sampler="nutpie", compile_kwargs=dict(mode="JAX", freeze_model=False))

    def draw():
        begun.append(True)
        if way == "sample":
            return synk.pymc.sample(cores=2, members_per_chain=2, **given)
        if way == "divided before":
            with compiled_soon():  # nutpie itself compiles its functions for 10 s
                return pm.sample(cores=1, **given)
        if way != "nutpie.sample":
            return pm.sample(cores=1, **given)
        import nutpie
        return nutpie.sample(nutpie.compile_pymc_model(model), chains=1, progress_bar=False)

    def work():
        if way in ("sample", "divided before"):
            return draw()
        with synk.pymc.parallel(model, members=2):
            return draw()

    def by_thread():
        found = []
        thread = threading.Thread(target=lambda: found.append(said()))
        thread.start()
        thread.join()
        return found[0]

    def said():
        try:
            return f"returned {work()}"
        except BaseException as exc:
            return f"{type(exc).__name__}: {exc}"

    if way == "divided before":
        division = synk.pymc.parallel(model, members=2)
    found = {
        "main": said,
        "thread": by_thread,
        "pool": lambda: ThreadPoolExecutor(1).submit(said).result(),
        "asyncio": lambda: asyncio.run(asyncio.to_thread(said)),
    }[caller]()
    print(count[0] < int(at) + 1000, found)
"""

CASES = [
    ("nutpie", "divided before", "thread", "death", "40"),
    *thorough(
        *[("nutpie", "sample", caller, "death", "200") for caller in CALLERS],
        *[("nutpie", "parallel", caller, "error", "40") for caller in CALLERS],
        ("nutpie", "nutpie.sample", "thread", "death", "1"),
        ("nutpie", "nutpie.sample", "main", "error", "1"),
        ("nutpie-jax", "parallel", "main", "death", "40"),
        ("nutpie-jax", "parallel", "thread", "death", "40"),
        ("numpyro", "sample", "thread", "death", "40"),
        ("numpyro", "parallel", "main", "error", "40"),
    ),
]


@pytest.mark.slow
@pytest.mark.parametrize(("sampler", "way", "caller", "fault", "at"), CASES)
def test_a_failure_under_nutpie_and_jax(
    tmp_path: Path, sampler: str, way: str, caller: str, fault: str, at: str
) -> None:
    """Promise 2. nutpie takes an exception for a bad point; JAX raises an error of its own."""
    pytest.importorskip(sampler.partition("-")[0], reason=f"{sampler} is not installed")
    if sampler != "nutpie":
        pytest.importorskip("jax", reason="JAX is not installed")
    line = run_script(tmp_path, SCRIPT, sampler, way, caller, fault, at).splitlines()[-1]
    if fault == "death":
        assert line.startswith("True WorkerDied: ")
        assert "SIGKILL" in line
    else:
        assert line == "True ZeroDivisionError: here"


@pytest.mark.slow
@pytest.mark.thorough
def test_samplers_of_nutpie_in_the_background(tmp_path: Path) -> None:
    """One of two fails; it raises whatever it is asked for."""
    pytest.importorskip("nutpie", reason="nutpie is not installed")
    out = run_script(
        tmp_path,
        """
        import warnings
        warnings.simplefilter("ignore")
        import numpy as np, nutpie, pymc as pm, synkhronos as synk
        models = []
        for rows in (60, 40):
            with pm.Model() as model:
                pm.Poisson("y", pm.math.exp(pm.Normal("b")), observed=np.arange(rows) % 7)
            models.append(model)
        given = dict(chains=1, progress_bar=False, seed=1, blocking=False)
        first, second = [synk.pymc.parallel(m, members=2, repeated=False) for m in models]
        inner = first._evaluator._group_likelihood

        class Failing:
            group, count = inner.group, 0

            def __call__(self, *args):
                self.count += 1
                return inner(*args) if self.count < 100 else 1 / 0

        compiled = [nutpie.compile_pymc_model(m) for m in models]
        first._evaluator._group_likelihood = Failing()
        goes_on = nutpie.sample(compiled[1], draws=50, **given)
        fails = nutpie.sample(compiled[0], draws=100_000, **given)
        for ask in (fails.wait, fails.wait, fails.abort):
            try:
                ask()
            except ZeroDivisionError as exc:
                print("said", exc)
        print("said", goes_on.wait().posterior.sizes["draw"])
        slow = nutpie.sample(compiled[1], draws=10**7, **given)
        try:
            slow.wait(timeout=0.2)
        except TimeoutError as exc:
            print("said", exc)
        slow.cancel()
        """,
    )
    assert [line for line in out.splitlines() if line.startswith("said ")] == [
        *["said division by zero"] * 3,
        "said 50",
        "said Timeout while waiting for sampler to finish",
    ]


def test_a_library_that_may_swallow_a_failure_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its private names are others in another version; one warning says so, once."""
    import_module("better_optimize")  # which needs the names of its own version
    monkeypatch.setitem(sys.modules, "better_optimize.minimize", ModuleType("minimize"))
    tell.cache_clear()
    with pytest.warns(synk.VersionWarning, match="find_MAP may return a point"):
        failures.let_failures_pass()
    failures.let_failures_pass()  # warnings are errors
    tell.cache_clear()


def test_a_sampler_whose_evaluators_are_not_found_samples_as_it_does() -> None:
    tell.cache_clear()
    with pytest.warns(synk.VersionWarning, match="_compiled_model"):
        assert failures._watching(lambda sampler, timeout: "drawn")(object()) == "drawn"
    tell.cache_clear()
    with pytest.warns(synk.VersionWarning, match="_sampler"):
        failures._wait(object(), [SimpleNamespace(failure=None)], None)
    tell.cache_clear()


@pytest.mark.thorough
def test_threads_that_sample_at_once_draw_as_alone() -> None:
    """Each reads the models that it compiles for the first time, while others compile."""

    def of_mean(mean: int) -> pm.Model:
        with pm.Model() as model:
            pm.Normal("y", pm.Normal("mu", mean), 1.0, observed=np.arange(5.0))
        return model

    def draws(model: pm.Model) -> np.ndarray:
        found = synk.pymc.sample(
            model=model,
            **{"draws": 50, "tune": 50, "chains": 2, "cores": 1, "random_seed": 1},
            **{"progressbar": False, "quiet": True, "compute_convergence_checks": False},
        )
        return np.asarray(found.posterior["mu"])

    models = [of_mean(mean) for mean in range(9)]
    with ThreadPoolExecutor(3) as pool:
        at_once = list(pool.map(draws, models))
    for model, found in zip(models, at_once, strict=True):
        np.testing.assert_array_equal(found, draws(model))
