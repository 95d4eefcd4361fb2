"""Running a script as a user would: a process of its own, under a hard limit."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

LIMIT = 270  # seconds; a hang fails


# a busy machine takes long enough for these lines, which are not the script's
_PROGRESS = re.compile(r"^synkhronos: (?:compiling|proving|measuring) .*\d m?s\n", re.MULTILINE)


def run_script(tmp_path: Path, text: str, *args: str, check: bool = True) -> str:
    """Run a script (no `__main__` guard) and return what it printed, errors included.

    Lines that tell how long something takes are left out.
    """
    done = ended(tmp_path, script_command(tmp_path, text, *args))
    assert not check or done.returncode == 0, done.stdout
    return without_progress(done.stdout)


def without_progress(printed: str) -> str:
    """Without the lines that a slow machine adds."""
    return _PROGRESS.sub("", printed)


def script_command(tmp_path: Path, text: str, *args: str) -> list[str]:
    """Write a script, and what runs it, warnings being errors."""
    path = tmp_path / "script.py"
    path.write_text(textwrap.dedent(text))
    moved = "ignore:Importing 'IfElse':DeprecationWarning"  # PyMC 6.3 with PyTensor 3.3
    return [sys.executable, "-W", "error", "-W", moved, str(path), *args]


def ended(
    tmp_path: Path, command: list[str], limit: float = LIMIT
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end."""
    return subprocess.run(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=limit,
        cwd=tmp_path,
        start_new_session=True,
        check=False,
    )


def start_script(tmp_path: Path, text: str, *args: str) -> subprocess.Popen[str]:
    """Start a script in a session of its own; it prints `ready` when the test may go on."""
    path = tmp_path / "script.py"
    path.write_text(textwrap.dedent(text))
    process = subprocess.Popen(
        [sys.executable, str(path), *args],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=tmp_path,
        start_new_session=True,
    )
    assert process.stdout is not None
    for line in process.stdout:
        if line.strip() == "ready":
            return process
    raise AssertionError("the script ended early")


def alive(pids: list[int]) -> list[int]:
    """Which of these processes still run (zombies do not)."""
    found = []
    for pid in pids:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if state not in "ZX":
            found.append(pid)
    return found


def kill(pid: int) -> None:
    """SIGKILL."""
    os.kill(pid, signal.SIGKILL)
