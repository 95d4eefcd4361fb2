"""Descriptors that the program has closed are neither written to nor closed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from selection import thorough
from user_scripts import run_script

from synkhronos._errors import InputError
from synkhronos._host.rank_logs import RankLogs
from synkhronos.training import Recorder

CLOSED = """
    import math, os, socket, sys, time
    from pathlib import Path
    import numpy as np, pytensor.tensor as pt
    import synkhronos as synk

    start, then, kind, folder = *sys.argv[1:4], Path(sys.argv[4])
    with synk.Group(3, start=start, stall_warning=None) as group:
        x = pt.vector("x", dtype="float64")
        f = synk.function([x], (x.sum(), "sum"), mode="FAST_COMPILE")
        assert f(np.ones(6)) == 6
        if then in ("rest", "at once"):
            time.sleep(0.3)  # the workers sleep, so that a call has to wake them
        if then == "at once":  # the latest look at all descriptors was just before
            waiter = group.channel.node.waiter
            ring, waiter.ring = waiter.ring, lambda ranks: (
                setattr(waiter, "_looked", math.inf),
                ring(ranks),
                setattr(waiter, "_looked", -math.inf),
            )
        os.closerange(3, 1000)
        opened, sockets = [], []
        for number in range(20):
            if kind == "file":
                (folder / str(number)).write_text("A" * 100)
                opened.append(os.open(folder / str(number), os.O_RDWR))
            elif kind == "socket":
                sockets += socket.socketpair()
        if then != "close":
            if then != "at once":
                time.sleep(0.2)  # all descriptors are looked at every 100 ms
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
        ("fork", "at once", "file"),
        *thorough(("exec", "close", "file")),
        *thorough(
            *[
                ("fork", t, k)
                for t in ("call", "rest", "at once", "close")
                for k in ("file", "socket", "none")
            ]
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


@pytest.mark.parametrize("writer", ["recorder", "rank logs"])
def test_a_file_that_gets_the_number_of_another_writer_is_spared(
    tmp_path: Path, writer: str
) -> None:
    logs, recorder = RankLogs(tmp_path / "log"), Recorder(tmp_path / "run")
    logs.write(0, "before")
    ours = recorder._metrics if writer == "recorder" else logs._files[0]
    with open(tmp_path / "users", "w+b") as file:
        os.dup2(file.fileno(), ours)
        logs.write(0, "after")
        if writer == "recorder":
            with pytest.raises(InputError, match="is closed"):
                recorder.write("step", loss=1.0)
        logs.close()
        recorder.close()
        assert os.fstat(ours).st_size == 0
        os.close(ours)
    assert "after" in (tmp_path / "log" / "rank-0.log").read_text()
