"""Groups: starting, closing, again, two at once, and life after the end (S71 to S84)."""

from __future__ import annotations

import logging
import os
import threading
from pathlib import Path

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from running import run_script

import synkhronos as synk
from synkhronos._channels import safety
from synkhronos._cores import share_out

STARTS = ("fork", "exec")


def _mean(**kwargs: object) -> synk.Function:
    x = pt.vector("x", dtype="float64")
    return synk.function([x], x.mean(), mode="FAST_COMPILE", **kwargs)


@pytest.mark.parametrize("start", STARTS)
def test_fork_close_fork(start: str) -> None:
    """S76, S77: again after close, with functions at any time."""
    for size in (2, 3, 1):
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


def test_fork_twice_is_refused(group2: synk.Group) -> None:
    with pytest.raises(synk.GroupError, match="alive already"):
        synk.fork(2)
    assert _mean()(np.arange(3.0)) == 1


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
                assert synk.data([1.0])._group is a
            assert synk.data([1.0])._group is b
        assert f(d) == 1.5
        with pytest.raises(synk.GroupClosed):
            g(np.arange(5.0))


@pytest.mark.parametrize("start", STARTS)
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
        assert group._channel.started == "exec"
        assert _mean()(np.arange(3.0)) == 1


def test_python_threads_choose_exec(caplog: pytest.LogCaptureFixture) -> None:
    """S82: where a fork is unsafe, workers start in a fresh interpreter."""
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait)
    thread.start()
    try:
        with caplog.at_level(logging.INFO, "synkhronos"), synk.Group(2) as group:
            assert group._channel.started == "exec"
            assert "Python threads" in caplog.text
            assert _mean()(np.arange(3.0)) == 1
    finally:
        stop.set()
        thread.join()


def test_quiet_process_forks(group2: synk.Group) -> None:
    assert not safety.reasons_against_fork()
    assert group2._channel.started == "fork"


def test_jax_ran_then_fork_close_fork(tmp_path: Path) -> None:
    """After JAX has run, a fork would deadlock: workers start by exec, twice."""
    pytest.importorskip("jax")
    text = """
        import numpy as np, pytensor, pytensor.tensor as pt, jax, synkhronos as synk
        jax.numpy.arange(3).sum().block_until_ready()
        x = pt.vector("x", dtype="float64")
        for _ in range(2):
            synk.fork(2)
            f = synk.function([x], x.mean(), mode="JAX")
            assert f(np.arange(5.0)) == 2 and f(np.arange(4.0)) == 1.5
            synk.close()
        print("done")
    """
    assert run_script(tmp_path, text).strip().endswith("done")


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
        print(synk._group.current()._channel.started)
    """
    assert run_script(tmp_path, text).strip().endswith("exec")


def test_torch_loaded_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's thread pools do not survive a fork; there is no torch here, so its name stands in."""
    monkeypatch.setitem(__import__("sys").modules, "torch", object())
    assert any("torch" in reason for reason in safety.reasons_against_fork())


@pytest.mark.parametrize("start", STARTS)
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
        g = synk.function([x], op(x).sum(), mode="FAST_COMPILE")''', '''
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
        from synkhronos._commands import Command
        @dataclass(frozen=True)
        class Speak(Command):
            def run(self, member):
                if member.rank:
                    print("hello", "world", end="")
                    print("to err", file=sys.stderr)
                    logging.getLogger("their.lib").warning("careful %d", 7)
        logging.basicConfig(format="%(name)s|%(levelname)s|%(message)s", stream=sys.stdout)
        sys.stdout = out = io.StringIO()
        with synk.Group(2, start=sys.argv[1]) as group:
            group.run(Speak())
        sys.stdout = sys.__stdout__
        print(repr(out.getvalue()))
    """
    for start in STARTS:
        printed = run_script(tmp_path, text, start)
        assert r"'[rank 1] hello world\n'" in printed
        assert "[rank 1] to err" in printed
        assert "their.lib|WARNING|[rank 1] careful 7" in printed


def test_a_flood_of_prints_is_bounded(group2: synk.Group) -> None:
    """A worker that prints more than the ring holds neither hangs nor loses count."""
    from dataclasses import dataclass

    from synkhronos._commands import Command

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


def test_members_keep_to_their_cores(group2: synk.Group) -> None:
    """S84: workers are bound, and their BLAS has as many threads as they have cores."""
    from dataclasses import dataclass

    from synkhronos._commands import Command

    @dataclass(frozen=True)
    class Where(Command):
        def run(self, member: object) -> tuple[list[int], list[int]]:
            from threadpoolctl import threadpool_info

            np.ones((2, 2)).dot(np.ones((2, 2)))
            threads = [p["num_threads"] for p in threadpool_info() if p["user_api"] == "blas"]
            return sorted(os.sched_getaffinity(0)), threads

        def answer(self, member: object, own: object, reports: dict[int, object]) -> object:
            return reports[1]

    before = os.sched_getaffinity(0)
    cores, threads = group2.run(Where())
    assert cores == group2.cores[1]
    assert set(threads) <= {len(cores)}
    assert os.sched_getaffinity(0) == before


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
        import synkhronos, synkhronos._communicators.solo
        assert sys.getrecursionlimit() == limit
        assert threading.active_count() == 1
        assert not logging.getLogger("synkhronos").handlers
        assert "jax" not in sys.modules and "rich" not in sys.modules
        print(synkhronos._communicators.solo.Solo.size)
    """
    assert run_script(tmp_path, text).strip() == "1"


def test_profile_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """S95: a cProfile of each worker on request."""
    monkeypatch.chdir(tmp_path)
    with synk.Group(2, profile_workers=True):
        _mean()(np.arange(3.0))
    assert (tmp_path / "synk_worker_1.prof").stat().st_size > 0


def test_start_is_quick() -> None:
    """A fork is a matter of milliseconds; the limit here only catches a wait for a timeout."""
    with synk.Group(3):
        pass
