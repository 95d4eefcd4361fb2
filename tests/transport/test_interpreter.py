"""Fresh interpreters: what they get from their parent, and when they end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from synkhronos._transport.processes.interpreter import lifeline, start_interpreter

TASK = """
import json, os, signal, sys

def main(task):
    found = {
        "group": os.getpgid(0) == os.getpid(),
        "inheritable": [os.get_inheritable(fd) for fd in task["descriptors"]],
        "cores": sorted(os.sched_getaffinity(0)),
        "threads": os.environ.get("OMP_NUM_THREADS"),
        "ignores SIGINT": signal.getsignal(signal.SIGINT) == signal.SIG_IGN,
        "ignores SIGTERM": signal.getsignal(signal.SIGTERM) == signal.SIG_IGN,
        "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
        "from here": "" in sys.path or os.getcwd() in sys.path,
    }
    print(json.dumps(found), flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def _module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module that the process finds where this one finds it."""
    folder = tmp_path / "modules"
    folder.mkdir()
    (folder / "a_task.py").write_text(TASK)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.chdir(tmp_path)


def started(held: int | None, *descriptors: int, **given: Any) -> subprocess.Popen[bytes]:
    return start_interpreter(
        "a_task",
        {"descriptors": descriptors},
        lifeline=held,
        descriptors=descriptors,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        **given,
    )


def said(process: subprocess.Popen[bytes]) -> dict[str, Any]:
    assert process.stdout is not None
    found: dict[str, Any] = json.loads(process.stdout.readline())
    return found


@pytest.mark.parametrize("interruptible", [True, False])
@pytest.mark.parametrize("bound", [True, False])
def test_what_a_process_gets(interruptible: bool, bound: bool, tmp_path: Path) -> None:
    """Also if the parent ignores SIGTERM and holds signals back, as while it starts processes."""
    core = min(os.sched_getaffinity(0))
    held = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        with lifeline() as end, open(tmp_path / "modules" / "a_task.py") as file:
            options: dict[str, Any] = {"cores": [core]} if bound else {}
            process = started(end, file.fileno(), interruptible=interruptible, **options)
            found = said(process)
            process.communicate(timeout=60)
    finally:
        signal.signal(signal.SIGTERM, before)
        signal.pthread_sigmask(signal.SIG_SETMASK, held)
    assert process.returncode == 0
    assert found.pop("cores") == ([core] if bound else sorted(os.sched_getaffinity(0)))
    assert found.pop("threads") == ("1" if bound else os.environ.get("OMP_NUM_THREADS"))
    assert found == {
        "group": True,
        "inheritable": [False],
        "ignores SIGINT": not interruptible,
        "ignores SIGTERM": False,
        "blocked": [],
        "from here": False,
    }


def test_a_process_ends_with_its_lifeline() -> None:
    with lifeline() as end:
        process = started(end)
        said(process)
    assert process.wait(60) == -signal.SIGKILL
    process.communicate()


def test_a_process_may_outlive_its_parent() -> None:
    """As an exporter, which takes the last lines of a run that was killed."""
    process = started(None)
    said(process)
    status = Path(f"/proc/{process.pid}/fd")
    assert not [
        fd for fd in status.iterdir() if os.readlink(fd).startswith("pipe") and int(fd.name) > 2
    ]
    process.communicate(timeout=60)
    assert process.returncode == 0
