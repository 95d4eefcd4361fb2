"""Groups: starting, closing, again, two at once, life after (S71, S76 to S78, S81 to S84)."""

from __future__ import annotations

import contextlib
import cProfile
import functools
import gc
import io
import logging
import os
import resource
import shutil
import signal
import sys
import threading
import time
import weakref
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pytensor.graph.op import Op
from selection import thorough
from threadpoolctl import threadpool_info
from user_scripts import run_script
from worker_commands import AskPlace

import synkhronos as synk
from synkhronos._engine.commands.base import Command
from synkhronos._engine.group_options import GRACE_SECONDS
from synkhronos._host import cores as _cores
from synkhronos._host import thread_pools
from synkhronos._host.arena import Arena
from synkhronos._host.cores import MasterCores, share_out
from synkhronos._transport.channels.one_node import OneNodeChannel
from synkhronos._transport.processes import fork_safety
from synkhronos._transport.processes.interpreter import _bound_to
from synkhronos._transport.shared_state.control_words import ControlWords
from synkhronos._transport.shared_state.worker_output import OutputReader, OutputWriter, RelayStream
from synkhronos.extensions import make_train_function, updates
from synkhronos.testing import leaks
from synkhronos.testing.faults import Fault

STARTS = ("fork", "exec")


def _mean(**kwargs: object) -> synk.Function:
    x = pt.vector("x", dtype="float64")
    return synk.function([x], x.mean(), mode="FAST_COMPILE", **kwargs)


@pytest.mark.parametrize("start", ["fork", *thorough("exec")])
def test_fork_close_fork(start: str) -> None:
    """S76, S77: again after close, with functions at any time."""
    for size in (2, 3, 1) if start == "fork" else (2, 1):  # an interpreter takes a second to start
        assert synk.fork(size, start=start if size > 1 else None) == size
        f = _mean()
        assert f(np.arange(7.0)) == 3
        g = _mean()
        synk.distribute()
        assert g(np.arange(5.0)) == 2
        synk.close()
        synk.close()


def test_master_rank(size: int) -> None:
    """S69, S81: the master may have any rank; results do not depend on it."""
    found = []
    values = np.random.default_rng(0).normal(size=1001).astype("float32")
    for rank in range(size):
        with synk.Group(size, master_rank=rank) as group:
            assert group.rank == rank
            x = pt.vector("x", dtype="float32")
            f = synk.function([x], [x.sum(), (x, "gather")], mode="FAST_COMPILE")
            total, rows = f(values)
            found.append(total.tobytes())
            np.testing.assert_array_equal(rows, values)
            np.testing.assert_array_equal(f(values[:1])[1], values[:1])
    assert len(set(found)) == 1


@pytest.mark.parametrize("bad", [0, -1, 1.5, True, "2"])
def test_sizes_that_cannot_be(bad: object) -> None:
    """S81: a clear error, and nothing started."""
    with pytest.raises((synk.InputError, TypeError, ValueError)):
        synk.fork(bad)  # type: ignore[arg-type]


def test_bad_arguments() -> None:
    with pytest.raises(synk.InputError, match="master_rank"):
        synk.fork(2, master_rank=2)
    with pytest.raises(synk.InputError, match="start"):
        synk.fork(2, start="spawn")
    with pytest.raises(synk.InputError, match="devices"):
        synk.fork(2, devices=[[0]])
    with pytest.raises(synk.InputTypeError, match=r"^cores=2: give the numbers of the cores"):
        synk.fork(2, cores=2)
    with pytest.raises(synk.InputTypeError, match=r"^synk\.fork: no option 'core'; .* cores, "):
        synk.fork(2, core=[0])


def test_fork_beside_a_group_is_refused(group2: synk.Group) -> None:
    """`fork` does not take over a group that ends with its ``with``."""
    with pytest.raises(synk.GroupError, match=r"made by synk\.Group, is alive already"):
        synk.fork(2)
    assert _mean()(np.arange(3.0)) == 1


def test_fork_again(caplog: pytest.LogCaptureFixture) -> None:
    """A cell of a notebook may run twice; other options are refused by name."""
    assert synk.fork(2, cores=[0], timeout=60) == 2
    group, f = synk.current_group(), _mean()
    assert synk.fork(members=2, timeout=60, cores=(0,), master_rank=0, use_gpu=False) == 2
    assert synk.current_group() is group
    assert f(np.arange(3.0)) == 1
    assert "alive already and is kept" in caplog.text
    for options in ({"members": 3}, {"members": 2}, {"infer": False, "timeout": 60}):
        named = ", ".join(f"{k}={v}" for k, v in options.items())
        with pytest.raises(synk.GroupError) as raised:
            synk.fork(**options)  # type: ignore[arg-type]
        assert str(raised.value).startswith(f"synk.fork({named}): <synkhronos.Group of 2")
        assert "made by synk.fork(members=2, cores=(0,), timeout=60)" in str(raised.value)
    synk.close()
    assert synk.fork(3) == 3


def test_the_number_of_members_by_its_old_name() -> None:
    """n_parallel means members, also when `fork` is repeated; both at once are refused."""
    assert synk.fork(n_parallel=2) == synk.fork(members=2) == synk.fork(2) == 2
    synk.close()
    with synk.Group(n_parallel=1) as group:
        assert group.size == 1
    for make in (synk.fork, synk.Group):
        with pytest.raises(synk.InputError, match="members=2 and n_parallel=2: give members"):
            make(2, n_parallel=2)
    with pytest.raises(synk.InputError, match="members=0"):
        synk.fork(n_parallel=0)


def test_fork_after_a_death() -> None:
    """A group that has ended is not kept."""
    assert synk.fork(2) == 2
    group = synk.current_group()
    assert group is not None
    with pytest.raises(synk.WorkerDied):
        group.run(Fault("SIGKILL", ranks=(1,)))
    assert synk.current_group() is None
    assert synk.fork(2) == 2


def test_fork_logs_a_line(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "synkhronos"):
        synk.fork(2, devices=[[0], [0]], start="fork")
        synk.close()
        synk.fork(1)
    mode = f"mode {pytensor.config.mode}, floatX {pytensor.config.floatX}"
    two, one = [r.getMessage() for r in caplog.records if "group of" in r.getMessage()]
    assert two == (
        f"group of 2 on cpu; master rank 0; cores 0 | 0; 1 thread each; {mode}; 1 node; "
        "workers started by fork"
    )
    assert one.endswith("1 node; no workers")


def test_size_rank_and_parts() -> None:
    assert synk.current_group() is None
    for ask in (synk.size, synk.rank, lambda: synk.part_lengths(3)):
        with pytest.raises(synk.NotForked, match=r"synk\.\w+ needs a group"):
            ask()
    with synk.Group(3, master_rank=2) as group:
        assert synk.current_group() is group
        assert (synk.size(), synk.rank()) == (3, 2)
        shared = pytensor.shared(np.zeros(1))
        for n in (0, 1, 7, np.int64(9)):
            synk.scatter(shared, np.ones(n))
            assert synk.part_lengths(n) == synk.get_lengths(shared)
        with pytest.raises(synk.InputError, match="at least 0"):
            synk.part_lengths(-1)
        for bad in (1.5, True, np.ones(3)):
            with pytest.raises(
                synk.InputTypeError, match="give an integer of at least 0, such as len"
            ):
                synk.part_lengths(bad)  # type: ignore[arg-type]


@pytest.mark.parametrize("start", ["fork", "exec"])
def test_rank_in_a_worker(start: str) -> None:
    with synk.Group(1), synk.Group(2, start=start) as group:
        assert group.run(AskPlace()) == [(0, 2, [3, 2]), (1, 2, [3, 2])]


def test_old_arguments() -> None:
    """fork() accepts what it took in 2017."""
    assert synk.fork(2, use_gpu=False, max_n_var=100, max_dim=8, profile_workers=False) == 2
    assert synk.get_n_gpu() >= 0


def test_not_forked() -> None:
    for call in (_mean, synk.distribute, lambda: synk.data([1.0])):
        with pytest.raises(synk.NotForked, match=r"synk\.fork"):
            call()


def test_two_groups_at_once() -> None:
    """S76: functions and Data stay with their group."""
    with synk.Group(2) as a:
        f, d = _mean(), synk.data(np.arange(4.0))
        with synk.Group(3) as b:
            g = _mean()
            assert f(d) == 1.5
            assert g(np.arange(5.0)) == 2
            with pytest.raises(synk.InputError, match="another group"):
                g(d)
            with a.active():
                assert synk.data([1.0]).group is a
            assert synk.data([1.0]).group is b
        assert f(d) == 1.5
        with pytest.raises(synk.GroupClosed):
            g(np.arange(5.0))


@pytest.mark.parametrize("start", ["fork", *thorough("exec")])
def test_life_after_the_end(start: str) -> None:
    """Train, close, get_value, fork again, go on: nothing the user holds is broken."""
    shared = pytensor.shared(np.arange(4.0), name="shared")
    with synk.Group(2, start=start):
        d = synk.data(np.arange(6.0))
        view = d.data[2:]
        synk.all_reduce(shared, "sum")
        x = pt.vector("x", dtype="float64")
        gathered = synk.function([x], (x, "gather"), mode="FAST_COMPILE")(d)
        f = _mean()
        f(d)
    np.testing.assert_array_equal(shared.get_value(), np.arange(4.0) * 2)
    np.testing.assert_array_equal(view, np.arange(2.0, 6.0))
    np.testing.assert_array_equal(d.data, gathered)
    for use in (lambda: f(d), lambda: d.set_value(np.arange(9.0))):
        with pytest.raises(synk.GroupClosed, match=r"synk\.fork"):
            use()
    with synk.Group(2, start=start):
        synk.all_reduce(shared, "avg")
        np.testing.assert_array_equal(shared.get_value(), np.arange(4.0) * 2)


def test_from_a_thread() -> None:
    """A group started from a thread starts by exec and works after the thread has ended."""
    made: list[synk.Group] = []
    thread = threading.Thread(target=lambda: made.append(synk.Group(2)))
    thread.start()
    thread.join()
    with made[0] as group:
        assert group.channel.started == "exec"
        assert _mean()(np.arange(3.0)) == 1


def test_python_threads_choose_exec(caplog: pytest.LogCaptureFixture) -> None:
    """S82: where a fork is unsafe, workers start in a fresh interpreter."""
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait)
    thread.start()
    try:
        with caplog.at_level(logging.INFO, "synkhronos"), synk.Group(2) as group:
            assert group.channel.started == "exec"
            assert "Python threads" in caplog.text
            assert _mean()(np.arange(3.0)) == 1
    finally:
        stop.set()
        thread.join()


def test_quiet_process_forks(group2: synk.Group) -> None:
    assert not fork_safety.reasons_against_fork()
    assert group2.channel.started == "fork"


@pytest.mark.thorough  # of any threads: test_python_threads_choose_exec
@pytest.mark.parametrize("last", ["FAST_COMPILE", *thorough("JAX")])  # that worker imports JAX
def test_jax_ran_then_fork_close_fork(tmp_path: Path, last: str) -> None:
    """After JAX has run, a fork would deadlock: workers start by exec, twice."""
    pytest.importorskip("jax")
    text = """
        import sys
        import numpy as np, pytensor, pytensor.tensor as pt, jax, synkhronos as synk
        jax.numpy.arange(3).sum().block_until_ready()
        x = pt.vector("x", dtype="float64")
        for mode in ("FAST_COMPILE", sys.argv[1]):
            synk.fork(2)
            assert synk.current_group().channel.started == "exec"
            f = synk.function([x], x.mean(), mode=mode)
            assert f(np.arange(5.0)) == 2 and f(np.arange(4.0)) == 1.5
            synk.close()
        print("done")
    """
    assert run_script(tmp_path, text, last).strip().endswith("done")


@pytest.mark.thorough  # of any threads: test_python_threads_choose_exec
def test_numba_parallel_ran_before(tmp_path: Path) -> None:
    """OpenMP kills a forked child that uses it again: workers start by exec."""
    text = """
        import numba, numpy as np, pytensor.tensor as pt, synkhronos as synk
        @numba.njit(parallel=True)
        def total(a):
            s = 0.0
            for i in numba.prange(a.size):
                s += a[i]
            return s
        total(np.ones(1000))
        synk.fork(2)
        x = pt.vector("x", dtype="float64")
        f = synk.function([x], x.mean(), mode="FAST_COMPILE")
        assert f(np.arange(5.0)) == 2
        print(synk._engine.group.current().channel.started)
    """
    assert run_script(tmp_path, text).strip().endswith("exec")


def test_torch_loaded_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's thread pools do not survive a fork; there is no torch here, so its name stands in."""
    monkeypatch.setitem(__import__("sys").modules, "torch", object())
    assert any("torch" in reason for reason in fork_safety.reasons_against_fork())


@pytest.mark.parametrize("start", [*thorough("fork"), "exec"])
def test_script_without_main_guard(tmp_path: Path, start: str) -> None:
    """S82: no guard needed; Ops and functions defined in the script reach exec'd workers too."""
    text = f"""
        import numpy as np, pytensor, pytensor.tensor as pt, synkhronos as synk
        from pytensor.graph.op import Op
        from pytensor.graph.basic import Apply
        from pytensor.compile.ops import wrap_py
        print("top level")
        class Double(Op):
            __props__ = ()
            def make_node(self, x):
                return Apply(self, [x], [x.type()])
            def perform(self, node, inputs, outputs):
                outputs[0][0] = twice(inputs[0])
        def twice(a):
            return a * 2
        @wrap_py(itypes=[pt.dvector], otypes=[pt.dvector])
        def add_one(a):
            return a + 1
        synk.fork(2, start="{start}")
        x = pt.dvector("x")
        f = synk.function([x], (add_one(Double()(x)), "gather"), mode="FAST_COMPILE")
        print(f(np.arange(3.0)).tolist())
    """
    lines = run_script(tmp_path, text).split("\n")
    assert lines[:2] == ["top level", "[1.0, 3.0, 5.0]"]


def test_what_cannot_be_shipped_is_named(group2: synk.Group) -> None:
    from pytensor.compile.ops import FromFunctionOp

    class Stubborn(FromFunctionOp):
        def __reduce__(self) -> object:
            raise TypeError("not me")

    x = pt.dvector("x")
    op = Stubborn(lambda a: a, [pt.dvector], [pt.dvector], None)
    f = synk.function([x], (op(x), "gather"), mode="FAST_COMPILE", name="f")
    with pytest.raises(synk.InputError, match=r"f cannot be shipped.*<lambda>.*not me"):
        f(np.arange(3.0))


def test_repl_and_notebook_cells(tmp_path: Path) -> None:
    """Cell after cell in one namespace, as IPython runs them: groups, functions, redefinitions."""
    text = """
        import sys, types
        main = types.ModuleType("__main__"); sys.modules["__main__"] = main
        cells = ['''
        import numpy as np, pytensor.tensor as pt, synkhronos as synk
        synk.fork(2, start="exec")''', '''
        from pytensor.compile.ops import wrap_py
        @wrap_py(itypes=[pt.dvector], otypes=[pt.dvector])
        def op(a): return a + 1''', '''
        x = pt.dvector("x")
        f = synk.function([x], (op(x), "sum"), mode="FAST_COMPILE")
        g = synk.function([x], (op(x).sum(), "sum"), mode="FAST_COMPILE")''', '''
        first = g(np.arange(3.0))''', '''
        @wrap_py(itypes=[pt.dvector], otypes=[pt.dvector])
        def op(a): return a * 10
        h = synk.function([x], (op(x).sum(), "sum"), mode="FAST_COMPILE")
        out = h(np.arange(3.0)); synk.close()''']
        import textwrap
        for cell in cells:
            exec(compile(textwrap.dedent(cell), "<cell>", "exec"), main.__dict__)
        print(main.out)
    """
    assert run_script(tmp_path, text).strip().endswith("30.0")


def test_prints_and_logs_reach_the_master(tmp_path: Path) -> None:
    """S96: prefixed by rank, through the master's own streams and handlers."""
    text = """
        import logging, sys, io
        from dataclasses import dataclass
        import synkhronos as synk
        from synkhronos._engine.commands.base import Command
        @dataclass(frozen=True)
        class Speak(Command):
            def run(self, member):
                if member.rank:
                    print("hello", "world", end="")
                    print("to err", file=sys.stderr)
                    logging.getLogger("their.lib").warning("careful %d", 7)
        logging.basicConfig(format="%(name)s|%(levelname)s|%(message)s", stream=sys.stdout)
        for start in ("fork", "exec"):
            sys.stdout = out = io.StringIO()
            with synk.Group(2, start=start) as group:
                group.run(Speak())
            sys.stdout = sys.__stdout__
            print(repr(out.getvalue()))
            print("END", file=sys.stderr, flush=True)
    """
    *said, rest = run_script(tmp_path, text).split("END\n")
    assert (len(said), rest) == (len(STARTS), "")
    for printed in said:
        assert r"'[rank 1] hello world\n'" in printed
        assert "[rank 1] to err" in printed
        assert "their.lib|WARNING|[rank 1] careful 7" in printed


def test_a_flood_of_prints_is_bounded(group2: synk.Group) -> None:
    """A worker that prints more than the ring holds neither hangs nor loses count."""
    from dataclasses import dataclass

    from synkhronos._engine.commands.base import Command

    @dataclass(frozen=True)
    class Flood(Command):
        def run(self, member: object) -> None:
            if getattr(member, "rank", 0):
                for _ in range(5000):
                    print("x" * 200)

    group2.run(Flood())


@pytest.mark.parametrize(
    ("cores", "size", "wanted"),
    [
        ([0, 1, 2, 3], 2, [[0, 1], [2, 3]]),
        ([0, 1, 2], 2, [[0, 1], [2]]),
        ([4], 3, [[4], [4], [4]]),
        ([0, 1], 2, [[0], [1]]),
    ],
)
def test_core_shares(cores: list[int], size: int, wanted: list[list[int]]) -> None:
    """S84: cores are shared out."""
    assert share_out(cores, size) == wanted


@given(st.lists(st.integers(1, 6), min_size=1, max_size=4), st.integers(1, 24))
def test_shares_inside_of_numa_domains(sizes: list[int], size: int) -> None:
    """Each core goes to one member, and none gets cores of two domains where that is possible."""
    domains = [number for number, count in enumerate(sizes) for _ in range(count)]
    cores = list(range(len(domains)))
    size = min(size, len(cores))
    shares = share_out(cores, size, domains.__getitem__)
    assert [core for share in shares for core in share] == cores
    assert len(shares) == size
    assert all(shares)
    if size >= len(sizes):
        assert all(len({domains[core] for core in share}) == 1 for share in shares)


def test_the_numa_domain_of_a_core() -> None:
    assert {_cores.domain(core) for core in _cores.available()} <= {*range(64)}
    assert _cores.domain(10**6) == 0  # there is no such core, nor its folder


def test_members_keep_to_their_cores(group2: synk.Group) -> None:
    """S84: workers are bound, and their BLAS has as many threads as they have cores.

    It starts none before it has work: each library would start one per core in each worker.
    """
    from dataclasses import dataclass

    from synkhronos._engine.commands.base import Command

    @dataclass(frozen=True)
    class Where(Command):
        def run(self, member: object) -> tuple[list[int], list[int], int]:
            running = len(os.listdir("/proc/self/task"))
            np.ones((2, 2)).dot(np.ones((2, 2)))
            threads = [p["num_threads"] for p in threadpool_info() if p["user_api"] == "blas"]
            return sorted(os.sched_getaffinity(0)), threads, running

        def answer(self, member: object, own: object, reports: dict[int, object]) -> object:
            return reports[1]

    before = os.sched_getaffinity(0)
    cores, threads, running = group2.run(Where())
    assert cores == group2.cores[1]
    assert set(threads) <= {len(cores)}
    assert running == 1
    assert os.sched_getaffinity(0) == before


class BlasThreads(Op):
    """The largest number of BLAS threads where it is computed."""

    __props__ = ()
    itypes = (pt.dscalar,)
    otypes = (pt.dscalar,)

    def perform(self, node: Any, inputs: Any, output_storage: Any) -> None:
        output_storage[0][0] = np.asarray(float(max(_blas_threads())))

    def pullback(self, inputs: Any, outputs: Any, cotangents: Any) -> Any:
        return [cotangents[0] * 0]


@pytest.mark.parametrize("trains", [False, True], ids=["function", "training function"])
def test_the_masters_part_has_its_threads_whichever_thread_calls(trains: bool) -> None:
    """Since threadpoolctl 3.8 only the thread that first set a number could set it again.

    A sampler's thread computed with the threads of all cores: 14 ms instead of 1.
    """
    x, w = pt.dvector("x"), pytensor.shared(0.0, name="w")
    used = (BlasThreads()(w) + 0 * x).mean()
    before = _blas_threads()
    found: list[Any] = []
    with synk.Group(2, start="fork", cores=[0]):
        if trains:
            rule = functools.partial(updates.sgd, learning_rate=1e-300)
            call = make_train_function(used, [w], x, None, rule, mode="FAST_COMPILE")
        else:
            call = synk.function([x], used, mode="FAST_COMPILE")
        for _ in range(2):
            for library in thread_pools.thread_pools():  # as the user may do: this thread sets it
                library.set_num_threads(library.get_num_threads())
            thread = threading.Thread(target=lambda: found.append(float(call(np.ones(4)))))
            thread.start()
            thread.join()
            found.append(float(call(np.ones(4))))
            assert _blas_threads() == before
    assert found == [1.0] * 4


def _blas_threads() -> set[int]:
    return {p["num_threads"] for p in threadpool_info() if p["user_api"] == "blas"}


def test_a_forked_child_of_the_master_cannot_harm(tmp_path: Path) -> None:
    """Its close() and exit leave the group alone; its calls raise; it can fork its own."""
    text = """
        import os, numpy as np, pytensor.tensor as pt, synkhronos as synk
        synk.fork(2, start="fork")
        x = pt.dvector("x")
        f = synk.function([x], x.mean(), mode="FAST_COMPILE")
        d = synk.data(np.arange(100000.0))
        want = f(d)
        pid = os.fork()
        if pid == 0:
            try:
                f(d)
            except synk.GroupClosed as exc:
                assert "fork" in str(exc)
            else:
                os._exit(3)
            synk.close()
            del d
            synk.fork(2, start="fork")
            g = synk.function([x], x.mean(), mode="FAST_COMPILE")
            ok = g(np.arange(3.0)) == 1
            synk.close()
            raise SystemExit(0 if ok else 4)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert f(d) == want
        print("done")
    """
    assert run_script(tmp_path, text).strip().endswith("done")


def test_nothing_in_the_package_folder(tmp_path: Path) -> None:
    """S78: no file is written beside the package, and no socket or named segment is made."""
    folder = Path(synk.__file__).parent
    before = {p for p in folder.rglob("*") if "__pycache__" not in p.parts}
    with synk.Group(2):
        shared = pytensor.shared(np.ones(200_000, "float32"))
        synk.all_reduce(shared, "sum")
        _mean()(np.arange(3.0))
    after = {p for p in folder.rglob("*") if "__pycache__" not in p.parts}
    assert before == after


def test_import_has_no_side_effects(tmp_path: Path) -> None:
    """S94: no recursion limit, no process, no thread, no handler, every module reachable."""
    text = """
        import sys, threading, logging, os
        import pytensor.tensor
        limit = sys.getrecursionlimit()
        import synkhronos, synkhronos._transport.communicators.solo
        assert sys.getrecursionlimit() == limit
        assert threading.active_count() == 1
        assert not logging.getLogger("synkhronos").handlers
        assert "jax" not in sys.modules and "rich" not in sys.modules
        print(synkhronos._transport.communicators.solo.Solo.size)
    """
    assert run_script(tmp_path, text).strip() == "1"


def test_profile_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """S95: a cProfile of each worker on request; writing it may take long on a busy machine."""
    dump = cProfile.Profile.dump_stats

    def slow(profile: cProfile.Profile, file: str) -> None:
        time.sleep(2 * GRACE_SECONDS)
        dump(profile, file)

    monkeypatch.setattr(cProfile.Profile, "dump_stats", slow)
    monkeypatch.chdir(tmp_path)
    with synk.Group(2, start="fork", profile_workers=True):
        _mean()(np.arange(3.0))
    assert (tmp_path / "synk_worker_1.prof").stat().st_size > 0


def test_start_is_quick() -> None:
    """A fork is a matter of milliseconds; the limit here only catches a wait for a timeout."""
    with synk.Group(3):
        pass


@dataclass(frozen=True)
class Nap(Command):
    """Let the workers sleep, and tell somebody that they do."""

    seconds: float
    path: str

    def run(self, member: Any) -> None:
        if member.rank:
            Path(self.path).touch()
            time.sleep(self.seconds)


@pytest.mark.parametrize("how", ["thread", "signal"])
def test_close_during_a_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    """The call raises GroupClosed, and no descriptor is closed below its feet."""
    group, path = synk.Group(2), tmp_path / "asleep"
    closed, close = [], OneNodeChannel._close_descriptors

    def watched(channel: OneNodeChannel) -> None:
        closed.append(group.runner.running)
        close(channel)

    def act() -> None:
        while not path.exists():
            time.sleep(0.001)
        if how == "thread":
            group.close()
        else:
            os.kill(os.getpid(), signal.SIGALRM)

    monkeypatch.setattr(OneNodeChannel, "_close_descriptors", watched)
    before = signal.signal(signal.SIGALRM, lambda *_: group.close())
    thread = threading.Thread(target=act)
    thread.start()
    try:
        with pytest.raises(synk.GroupClosed, match="my command"):
            group.run(Nap(30, str(path)), "my command")
        thread.join()
    finally:
        signal.signal(signal.SIGALRM, before)
    assert closed == [False]
    group.close()
    assert closed == [False]


def test_close_during_a_long_command(tmp_path: Path) -> None:
    group = synk.Group(2)
    task = group.start(Nap(30, str(tmp_path / "asleep")), "a nap")
    group.close()
    with pytest.raises(synk.GroupClosed, match="a nap"):
        task.wait()


def test_a_group_that_is_dropped_ends() -> None:
    before = leaks.snapshot()
    synk.Group(2)
    leaks.check(before)


@pytest.mark.parametrize("bad", [{"devices": [[99_999], [0]]}, {"cores": [99_999]}, {"cores": []}])
def test_cores_that_are_not_ours(bad: dict[str, Any]) -> None:
    before = leaks.snapshot()
    with pytest.raises(synk.InputError, match="this process may only use cores"):
        synk.Group(2, **bad)
    leaks.check(before, patience=0)


@pytest.mark.parametrize("spare", range(0, 16, 3))
def test_too_few_descriptors(spare: int) -> None:
    """Wherever the start fails, nothing is left behind."""
    synk.Group(2).close()  # opens what stays open
    gc.collect()
    before, descriptors = leaks.snapshot(), os.listdir("/proc/self/fd")[:-1]  # without its own
    free = [n for n in range(1000) if str(n) not in descriptors]
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free[spare], hard))
    try:
        with contextlib.suppress(synk.StartFailed):
            synk.Group(2).close()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    leaks.check(before)
    assert os.listdir("/proc/self/fd")[:-1] == descriptors


def test_a_value_that_cannot_be_shipped(group2: synk.Group) -> None:
    """It is named, and what was asked for beside it is not half known."""
    good = pytensor.shared(np.ones(3), name="good")
    bad = pytensor.shared(threading.Lock(), name="bad")
    for _ in range(2):
        with pytest.raises(synk.InputError, match="bad"):
            synk.broadcast([good, bad])
    np.testing.assert_array_equal(synk.get_value(1, good), np.ones(3))


def test_a_sparse_variable_is_refused_by_name(group2: synk.Group) -> None:
    import pytensor.sparse
    import scipy.sparse

    s = pytensor.shared(scipy.sparse.csr_matrix(np.eye(4)), name="links")
    x = pt.dmatrix("x")
    f = synk.function([x], (pytensor.sparse.structured_dot(s, x).sum(), "avg"))
    with pytest.raises(synk.InputError, match="'links' is sparse"):
        f(np.ones((4, 2)))


def test_dropped_variables_are_freed_everywhere(group: synk.Group) -> None:
    """Neither the master nor a worker keeps what the user and all functions have dropped."""
    x = pt.dvector("x")
    refs = []
    for _ in range(3):
        w = pytensor.shared(np.ones(100), name="w")
        f = synk.function([x], (x.sum() * w[0], "sum"), mode="FAST_COMPILE")
        assert f(np.ones(4)) == 4
        synk.all_reduce(w)
        refs.append(weakref.ref(w))
        del w, f
        gc.collect()
        assert refs[-1]() is None
    last = pytensor.shared(np.ones(2), name="last")
    synk.broadcast(last)
    known = group.run(Known())
    assert known == [[3]] * group.size
    np.testing.assert_array_equal(synk.get_value(group.size - 1, "last"), np.ones(2))


@dataclass(frozen=True)
class Known(Command):
    def run(self, member: Any) -> list[int]:
        return [*member.variables._entries]

    def answer(self, member: Any, own: Any, reports: dict[int, Any]) -> list[Any]:
        return [own, *reports.values()]


@dataclass(frozen=True)
class Speak(Command):
    """Print or log in a worker."""

    how: str
    text: str

    def run(self, member: Any) -> None:
        if member.rank and self.how == "log":
            logging.getLogger("theirs").warning(self.text)
        elif member.rank:
            print(self.text)


@pytest.mark.parametrize("letter", ["a", "é"])
def test_a_long_log_line_is_cut(
    group2: synk.Group, caplog: pytest.LogCaptureFixture, letter: str
) -> None:
    for n in (10, 200_000):
        group2.run(Speak("log", letter * n))
    short, long = [r.getMessage() for r in caplog.records if r.name == "theirs"]
    assert short == f"[rank 1] {letter * 10}"
    assert long.startswith(f"[rank 1] {letter * 10_000}")
    assert long.endswith("... (cut)")


class Gone(io.StringIO):
    def write(self, text: str) -> int:
        raise BrokenPipeError


def test_a_stdout_that_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    with synk.Group(2) as group:
        monkeypatch.setattr(sys, "stdout", Gone())
        group.run(Speak("print", "hello"))
        group.start(Speak("print", "hello")).wait()
    assert not group.alive
    ascii_only = io.TextIOWrapper(io.BytesIO(), "ascii", write_through=True)
    monkeypatch.setattr(sys, "stdout", ascii_only)
    with synk.Group(2) as group:
        group.run(Speak("print", "é"))
    assert ascii_only.buffer.getvalue() == b"[rank 1] \\xe9\n"  # type: ignore[attr-defined]


class SlowRing:
    """Shared memory that other threads find half written."""

    def __init__(self, memory: memoryview) -> None:
        self._memory = memory

    def __setitem__(self, at: slice, data: bytes) -> None:
        time.sleep(0.001)
        self._memory[at] = data


def test_threads_of_a_worker_take_turns(capsys: pytest.CaptureFixture[str]) -> None:
    arena = Arena(2)
    arena.reserve_heads()
    words = ControlWords(arena)
    pen, reader = OutputWriter(words, 1, 0), OutputReader(words, [1], 0)
    pen._ring = SlowRing(pen._ring)  # type: ignore[assignment]
    stream = RelayStream(pen, 0)
    threads = [
        threading.Thread(target=lambda c=c: [stream.write(f"{c * 9}\n") for _ in range(9)])
        for c in "abcd"
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    reader.drain()
    lines = capsys.readouterr().out.splitlines()
    assert sorted(lines) == sorted(f"[rank 1] {c * 9}" for c in "abcd" for _ in range(9))
    arena.close_fd()


@pytest.mark.each_choice
@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("debug", [True, False])
def test_only_debug_leaves_workers_the_terminal(start: str, debug: bool) -> None:
    @dataclass(frozen=True)
    class Stdin(Command):  # here, since a fresh interpreter cannot import this module
        def run(self, member: Any) -> tuple[str]:
            return (os.readlink("/proc/self/fd/0"),)

        def answer(self, member: Any, own: Any, reports: dict[int, Any]) -> bool:
            return bool(own == reports[1])

    saved, (read, write) = os.dup(0), os.pipe()
    os.dup2(read, 0)
    try:
        with synk.Group(2, start=start, debug=debug) as group:
            assert group.run(Stdin()) is debug
    finally:
        os.dup2(saved, 0)
        for fd in (saved, read, write):
            os.close(fd)


def test_an_interrupt_leaves_the_users_cores_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """keep_place and confined bind the thread for a moment, whatever happens in it."""
    mine = {3}
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(mine))

    def bind(pid: int, cores: Any) -> None:
        mine.clear()
        mine.update(cores)
        if mine == {99}:
            raise KeyboardInterrupt

    monkeypatch.setattr(os, "sched_setaffinity", bind)
    share = MasterCores([99])
    with pytest.raises(KeyboardInterrupt):
        share.keep_place()
    assert mine == {3}
    with pytest.raises(KeyboardInterrupt), share.confined():
        pass
    assert mine == {3}


class Pool:
    """A BLAS library; an interrupt arrives in the call `at`."""

    def __init__(self, at: int) -> None:
        self.threads, self._left = 8, at

    def get_num_threads(self) -> int:
        return self.threads

    def set_num_threads(self, threads: int) -> None:
        self.threads = threads
        self._left -= 1
        if self._left == 0:
            raise KeyboardInterrupt


@pytest.mark.parametrize("given", [True, False])
def test_a_group_of_one_limits_threads_only_with_cores(given: bool) -> None:
    """Else it has those of plain PyTensor."""
    cores = [min(os.sched_getaffinity(0))] if given else None
    with synk.Group(1, cores=cores) as group:
        share = group.member.on_node.master_cores
    assert (share is not None) == given
    assert share is None or share.cores == cores


def test_a_sandbox_that_refuses_to_bind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Members run wherever the scheduler puts them."""

    def refuses(task: int, cores: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "sched_setaffinity", refuses)
    with synk.Group(3, start="fork", cores=[0]):
        assert _mean()(np.arange(5.0)) == 2
    elsewhere = MasterCores([-1])
    elsewhere.keep_place()
    with elsewhere.confined():
        pass
    elsewhere.release()
    with _bound_to([0]):
        pass


def test_an_interrupt_leaves_the_users_threads_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    pools = [Pool(0), Pool(1)]
    monkeypatch.setattr(thread_pools, "thread_pools", lambda: pools)
    share = MasterCores([0])
    limits = share.thread_limits
    with pytest.raises(KeyboardInterrupt), limits:
        pass
    assert [p.threads for p in pools] == [8, 8]
    limits.__enter__()  # and an interrupt before __exit__ has begun
    with limits:
        assert [p.threads for p in pools] == [1, 1]
    assert [p.threads for p in pools] == [8, 8]
    limits.__enter__()
    share.release()
    assert [p.threads for p in pools] == [8, 8]


def test_foreign_threads_beside_a_small_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    """OpenBLAS has as many threads as it says, not as many as the machine has cores."""
    pool = SimpleNamespace(internal_api="openblas", num_threads=2)
    monkeypatch.setattr(fork_safety, "thread_pools", lambda: [pool])
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    monkeypatch.setattr(os, "listdir", lambda path: ["1", "2", "3"])
    assert fork_safety._foreign_threads() == 1


def test_thread_pools_are_looked_for_after_a_library_was_loaded(tmp_path: Path) -> None:
    """And only then: the look takes milliseconds, and each start of a group needs it thrice."""
    import _ctypes

    before = thread_pools.thread_pools()
    assert before
    assert thread_pools.thread_pools() is before
    library = shutil.copy(_ctypes.__file__, tmp_path / "another.so")
    handle = _ctypes.dlopen(str(library), 0)
    found = thread_pools.thread_pools()
    assert found is not before
    assert thread_pools.thread_pools() is found
    assert {pool.filepath for pool in found} == {pool.filepath for pool in before}
    _ctypes.dlclose(handle)
    assert thread_pools.thread_pools() is not found
