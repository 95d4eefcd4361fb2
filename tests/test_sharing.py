"""Processes that share the tests of a collection: how they begin, and that none is left."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import sharing
from selection import thorough
from user_scripts import LIMIT, alive

CONFTEST = """
import pytest, sharing
from selection import COLLECTED
sharing.GRACE = 0.1
def pytest_collection_modifyitems(config): config.stash[COLLECTED] = []
"""
TESTS = """
import os, pathlib, signal, time
def test_one():
    signal.signal(signal.SIGINT, {handler})
    pathlib.Path(str(os.getpid())).touch()
    time.sleep(600)
test_two = test_three = test_four = lambda: test_one()  # a process takes one and the next
"""
ALONE = """
import os, pathlib, pytest
@pytest.mark.alone
def test_alone():
    ended = {path.read_text() for path in pathlib.Path().glob("ended *")}
    assert ended and not [pid for pid in ended if os.path.exists(f"/proc/{pid}")]
def test_one():
    pathlib.Path(f"ended {os.getpid()}").write_text(str(os.getpid()))
test_two = test_three = lambda: test_one()
"""


def start(folder: Path) -> subprocess.Popen[bytes]:
    """Two processes share the tests of a folder."""
    command = [sys.executable, "-P", "-m", "pytest", "-c", os.devnull, "--rootdir=."]
    command += ["--confcutdir=."]  # else it looks at each file of the folders above
    command += ["-p", "sharing", "--processes=2", "--basetemp=base", "--junit-xml=base.xml", "."]
    support = str(Path(__file__).parent / "support")
    return subprocess.Popen(
        command,
        cwd=folder,
        # without the plug-ins that are installed, of which it needs none
        env={**os.environ, "PYTHONPATH": support, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )


def test_what_runs_alone_begins_when_all_others_have_ended(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_alone.py").write_text(ALONE)
    assert start(tmp_path).wait(LIMIT) == 0
    reports = [path.read_text() for path in tmp_path.glob("base *.xml")]
    assert sum(report.count("<testcase ") for report in reports) == 4
    assert len(reports) == 3


def test_no_large_library_is_imported_beside_small_tests(pytestconfig: pytest.Config) -> None:
    """Each of their groups would be forked with it: `LARGE` of tests/run.py has the others."""
    if sharing.IMPORTED not in pytestconfig.stash:
        pytest.skip("only processes that share tests have collected the small ones alone")
    assert not pytestconfig.stash[sharing.IMPORTED]


@pytest.mark.parametrize(
    ("marker", "unit"),
    [
        (None, "test_a.py::test_one"),
        (pytest.mark.together.mark, "test_a.py"),
        (pytest.mark.together("mix").mark, "test_a.py mix"),
    ],
)
def test_what_one_process_runs(marker: pytest.Mark | None, unit: str) -> None:
    item = SimpleNamespace(nodeid="test_a.py::test_one[1]", get_closest_marker=lambda _: marker)
    assert sharing._unit(item) == unit


@pytest.mark.parametrize(
    ("number", "handler"),
    [
        (signal.SIGINT, "signal.SIG_IGN"),
        *thorough((signal.SIGKILL, "signal.default_int_handler")),
    ],
)
def test_a_signal_to_the_first_process_only(
    number: signal.Signals, handler: str, tmp_path: Path
) -> None:
    """The two others sleep in their tests for ten minutes."""
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_waiting.py").write_text(TESTS.format(handler=handler))
    first = start(tmp_path)
    try:
        until = time.monotonic() + LIMIT
        while len(others := [int(path.name) for path in tmp_path.glob("[0-9]*")]) < 2:
            assert first.poll() is None, "it has ended"
            assert time.monotonic() < until
            time.sleep(0.01)
        first.send_signal(number)
        assert first.wait(LIMIT) == (2 if number == signal.SIGINT else -number)
        while alive(others):
            assert time.monotonic() < until
            time.sleep(0.01)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(first.pid, signal.SIGKILL)
        first.wait()
