"""A member that raises or dies: the sampler stops, with what happened there."""

from __future__ import annotations

import os
import pickle
import signal
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from comparing import IN_PYTHON, points
from user_scripts import run_script

import synkhronos as synk
from synkhronos._errors import WorkerError


def model_of(rows: int = 50) -> pm.Model:
    """Where mu is above 5, the rows of the second half look up what is not there."""
    table, numbers = pt.as_tensor(np.zeros(rows // 2)), pt.as_tensor(np.arange(rows))

    def logp(value: Any, mu: Any) -> Any:
        found = table[pt.switch(mu > 5, numbers, 0)]
        return -((value - mu - found) ** 2)

    with pm.Model() as model:
        pm.CustomDist("y", pm.Normal("mu", 0, 10), logp=logp, observed=np.zeros(rows))
    return model


def sample(model: pm.Model, **kwargs: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pm.sample(
            **{"draws": 200, "tune": 200, "chains": 1, "cores": 1, "random_seed": 3}
            | {"model": model, "progressbar": False, "quiet": True}
            | {"compute_convergence_checks": False}
            | kwargs
        )


def test_an_index_of_few_rows_that_is_out_of_bounds_names_its_row() -> None:
    """Machine code of numba would read memory that is no element of the table."""
    with pm.Model() as model:
        pm.Normal("y", pm.Normal("a", shape=5)[np.array([0, 1, 7])], observed=np.zeros(3))
    given = {"draws": 1, "tune": 1, "chains": 1, "cores": 1, "progressbar": False}
    with model, pytest.raises(IndexError, match="index 7 of row 2 is out of bounds for 5 "):
        synk.pymc.sample(nuts_sampler="nutpie", random_seed=1, **given)


def test_an_error_in_a_worker_is_raised_and_the_next_evaluation_works() -> None:
    model = model_of()
    with synk.Group(2) as group, synk.pymc.parallel(model):
        logp = model.compile_logp(mode=IN_PYTHON)
        before = logp({"mu": np.array(1.0)})
        with pytest.raises(WorkerError, match="index 25 is out of bounds") as caught:
            logp({"mu": np.array(6.0)})
        assert caught.value.rank == 1
        assert isinstance(caught.value, IndexError)
        assert "in perform" in str(caught.value.__cause__)
        assert logp({"mu": np.array(1.0)}) == before
        assert group.alive


def test_a_sampler_stops_at_a_workers_error() -> None:
    model = model_of()
    with (
        synk.pymc.parallel(model, members=2),
        pytest.raises(WorkerError, match="index 25 is out of bounds"),
    ):
        sample(model, initvals={"mu": 20.0}, init="adapt_diag")


def test_a_sampler_stops_when_a_worker_dies_and_the_callback_has_its_draws() -> None:
    """The trace in memory is the sampler's; what its callback has seen is the user's."""
    model = model_of()
    seen: list[float] = []
    with synk.pymc.parallel(model, members=2) as parallel:
        assert parallel.group is not None
        [worker] = parallel.group.channel.workers

        def note(trace: Any, draw: Any) -> None:
            seen.append(float(draw.point["mu"]))
            if len(seen) == 50:
                os.kill(worker.pid, signal.SIGKILL)

        with pytest.raises(synk.WorkerDied, match="SIGKILL"):
            sample(model, callback=note)
        logp = model.compile_logp(mode=IN_PYTHON)
        with pytest.raises(synk.WorkerDied):  # it does not start anew behind one's back
            logp(points(model, 1)[0])
    assert len(seen) == 50
    assert "logp" not in vars(model)


@pytest.mark.thorough  # by sample: test_sample.py
@pytest.mark.slow
def test_a_death_in_a_chains_own_process_is_reported(tmp_path: Path) -> None:
    out = run_script(
        tmp_path,
        """
        import os, warnings
        warnings.simplefilter("ignore")
        import numpy as np, pymc as pm, pytensor, synkhronos as synk
        from synkhronos.pymc._group import likelihood as _group_likelihood
        from synkhronos._host import cores
        there = cores.available()
        cores.available = lambda: [*there, *there][:2]  # a single core counts twice
        pytensor.config.mode = "FAST_COMPILE"
        with pm.Model() as model:
            pm.Normal("y", pm.Normal("mu"), 1, observed=np.arange(40.0))
        master, count, plain = os.getpid(), [0], _group_likelihood.GroupLikelihood.__call__

        def call(self, *args):
            count[0] += os.getpid() != master
            if count[0] == 50:
                os.kill(self.group.channel.workers[0].pid, 9)
            return plain(self, *args)

        _group_likelihood.GroupLikelihood.__call__ = call
        with synk.pymc.parallel(model, members=2, members_per_chain=2, mode="FAST_COMPILE"):
            try:
                pm.sample(100, tune=100, chains=2, cores=2, model=model, progressbar=False,
                          random_seed=1, nuts_sampler="pymc")
            except Exception as exc:
                print(type(exc).__name__, "a worker died" in str(exc), "SIGKILL" in str(exc))
        """,
    )
    assert out.splitlines()[-1] == "ParallelSamplingError True True"


def test_worker_errors_pickle() -> None:
    """A chain's process sends them to the sampler's."""
    said = "f", "ValueError: no", "the text", "builtins:ValueError"
    error = WorkerError.of(1, 77, "cuda:0", (1, 2), *said)
    copy = pickle.loads(pickle.dumps(error))
    assert isinstance(copy, WorkerError)
    assert isinstance(copy, ValueError)
    assert (copy.rank, copy.pid, copy.device, copy.ranks) == (1, 77, "cuda:0", (1, 2))
    assert str(copy) == str(error)
