"""Descriptors that the program has closed are neither written to nor closed."""

from __future__ import annotations

from pathlib import Path

import pytest
from selection import thorough
from user_scripts import run_script

CLOSED = """
    import os, socket, sys, time
    from pathlib import Path
    import numpy as np, pytensor.tensor as pt
    import synkhronos as synk

    start, then, kind, folder = *sys.argv[1:4], Path(sys.argv[4])
    with synk.Group(3, start=start, stall_warning=None) as group:
        x = pt.vector("x", dtype="float64")
        f = synk.function([x], (x.sum(), "sum"), mode="FAST_COMPILE")
        assert f(np.ones(6)) == 6
        if then == "rest":
            time.sleep(0.3)  # the workers sleep, so that a call has to wake them
        os.closerange(3, 1000)
        opened, sockets = [], []
        for number in range(20):
            if kind == "file":
                (folder / str(number)).write_text("A" * 100)
                opened.append(os.open(folder / str(number), os.O_RDWR))
            elif kind == "socket":
                sockets += socket.socketpair()
        if then != "close":
            time.sleep(0.2)  # descriptors for wakes are looked at every 100 ms
            try:
                f(np.ones(6))
            except synk.WorkerDied as exc:
                assert "this program has closed descriptors of the group" in str(exc), exc
                print("noticed")
    for number, descriptor in enumerate(opened):
        assert os.lseek(descriptor, 0, os.SEEK_CUR) == 0, number
        assert os.read(descriptor, 1000) == b"A" * 100, number
    for one in sockets:
        one.setblocking(False)
        try:
            raise AssertionError(one.recv(100))
        except BlockingIOError:
            continue
    for one in sockets:
        one.close()
    with synk.Group(2, start=start) as group:
        assert synk.function([x], (x.sum(), "sum"), mode="FAST_COMPILE")(np.ones(6)) == 6
    print("done")
"""


@pytest.mark.parametrize(
    ("start", "then", "kind"),
    [
        ("fork", "call", "file"),
        ("fork", "rest", "socket"),
        ("exec", "close", "file"),
        *thorough(
            *[("fork", t, k) for t in ("call", "rest", "close") for k in ("file", "socket", "none")]
        ),
    ],
)
def test_files_that_get_the_numbers_are_spared(
    tmp_path: Path, start: str, then: str, kind: str
) -> None:
    """`os.closerange`, as daemons call it, closes the descriptors of a group."""
    folder = tmp_path / "files"
    folder.mkdir()
    said = run_script(tmp_path, CLOSED, start, then, kind, str(folder))
    assert said == "noticed\n" * (then != "close") + "done\n"
