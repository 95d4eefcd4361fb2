"""Members whose arrays stay JAX's: NCCL's part, on a stand-in for nccl4py that moves host memory.

There is no GPU here: see the fixture `start`.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from gpu_commands import Breaks, Calls, CannotPost, Dies, Exchange, Stops, Unequal
from selection import thorough
from user_scripts import run_script

import synkhronos as synk
from synkhronos._backends import jax as jax_backend
from synkhronos._backends.nccl import Link, element, new_id, operator
from synkhronos._engine.group_options import GroupOptions
from synkhronos._proofs.reductions import Accumulator, Reduction
from synkhronos.testing import conformance

HANG = 60.0  # seconds
pytestmark = [
    # not imported here: groups of other tests are forked from this process
    pytest.mark.skipif(find_spec("jax") is None, reason="JAX is not installed"),
    pytest.mark.slow,
]

Start = Callable[..., synk.Group]


@pytest.fixture(scope="module", params=(2, *thorough(3)), ids=lambda n: f"size{n}")
def _gpus(request: pytest.FixtureRequest, _standin: None) -> Iterator[synk.Group]:
    made = synk.Group(request.param, "cpu", start="exec")
    made.run(Exchange())  # links the members, whose threads last as long as the group
    yield made
    made.close()


@pytest.fixture
def gpus(_gpus: synk.Group) -> Iterator[synk.Group]:
    """A group of each size, the same until a member dies: each new worker imports JAX."""
    with _gpus.active():
        yield _gpus


DTYPES = [*conformance.DTYPES, "bfloat16"]
TYPICAL = ("float32", "bool", "bfloat16")


@pytest.mark.together
@pytest.mark.parametrize("dtypes", [TYPICAL, *thorough((DTYPES,))])
def test_conformance(gpus: synk.Group, dtypes: Sequence[str]) -> None:
    """All verbs on arrays of JAX's; on numpy's too. JAX compiles each for each shape."""
    conformance.check_communicator(gpus, dtypes[:1], ((), (3, 2)))
    conformance.check_communicator(gpus, dtypes[1:], ((3, 2), (3, 2)))


@pytest.mark.thorough
@pytest.mark.together
@pytest.mark.parametrize("dtype", DTYPES)
def test_conformance_in_every_shape(gpus: synk.Group, dtype: str) -> None:
    conformance.check_communicator(gpus, [dtype])


@pytest.mark.together
def test_a_death_in_an_exchange(gpus: synk.Group, start: Start) -> None:
    """Promise 22: reported, whatever the survivors' GPUs do; the next group works.

    In 5 s; but a slow machine may take longer, so only a hang fails.
    """
    last = gpus.size - 1
    gpus.run(Exchange())
    began = time.monotonic()
    with pytest.raises(synk.WorkerDied, match=rf"rank {last}.*SIGKILL"):
        gpus.run(Dies(rank=last))
    assert time.monotonic() - began < HANG
    assert not gpus.alive
    another = start(2)
    assert [values for _, _, values in another.run(Exchange())] == [[[9.0] * 3, [12.0] * 4]] * 2


def test_calls_of_nccl(start: Start) -> None:
    """The life of a link; each exchange is a wait for JAX, and one group of operations.

    Each member aborts its communicator when the group ends; no thread is left (conftest).
    """
    group = start(2)
    group.run(Exchange())
    first = group.run(Calls())
    assert [[c[0] for c in calls][:2] for calls in first] == [
        ["get_unique_id", "comm_init_rank_scalable"],
        ["comm_init_rank_scalable", "ready"],
    ]
    for rank, calls in enumerate(first):
        [made] = [c for c in calls if c[0] == "comm_init_rank_scalable"]
        assert made[1:4] == (2, rank, 1)
    found = group.run(Exchange())
    floats, total = 7, 0
    for (places, results, values), calls in zip(found, group.run(Calls()), strict=True):
        assert values == [[9.0] * 3, [12.0] * 4]
        names = [c[0] for c in calls]
        assert names == ["ready", "group_start", "all_reduce", "all_reduce", "group_end"]
        assert set(calls[0][1:]) == {*places, *results}
        for call, given, result, count in zip(calls[2:4], places, results, (3, 4), strict=True):
            assert call == ("all_reduce", given, result, count, floats, total, call[-1])
            assert given != result
    weighted = group.run(Exchange(Reduction.AVG, (3.0, 1.0)))
    assert [values for _, _, values in weighted] == [[[3.75] * 3, [5.0] * 4]] * 2
    for _, *calls in group.run(Calls()):
        assert [c[1] == c[2] for c in calls if c[0] == "all_reduce"] == [True, True]  # in place
    group.close()
    from nccl.bindings import nccl

    assert [c[0] for c in nccl.calls].count("comm_abort") == 1


@pytest.mark.thorough
@pytest.mark.usefixtures("start")
def test_posting_from_several_threads() -> None:
    """In each the GPU is current; what comes after a group waits until NCCL has taken that."""
    from nccl.bindings import nccl

    watched = []

    def watch(done: Callable[[], bool]) -> None:
        watched.append(done())
        nccl.accepting.set()
        while not done():
            time.sleep(0.001)

    link = Link(new_id(), 0, 1, False, 0, watch)
    given, result = np.arange(3.0), np.zeros(3)
    places = given.ctypes.data, result.ctypes.data
    moves = [("all_reduce", (*places, 3, element("float64"), operator("Sum")))]

    def exchange() -> None:
        result[:] = 0
        watched.clear()
        nccl.accepting.clear()  # NCCL takes nothing before somebody waits for it
        event = link.post(moves)
        assert watched == [False]
        assert link._settled()
        link.finish(event)
        np.testing.assert_array_equal(result, given)

    try:
        exchange()
        with ThreadPoolExecutor(1) as another:
            another.submit(exchange).result()
    finally:
        nccl.accepting.set()
        link.close()


@pytest.mark.thorough  # in training: extensions/test_jax_resident_rounds.py
def test_a_death_with_restarts(start: Start) -> None:
    """New workers link themselves anew."""
    group = start(2, max_restarts=1)
    group.run(Exchange())
    with pytest.raises(synk.WorkerDied):
        group.run(Dies())
    assert [values for _, _, values in group.run(Exchange())] == [[[9.0] * 3, [12.0] * 4]] * 2


@pytest.mark.together
@pytest.mark.parametrize("rank", [0, *thorough(1)])
def test_an_error_of_nccl(gpu_pair: synk.Group, rank: int) -> None:
    """It is raised, the others leave, and the next exchange links all anew."""
    kind = RuntimeError if rank == 0 else synk.WorkerError
    with pytest.raises(kind, match="NCCL: InternalError"):
        gpu_pair.run(Breaks(rank=rank))
    gpu_pair.run(Calls())
    assert [values for _, _, values in gpu_pair.run(Exchange())] == [[[9.0] * 3, [12.0] * 4]] * 2
    for calls in gpu_pair.run(Calls()):
        assert "comm_init_rank_scalable" in [c[0] for c in calls]


@pytest.mark.together
@pytest.mark.parametrize("rank", [*thorough(0), 1])
def test_a_failure_before_the_posting(gpu_pair: synk.Group, rank: int) -> None:
    """All have agreed to come, and one does not: the others wait no longer."""
    kind = MemoryError if rank == 0 else synk.WorkerError
    with pytest.raises(kind, match="no memory for the result"):
        gpu_pair.run(CannotPost(rank=rank))
    assert [values for _, _, values in gpu_pair.run(Exchange())] == [[[9.0] * 3, [12.0] * 4]] * 2


@pytest.mark.together
def test_unequal_arrays(gpu_pair: synk.Group) -> None:
    """What does not fit is an error in all members; what lies elsewhere goes through the host."""
    for _ in range(2):
        with pytest.raises(synk.InputError, match=r"equal|differ"):
            gpu_pair.run(Unequal(False))
        assert gpu_pair.run(Unequal(True)) == [[2.0, 2.0]] * 2
        assert [values for _, _, values in gpu_pair.run(Exchange())] == [
            [[9.0] * 3, [12.0] * 4]
        ] * 2


@pytest.mark.thorough
def test_a_member_that_stands_still(start: Start) -> None:
    """The group's limit holds while GPUs exchange, too."""
    group = start(2)
    group.run(Exchange())
    began = time.monotonic()
    with pytest.raises(synk.GroupTimeout, match="rank 1"):
        group.run(Stops(), timeout=1.0)
    assert time.monotonic() - began < HANG


def test_an_abort_that_hangs(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """ncclCommAbort may wait for ever, too: nobody waits for it."""
    group = start(2)
    group.run(Exchange())
    from nccl.bindings import nccl

    end, abort = threading.Event(), nccl.comm_abort

    def hangs(comm: Any) -> None:
        end.wait()
        abort(comm)

    monkeypatch.setattr(nccl, "comm_abort", hangs)
    began = time.monotonic()
    with pytest.raises(synk.WorkerDied):
        group.run(Dies())
    assert time.monotonic() - began < HANG
    end.set()


def refusals(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if "NCCL" in r.getMessage()]


@pytest.mark.thorough  # where it fails: the test below
def test_where_nccl_is_missing(
    start: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The same results through the host's memory, and one warning that says why."""
    monkeypatch.setitem(sys.modules, "nccl.bindings", None)
    group = start(2)
    conformance.check_communicator(group, ["float32", "complex64", "int16"], ((), (3, 2)))
    [said] = refusals(caplog)
    assert "rank 0: nccl4py cannot be imported" in said
    assert 'pip install "synkhronos[cuda12]"' in said


@pytest.mark.parametrize(("size", "rank"), [(2, 1), *thorough((3, 0), (3, 1))])
def test_where_a_member_cannot_be_served(
    start: Start,
    size: int,
    rank: int,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The others do not wait for it."""
    monkeypatch.setenv("STANDIN_NCCL_FAILS", str(rank))
    group = start(size)
    conformance.check_communicator(group, ["float32"], ((), (3, 2)))
    [said] = refusals(caplog)
    assert f"rank {rank}: the connection to the other members failed: NCCLError" in said


@pytest.mark.thorough
def test_an_old_nccl(
    start: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Several members on one GPU are more than it takes."""
    monkeypatch.setenv("STANDIN_NCCL_VERSION", "22907")
    group = start(2)
    conformance.check_communicator(group, ["float32"], ((), (3, 2)))
    [said] = refusals(caplog)
    assert "NCCL 22907 takes one member on a GPU" in said
    group.close()
    monkeypatch.setattr(GroupOptions, "members_per_gpu", 1)
    caplog.clear()
    conformance.check_communicator(start(2), ["float32"], ((), (3, 2)))
    assert not refusals(caplog)


@pytest.mark.each_choice
@pytest.mark.parametrize("dtype", conformance.DTYPES)
@pytest.mark.parametrize("op", conformance.OPS)
def test_slices_are_combined_where_they_lie(op: Reduction, dtype: str) -> None:
    """As on the host; averages are weighted by rows."""
    draw = np.random.default_rng(2)
    here, there = Accumulator(op), jax_backend.Total(op)
    for rows in (3, 1, 2):
        value = draw.integers(0, 4, (2, 5)).astype(dtype)
        here.add(value, rows)
        there.add(jax_backend.held(value), rows)
    wanted, found = here.result(), there.result()
    assert jax_backend.is_held(found)
    assert found.dtype == wanted.dtype
    np.testing.assert_allclose(found, wanted, 1e-3 if dtype == "float16" else 1e-6)


def test_slices_of_one_shape() -> None:
    total = jax_backend.Total(Reduction.SUM)
    total.add(jax_backend.held(np.ones(3)), 1)
    with pytest.raises(synk.InputError, match="must be equal"):
        total.add(jax_backend.held(np.ones(4)), 1)


def test_micro_batches_on_a_gpu(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gradients of slices are added up on the device, and updates take them from there."""
    monkeypatch.setattr(jax_backend, "on_cpu", lambda: False)
    monkeypatch.setattr(Accumulator, "add", None)  # nothing but rows goes through the host
    start(1)
    x, w = pt.vector("x"), pytensor.shared(np.array(2.0), name="w")
    f = synk.function(
        [x], (x * w).sum(), updates=[(w, w + (x * w).mean(), "avg", "all")], mode="JAX"
    )
    rows = np.arange(7.0)
    assert f(rows, num_slices=3) == pytest.approx(2 * rows.sum())
    assert w.get_value() == pytest.approx(2 + 2 * rows.mean())


@pytest.mark.thorough  # on cores: tests/faults/test_close.py
def test_a_script_that_does_not_close(tmp_path: Path) -> None:
    """The link ends at the interpreter's end, when no thread can be started any more."""
    script = """
        import sys
        sys.path[:0] = [sys.argv[1], sys.argv[1] + "/standin"]
        import synkhronos as synk
        from gpu_commands import Exchange
        from synkhronos._engine.group import current
        from synkhronos._engine.group_options import GroupOptions
        GroupOptions.members_per_gpu = 2
        synk.fork(2, devices="cpu", start="exec")
        current().run(Exchange())
        print("done")
    """
    assert run_script(tmp_path, script, str(Path(__file__).parents[1] / "support")) == "done\n"


@pytest.mark.thorough  # of a version of the library, which seldom changes
def test_the_stand_in_is_like_nccl4py(tmp_path: Path) -> None:
    """The names, arguments and numbers that the package uses are those of the installed library."""
    pytest.importorskip("nccl.bindings", reason="nccl4py is not installed (synkhronos[cuda12])")
    script = """
        import inspect, json, re, sys
        from nccl.bindings import nccl as real
        sys.path.insert(0, sys.argv[1])
        for name in [n for n in sys.modules if n.split(".")[0] in ("nccl", "cuda")]:
            del sys.modules[name]
        from nccl.bindings import nccl as ours
        assert ours.__file__.startswith(sys.argv[1]), ours.__file__
        for kind in ("Result", "DataType", "RedOp"):
            for one in getattr(ours, kind):
                assert getattr(real, kind)[one.name] == one, one
        checked = 0
        for name, function in inspect.getmembers(ours, inspect.isfunction):
            if name.startswith("_") or not hasattr(real, name):
                continue
            words = getattr(real, name).__doc__.splitlines()[0].partition("(")[2].partition(")")[0]
            wanted = [w.split()[-1] for w in words.split(", ") if w]
            assert list(inspect.signature(function).parameters) == wanted, (name, wanted)
            checked += 1
        assert checked >= 13, checked
        real.check_status(int(real.Result.InProgress))  # is no error
        config = real.Config()
        config.blocking = 0
        assert config.blocking == 0 and config.ptr
        print("alike")
    """
    found = run_script(tmp_path, script, str(Path(__file__).parents[1] / "support" / "standin"))
    assert found.endswith("alike\n"), found


@pytest.mark.thorough  # the real library; the stand-in: test_where_a_member_cannot_be_served
def test_nccl_without_a_gpu(tmp_path: Path) -> None:
    """The library itself says what is missing; the group goes on without it."""
    pytest.importorskip("nccl.bindings", reason="nccl4py is not installed (synkhronos[cuda12])")
    if synk.get_n_gpu():
        pytest.skip("this machine has a GPU")
    script = """
        import logging
        import synkhronos as synk
        from synkhronos._engine.group_options import GroupOptions
        from synkhronos.testing import conformance
        logging.basicConfig()
        GroupOptions.members_per_gpu = 1
        with synk.Group(2, "cpu", start="exec") as group:
            conformance.check_communicator(group, ["float32"], ((), (3, 2)))
        print("done")
    """
    found = run_script(tmp_path, script)
    assert found.endswith("done\n"), found
    assert found.count("NCCL cannot serve this group: rank 0: ") == 1, found
