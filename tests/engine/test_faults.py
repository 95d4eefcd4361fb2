"""Faults: exceptions, deaths, interrupts; the mechanism (S71 to S75) on one machine."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from selection import thorough
from user_scripts import alive, run_script, start_script

import synkhronos as synk
from synkhronos._engine.commands.base import Command
from synkhronos._transport.communicators import shared_memory
from synkhronos._transport.processes import child_process
from synkhronos._transport.processes.interrupts import Interrupts
from synkhronos.testing import faults, leaks
from synkhronos.testing.faults import Fault

PROMPT = 60.0  # seconds; all of these take milliseconds, the limit only catches waits


def _mean() -> synk.Function:
    x = pt.vector("x", dtype="float64")
    return synk.function([x], x.mean(), mode="FAST_COMPILE")


def test_the_masters_own_exception(group: synk.Group) -> None:
    """S71: it goes out as it is, with a note; the others leave the barrier."""
    f = _mean()
    with pytest.raises(ValueError, match="bad value") as caught:
        group.run(Fault("ValueError", (group.rank,)), "a test")
    assert any("a test" in note for note in caught.value.__notes__)
    assert f(np.arange(5.0)) == 2


def test_everybody_raises(group: synk.Group) -> None:
    everybody = tuple(range(group.size))
    for _ in range(3):
        with pytest.raises(ValueError, match="bad value"):
            group.run(Fault("ValueError", everybody))
    assert _mean()(np.arange(5.0)) == 2


@pytest.mark.each_choice
@pytest.mark.parametrize("kind", faults.DEADLY)
@pytest.mark.parametrize("meet", [True, False])
def test_a_dying_member(kind: str, meet: bool) -> None:
    """S73: an exception at once, which says who and how; all others end; nothing is left."""
    before = leaks.snapshot()
    shared = pytensor.shared(np.arange(3.0))
    group = synk.Group(3)
    with group:
        d = synk.data(np.arange(4.0))
        synk.all_reduce(shared, "sum")
        pid = group.channel.pid(2)
        began = time.monotonic()
        with pytest.raises(synk.WorkerDied) as caught:
            group.run(Fault(kind, (2,), meet), "a test")
        assert time.monotonic() - began < PROMPT
    assert caught.value.ranks == (2,)
    wanted = "exited with code 0" if kind == "exit" else kind
    assert re.search(rf"rank 2 \(pid {pid}\).*{wanted}", str(caught.value))
    crashed = kind in ("SIGSEGV", "SIGABRT")
    assert any("faults.py" in n for n in getattr(caught.value, "__notes__", [])) == crashed
    np.testing.assert_array_equal(d.data, np.arange(4.0))
    np.testing.assert_array_equal(shared.get_value(), np.arange(3.0) * 3)
    with pytest.raises(synk.GroupClosed):
        group.run(Fault("ValueError"))
    group.close()
    leaks.check(before)
    with synk.Group(3):
        assert _mean()(np.arange(5.0)) == 2


def test_a_death_while_idle(group2: synk.Group) -> None:
    os.kill(group2.channel.pid(1), signal.SIGKILL)
    with pytest.raises(synk.WorkerDied, match="SIGKILL"):
        _mean()(np.arange(5.0))


def test_a_sibling_notices_a_death_before_the_master() -> None:
    """Members watch each other: they leave a barrier while the master is elsewhere."""
    with synk.Group(3) as group:
        task = group.start(Fault("SIGKILL", (1,), members=(1, 2)))
        until = time.monotonic() + PROMPT
        words = group.channel.node.words.of[2]
        while words[0] < task.number and time.monotonic() < until:  # REPORTED
            pass
        assert words[0] == task.number
        with pytest.raises(synk.WorkerDied):
            task.wait()


def test_peers_in_a_long_sleep_are_ended() -> None:
    before = leaks.snapshot()
    with synk.Group(3) as group:
        task = group.start(Fault("sleep", (1,)))
        os.kill(group.channel.pid(2), signal.SIGKILL)
        with pytest.raises(synk.WorkerDied, match="rank 2"):
            task.wait()
    leaks.check(before)


@pytest.mark.parametrize("start", ["fork", *thorough("exec")])
def test_grandchildren_end_too(tmp_path: Path, start: str) -> None:
    text = f"""
        import os, subprocess, time
        from dataclasses import dataclass
        import synkhronos as synk
        from synkhronos._engine.commands.base import Command
        @dataclass(frozen=True)
        class Spawn(Command):
            def run(self, member):
                if member.rank:
                    return (subprocess.Popen(["sleep", "600"]).pid,)
            def answer(self, member, own, reports):
                return reports[1][0]
        synk.fork(2, start="{start}")
        pid = synk._engine.group.current().run(Spawn())
        synk.close()
        print(pid)
    """
    pid = int(run_script(tmp_path, text).split()[-1])
    until = time.monotonic() + PROMPT
    while alive([pid]) and time.monotonic() < until:
        time.sleep(0.01)
    assert not alive([pid])


GUARDED = """
    import ctypes, os, signal, sys, time, threading
    import numpy as np, pytensor.tensor as pt, synkhronos as synk
    from synkhronos._transport.processes import guards
    how = sys.argv[1]
    if how.startswith("lifeline"):
        guards.end_with_parent = lambda: None
    if how == "lifeline alone, SIGIO ignored":  # as the workers inherit it
        signal.signal(signal.SIGIO, signal.SIG_IGN)
    groups = []
    def begin():
        by_exec = how == "exec" or how.startswith("thread")
        groups.append(synk.Group(3, start="exec" if by_exec else "fork"))
        if how == "two groups":
            groups.append(synk.Group(2, start="fork"))
    if how.startswith("thread"):
        t = threading.Thread(target=begin); t.start(); t.join()
    else:
        begin()
    if how in ("forked child", "lifeline alone, forked child"):
        if os.fork() == 0:
            time.sleep(600)
    if how.endswith("forked child unknown to Python"):  # it holds the lifeline: PDEATHSIG is alone
        if ctypes.PyDLL(None).fork() == 0:
            time.sleep(600)
    print(*[w.pid for g in groups for w in g.channel.workers], flush=True)
    print("ready", flush=True)
    if how == "stopped":
        for w in groups[0].channel.workers:
            os.kill(w.pid, 19)
    time.sleep(600)
"""


@pytest.mark.each_choice
@pytest.mark.parametrize(
    "how",
    [
        "lifeline alone, SIGIO ignored",  # start by fork
        *("lifeline alone, forked child", "thread, forked child unknown to Python"),  # and by exec
        *thorough("stopped", "fork", "exec", "two groups", "thread"),
        *thorough("forked child", "forked child unknown to Python"),
    ],
)
def test_workers_die_with_the_master(tmp_path: Path, how: str) -> None:
    """Promise 6: both guards are the kernel's, and no death of the master leaves a worker."""
    path = tmp_path / "pids"
    text = GUARDED.replace("print(*[", f"print(file=open({str(path)!r}, 'w'), *[")
    process = start_script(tmp_path, text, how)
    pids = [int(p) for p in path.read_text().split()]
    assert len(pids) == (3 if how == "two groups" else 2)
    assert alive(pids) == pids
    process.kill()
    process.wait()
    until = time.monotonic() + PROMPT
    while alive(pids) and time.monotonic() < until:
        time.sleep(0.005)
    assert not alive(pids)
    if "forked child" in how:
        os.killpg(process.pid, signal.SIGKILL)
    assert process.stdout is not None
    process.stdout.close()


INTERRUPTED = """
    import os, signal, sys, time, threading, numpy as np, pytensor, pytensor.tensor as pt
    import synkhronos as synk
    from dataclasses import dataclass
    from synkhronos._engine.commands.base import Command
    @dataclass(frozen=True)
    class Nap(Command):
        def run(self, member):
            if member.rank == (1 if sys.argv[1] == "worker" else 0):
                os.kill(os.getppid() if member.rank else os.getpid(), signal.SIGINT)
                time.sleep(0.2 if member.rank else 600)
            member.communicator.barrier()
    synk.fork(2)
    x = pt.dvector("x")
    s = pytensor.shared(np.zeros(3), name="s")
    f = synk.function([x], x.mean(), updates=[(s, s + 1)], mode="FAST_COMPILE")
    f(np.arange(5.0))
    group = synk._engine.group.current()
    for _ in range(3):
        try:
            group.run(Nap(), "a nap")
        except KeyboardInterrupt:
            print("interrupted")
        assert f(np.arange(5.0)) == 2
    print(s.get_value().tolist(), synk.get_value(1, s).tolist())
"""


@pytest.mark.parametrize("where", [*thorough("worker"), "master"])
def test_an_interrupt_stops_the_call_not_the_group(tmp_path: Path, where: str) -> None:
    printed = run_script(tmp_path, INTERRUPTED, where)
    assert printed.count("interrupted") == 3
    assert "[4.0, 4.0, 4.0] [4.0, 4.0, 4.0]" in printed


@pytest.mark.thorough  # of many moments: tests/faults/test_interrupts.py
def test_random_interrupts_leave_replicas_equal(
    tmp_path: Path, trials: Callable[[Any, Any], Any]
) -> None:
    """SIGINT at any moment of calls with updates and reductions: all members stay in step."""
    text = """
        import os, random, signal, sys, threading, time
        import numpy as np, pytensor, pytensor.tensor as pt
        import synkhronos as synk
        synk.fork(3)
        x = pt.dvector("x")
        s = pytensor.shared(np.zeros(3000), name="s")
        t = pytensor.shared(np.zeros(()), name="t")
        f = synk.function([x], x.sum(), updates=[(s, s + 1), (t, t + x.mean(), "avg", "all")],
                          mode="FAST_COMPILE")
        d = synk.data(np.arange(50.0))
        f(d)
        random.seed(3)
        count = 0
        signal.signal(signal.SIGALRM, lambda n, f: os.kill(os.getpid(), signal.SIGINT))
        for i in range(int(sys.argv[1])):
            try:
                signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-5, 3e-3))
                while True:
                    f(d)
                    synk.all_reduce(s)
            except KeyboardInterrupt:
                count += 1
            if i % 20 == 0:
                values = [synk.get_value(r, s) for r in range(3)]
                assert all((v == values[0]).all() and (v == v[0]).all() for v in values), values
                assert len({float(synk.get_value(r, t)) for r in range(3)}) == 1
        assert f(d) == 1225
        print(count)
    """
    count = str(trials(40, 300))
    assert run_script(tmp_path, text, count).strip() == count


def _once(error: type[BaseException], original: Callable[..., Any]) -> Callable[..., Any]:
    """Raise where a signal's handler would, the first time."""
    first = [True]

    def act(*args: Any, **kwargs: Any) -> Any:
        if first:
            first.clear()
            raise error
        return original(*args, **kwargs)

    return act


@pytest.mark.parametrize("moments", [("collect",), ("collect", "_recover"), ("collect", "undo")])
def test_an_interrupt_of_the_recovery(
    group2: synk.Group, monkeypatch: pytest.MonkeyPatch, moments: tuple[str, ...]
) -> None:
    """A second Ctrl-C before all is undone: it is undone all the same, and nobody waits."""
    s = pytensor.shared(np.zeros(3), name="s")
    f = synk.function([], updates=[(s, s + 1)], mode="FAST_COMPILE")
    f()
    changes = group2.member.changes
    places = {"collect": group2.channel, "_recover": group2.runner, "undo": changes}
    for name in moments:
        place = places[name]
        monkeypatch.setattr(place, name, _once(KeyboardInterrupt, getattr(place, name)))
    with pytest.raises(KeyboardInterrupt):
        f()
    assert s.get_value()[0] == 1
    f()
    assert [synk.get_value(r, s)[0] for r in range(2)] == [2, 2]


def test_a_timeout_between_verdict_and_books(
    group2: synk.Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What has been committed stands everywhere, whatever a signal's handler raises then."""
    s = pytensor.shared(np.zeros(3), name="s")
    f = synk.function([], updates=[(s, s + 1)], mode="FAST_COMPILE")
    f()
    changes = group2.member.changes
    monkeypatch.setattr(changes, "keep", _once(TimeoutError, changes.keep))
    with pytest.raises(TimeoutError):
        f()
    assert [synk.get_value(r, s)[0] for r in range(2)] == [2, 2]
    f()
    assert [synk.get_value(r, s)[0] for r in range(2)] == [3, 3]


def test_an_interrupt_before_the_command_is_posted(
    group2: synk.Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Members are not asked for a command they have never seen."""
    f, d = _mean(), synk.data(np.arange(5.0))
    f(d)
    with monkeypatch.context() as patch:
        patch.setattr(group2.channel.node, "begin", _once(KeyboardInterrupt, lambda n: None))
        with pytest.raises(KeyboardInterrupt):
            f(d)
    assert f(d) == 2


def test_interrupts_are_noted() -> None:
    held = Interrupts()
    before = signal.getsignal(signal.SIGINT)
    with held:
        os.kill(os.getpid(), signal.SIGINT)
        held.firm = True
        held.check()
        held.firm = False
        with pytest.raises(KeyboardInterrupt):
            held.check()
    held.__enter__()  # another signal's handler raises before __exit__ has begun
    held.release()
    assert signal.getsignal(signal.SIGINT) is before


def test_an_interrupt_of_who_wants_to_be_killed(tmp_path: Path) -> None:
    text = """
        import os, signal
        from synkhronos._transport.processes.interrupts import Interrupts
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        with Interrupts():
            os.kill(os.getpid(), signal.SIGINT)
            print("held", flush=True)
        print("lost")
    """
    assert run_script(tmp_path, text, check=False).strip() == "held"


@pytest.mark.parametrize("dies", [False, True])
def test_an_interrupt_while_a_reduction_writes(monkeypatch: pytest.MonkeyPatch, dies: bool) -> None:
    """Ctrl-C waits until all chunks are written; a death before that leaves the value torn."""
    master, original = os.getpid(), shared_memory.in_place

    def slow(*args: Any) -> Callable[[], None]:
        reduce_chunk = original(*args)

        def act() -> None:
            if os.getpid() != master:
                os.kill(master, signal.SIGINT)
                time.sleep(0.1)
                if dies:
                    os.kill(os.getpid(), signal.SIGKILL)
            reduce_chunk()

        return act

    monkeypatch.setattr(shared_memory, "in_place", slow)
    s = pytensor.shared(np.ones(100_000), name="s")
    with synk.Group(2, start="fork") as group:
        synk.broadcast(s)
        with pytest.raises(KeyboardInterrupt):
            synk.all_reduce(s, "sum")
        assert not group.member.changes.in_place
        if dies:
            with pytest.raises(synk.StateTorn):
                synk.get_value(0, s)
            with pytest.raises(synk.WorkerDied):
                group.run(Fault("ValueError", ()))
        else:
            np.testing.assert_array_equal(s.get_value(), 2.0)
            os.kill(group.channel.pid(1), signal.SIGKILL)
            with pytest.raises(synk.WorkerDied):  # before anything has begun
                synk.all_reduce(s, "sum")
    with synk.Group(1):
        if dies:
            with pytest.raises(synk.StateTorn):
                synk.all_reduce(s)
        else:
            synk.all_reduce(s)


@dataclass(frozen=True)
class OneRaisesOneDies(Command):
    def run(self, member: Any) -> None:
        if member.rank == 1:
            raise ValueError("bad value")
        if member.rank == 2:
            time.sleep(0.2)
            os.kill(os.getpid(), signal.SIGKILL)
        member.communicator.barrier()


def test_a_death_while_the_master_recovers() -> None:
    """One member raises, another dies before it reports: the group is closed, as by any death."""
    with synk.Group(3) as group:
        with pytest.raises(synk.WorkerDied, match="my command"):
            group.run(OneRaisesOneDies(), "my command")
        assert not group.alive
        with pytest.raises(synk.GroupClosed):
            group.run(Fault("ValueError", ()))


def test_a_death_before_a_long_command(monkeypatch: pytest.MonkeyPatch) -> None:
    with synk.Group(2) as group:
        with monkeypatch.context() as patch:
            patch.setattr(group.channel, "collect", _once(KeyboardInterrupt, len))
            with pytest.raises(KeyboardInterrupt):
                group.run(Fault("sleep", (1,), meet=False))
        os.kill(group.channel.pid(1), signal.SIGKILL)
        with pytest.raises(synk.WorkerDied):
            group.start(Fault("ValueError", ()))
        assert not group.alive


@dataclass(frozen=True)
class Signalled(Command):
    number: int

    def run(self, member: Any) -> None:
        if member.rank:
            os.kill(os.getpid(), self.number)


def test_deaths_of_signals_without_a_name() -> None:
    with synk.Group(2) as group, pytest.raises(synk.WorkerDied, match="killed by signal 40"):
        group.run(Signalled(40))


@pytest.mark.parametrize(("before", "hint"), [(3, "or by hand"), (2, "by the OOM killer: the ")])
def test_the_oom_killer_is_blamed_for_new_deaths_only(
    monkeypatch: pytest.MonkeyPatch, before: int, hint: str
) -> None:
    monkeypatch.setattr(child_process, "oom_kills", lambda _: before)
    with synk.Group(2) as group:
        monkeypatch.setattr(child_process, "oom_kills", lambda _: 3)
        with pytest.raises(synk.WorkerDied, match=hint):
            group.run(Signalled(signal.SIGKILL))


def test_children_reaped_by_someone_else() -> None:
    """With SIGCHLD ignored the kernel keeps no exit status: groups end all the same."""
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        with synk.Group(2):
            pass
        with synk.Group(2) as group, pytest.raises(synk.WorkerDied, match="SIGCHLD"):
            group.run(Signalled(signal.SIGKILL))
    finally:
        signal.signal(signal.SIGCHLD, before)


def test_a_command_of_too_many_exchanges(group2: synk.Group) -> None:
    node = group2.channel.node
    node.begin(node.number)
    node.step()
    node._base += (1 << 26) - 12  # the exchanges of a very long program
    node.step()
    assert node._base >> 26 == node.number
    with pytest.raises(synk.GroupError, match="exchanges"):
        node.step()


def test_close_anywhere(tmp_path: Path) -> None:
    """Twice, in atexit, in __del__, from a thread, after a death, in an except block."""
    text = """
        import atexit, os, signal, threading, synkhronos as synk
        atexit.register(synk.close)
        for how in ("twice", "thread", "death"):
            group = synk.Group(2, start="exec" if how == "thread" else None)
            if how == "death":
                os.kill(group.channel.pid(1), signal.SIGKILL)
            if how == "thread":
                t = threading.Thread(target=group.close); t.start(); t.join()
            group.close(); group.close()
        class Holder:
            def __init__(self): self.group = synk.Group(2)
            def __del__(self): self.group.close()
        Holder()
        keep = Holder()
        synk.fork(2)
        print("done")
    """
    assert run_script(tmp_path, text).strip() == "done"


def test_another_command_during_a_task(group2: synk.Group) -> None:
    task = group2.start(Fault("ValueError", (), meet=False))
    with pytest.raises(synk.GroupError, match="busy"):
        group2.run(Fault("ValueError", ()))
    task.wait()
    group2.run(Fault("ValueError", ()))


def test_memory_shortage_is_an_error_with_figures(group: synk.Group) -> None:
    """S45: never SIGBUS; the message says what was asked and what is free."""
    with pytest.raises(MemoryError, match=r"asked for [\d,]+ bytes.*free"):
        synk.data(shape=(1 << 44,), dtype="float64")
    assert _mean()(np.arange(5.0)) == 2
