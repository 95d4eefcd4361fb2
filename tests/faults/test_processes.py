"""No stranger is ever killed (T11): workers are reached by pidfd, or before they are reaped."""

from __future__ import annotations

import ast
import os
from pathlib import Path

import pytest
from selection import thorough
from user_scripts import run_script

import synkhronos as synk

PACKAGE = Path(synk.__file__).parent
# Where a process is killed by its number: one that has just been made, one not reaped yet.
BY_NUMBER = {
    ("cli/_doctor/mpi_round_trip.py", "round_trip"),
    ("_transport/processes/child_process.py", "__post_init__"),
    ("_transport/processes/child_process.py", "reap"),
}


def kills(node: ast.AST) -> bool:
    return (
        ast.unparse(node) in ("os.kill", "os.killpg") if isinstance(node, ast.Attribute) else False
    )


def test_who_kills_by_number() -> None:
    found = set()
    for path in PACKAGE.rglob("*.py"):
        name, text = str(path.relative_to(PACKAGE)), path.read_text()
        if "kill" not in text:  # most have no need to be parsed
            continue
        for function in ast.walk(ast.parse(text)):
            if isinstance(function, ast.FunctionDef) and any(map(kills, ast.walk(function))):
                found.add((name, function.name))
    assert {f for f in found if not f[0].startswith("testing/")} == BY_NUMBER


REUSED = """
    import os, signal, subprocess, sys, time
    from pathlib import Path
    import synkhronos as synk
    from synkhronos.testing.faults import Fault

    LAST = Path("/proc/sys/kernel/ns_last_pid")

    def alive(pid):
        try:
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
        except OSError:
            return False

    def stranger_with(pid):
        # somebody else's process, with a group of its own
        for _ in range(500):
            LAST.write_text(str(pid - 1))
            made = subprocess.Popen(["sleep", "100"], process_group=0)
            if made.pid == pid:
                return made
            made.kill()
            made.wait()
        raise AssertionError("others take all numbers")

    start, how, then = sys.argv[1:]
    if how == "nobody":
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    group = synk.Group(3, start=start)
    pid = group.channel.pid(1)
    os.kill(pid, signal.SIGKILL)
    if how == "another":
        os.waitpid(pid, 0)
    while os.path.exists(f"/proc/{pid}"):
        time.sleep(0.001)
    stranger = stranger_with(pid)
    if then == "run":
        try:
            group.run(Fault("nap", ()))
        except synk.WorkerDied as exc:
            print(exc)
    group.close()
    del group
    assert alive(pid), "the stranger was killed"
    stranger.kill()
    stranger.wait()
    print("done")
"""


@pytest.mark.skipif(
    not os.access("/proc/sys/kernel/ns_last_pid", os.W_OK), reason="pids cannot be chosen here"
)
@pytest.mark.parametrize(
    "way", ["exec another run", *thorough("fork another close", "fork nobody run")]
)
def test_a_number_that_is_used_again(tmp_path: Path, way: str) -> None:
    """A worker was reaped by someone else, and its number is another process's by now."""
    printed = run_script(tmp_path, REUSED, *way.split())
    assert printed.endswith("done\n")
    assert "close" in way or "exit status was taken by someone else" in printed
