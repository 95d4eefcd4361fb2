"""Processes that share the tests of one collection: each takes the next that none has taken.

pytest-xdist does this too, but its processes have threads, and beside foreign threads no group is
forked: each would be started as fresh interpreters, for seconds.

    pytest --processes N --basetemp FOLDER/NAME --junit-xml FOLDER/NAME.xml

The process that collects the tests forks the others, so that all is imported once. It runs none
itself. Several such commands with the same FOLDER take turns: a process waits until the one of the
same number has ended. Each notes there what it has collected. The first process writes where the
command does, the output of the others follows when all have ended. An interrupt of the process
that collects, or its death, interrupts the others.

The cases of one test function stay together, and so do the tests of a module with the marker
`together`, whose fixture is dear; with `together("name")`, those of this name. Tests that run JAX
come last in the collection, so that no process forks a group after it. Those with the marker
`alone` have a process that begins when all others have ended.
"""

from __future__ import annotations

import ctypes
import fcntl
import gc
import itertools
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from _pytest.junitxml import xml_key
from array_code import compile_array_code, compile_loo
from selection import COLLECTED, Collected

# beside PyMC a group takes twice the time
LARGE_LIBRARIES = {"matplotlib", "optuna", "pandas", "pymc", "sklearn", "tensorboard"}
IMPORTED = pytest.StashKey[set[str]]()  # those of them that the collection has imported
PATIENCE = 240.0  # seconds for the collection of another command
GRACE = 20.0  # seconds that an interrupted process has for the groups and programs of its test
_PR_SET_PDEATHSIG = 1  # <sys/prctl.h>


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--processes", type=int, help="how many processes share the tests")
    parser.addoption("--numba", action="store_true", help="compile numba's own code before that")
    parser.addoption("--whole", help="the NAMEs of the commands that together collect all tests")


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """As pytest's own loop, in several processes."""
    processes = session.config.getoption("processes")
    if processes is None or session.testsfailed or session.config.option.collectonly:
        return None
    session.config.stash[IMPORTED] = LARGE_LIBRARIES & sys.modules.keys()
    if session.config.getoption("numba"):
        compile_array_code()
        if any(item.path.name == "test_after.py" for item in session.items):
            compile_loo()
        gc.freeze()
    folder = Path(session.config.option.basetemp)
    folder.mkdir(mode=0o700)
    note, partial = _note(folder), folder.with_name(f"{folder.name} noting")
    partial.write_text(json.dumps(session.config.stash[COLLECTED]))
    partial.rename(note)
    alone = [item for item in session.items if item.get_closest_marker("alone")]
    others = [item for item in session.items if item not in alone]
    stages = [(range(processes), shared(others, folder.with_name(f"{folder.name} taken")))]
    stages += [(range(processes, processes + 1), iter(alone))] if alone else []
    codes: list[int] = []
    for numbers, items in stages:
        started = []
        for number in numbers:
            pid = os.fork()
            if pid == 0:
                ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGINT)
                _run_some(session, folder, number, items)
                return True
            started.append(pid)
        try:
            codes += [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in started]
        except KeyboardInterrupt:
            _interrupt(started)
            session.config.option.verbose = -2
            raise
    session.config.option.verbose = -2  # this process has nothing to say
    for number, code in enumerate(codes):
        said = _output(folder, number).read_text() if number else ""
        if code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
            said += f"\nprocess {number} of the tests ended with {code}"
        print(said, flush=True)
    session.testsfailed = sum(code != pytest.ExitCode.OK for code in codes)
    return True


def _interrupt(pids: list[int]) -> None:
    """End these processes: a signal may have reached this one only."""
    left, until = list(filter(_runs, pids)), time.monotonic() + GRACE
    for pid in left:
        os.kill(pid, signal.SIGINT)
    while left := list(filter(_runs, left)):
        time.sleep(0.01)
        for pid in left if time.monotonic() > until else ():
            os.kill(pid, signal.SIGKILL)


def _runs(pid: int) -> bool:
    try:
        return os.waitpid(pid, os.WNOHANG) == (0, 0)
    except ChildProcessError:  # its end was seen before
        return False


def _run_some(
    session: pytest.Session, folder: Path, number: int, mine: Iterator[pytest.Item]
) -> None:
    """Run the tests that this process takes, once the one of this number has ended elsewhere."""
    config = session.config
    # processes that share a folder clean it up at the same time, and one of them may then fail
    config._tmp_path_factory._given_basetemp = folder / str(number)  # type: ignore[attr-defined]
    config.stash[xml_key].logfile = f"{folder} {number}.xml"
    if number:
        reporter = config.pluginmanager.get_plugin("terminalreporter")
        said = _output(folder, number).open("w", buffering=1)  # nothing else flushes it at the end
        reporter._tw = type(reporter._tw)(said)
    with folder.with_name(f"turn {number}").open("w") as turn:
        fcntl.lockf(turn, fcntl.LOCK_EX)  # unlike that of flock it is not held by forks
        item = next(mine, None)
        while item is not None:
            following = next(mine, None)  # fixtures that it needs as well are kept
            config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if session.shouldfail:
                raise session.Failed(session.shouldfail)
            if session.shouldstop:
                raise session.Interrupted(session.shouldstop)
            item = following


def _output(folder: Path, number: int) -> Path:
    return folder.with_name(f"{folder.name} {number}.txt")


def _note(folder: Path) -> Path:
    return folder.with_name(f"{folder.name} collected.json")


def whole_selection(config: pytest.Config) -> list[Collected] | None:
    """All tests of the default selection; None if this run has not collected all."""
    if config.args_source is pytest.Config.ArgsSource.TESTPATHS:
        return config.stash[COLLECTED]
    if not config.getoption("whole"):
        return None
    folder = Path(config.option.basetemp)
    notes = [_note(folder.with_name(name)) for name in config.getoption("whole").split(",")]
    until = time.monotonic() + PATIENCE
    while not all(note.exists() for note in notes):
        assert time.monotonic() < until, "another command has not collected its tests"
        time.sleep(0.1)
    return [Collected(*fields) for note in notes for fields in json.loads(note.read_text())]


def shared(items: list[pytest.Item], taken: Path) -> Iterator[pytest.Item]:
    """The tests that this process has taken."""
    units = [list(cases) for _, cases in itertools.groupby(items, key=_unit)]
    while (number := _take(taken)) < len(units):
        yield from units[number]


def _unit(item: pytest.Item) -> str:
    """What one process runs of the tests: the module, or the function with all of its cases."""
    together = item.get_closest_marker("together")
    unit = item.nodeid.partition("::" if together else "[")[0]
    return " ".join([unit, *together.args]) if together else unit


def _take(taken: Path) -> int:
    """How many units have been taken before: the number of this one."""
    with taken.open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        number = file.seek(0, os.SEEK_END)
        file.write(b".")
    return number
