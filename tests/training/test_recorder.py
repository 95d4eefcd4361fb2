"""The folder of a run: one writer, whole lines after each kind of end, runs that go on."""

from __future__ import annotations

import errno
import itertools
import json
import math
import mmap
import os
import random
import resource
import signal
import subprocess
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from limits import cannot_mount

import synkhronos as synk
from synkhronos.training import Recorder, read_metrics
from synkhronos.training._record import recorder

LIMIT = 60.0  # seconds; a hang fails


def forked(body: Callable[[], object]) -> int:
    """Run `body` in a fork of this process; returns its pid."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of JAX, if another test has imported it
        pid = os.fork()
    if pid:
        return pid
    try:
        body()
        os._exit(0)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)


def filled(made: Recorder, size: int, message: str) -> int:
    """Write until an error with this message; returns the number of lines."""
    for step in itertools.count(1):
        try:
            made.write("step", step=step, text="x" * size)
        except OSError as exc:
            assert message in str(exc)  # noqa: PT017
            return step - 1
    raise AssertionError


def code_of(pid: int) -> int:
    """The exit code of a child, negative after a signal."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def steps(folder: Path) -> list[int]:
    """The steps that are recorded."""
    return [line["step"] for line in read_metrics(folder) if line["kind"] == "step"]


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many recorders, without looking at the machine for each."""
    monkeypatch.setattr(recorder, "environment", dict)


def test_what_a_run_leaves(tmp_path: Path) -> None:
    config = {"batch": 512, "rule": test_what_a_run_leaves, "sizes": (1, np.int64(2)), "nan": 1e999}
    with Recorder(tmp_path / "ünicode \n", config, "a") as made:
        assert made.folder == tmp_path / "ünicode \n" / "a"
        assert made.checkpoints == made.folder / "ckpt"
        assert made.logs == made.folder / "log"
        assert "a')" in repr(made)
        made.write("start", step=0)
        made.write("epoch", step=np.int64(3), epoch=1, loss=np.float32(0.5), names=["ü\n", None])
        made.write("validated", step=3, split={"read": np.ones(2)}, acc=math.nan, low=-math.inf)
        made.sync()
        began = time.time()
    text = (made.folder / "metrics.jsonl").read_text()
    assert len(text.splitlines()) == 3
    assert '"acc": "NaN", "low": "-Infinity"' in text
    start, epoch, validated = read_metrics(made.folder)
    assert abs(start.pop("time") - began) < 10
    assert start == {"kind": "start", "step": 0}
    assert (epoch["step"], epoch["loss"], epoch["names"]) == (3, 0.5, ["ü\n", None])
    assert math.isnan(validated["acc"])
    assert (validated["low"], validated["split"]) == (-math.inf, {"read": [1.0, 1.0]})
    run = json.loads((made.folder / "run.json").read_text())
    [entry] = run["starts"]
    assert entry["config"].pop("rule").startswith("<function test_what_a_run_leaves")
    assert entry["config"] == {"batch": 512, "sizes": [1, 2], "nan": "Infinity"}
    assert entry["environment"]["packages"]["numpy"] == np.__version__
    assert (entry["pid"], entry["argv"]) == (os.getpid(), sys.orig_argv)
    assert sorted(os.listdir(made.folder)) == [".lock", "metrics.jsonl", "run.json"]


@pytest.mark.usefixtures("quick")
def test_secrets_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """T12: of the command line and of the configuration."""
    words = ["python", "train.py", "--token", "abc", "https://me:abc@host/x?sig=abc"]
    monkeypatch.setattr(sys, "orig_argv", words)
    config = {"data": {"train": ["s3://b/x?sig=abc"], "hub_token": "abc"}, "note": "x://abc@h"}
    with Recorder(tmp_path, config) as made:
        made.write("start", step=0)
    text = (tmp_path / "run.json").read_text()
    assert "abc" not in text
    [entry] = json.loads(text)["starts"]
    assert entry["argv"] == ["python", "train.py", "--token", "***", "https://***@host/x?***"]
    assert entry["config"]["data"] == {"train": ["s3://b/x?***"], "hub_token": "***"}


@pytest.mark.usefixtures("quick")
def test_arguments_and_values_that_are_refused(tmp_path: Path) -> None:
    with pytest.raises(synk.InputTypeError, match="give the path of the run's folder"):
        Recorder(3)  # type: ignore[arg-type]
    with pytest.raises(synk.InputTypeError, match="give a mapping"):
        Recorder(tmp_path, ["batch"])  # type: ignore[arg-type]
    with pytest.raises(synk.InputTypeError, match="no option 'restart'"):
        Recorder(tmp_path, restart=True)  # type: ignore[call-arg]
    assert os.listdir(tmp_path) == []
    made = Recorder(tmp_path)
    with pytest.raises(synk.InputTypeError, match=r"loss\['a'\]\[0\]=<object"):
        made.write("step", loss={"a": [object()]})
    for name in ("kind", "time"):
        with pytest.raises(synk.InputError, match=f"each line has its own '{name}'"):
            made.write("step", **{name: 1})
    made.close()
    made.close()
    for use in (made.sync, lambda: made.write("step"), lambda: made.resumed(3)):
        with pytest.raises(synk.InputError, match="is closed"):
            use()
    assert read_metrics(tmp_path) == []
    with pytest.raises(FileNotFoundError):
        read_metrics(tmp_path / "other")


@pytest.mark.usefixtures("quick")
def test_one_that_is_dropped_is_closed(tmp_path: Path) -> None:
    Recorder(tmp_path).write("step", step=1)
    Recorder(tmp_path, resume=True).write("step", step=2)
    assert steps(tmp_path) == [1, 2]


@pytest.mark.usefixtures("quick")
def test_a_folder_that_holds_a_run(tmp_path: Path) -> None:
    """It is kept unless the user says that the run goes on; an unreadable one is never replaced."""
    with Recorder(tmp_path, {"batch": 1}) as made:
        made.write("step", step=1)
    before = (tmp_path / "run.json").read_text()
    with pytest.raises(synk.InputError, match=r"holds a run that began at 20.*by resume=True"):
        Recorder(tmp_path)
    assert (tmp_path / "run.json").read_text() == before
    with Recorder(tmp_path, {"batch": 2}, resume=True):
        pass
    starts = json.loads((tmp_path / "run.json").read_text())["starts"]
    assert [start["config"] for start in starts] == [{"batch": 1}, {"batch": 2}]
    for text, said in {
        "{": "not what a run writes",
        "[]": "not what a run writes",
        '{"format": 2, "starts": [{"time": ""}]}': "has format 2",
    }.items():
        (tmp_path / "run.json").write_text(text)
        with pytest.raises(synk.InputError, match=said):
            Recorder(tmp_path, resume=True)
        assert (tmp_path / "run.json").read_text() == text
    (tmp_path / "run.json").unlink()
    with pytest.raises(synk.InputError, match=r"run\.json is missing"):
        Recorder(tmp_path)
    with Recorder(tmp_path, resume=True):
        assert steps(tmp_path) == [1]


@pytest.mark.usefixtures("quick")
def test_run_json_is_replaced_as_a_whole(tmp_path: Path) -> None:
    """Whoever has it open reads the old one to its end."""
    Recorder(tmp_path).close()
    with open(tmp_path / "run.json") as old:
        Recorder(tmp_path, resume=True).close()
        assert len(json.load(old)["starts"]) == 1
    assert len(json.loads((tmp_path / "run.json").read_text())["starts"]) == 2


@pytest.mark.usefixtures("quick")
def test_runs_that_go_on(tmp_path: Path) -> None:
    """Readers see the steps that count, also after several returns."""
    with Recorder(tmp_path) as made:
        for first, last, back in ((1, 9, 6), (7, 12, 11), (12, 13, 3), (4, 5, 5), (6, 6, 0)):
            for step in range(first, last + 1):
                made.write("step", step=step, batch=first)
            made.write("note", text="has no step")
            made.resumed(back)
            assert steps(tmp_path) == list(range(1, back + 1))
        made.write("step", step=1, batch="last")
        lines = read_metrics(tmp_path)
    assert [line["batch"] for line in lines if line["kind"] == "step"] == ["last"]
    assert [line["kind"] for line in lines].count("note") == 5
    assert [line["step"] for line in lines if line["kind"] == "resumed"] == [0]


@pytest.mark.usefixtures("quick")
def test_a_line_torn_at_each_byte(tmp_path: Path) -> None:
    """Readers skip it, and what is written after it is whole."""
    made = Recorder(tmp_path)
    made.write("step", step=1)
    made.write("step", step=2, text="é{}")
    made.close()
    path = tmp_path / "metrics.jsonl"
    text = path.read_bytes()
    first = text.index(b"\n") + 1
    for end in range(first, len(text) + 1):
        path.write_bytes(text[:end])
        whole = [1, 2] if end >= len(text) - 1 else [1]  # only its end is missing: all is there
        assert steps(tmp_path) == whole
        with Recorder(tmp_path, resume=True) as made:
            made.resumed(1)
            made.write("step", step=2)
            made.write("step", step=3)
        assert steps(tmp_path) == [1, 2, 3]
        assert path.read_bytes().startswith(text[:end])
    path.write_bytes(text + bytes(5000))  # after a power cut, a file may end in zeros
    with Recorder(tmp_path, resume=True) as made:
        made.write("step", step=3)
    assert steps(tmp_path) == [1, 2, 3]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kills", [20, pytest.param(500, marks=pytest.mark.thorough)])
def test_kills(kills: int, tmp_path: Path) -> None:
    """Each line whose write has returned is read, in order, and each run goes on."""
    seed = random.randrange(2**32)
    chance = random.Random(seed)
    with mmap.mmap(-1, 8) as written:

        def body() -> None:
            with Recorder(folder, resume=True) as made:
                made.resumed(start)
                for step in range(start + 1, 10**9):
                    made.write("step", step=step, text="x" * chance.randrange(9_000))
                    written[:] = step.to_bytes(8, "little")

        for kill in range(kills):
            if kill % 20 == 0:  # a new run, since the file of each grows
                folder, last = tmp_path / str(kill), 0
            start = chance.randint(max(0, last - 100), last)
            written[:] = bytes(8)
            pid = forked(body)
            time.sleep(0.06 * chance.random())
            os.kill(pid, signal.SIGKILL)
            assert code_of(pid) == -signal.SIGKILL
            if not (folder / "metrics.jsonl").exists():
                continue
            found = steps(folder)
            assert found == list(range(1, len(found) + 1)), f"kill {kill}, seed {seed}"
            count = int.from_bytes(written[:], "little")
            ends = (count, count + 1) if count else (last, start, start + 1)
            assert len(found) in ends, f"kill {kill}, seed {seed}"
            assert json.loads((folder / "run.json").read_text())["starts"]
            last = len(found)


@pytest.mark.usefixtures("quick")
def test_two_processes(tmp_path: Path) -> None:
    """The second one is told the first one's pid; the first one's death lets it in."""
    ready, says = os.pipe()

    def body() -> None:
        with Recorder(tmp_path) as made:
            made.write("step", step=1)
            os.write(says, b"1")
            time.sleep(LIMIT)

    pid = forked(body)
    try:
        assert os.read(ready, 1)
        for resume in (False, True):
            with pytest.raises(synk.InputError, match=f"process {pid} on .* writes there"):
                Recorder(tmp_path, resume=resume)
        assert steps(tmp_path) == [1]
    finally:
        os.kill(pid, signal.SIGKILL)
        code_of(pid)
        os.close(ready)
        os.close(says)
    with Recorder(tmp_path, resume=True) as made:
        made.write("step", step=2)
        with pytest.raises(synk.InputError, match="a Recorder of this process writes there"):
            Recorder(tmp_path, resume=True)
    assert steps(tmp_path) == [1, 2]


@pytest.mark.usefixtures("quick")
def test_members_do_not_hold_the_lock(tmp_path: Path) -> None:
    """The folder is free when the master has ended, though a worker may take a moment longer."""
    made = Recorder(tmp_path)
    with synk.Group(2):
        made.close()
        Recorder(tmp_path, resume=True).close()
    with Recorder(tmp_path, resume=True) as made:
        made.write("step", step=1)

        def body() -> None:
            with pytest.raises(synk.InputError, match="belongs to another process"):
                made.write("step", step=2)

        assert code_of(forked(body)) == 0
        with pytest.raises(synk.InputError, match="of this process"):
            Recorder(tmp_path, resume=True)  # the end of the fork has not released it


@pytest.mark.usefixtures("quick")
def test_a_file_system_without_locks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuses(error: int) -> None:
        def flock(descriptor: int, operation: int) -> None:
            raise OSError(error, os.strerror(error))

        monkeypatch.setattr("fcntl.flock", flock)

    refuses(errno.ENOLCK)
    Recorder(tmp_path).close()
    assert "its file system has no locks" in caplog.text
    refuses(errno.EIO)
    with pytest.raises(OSError, match="Input/output error"):
        Recorder(tmp_path, resume=True)


@pytest.mark.usefixtures("quick")
def test_a_full_file(tmp_path: Path) -> None:
    """A line that does not fit is an OSError; what comes after more space is there is whole."""

    def body() -> None:
        with Recorder(tmp_path) as made:
            soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
            resource.setrlimit(resource.RLIMIT_FSIZE, (5000, hard))
            written = filled(made, 100, "File too large")
            assert os.stat(tmp_path / "metrics.jsonl").st_size == 5000  # a part of the line
            with pytest.raises(OSError, match=r"File too large: .*metrics.jsonl"):
                made.write("step", step=0)
            assert steps(tmp_path) == list(range(1, written + 1))
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
            made.write("step", step=written + 1)
            assert steps(tmp_path) == list(range(1, written + 2))

    assert code_of(forked(body)) == 0


@pytest.mark.usefixtures("quick")
@pytest.mark.skipif(bool(cannot_mount()), reason=cannot_mount())
def test_a_full_disk_and_a_read_only_one(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()

    def mount(options: str) -> None:
        subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", disk], check=True)

    def body() -> None:
        os.unshare(os.CLONE_NEWNS)
        subprocess.run(["mount", "--make-rprivate", "/"], check=True)
        mount("size=64k,nr_inodes=50")
        (disk / "other").write_bytes(bytes(20_000))
        with Recorder(disk / "first") as made:
            written = filled(made, 1000, "No space left")
            assert steps(made.folder) == list(range(1, written + 1))
            made.close()
            before = (disk / "first" / "run.json").read_text()
            for folder, resume in ((disk / "second", False), (disk / "first", True)):
                with pytest.raises(OSError, match="No space left") as raised:
                    Recorder(folder, resume=resume)
                assert "free some space" in raised.value.__notes__[0]
            assert (disk / "first" / "run.json").read_text() == before
            (disk / "other").unlink()
            Recorder(disk / "second").close()  # what the first trial left is not a run
        with Recorder(disk / "first", resume=True) as made:
            made.write("step", step=written + 1)
            assert steps(made.folder) == list(range(1, written + 2))
        mount("remount,ro")
        assert steps(disk / "first") == list(range(1, written + 2))
        with pytest.raises(OSError, match="Read-only") as raised:
            Recorder(disk / "third")
        assert "choose another one" in raised.value.__notes__[0]

    assert code_of(forked(body)) == 0
