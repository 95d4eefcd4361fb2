"""Signals end a program that is the first process of a container, too (promise 9)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from selection import thorough
from user_scripts import LIMIT


def cannot_unshare() -> str:
    """Why no namespace of processes can be made; empty if it can."""
    try:
        done = subprocess.run(
            ["unshare", "-pf", "--mount-proc", "true"], capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        return "unshare is not installed"
    return done.stderr.strip()


pytestmark = pytest.mark.skipif(bool(cannot_unshare()), reason=cannot_unshare())

FIRST = """
    import os, signal, sys, time
    from pathlib import Path
    import synkhronos as synk
    said, how = Path(sys.argv[1]), sys.argv[2]
    assert os.getpid() == 1
    if how == "handled":
        def mine(number, frame):
            said.write_text("my handler")
            os._exit(7)
        signal.signal(signal.SIGTERM, mine)
    with synk.Group(3) as group, synk.Group(1):
        if how == "fit":
            from synkhronos.training._run import signals
            with signals.Signals(saved=True) as noted:
                said.write_text("ready")
                while not noted.received:
                    time.sleep(0.01)
            said.write_text("noted")
            os._exit(8)
        if how == "late":
            from synkhronos.training._run import signals
            signals.GRACE = 0.2
            with signals.Signals(saved=True):
                said.write_text("ready")
                time.sleep(600)
        if how != "closed":
            said.write_text("ready")
            time.sleep(600)
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    assert signal.getsignal(signal.SIGHUP) == signal.SIG_DFL
    said.write_text("as before")
"""


@pytest.mark.parametrize(
    ("how", "number", "code", "last"),
    [
        ("calls", signal.SIGTERM, 128 + signal.SIGTERM, "ready"),
        *thorough(
            ("calls", signal.SIGHUP, 128 + signal.SIGHUP, "ready"),
            ("handled", signal.SIGTERM, 7, "my handler"),
            ("fit", signal.SIGTERM, 8, "noted"),
            ("late", signal.SIGTERM, 128 + signal.SIGTERM, "ready"),
            ("closed", 0, 0, "as before"),
        ),
    ],
)
def test_signals_end_the_first_process(
    tmp_path: Path, how: str, number: int, code: int, last: str
) -> None:
    script, said = tmp_path / "script.py", tmp_path / "said"
    script.write_text(textwrap.dedent(FIRST))
    command = [sys.executable, "-W", "error", str(script), str(said), how]
    with subprocess.Popen(["unshare", "-pf", "--mount-proc", *command]) as outer:
        if number:
            until = time.monotonic() + LIMIT
            while not (said.exists() and said.read_text()) and time.monotonic() < until:
                time.sleep(0.01)
            children = Path(f"/proc/{outer.pid}/task/{outer.pid}/children").read_text()
            os.kill(int(children), number)
        assert outer.wait(LIMIT) == code
    assert said.read_text() == last
