"""Chains of nutpie in processes of their own: how far they are, and Ctrl-C."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pymc as pm
import pytest
from user_scripts import run_script
from xarray import Dataset, DataTree

import synkhronos as synk
from synkhronos._errors import SynkhronosError
from synkhronos._transport.serialization import pack_graph, unpack_graph
from synkhronos.pymc._chains import nodes, sampling
from synkhronos.pymc._chains import processes as _chain_processes
from synkhronos.pymc._chains.nodes import DRAWS, ChainsProcess, write_answer
from synkhronos.pymc._chains.progress import ChainRecords, same_totals, table, while_read


def chain(started: bool = True, done: int = 0, total: int = 40) -> Any:
    """As nutpie tells it."""
    return SimpleNamespace(
        started=started,
        finished_draws=done,
        total_draws=total,
        divergent_draws=[3] * (done // 10),
        latest_num_steps=7,
        step_size=0.5,
        runtime_ms=1500,
    )


def records_of(chains: int) -> tuple[ChainRecords, ChainRecords]:
    """Those of a process that samples, and of one that reads."""
    fd = os.memfd_create("records")
    try:
        return ChainRecords(fd, chains), ChainRecords(fd, chains)
    finally:
        os.close(fd)


def test_a_process_reads_how_far_the_chains_of_another_are() -> None:
    ours, theirs = records_of(2)
    assert [c.started for c in ours.read()] == [False, False]
    assert same_totals(ours.read()) == []
    theirs.write([chain(done=20), chain(started=False)])
    first, second = ours.read()
    assert (first.started, first.finished_draws, first.total_draws) == (True, 20, 40)
    assert len(first.divergent_draws) == 2
    assert (first.latest_num_steps, first.step_size, first.runtime_ms) == (7, 0.5, 1500)
    assert not first.done
    assert not second.started
    theirs.write([chain(done=40), chain()])
    assert [c.done for c in ours.read()] == [True, False]


@pytest.mark.parametrize("error", [OSError("the terminal is gone"), ValueError("a closed file")])
def test_what_nobody_reads_ends_no_run(error: Exception) -> None:
    """As of a terminal that is closed at night."""
    shown: list[str] = []

    def unread(chains: Any) -> None:
        shown.append("unread")
        raise error

    show = while_read(unread, lambda chains: shown.append("read"))
    for _ in range(2):
        show([])
    assert shown == ["unread", "read", "read"]


def test_a_process_that_has_not_begun_has_the_total_of_the_others() -> None:
    ours, theirs = records_of(1)
    waiting, _ = records_of(1)
    theirs.write([chain(done=20)])
    found = same_totals([*ours.read(), *waiting.read()])
    assert [c.total_draws for c in found] == [40, 40]


@pytest.mark.parametrize("shown", [True, False, "combined"])
def test_one_table_shows_all_chains(shown: Any, capsys: pytest.CaptureFixture[str]) -> None:
    with table(2, {"draws": 30, "progressbar": shown}) as found:
        found.update([chain(done=20), chain(done=13)])
    rows = [line for line in capsys.readouterr().out.splitlines() if "━" in line]
    assert len(rows) == {True: 2, False: 0, "combined": 1}[shown]
    assert not table(2, {"progressbar": True, "quiet": True})._show_progress


def tree(draws: int) -> bytes:
    values = np.arange(float(draws))[None] + 1
    posterior = Dataset({"b": (("chain", "draw"), values)}, {"draw": np.arange(draws)})
    stats = Dataset({"diverging": (("chain", "draw"), values > 0)}, {"draw": np.arange(draws)})
    return pack_graph(DataTree.from_dict({"posterior": posterior, "sample_stats": stats}))


def test_chains_of_several_lengths_are_joined() -> None:
    found = nodes.joined([tree(3), tree(1), tree(0)], None, {"quiet": True})
    np.testing.assert_array_equal(
        found.posterior["b"], [[1, 2, 3], [1, np.nan, np.nan], [np.nan] * 3]
    )
    assert found.sample_stats["diverging"].dtype == bool
    assert found.sample_stats["diverging"].sum() == 4


def model_of() -> pm.Model:
    with pm.Model() as model:
        pm.Poisson("y", pm.math.exp(pm.Normal("b", shape=2)[0]), observed=np.arange(80) % 3)
    return model


@pytest.mark.timeout(300)
def test_an_interrupt_before_the_first_draw_ends_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling._cores, "available", lambda: [0, 0, 0, 0])
    real, seen = _chain_processes.ChainsProcess.wait, []

    def wait(process: Any, seconds: float) -> bool:
        seen.append(process)
        if len(seen) == 1:
            raise KeyboardInterrupt
        return real(process, seconds)

    monkeypatch.setattr(_chain_processes.ChainsProcess, "wait", wait)
    given = {"members_per_chain": 2, "nuts_sampler": "nutpie", "quiet": True}
    with pytest.raises(KeyboardInterrupt):
        synk.pymc.sample(model_of(), chains=2, cores=4, **given)
    assert len(set(seen)) == 2
    for process in seen:
        with pytest.raises(ProcessLookupError):
            os.kill(process._child.pid, 0)


def test_an_interrupt_of_a_start_leaves_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """It comes at the end of the time in which it is held back; the process is reaped, too."""
    made: list[Any] = []
    real = nodes.ChildProcess

    def child(*args: Any) -> Any:
        made.append(real(*args))
        signal.raise_signal(signal.SIGINT)
        return made[0]

    monkeypatch.setattr(nodes, "ChildProcess", child)
    with pytest.raises(KeyboardInterrupt):
        ChainsProcess(pack_graph(Sleeps()), 0, [0])
    assert made[0].ended


class Sleeps:
    """Unpickles for longer than a test takes."""

    def __reduce__(self) -> Any:
        return time.sleep, (1000,)


@pytest.fixture
def processes() -> Iterator[list[ChainsProcess]]:
    """Two processes of chains, which are killed before they sample."""
    packed = pack_graph(Sleeps())
    with ChainsProcess(packed, 0, [0]) as first, ChainsProcess(packed, 0, [0]) as second:
        for each in (first, second):
            each._child.kill()
            assert each.wait(30)
        yield [first, second]


def test_half_an_answer_is_a_death(
    processes: list[ChainsProcess], caplog: pytest.LogCaptureFixture
) -> None:
    """The draws are in memory twice while they are written, so the OOM killer may come then."""
    half, whole = processes
    os.pwrite(half._answer, pack_graph(list(range(1000)))[:500], len(DRAWS))  # the kind is last
    write_answer(os.dup(whole._answer), DRAWS, pack_graph("draws"))
    with pytest.raises(SynkhronosError, match=r"writes the draws .*killed by SIGKILL"):
        half.answer()
    assert unpack_graph(whole.answer()) == "draws"
    caplog.set_level("INFO", "synkhronos")
    assert list(map(unpack_graph, _chain_processes._so_far(processes))) == ["draws"]
    assert "the draws so far of 1 of 2 processes are kept" in caplog.text


INTERRUPTED = """
    import os, signal
    import numpy as np, pymc as pm, synkhronos as synk
    from synkhronos._host import cores
    from synkhronos.pymc._chains import processes as _chain_processes
    cores.available = lambda: [*os.sched_getaffinity(0)][:1] * 4
    real, sent = _chain_processes.same_totals, []

    def seen(chains):
        if not sent and all(c.finished_draws > 150 for c in chains):
            sent.append(1)
            os.{kill}({to}, signal.SIGINT)
        return real(chains)

    _chain_processes.same_totals = seen
    with pm.Model() as model:
        pm.Poisson("y", pm.math.exp(pm.Normal("b", shape=2)[0]), observed=np.arange(80) % 3)
    given = dict(draws=10**6, tune=100, chains=2, cores=4, members_per_chain=2, random_seed=1)
    found = synk.pymc.sample(model, nuts_sampler="nutpie", progressbar=False, **given)
    draws = found.posterior["b"].notnull().all("b_dim_0").sum("draw").values
    print("draws", sorted(draws > 0), draws.max() == found.posterior.sizes["draw"] < 10**6)
"""


@pytest.mark.thorough  # two processes compile with nutpie
@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("kill", "to"), [("kill", "os.getpid()"), ("killpg", "0")], ids=["master", "process group"]
)
def test_an_interrupt_keeps_the_draws_so_far(tmp_path: Path, kill: str, to: str) -> None:
    """Ctrl-C of a terminal goes to the process group."""
    pytest.importorskip("nutpie", reason="nutpie is not installed (the extra: synkhronos[pymc])")
    out = run_script(tmp_path, INTERRUPTED.format(kill=kill, to=to))
    assert out.splitlines()[-1] == "draws [np.True_, np.True_] True"
