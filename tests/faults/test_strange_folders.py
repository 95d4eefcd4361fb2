"""Run folders of strangers: links, pipes and devices under the names of a run's files (T7)."""

from __future__ import annotations

import functools
import os
import shutil
import stat
from pathlib import Path
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

import synkhronos as synk
from synkhronos._host.rank_logs import RankLogs
from synkhronos.cli._command_line import main
from synkhronos.extensions import updates
from synkhronos.training import Event, Recorder, fit, read_metrics
from synkhronos.training._record import recorder

KINDS = ("link", "dangling link", "pipe", "device")


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many recorders, without looking at the machine for each."""
    monkeypatch.setattr(recorder, "environment", dict)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    with Recorder(tmp_path / "run") as made:
        made.write("epoch", step=1, epoch=0, loss=0.5)
        made.write("end", step=1, epoch=0, reason="epochs")
    return made.folder


@pytest.fixture
def thesis(tmp_path: Path) -> Path:
    """A file of ours outside of the folder."""
    place = tmp_path / "thesis"
    place.write_text("thesis")
    return place


def plant(place: Path, kind: str, thesis: Path) -> None:
    """Put something else than a file under a name."""
    place.parent.mkdir(exist_ok=True)
    place.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(place)
    elif kind == "device":
        place.symlink_to("/dev/zero")
    else:
        place.symlink_to(thesis if kind == "link" else thesis.with_name("new"))


def unharmed(thesis: Path) -> None:
    assert thesis.read_text() == "thesis"
    assert not thesis.with_name("new").exists()
    assert stat.S_ISCHR(os.stat("/dev/zero").st_mode)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", [".lock", "metrics.jsonl", "run.json"])
def test_a_run_goes_on_in_no_such_folder(run: Path, thesis: Path, name: str, kind: str) -> None:
    plant(run / name, kind, thesis)
    if name == "run.json" and kind == "dangling link":  # as if there were none; it is replaced
        Recorder(run, resume=True).close()
        assert not (run / name).is_symlink()
    else:
        with pytest.raises((OSError, synk.InputError)) as caught:
            Recorder(run, resume=True)
        assert str(run / name) in str(caught.value)
    unharmed(thesis)


@pytest.mark.each_choice
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("verb", ["report", "export"])
def test_what_is_made_of_a_run(
    run: Path, thesis: Path, verb: str, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    made = run / {"report": "report.html", "export": "metrics.csv"}[verb]
    options = {"report": [], "export": ["--to", "csv"]}[verb]
    plant(made, kind, thesis)
    code = main([verb, str(run), *options])
    if kind == "pipe":
        assert code == 1
        assert "it is no regular file" in capsys.readouterr().err
    else:
        assert code == 0
        assert made.is_file()
        assert not made.is_symlink()
    unharmed(thesis)


@pytest.mark.parametrize("kind", ["pipe", "device"])
@pytest.mark.parametrize("verb", ["report", "export", "train", "run"])
def test_what_is_read_of_a_folder_ends(
    run: Path, thesis: Path, verb: str, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """No verb waits for the writer of a pipe, or reads a device without an end."""
    name = {"report": "metrics.jsonl", "export": "metrics.jsonl"}.get(verb, "a")
    plant(run / name, kind, thesis)
    words = {
        "report": ["report", str(run)],
        "export": ["export", str(run), "--to", "csv"],
        "train": ["train", str(run / name)],
        "run": ["run", "--hostfile", str(run / name), "x.py"],
    }[verb]
    assert main(words) in (1, 2)
    err = capsys.readouterr().err
    assert "it is no regular file" in err
    assert "Traceback" not in err


def test_logs_follow_no_link(run: Path, thesis: Path) -> None:
    """What cannot be written is left out of the log, and the run goes on."""
    plant(run / "log" / "rank-0.log", "link", thesis)
    logs = RankLogs(run / "log")
    logs.write(0, "a line")
    logs.write(1, "a line")
    logs.close()
    unharmed(thesis)
    assert (run / "log" / "rank-1.log").read_text().endswith("a line\n")


def test_a_line_without_an_end(run: Path) -> None:
    """A hole of a terabyte takes no memory, and later lines are read."""
    with (run / "metrics.jsonl").open("r+b") as file:
        size = file.seek(0, os.SEEK_END)
        file.truncate(size + (1 << 28))
        file.seek(0, os.SEEK_END)
        file.write(b'\n{"kind": "step", "step": 2}\n')
    assert [line["kind"] for line in read_metrics(run)] == ["epoch", "end", "step"]


def removed(folder: Path) -> None:
    shutil.rmtree(folder)


def moved(folder: Path) -> None:
    folder.rename(folder.with_name("moved"))


def taken(folder: Path) -> None:
    """Another run begins in a new folder of the name."""
    shutil.rmtree(folder)
    Recorder(folder).close()


def without_metrics(folder: Path) -> None:
    (folder / "metrics.jsonl").unlink()


LOSSES = (removed, moved, taken, without_metrics)


@pytest.mark.parametrize("lose", LOSSES)
def test_a_folder_that_is_lost_ends_the_run(group2: synk.Group, tmp_path: Path, lose: Any) -> None:
    """At the next save; nothing of this run gets into the folder of another one."""
    x, w = pt.dvector("x"), pytensor.shared(0.5, "w")
    folder, epochs = tmp_path / "run", []

    def note(event: Event) -> None:
        if event.kind == "epoch":
            epochs.append(event.epoch)
            if len(epochs) == 2:
                lose(folder)

    with pytest.raises(synk.InputError, match=r"was removed, moved or replaced while this run"):
        fit(
            (w * x).mean(),
            [w],
            [x],
            (np.ones(8),),
            batch=4,
            optimizer=functools.partial(updates.sgd, learning_rate=0.1),
            epochs=5,
            folder=folder,
            callbacks=[note],
            progress=False,
            mode="FAST_COMPILE",
        )
    assert len(epochs) == 2
    there = folder.with_name("moved") if lose is moved else folder
    saved = len(list(there.glob("ckpt/step-*")))
    assert saved == (1 if lose in (moved, without_metrics) else 0)
    if lose is removed:
        assert not folder.exists()
    if lose is taken:
        Recorder(folder, resume=True).close()  # nobody holds it
