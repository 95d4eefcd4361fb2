"""No fork acts as a member: an operation may fork, and its child may return from it."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import forking_ops
import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from fork_to import fork_to
from forking_ops import Forks, Waits, ended
from modes import FAST
from selection import thorough
from user_scripts import run_script

import synkhronos as synk
from synkhronos import ops, rules
from synkhronos._engine.graph_exchanges import collective, is_collective
from synkhronos._transport.communicators.solo import Solo
from synkhronos._transport.processes.interrupts import Interrupts
from synkhronos.extensions import Batches, make_train_function, updates

SUPPORT = str(Path(forking_ops.__file__).parent)
SAID = r"rank \d: an operation has forked, and its child \(pid {}\) has returned from it"


def children(folder: Path) -> list[str]:
    return [note.name for note in folder.iterdir()]


@pytest.mark.parametrize("start", ["fork", *thorough("exec")])
@pytest.mark.parametrize("how", ["return", "raise", "exit", "print"])
def test_a_child_of_a_worker_is_ended(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], how: str, start: str
) -> None:
    x = pt.vector("x", dtype="float64")
    with synk.Group(3, start=start):
        f = synk.function([x], (Forks(how, "workers", str(tmp_path))(x).sum(), "sum"), mode=FAST)
        for _ in range(3):
            assert f(np.ones(6)) == 12
    assert ended(tmp_path) == [1 << 8] * 6  # each has left by os._exit(1)
    out, err = capfd.readouterr()
    for pid in children(tmp_path):
        assert len(re.findall(SAID.format(pid), err)) == 1
        assert (f"[pid {pid}] the child prints" in out) == (how == "print")


def test_nothing_that_members_share_changes(tmp_path: Path) -> None:
    """Not the large result of a worker, nor values that are exchanged or written in place."""
    x, w = pt.matrix("x", dtype="float64"), pytensor.shared(np.ones(20_000), "w")
    rows = np.ones((6, 20_000))
    with synk.Group(3):
        doubled = Forks("return", "workers", str(tmp_path))(x)
        f = synk.function([x], [(doubled, "gather"), (doubled.sum(axis=0), "sum")], mode=FAST)
        gathered, summed = f(rows)
        assert (gathered == 2).all()
        assert (summed == 12).all()
        exchanged = ops.all_reduce(doubled.sum(axis=0))
        assert (synk.function([x], (exchanged, "max"), mode=FAST)(rows) == 12).all()
        train = make_train_function(
            (doubled @ w).mean(), [w], x, None, updates.sgd, 0.5, reduction="avg", mode=FAST
        )
        for step in range(1, 4):
            train(rows)
            for rank in range(3):
                assert (synk.get_value(rank, w) == 1 - step).all()
    assert set(ended(tmp_path)) == {1 << 8}


def test_a_fork_while_another_thread_computes() -> None:
    """Its own functions wait for nothing, and are not combined."""
    inside, over = threading.Event(), threading.Event()

    def hold() -> None:
        with collective(Solo(), None, None):
            inside.set()
            assert over.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    assert inside.wait(60)

    def check() -> None:
        assert not is_collective()
        with collective(Solo(), None, None):
            pass

    pid = fork_to(check)
    assert is_collective()
    over.set()
    thread.join()
    assert os.waitpid(pid, 0)[1] == 0
    assert not is_collective()


def in_a_thread[T](function: Callable[[], T]) -> T:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function).result()


@contextmanager
def called(function: synk.Function, value: np.ndarray, waiting: Path) -> Iterator[list[object]]:
    """A context in which a thread is inside of a call, which waits for a file; its result."""
    found: list[object] = []
    thread = threading.Thread(target=lambda: found.append(function(value)))
    thread.start()
    until = time.monotonic() + 60
    while len(list(waiting.parent.glob(f"{waiting.name}-*"))) < synk.size():
        assert time.monotonic() < until
        time.sleep(0.001)
    try:
        yield found
    finally:
        waiting.touch()
        thread.join()


def refused(function: synk.Function, value: np.ndarray) -> None:
    with pytest.raises(synk.GroupClosed, match="is a fork of the group's master"):
        function(value)


def test_a_fork_beside_a_call_of_another_thread_is_refused(tmp_path: Path) -> None:
    """It has the lock of a thread that it lacks, and must not wait for it."""
    file, x = tmp_path / "go on", pt.vector("x", dtype="float64")
    with synk.Group(1):
        f = synk.function([x], (Waits(str(file))(x).sum(), "sum"), mode=FAST)
        with called(f, np.ones(2), file) as found:
            pid = fork_to(lambda: refused(f, np.ones(2)))
            assert os.waitpid(pid, 0)[1] == 0
        assert found == [2]


def test_a_refused_call_of_a_fork_leaves_the_rows_of_a_running_one(tmp_path: Path) -> None:
    """Both would be copied to the same memory, which the fork shares."""
    file, x = tmp_path / "go on", pt.vector("x", dtype="float64")
    file.touch()
    read, write = os.pipe()

    def check() -> None:
        os.read(read, 1)
        refused(f, np.full(4, 7.0))

    with synk.Group(2):
        f = synk.function([x], (Waits(str(file))(x).sum(), "sum"), mode=FAST)
        for _ in range(3):
            assert f(np.ones(4)) == 4
        for note in tmp_path.iterdir():
            note.unlink()
        pid = fork_to(check)
        with called(f, np.ones(4), file) as found:
            os.write(write, b".")
            assert os.waitpid(pid, 0)[1] == 0
        assert found == [4]
    os.close(read)
    os.close(write)


def test_ctrl_c_waits_in_a_fork_of_a_thread_too() -> None:
    """The thread that has forked is the main one there."""

    def check() -> None:
        done = False
        with suppress(KeyboardInterrupt), Interrupts():
            signal.raise_signal(signal.SIGINT)
            done = True
        assert done

    pid = in_a_thread(lambda: fork_to(check))
    assert os.waitpid(pid, 0)[1] == 0


def test_a_fork_that_another_thread_makes_holds_no_ctrl_c_back() -> None:
    """This thread does so for a moment; the fork would never hear of one."""
    kept = signal.getsignal(signal.SIGINT)

    def check() -> None:
        assert signal.getsignal(signal.SIGINT) == kept

    with Interrupts(), Interrupts():
        pid = in_a_thread(lambda: fork_to(check))
    assert os.waitpid(pid, 0)[1] == 0
    check()


def test_a_child_in_a_free_run(tmp_path: Path) -> None:
    """The parameter counts how often each row is used."""
    rows, w = pt.lvector("rows"), pytensor.shared(np.zeros(12), "w")
    with synk.Group(3):
        loss = w[rows].sum() + Forks("return", "workers", str(tmp_path))(0.0)
        rule = rules.Downpour(1, scale="none")
        train = make_train_function(loss, [w], rows, None, updates.sgd, 1.0, rule=rule, mode=FAST)
        with train.start(train.build_inputs(np.arange(12)), Batches(12, 2)) as run:
            run.wait()
        assert (w.get_value() == -1).all()
    assert ended(tmp_path)
    assert set(ended(tmp_path)) == {1 << 8}


def test_a_child_that_c_code_has_forked(tmp_path: Path) -> None:
    """No hook of Python runs in it, so the kernel ends it."""
    x = pt.vector("x", dtype="float64")
    with synk.Group(3):
        f = synk.function([x], (Forks("by C", "workers", str(tmp_path))(x).sum(), "sum"), mode=FAST)
        assert f(np.ones(6)) == 12
    assert ended(tmp_path) == [signal.SIGSEGV] * 2


MASTER = """
    import os, sys
    import numpy as np, pytensor.tensor as pt
    from pathlib import Path
    import synkhronos as synk
    sys.path.insert(0, sys.argv[1])
    from forking_ops import Forks, ended
    pid, folder = os.getpid(), Path(sys.argv[2])
    x = pt.vector("x", dtype="float64")
    with synk.Group(3):
        doubled = Forks("return", "master", str(folder))(x)
        f = synk.function([x], (doubled.sum(), "sum"), mode="FAST_COMPILE")
        d = synk.data(np.ones(6))
        for _ in range(3):
            try:
                found = f(d)
                if os.getpid() != pid:
                    found = f(d)
            except synk.GroupClosed as exc:
                assert os.getpid() != pid, exc
                assert "is a fork of the group's master" in str(exc), exc
                d.data[:] = 7
                os._exit(5)
            assert found == 12, found
            assert os.getpid() == pid
    assert d.data.sum() == 6, d.data
    print(ended(folder))
"""


def test_a_child_of_the_master_leaves_the_call(tmp_path: Path) -> None:
    folder = tmp_path / "children"
    folder.mkdir()
    assert run_script(tmp_path, MASTER, SUPPORT, str(folder)) == f"{[5 << 8] * 3}\n"


def test_a_fork_of_the_master_beside_calls_shares_data(group2: synk.Group) -> None:
    """As docs/explanation/sharp_bits.rst says; but it cannot write control words."""
    d = synk.data(np.zeros(4))
    words = group2.channel.node.words.of[0]
    before = words[0]
    pid = os.fork()
    if not pid:
        d.data[:] = 3
        words[0] = -1
        os._exit(0)
    os.waitpid(pid, 0)
    assert (d.data == 3).all()
    assert words[0] == before


FINALIZERS = {
    "_api/group_function.py": "a number in a list of this process",
    "_api/scattered_data.py": "a number in a list of this process",
    "_backends/mpi.py": "`launch` is None in a fork",
    "_engine/nodes.py": "`_part` empties the lists in a fork",
    "_engine/runner.py": "`_disown_groups` notes in a fork that all groups have ended",
    "_engine/variables.py": "a number in a list of this process",
    "extensions/_rows/by_nodes.py": "a number in a list of this process",
    "extensions/_rows/reader.py": "`stop` looks at the process number",
    "pymc/_group/evaluator.py": "closes a descriptor of this process",
    "pymc/_map/stores.py": "`_remove` looks at the process number",
    "pymc/_group/likelihood.py": "a number in a list of this process",
    "training/_record/recorder.py": "closes descriptors of this process",
}


def test_the_end_of_a_fork_removes_and_ends_nothing_of_its_parents() -> None:
    """Each module that runs something at an end, and why that is harmless in a fork."""
    package = Path(synk.__file__).parent
    ends = re.compile(r"weakref\.finalize\(|atexit\.register|def __del__|TemporaryDirectory\(")
    found = {
        str(path.relative_to(package))
        for path in package.rglob("*.py")
        if any(ends.search(line.partition(">>>")[0]) for line in path.read_text().splitlines())
    }
    assert found == set(FINALIZERS)
