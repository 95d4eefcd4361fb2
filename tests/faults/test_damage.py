"""Checkpoints that are not as they were saved are refused (promise 13; T5, T6, T7)."""

from __future__ import annotations

import json
import os
import pickle
import random
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hostile
import numpy as np
import pytensor
import pytest
import saving
from hostile import ARRAYS, META, Bomb, Forger
from peak_memory import forget_peak, peak
from saving import NEW, Case, Run

import synkhronos as synk
from synkhronos.extensions.checkpoints import Checkpoints

Trials = Callable[[Any, Any], Any]
CASE = Case((1, 2), 3)


@pytest.fixture(autouse=True)
def _nothing_is_forced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Checkpoints 1 and 2."""
    saving.prepare(CASE, tmp_path / "case")
    return tmp_path / "case"


def place(folder: Path, step: int) -> Path:
    return saving.checkpoints_in(folder) / f"step-{step:08d}"


class Copies:
    """The latest checkpoint, as it was before each trial."""

    def __init__(self, folder: Path) -> None:
        self.place = place(folder, 2)
        self._good = {p: p.read_bytes() for p in self.place.iterdir()}

    def renew(self) -> None:
        for path, content in self._good.items():
            if path.is_dir() and not path.is_symlink():
                path.rmdir()
            elif path.is_symlink() or not path.is_file():
                path.unlink(missing_ok=True)
            path.write_bytes(content)


def test_damage_by_chance(folder: Path, trials: Trials) -> None:
    """An error that sets nothing, and the one before is restored; or it has harmed nothing."""
    run, draw, told = Run(folder, CASE), random.Random(13), Counter[str]()
    copies = Copies(folder)
    for _ in range(trials(300, 2000)):
        copies.renew()
        how = hostile.damage(copies.place, draw)
        run.set(NEW)
        try:
            run.checkpoints.restore(2)
        except synk.CheckpointError:
            assert run.stamp() == NEW, how
            with pytest.warns(synk.CheckpointWarning, match="step-00000002 is damaged"):
                assert run.checkpoints.restore() == {"step": 1, "stamp": 1}
            assert run.stamp() == 1
            told["refused"] += 1
        else:  # JSON has several ways to write one thing
            assert run.stamp() == 2
            assert not how or how.endswith(META), how
            told["harmless"] += 1
    assert told["harmless"] < 0.02 * told.total()
    print(f"damages: {dict(told)}")


@pytest.mark.parametrize("name", [ARRAYS, META, "both", "the folder"])
def test_swapped(folder: Path, name: str) -> None:
    """Good files of another checkpoint."""
    run, (one, two) = Run(folder, CASE), (place(folder, 1), place(folder, 2))
    run.set(NEW)
    if name == "the folder":
        shutil.rmtree(two)
        one.rename(two)
    else:
        for file in (ARRAYS, META) if name == "both" else (name,):
            shutil.copy(one / file, two / file)
    for step in (None, 2) if name == "the folder" else (2,):
        with pytest.raises(synk.CheckpointError, match="step-00000002 is damaged"):
            run.checkpoints.restore(step)
    assert run.stamp() == NEW
    if name != "the folder":
        with pytest.warns(synk.CheckpointWarning, match="step-00000002 is damaged"):
            assert run.checkpoints.restore() == {"step": 1, "stamp": 1}


def test_one_that_is_older_than_others_stops_nothing(folder: Path) -> None:
    """Without a word: no file is needed of it."""
    run = Run(folder, CASE)
    (place(folder, 2) / META).write_text("{")
    run.checkpoints.save(3, stamp=NEW)
    assert run.checkpoints.restore() == {"step": 3, "stamp": NEW}
    assert run.checkpoints.steps() == [2, 1, 3]
    run.checkpoints.remove(1, 3)
    with pytest.raises(synk.CheckpointError, match="step-00000002 is damaged"):
        run.checkpoints.restore(missing="ignore")


def test_what_others_keep_in_the_folder_stays(folder: Path) -> None:
    """Only names that a save makes are removed."""
    run, there = Run(folder, CASE), saving.checkpoints_in(folder)
    kept = [".tmp-results/thesis.txt", ".old-data/raw.txt", "data/raw.txt", ".tmp-step-x/a"]
    kept += [".old-notes.txt", "notes.txt", ".tmp-", ".old-step-1/a", "step-1/a"]
    for name in kept:
        (there / name).parent.mkdir(exist_ok=True)
        (there / name).write_text(name)
    ours = [".tmp-step-00000007", ".tmp-.old-step-00000002", ".old-step-00000002"]
    for name in ours:
        (there / name).mkdir()
    run.checkpoints.save(3)
    for name in kept:
        assert (there / name).read_text() == name
    assert not any((there / name).exists() for name in ours)


@pytest.mark.parametrize("change", [{"format": 0}, {"format": 2}, {"format": "1"}, {}])
def test_another_format(folder: Path, change: dict[str, Any]) -> None:
    run, forger = Run(folder, CASE), Forger(place(folder, 2))
    body = forger.body | change
    if not change:
        del body["format"]
    forger.write(place(folder, 2), forger.arrays, body)
    run.set(NEW)
    with pytest.raises(synk.CheckpointError, match=r"format \w+; this reads 1"):
        run.checkpoints.restore()
    assert run.stamp() == NEW
    run.checkpoints.restore(1)


def test_hostile_checkpoints(folder: Path, trials: Trials) -> None:
    """T6: whatever somebody writes into sealed files, an error is all that comes of it."""
    run, draw, told = Run(folder, CASE), random.Random(6), Counter[str]()
    forger, copies = Forger(place(folder, 2)), Copies(folder)
    before = forget_peak()
    for _ in range(trials(500, 10_000)):
        kind = forger(copies.place, draw)
        run.set(NEW)
        try:
            run.checkpoints.restore(2)
        except (synk.CheckpointError, synk.InputError):
            assert run.stamp() == NEW, kind
            told["refused"] += 1
        else:
            told["taken"] += 1
        run.checkpoints.steps()
        copies.renew()
    assert peak() - before < 64 << 20, "files of some kilobytes"
    assert told["refused"] > 3 * told["taken"]
    assert run.checkpoints.restore(2)["step"] == 2
    print(f"hostile checkpoints: {dict(told)}; {(peak() - before) / 2**20:.0f} MiB at most")


@pytest.mark.parametrize("claims", [True, False])
def test_memory_is_bounded_by_the_file(tmp_path: Path, claims: bool) -> None:
    """T6: twice the size of a good file at most, however large it says that it is."""
    w = pytensor.shared(np.ones(1 << 22), name="w")  # 32 MB
    kept = Checkpoints(tmp_path, [w])
    forger = Forger(kept.save(1))
    if claims:
        more = forger.arrays.replace(b"[4194304]", b"[4194304000000]", 1)
        forger.write(tmp_path / "step-00000001", more, forger.body)
    before = forget_peak()
    if claims:
        with pytest.raises(synk.CheckpointError):
            kept.restore(1)
    else:
        kept.restore()
    assert peak() - before < 2 * len(forger.arrays) + (8 << 20)


def test_what_is_set_when_it_fails_late(folder: Path) -> None:
    """A generator's state that is none is found before any value has been set."""
    run, forger = Run(folder, CASE), Forger(place(folder, 2))
    forger.write(place(folder, 2), forger.arrays, forger.body | {"streams": {"rng": ["{}"]}})
    run.set(NEW)
    with pytest.raises(synk.CheckpointError, match="rng is not the state of a generator"):
        run.checkpoints.restore(2)
    assert run.stamp() == NEW


@pytest.mark.parametrize("name", [ARRAYS, META])
@pytest.mark.parametrize("form", ["pickle", "npy", "state"])
def test_pickles_are_not_read(folder: Path, tmp_path: Path, name: str, form: str) -> None:
    """T5: a checkpoint from a stranger runs nothing."""
    canary, forger = tmp_path / "canary", Forger(place(folder, 2))
    with pytest.raises(FileNotFoundError):
        os.stat(canary)
    bomb = pickle.dumps(Bomb(str(canary)))
    if form == "npy":
        with (tmp_path / "bomb.npy").open("wb") as file:
            np.save(file, np.array([Bomb(str(canary))], object), allow_pickle=True)
        bomb = (tmp_path / "bomb.npy").read_bytes()
    if form == "state":
        state = json.dumps({"kind": "PCG64", "state": bomb.decode("latin1")})
        forger.write(place(folder, 2), forger.arrays, forger.body | {"streams": {"rng": [state]}})
    elif name == ARRAYS:
        forger.write(place(folder, 2), bomb, forger.body)
    else:
        (place(folder, 2) / META).write_bytes(bomb)
    with pytest.raises(synk.CheckpointError):
        Run(folder, CASE).checkpoints.restore(2)
    assert not canary.exists()
    pickle.loads(pickle.dumps(Bomb(str(canary))))
    assert canary.exists(), "the bomb is a dud"


@pytest.mark.parametrize("name", ["step-00000003", ".tmp-step-00000003", ".old-step-00000003"])
@pytest.mark.parametrize("kind", ["folder", "file", "nothing"])
def test_planted_links_are_not_followed(folder: Path, tmp_path: Path, name: str, kind: str) -> None:
    """T7: whatever a link at a name of ours points to stays as it is, and saving goes on."""
    target, run = tmp_path / "theirs", Run(folder, CASE)
    if kind == "folder":
        target.mkdir()
        (target / META).write_text("mine")
    elif kind == "file":
        target.write_text("mine")
    (saving.checkpoints_in(folder) / name).symlink_to(target)
    for _ in range(2):
        run.set(NEW)
        run.checkpoints.save(3, stamp=NEW)
    assert run.checkpoints.restore() == {"step": 3, "stamp": NEW}
    assert not place(folder, 3).is_symlink()
    if kind == "folder":
        assert [p.name for p in target.iterdir()] == [META]
        assert (target / META).read_text() == "mine"
    elif kind == "file":
        assert target.read_text() == "mine"
    else:
        assert not target.exists()
    left = {p.name for p in saving.checkpoints_in(folder).iterdir()}
    assert left == {"step-00000002", "step-00000003"}


def test_a_file_where_leavings_are(folder: Path) -> None:
    run = Run(folder, CASE)
    (saving.checkpoints_in(folder) / ".tmp-step-00000003").write_text("x")
    run.checkpoints.save(3)
    assert run.checkpoints.steps() == [2, 3]
