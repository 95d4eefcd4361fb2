"""Nothing is left, and nothing grows (promises 7 and 8); and the checks of that are no rubber
stamps."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import leaking
import pytest
from user_scripts import LIMIT, alive

from synkhronos.testing import leaks


@pytest.mark.slow
def test_nothing_grows() -> None:
    """A sample of what leaking.py does, in a process that has done nothing else."""
    done = subprocess.run(
        [sys.executable, leaking.__file__, "--sample"],
        capture_output=True,
        text=True,
        timeout=LIMIT,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert [line.split()[1].rstrip(":") for line in done.stdout.splitlines()] == [
        "groups",
        "calls",
        "Data",
        "exceptions",
    ]


GROWING = """
import os, sys
from leaking import GROWTH, grown

kept = []
leaky = {
    "resident": lambda n: kept.append(bytearray(os.urandom(GROWTH // 4))),
    "descriptors": lambda n: kept.append(open(sys.argv[1], "w")),
}
for what, act in leaky.items():
    assert any(what in text for text in grown("acts", None, act, 6, 1).leaks()), what
assert not grown("acts", None, lambda n: None, 6, 1).leaks()
"""


def test_a_growth_is_seen(tmp_path: Path) -> None:
    """In a fresh process, too: in the memory that other tests have let go of, it would not be."""
    subprocess.run(
        [sys.executable, "-c", GROWING, tmp_path / "x"],
        cwd=Path(leaking.__file__).parent,
        check=True,
        timeout=LIMIT,
    )


STARTER = """
import os, subprocess, sys, time
null = subprocess.DEVNULL
holder = subprocess.Popen([sys.executable, "-c", *sys.argv[1:]], stdout=null, stderr=null)
while not os.path.exists(sys.argv[2]):
    time.sleep(0.01)
print(holder.pid)
"""
HOLDER = "import sys, time; file = open(sys.argv[1], 'w'); time.sleep(600)"
SEMAPHORE_HOLDER = """
import os, sys, time
from multiprocessing import get_context, resource_tracker
held = get_context("spawn").Semaphore()
with open(sys.argv[1] + "~", "w") as file:
    print(held._semlock.name[1:], resource_tracker._resource_tracker._pid, file=file)
os.rename(sys.argv[1] + "~", sys.argv[1])
time.sleep(600)
"""


def start_stranger(script: str, path: Path) -> int:
    """Start a process that is no descendant of this one; it has made the file."""
    starter = [sys.executable, "-c", STARTER, script, str(path)]
    return int(subprocess.run(starter, capture_output=True, text=True, check=True).stdout)


def end(pid: int) -> None:
    """Kill a process, and wait for its end."""
    os.kill(pid, signal.SIGKILL)
    until = time.monotonic() + 10
    while alive([pid]):
        assert time.monotonic() < until
        time.sleep(0.01)


def test_files_of_others_are_not_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a stranger has open is no leak of ours; what nobody has is one."""
    monkeypatch.setattr(leaks, "NAMED", tmp_path)  # /dev/shm is checked by whoever tests beside us
    before = leaks.snapshot()
    path = tmp_path / "file"
    holder = start_stranger(HOLDER, path)
    try:
        assert path.exists()
        leaks.check(before, patience=0)
    finally:
        end(holder)
    with pytest.raises(AssertionError, match=path.name):
        leaks.check(before, patience=0)
    path.unlink()
    leaks.check(before)


def test_semaphores_of_others_are_not_ours(tmp_path: Path) -> None:
    """multiprocessing's have another name in the maps of their process than in /dev/shm."""
    holder = start_stranger(SEMAPHORE_HOLDER, tmp_path / "said")
    name, tracker = (tmp_path / "said").read_text().split()
    path = f"/dev/shm/sem.{name}"
    try:
        assert path in leaks.named()
        assert leaks.forsaken([path]) == []
    finally:
        end(int(tracker))  # it would remove what its process leaves
        end(holder)
    try:
        assert leaks.forsaken([path]) == [path]
    finally:
        os.unlink(path)


def test_files_that_a_tracker_is_about_to_remove_are_not_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their process has ended, and multiprocessing's tracker removes them a moment later."""
    monkeypatch.setattr(leaks, "NAMED", tmp_path)
    before = leaks.named()
    soon, never = tmp_path / "soon", tmp_path / "never"
    for path in (soon, never):
        path.touch()
    timer = threading.Timer(0.2, soon.unlink)
    timer.start()
    try:
        assert leaks.left_since(before | {str(never)}) == []
        assert not soon.exists()
        assert leaks.left_since(before, patience=0.1) == [str(never)]
    finally:
        timer.join()


LEAKY = """
import os, subprocess, threading
from pathlib import Path
import numpy as np, pytest
import synkhronos as synk
from synkhronos.testing import leaks

leaks.NAMED = Path("named")
leaks.NAMED.mkdir()
leaks.check.__defaults__ = (0.2,)  # seconds; what is left here does not go
pytestmark = pytest.mark.usefixtures("nothing_is_left")
over, kept = threading.Event(), []

@pytest.fixture(scope="module")
def group():
    with synk.Group(2) as made:
        yield made

def test_clean():
    with synk.Group(2):
        synk.data(np.ones(3))

def test_children():
    kept.append(subprocess.Popen(["sleep", "60"]))

def test_descriptors():
    kept.append(os.eventfd(0))

def test_pipes():
    kept.extend(os.pipe())

def test_shared_memory():
    Path("named/file").touch()

def test_group():
    synk.fork(2)

def test_group_of_the_module(group):
    assert group.alive

def test_threads():  # after the groups, which are forked where there are none
    threading.Thread(target=over.wait).start()

def test_end():
    synk.close()
    over.set()
    kept[0].kill()
    kept[0].wait()
"""


def test_the_plugin(tmp_path: Path) -> None:
    """What users have: each leak is an error of the test that has left it, and of no other."""
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["synkhronos.testing.plugin"]\n')
    (tmp_path / "test_leaky.py").write_text(LEAKY)
    without = ["-p", "no:cacheprovider", "-p", "no:zarr"]  # zarr's plugin imports zarr
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *without, "--rootdir", tmp_path],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=LIMIT,
    )
    errors = re.findall(r"^ERROR test_leaky.py::test_(\w+)", done.stdout, re.MULTILINE)
    assert errors == ["children", "descriptors", "pipes", "shared_memory", "group", "threads"], (
        done.stdout
    )
    assert "9 passed, 6 errors" in done.stdout
