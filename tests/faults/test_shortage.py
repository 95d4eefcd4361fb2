"""What is short is an error with a cure, and never a SIGBUS or the OOM killer (promises 3, 10)."""

from __future__ import annotations

import os
import re
import signal
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from limits import Ended, MemoryGroup, cannot_mount, in_a_namespace, memory_group, run_after
from selection import thorough
from user_scripts import LIMIT

Trials = Callable[[Any, Any], Any]
MB = 1 << 20

BEGIN = """
    import re, resource, sys
    from pathlib import Path
    import numpy as np, pytensor, pytensor.tensor as pt, synkhronos as synk
    from synkhronos.testing.faults import Fault

    MB = 1 << 20
    x = pt.vector("x", dtype="float64")

    def begin(size=3):
        synk.fork(size)
        f = synk.function([x], x.mean(), mode="FAST_COMPILE")
        assert f(np.arange(5.0)) == 2
        return f

    def short(act):
        # the message has what was asked, what is free, which limit, and a cure
        try:
            act()
        except MemoryError as exc:
            form = r"asked for ([\\d,]+) bytes .*, ([\\d,]+) are free \\((.*)\\)\\. Free"
            found = re.search(form, str(exc))
            assert found, exc
            asked, free = (int(n.replace(",", "")) for n in found.groups()[:2])
            assert asked > free, exc
            return str(exc)
        raise AssertionError("nothing was short")

"""


def script(text: str) -> str:
    return textwrap.dedent(BEGIN) + textwrap.dedent(text)


@pytest.fixture
def cgroup() -> Iterator[MemoryGroup]:
    """Of 400 MB; a group of three takes some 100."""
    with memory_group(400 * MB) as made:
        if isinstance(made, str):
            pytest.skip(made)
        yield made


FILL = """
    f = begin()
    print(short(lambda: synk.data(shape=(500 * MB,), dtype="uint8")))
    for size in (50 * MB, 3 * MB, 900_000, 20_000):
        kept = []
        def fill():
            while True:
                kept.append(synk.data(shape=(size,), dtype="uint8"))
                kept[-1].data[...] = 1
        short(fill)
        assert f(np.arange(4.0)) == 1.5
        print("full with", len(kept), "of", size)
        kept.clear()
    assert f(synk.data(np.ones(10 * MB // 8))) == 1
    print("done")
"""


def test_a_cgroup_is_filled(cgroup: MemoryGroup, tmp_path: Path) -> None:
    """With large pieces and with small ones, up to its limit and not beyond."""
    ended = run_after(cgroup.enter, tmp_path, script(FILL))
    assert ended.code == 0, ended
    assert ended.printed.endswith("done\n")
    assert f"the limit of cgroup {cgroup.folder} is {cgroup.most:,}" in ended.printed
    filled = [int(n) * int(s) for n, s in re.findall(r"full with (\d+) of (\d+)", ended.printed)]
    assert len(filled) == 4
    assert all(100 * MB < n < cgroup.most for n in filled)
    assert cgroup.oom_kills() == 0


TOGETHER = """
    f = begin()
    group = synk._engine.group.current()
    from dataclasses import dataclass
    from synkhronos._engine.commands.base import Command

    @dataclass(frozen=True)
    class Take(Command):
        size: int
        def run(self, member):
            member.communicator.barrier()
            member.kept = member.communicator.empty((self.size,), np.dtype("uint8"))
            member.kept[...] = 1
            member.communicator.barrier()
    @dataclass(frozen=True)
    class Drop(Command):
        def run(self, member):
            member.__dict__.pop("kept", None)

    failed = 0
    for size in range(20, 300, int(sys.argv[1])):
        try:
            group.run(Take(size * MB), "take")
        except MemoryError as exc:
            assert "bytes of shared memory" in str(exc), exc
            failed += 1
        group.run(Drop(), "drop")
        assert f(np.arange(4.0)) == 1.5
    print("failed", failed)
"""


@pytest.mark.thorough  # one that allocates: the test above
def test_members_that_allocate_at_once(cgroup: MemoryGroup, tmp_path: Path, trials: Trials) -> None:
    """Each sees the same free memory; together they do not take it thrice."""
    step, limit = trials((25, LIMIT), (1, 10 * LIMIT))
    ended = run_after(cgroup.enter, tmp_path, script(TOGETHER), str(step), limit=limit)
    assert ended.code == 0, ended
    assert int(ended.printed.split()[-1]) > trials(5, 150)
    assert cgroup.oom_kills() == 0


COLLECTIVES = """
    f = begin()
    held, n = [], 0
    while True:
        n += 1
        s = pytensor.shared(np.ones(2 * MB // 8), name=f"s{n}", borrow=True)
        try:
            synk.all_reduce(s, "sum")
        except MemoryError as exc:
            assert "bytes" in str(exc), exc
            break
        held.append(s)
        assert n < 400
    assert all((v.get_value(borrow=True) == 3).all() for v in held)
    assert f(np.arange(4.0)) == 1.5
    held.clear()
    synk.close()
    print("full after", n)
"""


@pytest.mark.thorough  # Data fill one: test_a_cgroup_is_filled
def test_variables_fill_a_cgroup(cgroup: MemoryGroup, tmp_path: Path) -> None:
    """Every member has a replica of each, and a home of it in shared memory."""
    ended = run_after(cgroup.enter, tmp_path, script(COLLECTIVES))
    assert ended.code == 0, ended
    assert int(ended.printed.split()[-1]) > 5
    assert cgroup.oom_kills() == 0


EATEN = """
    for _ in range(int(sys.argv[1])):
        f = begin()
        try:
            synk._engine.group.current().run(Fault("eat", (1,)), "a feast")
        except synk.WorkerDied as exc:
            print(exc)
        synk.close()
"""


def test_a_worker_that_eats_memory(cgroup: MemoryGroup, tmp_path: Path, trials: Trials) -> None:
    """Promise 3: the OOM killer is named, with the limit."""
    times = trials(2, 50)
    ended = run_after(cgroup.enter, tmp_path, script(EATEN), str(times), limit=times * LIMIT)
    assert ended.code == 0, ended
    died = r"a worker died during a feast: rank 1 \(pid \d+\): killed by SIGKILL \((.*?)\)\. The"
    found = re.findall(died, ended.printed)
    wanted = f"by the OOM killer: the limit of cgroup {cgroup.folder} is {cgroup.most:,} bytes"
    assert found == [wanted] * times, ended.printed
    assert cgroup.oom_kills() == times


@pytest.mark.thorough  # no file is made there: test_security.py
@pytest.mark.skipif(bool(cannot_mount()), reason=cannot_mount())
def test_a_small_dev_shm_that_is_full(tmp_path: Path) -> None:
    """As in a container: shared memory is not bound by it."""
    text = """
        f = begin()
        big = synk.data(shape=(3 * MB,), dtype="float64")
        big.data[...] = 2.0
        s = pytensor.shared(np.ones(3 * MB), name="s")
        synk.all_reduce(s, "sum")
        assert f(big) == 2 and s.get_value()[-1] == 3
        print("done")
    """
    mounts = "mount -t tmpfs -o size=16m tmpfs /dev/shm\nhead -c 16M /dev/zero > /dev/shm/full"
    ended = in_a_namespace(tmp_path, mounts, script(text))
    assert ended == Ended(0, "done\n")


@pytest.mark.skipif(bool(cannot_mount()), reason=cannot_mount())
def test_a_disk_that_is_full(tmp_path: Path) -> None:
    """A checkpoint that does not fit is an OSError; the one before is whole."""
    text = """
        import errno, os
        from synkhronos.extensions.checkpoints import Checkpoints
        f = begin(2)
        w = pytensor.shared(np.zeros(MB), name="w")
        kept = Checkpoints(f"{sys.argv[1]}/kept", [w])
        kept.save(1)
        w.set_value(np.ones(MB))
        for _ in range(2):
            try:
                kept.save(2)
            except OSError as exc:
                assert exc.errno == errno.ENOSPC, exc
            else:
                raise AssertionError("it fits")
        assert sorted(os.listdir(f"{sys.argv[1]}/kept")) == ["step-00000001"]
        kept.restore()
        assert not w.get_value().any()
        print("done")
    """
    disk = tmp_path / "disk"
    disk.mkdir()
    ended = in_a_namespace(
        tmp_path, f"mount -t tmpfs -o size=12m tmpfs {disk}", script(text), str(disk)
    )
    assert ended == Ended(0, "done\n")


ADDRESSES = """
    begin()  # imports what is imported late
    synk.close()
    which = getattr(resource, sys.argv[1])
    _, hard = resource.getrlimit(which)
    for most in (10 * MB, 300 * MB, 3000 * MB):
        if sys.argv[1] == "RLIMIT_AS":
            most += 4096 * int(Path("/proc/self/statm").read_text().split()[0])
        resource.setrlimit(which, (most, hard))
        try:
            f = begin()
        except MemoryError as exc:
            print("no group:", exc)
            continue
        d = synk.data(np.ones(MB // 8))
        assert f(d) == 1
        print("group:", short(lambda: synk.data(shape=(most,), dtype="uint8")))
        assert f(d) == 1
        synk.close()
"""


@pytest.mark.parametrize(("limit", "flag"), [("RLIMIT_AS", "-v"), ("RLIMIT_FSIZE", "-f")])
def test_few_addresses(tmp_path: Path, limit: str, flag: str) -> None:
    """A smaller arena, or an error that names the limit."""
    ended = run_after("", tmp_path, script(ADDRESSES), limit)
    assert ended.code == 0, ended
    lines = ended.printed.splitlines()
    assert [line.partition(":")[0] for line in lines] == ["no group", "group", "group"]
    assert all(f"`ulimit {flag}` is" in line for line in lines)


FEW = """
    import ctypes, os, time
    def least(folder):  # threads of the group that was closed may still end
        found = len(os.listdir(folder))
        for _ in range(10):
            time.sleep(0.05)
            found = min(found, len(os.listdir(folder)))
        return found
    begin()
    synk.close()
    which = getattr(resource, sys.argv[1])
    if which == resource.RLIMIT_NPROC:  # which does not bind root
        os.setgroups([]); os.setresgid(54321, 54321, 54321); os.setresuid(54321, 54321, 54321)
        ctypes.CDLL(None).prctl(4, 1)  # PR_SET_DUMPABLE, as a process of that user's is
        used = least("/proc/self/task")
    else:
        used = least("/proc/self/fd")
    _, hard = resource.getrlimit(which)
    failed = 0
    for more in range(0, 30):
        before = os.listdir("/proc/self/fd")
        resource.setrlimit(which, (used + more, hard))
        try:
            begin(4)
        except synk.StartFailed as exc:
            cure = {"RLIMIT_NPROC": "`ulimit -u`", "RLIMIT_NOFILE": "`ulimit -n`"}[sys.argv[1]]
            assert f"{cure}, now {used + more}" in str(exc), exc
            assert "a group of 4 members cannot be started" in str(exc)
            failed += 1
            assert os.listdir("/proc/self/fd") == before
        except OSError as exc:  # in the first call
            assert exc.errno == 24, exc
            synk.close()
        else:
            synk.close()
            print("failed", failed)
            break
"""


@pytest.mark.parametrize("limit", [*thorough("RLIMIT_NOFILE"), "RLIMIT_NPROC"])
def test_few_processes_or_descriptors(tmp_path: Path, limit: str) -> None:
    """StartFailed, until there are enough; then a group that works."""
    if limit == "RLIMIT_NPROC" and os.getuid():
        pytest.skip("it takes root to be another user, who has no other processes")
    ended = run_after("export OPENBLAS_NUM_THREADS=1", tmp_path, script(FEW), limit)
    assert ended.code == 0, ended
    assert int(ended.printed.split()[-1]) >= 3
    assert ended.code != -signal.SIGBUS
