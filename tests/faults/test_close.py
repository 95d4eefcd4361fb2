"""close() works anywhere, and nothing goes on after it (promise 18)."""

from __future__ import annotations

from pathlib import Path

import pytest
from user_scripts import run_script

BEGIN = """
    import atexit, gc, multiprocessing, os, signal, sys, threading, time, weakref
    import numpy as np, pytensor.tensor as pt, synkhronos as synk
    from dataclasses import dataclass
    from pytensor.compile.mode import Mode
    from synkhronos._engine.commands.base import Command
    from synkhronos.testing import leaks
    from synkhronos.testing.faults import Fault

    FAST = Mode("py", None)  # as in the tests
    LIMIT = 5.0  # seconds, of which half a one is grace
    x = pt.vector("x", dtype="float64")

    def begin():
        synk.fork(2, start="fork")
        f = synk.function([x], x.mean(), mode=FAST)
        assert f(np.arange(5.0)) == 2
        return f

    def end():
        began = time.monotonic()
        synk.close()
        assert time.monotonic() - began < LIMIT

    def group():
        return synk._engine.group.current()

    @dataclass(frozen=True)
    class Close(Command):
        rank: int
        def run(self, member):
            if member.rank == self.rank:
                synk.close()
            member.communicator.barrier()

    def in_a_thread(act):
        thread = threading.Thread(target=act)
        thread.start()
        thread.join()

    before = leaks.snapshot()
"""

WAYS = {
    "after an error": """
        begin()
        try:
            group().run(Fault("ValueError", (1,)))
        except ValueError:
            end()
    """,
    "after a timeout": """
        begin()
        try:
            group().run(Fault("C call", (1,)), timeout=0.2)
        except synk.GroupTimeout:
            end()
    """,
    "after a death": """
        begin()
        try:
            group().run(Fault("SIGSEGV", (1,)))
        except synk.WorkerDied:
            end()
            end()
    """,
    "after a death that nobody has seen": """
        begin()
        os.kill(group().channel.pid(1), signal.SIGKILL)
        end()
    """,
    "beside a worker in C": """
        begin()
        group().start(Fault("C call", (1,), meet=False))
        time.sleep(0.1)
        end()
    """,
    "in the master's part of a command": """
        begin()
        try:
            group().run(Close(0), "a test")
        except synk.GroupClosed as exc:
            assert "a test" in str(exc)
        else:
            raise AssertionError("it went on")
        end()
    """,
    "in a worker's part": """
        f = begin()
        group().run(Close(1))
        assert f(np.arange(4.0)) == 1.5
        end()
    """,
    "by several threads at once": """
        begin()
        threads = [threading.Thread(target=end) for _ in range(8)]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
    """,
    "by a thread, with another command under way": """
        begin()
        timer = threading.Timer(0.1, end)
        timer.start()
        try:
            group().run(Fault("sleep", (1,)), "a test")
        except synk.GroupClosed:
            pass
        timer.join()
    """,
    "by a handler, while it closes": """
        begin()
        group().start(Fault("C call", (1,), meet=False))
        time.sleep(0.1)
        heard = []
        signal.signal(signal.SIGALRM, lambda *_: (end(), heard.append(1)))
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        end()
        assert heard
    """,
    "by the collector, in a command": """
        f = begin()
        mine = group()
        class Holder:
            def __del__(self):
                mine.close()
        a = Holder(); a.self = a; del a
        @dataclass(frozen=True)
        class Collect(Command):
            def run(self, member):
                gc.collect() if member.rank == 0 else None
                member.communicator.barrier()
        try:
            group().run(Collect(), "a test")
        except synk.GroupClosed:
            pass
        end()
    """,
    "by a finalizer": """
        begin()
        class Thing: pass
        thing = Thing()
        weakref.finalize(thing, synk.close)
        del thing
        assert synk._engine.group._current is None
    """,
    "by a generator that is dropped": """
        def rows():
            with synk.Group(2):
                yield 1
        generator = rows()
        next(generator)
        del generator
    """,
    "in a fork of the master": """
        f = begin()
        for leave in (lambda: os._exit(0), lambda: sys.exit(0)):
            pid = os.fork()
            if pid == 0:
                end(); group_of_master = None
                leave()
            assert os.waitpid(pid, 0)[1] == 0
            assert f(np.arange(4.0)) == 1.5
        end()
    """,
    "in a fork of the master, without a word": """
        f = begin()
        pid = os.fork()
        if pid == 0:
            sys.exit(0)  # its atexit functions are the master's
        assert os.waitpid(pid, 0)[1] == 0
        assert f(np.arange(4.0)) == 1.5
        end()
    """,
    "in a process of multiprocessing": """
        f = begin()
        process = multiprocessing.get_context("fork").Process(target=end)
        process.start()
        process.join()
        assert process.exitcode == 0
        process.close()
        assert f(np.arange(4.0)) == 1.5
        end()
    """,
    "with SIGCHLD ignored": """
        before_that = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        begin()
        end()
        signal.signal(signal.SIGCHLD, before_that)
    """,
    "without descriptors": """
        import resource
        begin()
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
        end()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    """,
}

AT_EXIT = {
    "by atexit, registered before": "atexit.register(end)\nbegin()",
    "by atexit, registered after": "begin()\natexit.register(end)",
    "by nobody": "begin()",
    "by a global's end": """
        class Holder:
            def __init__(self): self.group = synk.Group(2)
            def __del__(self): self.group.close()
        holder = Holder()
        """,
    "by a thread that outlives the main one": """
        begin()
        threading.Thread(target=lambda: (time.sleep(0.3), end())).start()
        """,
    "with a thread in a command": """
        begin()
        running = group()
        def run():
            try:
                running.run(Fault("sleep", (1,)))
            except synk.GroupClosed:
                pass
        threading.Thread(target=run, daemon=True).start()
        time.sleep(0.2)
        """,
}
REPEATED = (  # what another one checks as well
    *("by atexit, registered before", "by atexit, registered after"),
    *("by a global's end", "by a thread that outlives the main one"),
)


def test_ways_to_close(tmp_path: Path) -> None:
    text = (
        BEGIN
        + f"""
    import textwrap
    for name, way in {WAYS!r}.items():
        exec(compile(textwrap.dedent(way), name, "exec"))
        synk.close()
        leaks.check(before)
        print(name)
    """
    )
    assert run_script(tmp_path, text).splitlines() == list(WAYS)


@pytest.mark.parametrize(
    "how",
    [pytest.param(how, marks=pytest.mark.thorough) if how in REPEATED else how for how in AT_EXIT],
)
def test_ways_to_end(tmp_path: Path, how: str) -> None:
    """The interpreter ends; nobody is left, and nothing is said."""
    text = (
        BEGIN
        + f"""
    import textwrap
    exec(compile(textwrap.dedent({AT_EXIT[how]!r}), "a way", "exec"))
    """
    )
    assert run_script(tmp_path, text) == ""
