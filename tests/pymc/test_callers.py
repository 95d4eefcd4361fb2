"""`sample` under what runs it: several threads at once, joblib, dask, signals."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

import pytest
from user_scripts import alive, run_script, start_script

pytestmark = [pytest.mark.slow, pytest.mark.thorough, pytest.mark.timeout(300)]

HEAD = """
    import os, signal, sys, threading, warnings
    warnings.simplefilter("ignore")
    import numpy as np, pymc as pm, synkhronos as synk
    given = dict(draws=100, tune=100, chains=1, cores=2, members_per_chain=2, progressbar=False)
    given |= dict(quiet=True, compute_convergence_checks=False, nuts_sampler="pymc")

    def model_of(rows):
        with pm.Model() as model:
            pm.Poisson("y", pm.math.exp(pm.Normal("b")), observed=np.full(rows, 60 - rows + 1))
        return model

    def draws(rows, seed, **more):
        found = synk.pymc.sample(model_of(rows), random_seed=seed, **given | more)
        return found.posterior["b"].values
"""
CASES = {
    "threads": """
        from concurrent.futures import ThreadPoolExecutor
        with ThreadPoolExecutor(2) as pool:
            found = list(pool.map(draws, (60, 40), (1, 2)))
    """,
    "joblib": """
        from joblib import Parallel, delayed
        # not in /dev/shm, where other tests look for what is left
        made = Parallel(2, prefer=sys.argv[1], temp_folder=os.path.dirname(__file__))
        found = made(delayed(draws)(*each) for each in ((60, 1), (40, 2)))
    """,
    "dask": """
        import dask
        tasks = [dask.delayed(draws)(*each) for each in ((60, 1), (40, 2))]
        found = dask.compute(*tasks, scheduler="threads")
    """,
}


@pytest.mark.parametrize(
    ("case", "kind"),
    [("threads", ""), ("joblib", "threads"), ("joblib", "processes"), ("dask", "")],
)
def test_each_call_samples_its_own_model(tmp_path: Path, case: str, kind: str) -> None:
    pytest.importorskip("dask" if case == "dask" else "joblib", reason=f"{case} is not installed")
    text = f"""{HEAD}
    if __name__ == "__main__":
        {CASES[case].strip()}
        print("near", [abs(a.mean() - np.log(y)) < 0.5 for a, y in zip(found, (1, 21))])
    """
    out = run_script(tmp_path, text, kind)
    assert out.splitlines()[-1] == "near [np.True_, np.True_]"


@pytest.mark.parametrize("sampler", ["pymc", "nutpie"])
def test_an_interrupt_ends_sample_and_the_next_one_works(tmp_path: Path, sampler: str) -> None:
    """Ctrl-C keeps the draws so far, as in `pm.sample`; no member remains."""
    pytest.importorskip(sampler, reason=f"{sampler} is not installed")
    text = f"""{HEAD}
    from synkhronos.pymc._group.likelihood import GroupLikelihood
    from synkhronos.testing import leaks
    plain, count, before = GroupLikelihood.__call__, [0], leaks.snapshot()

    def call(self, *args):
        count[0] += 1
        if count[0] == 900:
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        return plain(self, *args)

    GroupLikelihood.__call__ = call
    try:
        found = draws(60, 1, draws=10**6, nuts_sampler="{sampler}").size
    except KeyboardInterrupt:
        found = 0
    print("ended", 0 <= found < 10**6, count[0] >= 900)
    print("again", draws(60, 1).shape)
    leaks.check(before)
    """
    out = run_script(tmp_path, text).splitlines()
    assert "ended True True" in out
    assert out[-1] == "again (1, 100)"


STARTED = {
    "chains with members": """
    from synkhronos._host import cores
    from synkhronos.pymc._chains import processes
    cores.available = lambda: [*os.sched_getaffinity(0)][:1] * 4
    real = processes.same_totals

    def seen(chains):
        if all(chain.finished_draws > 150 for chain in chains):
            print("ready", flush=True)
        return real(chains)

    processes.same_totals = seen
    more = dict(draws=10**6, chains=2, cores=4, nuts_sampler="nutpie")
    draws(60, 1, **more)
    """,
    "slots of map": """
    import time

    def fit(item):
        open(f"{item}.begun", "w").close()
        time.sleep(600)

    def tell():
        while not all(os.path.exists(f"{item}.begun") for item in range(2)):
            time.sleep(0.01)
        print("ready", flush=True)

    threading.Thread(target=tell, daemon=True).start()
    synk.pymc.map(fit, range(2), cores=2)
    """,
}


@pytest.mark.parametrize("what", STARTED)
def test_the_end_of_the_caller_is_that_of_all_that_it_has_started(
    tmp_path: Path, what: str
) -> None:
    """SIGTERM ends a script without a word to chains, their members, or slots."""
    pytest.importorskip("nutpie", reason="nutpie is not installed (the extra: synkhronos[pymc])")
    with start_script(tmp_path, f"{HEAD}{STARTED[what]}") as script:
        started = processes_of_session(script.pid)
        os.kill(script.pid, signal.SIGTERM)
        assert script.wait(60) == -signal.SIGTERM
    assert len(started) > 2
    until = time.monotonic() + 60
    while left := alive(started):
        assert time.monotonic() < until, left
        time.sleep(0.01)


def processes_of_session(session: int) -> list[int]:
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended
            if os.getsid(int(place.name)) == session:
                found.append(int(place.name))
    return found
