"""Whatever happens to a save, the old checkpoint is there or the new one (promise 12)."""

from __future__ import annotations

import os
import random
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import powercut
import pytest
import saving
from saving import CASES
from selection import thorough

from synkhronos.testing.killing import CALLS, KILL, NEVER, Outcome, Stage, points

CHANGING = "mkdir,write,ftruncate,rename,renameat,fchmod,unlink,unlinkat,rmdir,fsync"
FAILING = f"{CHANGING},openat,pwrite64,renameat2,fdatasync"
# "first" and "next" make the acts of "after a kill", "lower" those of a new step
REPEATED_CUTS = ("first", "next", "again", "lower")

pytestmark = [
    pytest.mark.together,  # one stage
    pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed"),
]
Trials = Callable[[Any, Any], Any]


@pytest.fixture(autouse=True)
def _the_judges_own_saves_are_quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those under test are other processes'."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    with Stage(saving.__file__) as made:
        yield made


class Saves:
    """Trials of one case, each in a fresh copy of its folder."""

    def __init__(self, stage: Stage, name: str, place: Path) -> None:
        self._stage, self._name, self._place = stage, name, place / name
        self._case = CASES[name]
        self._place.mkdir()
        self._template = self._place / "template"
        saving.prepare(self._case, self._template)

    def trial(self, k: int, calls: str, fault: str) -> Outcome:
        """One save, judged."""
        folder = self._place / "folder"
        shutil.copytree(self._template, folder)
        argument = f"{self._name} in {folder}"
        found = self._stage.trial("save", k, calls, fault, argument)
        assert not found.hung, found.printed
        wrong = saving.judge(self._case, folder, saved=found.said("saved") is not None)
        assert not wrong, f"{self._name}: {fault} at {calls} {k}: {wrong}; {found.events}"
        shutil.rmtree(folder)
        return found

    def each(self, calls: str, fault: str) -> Iterator[Outcome]:
        """A trial for every such call of the save."""
        made = self.trial(NEVER, calls, fault).made
        for line, (name, k) in zip(made, points(made), strict=True):
            if "/trial-" in line:  # the save is over
                return
            yield self.trial(k, name, fault)


def test_killed_at_every_system_call(stage: Stage, tmp_path: Path, trials: Trials) -> None:
    """In the suite: at every one that changes something."""
    calls, count = trials(CHANGING, CALLS), 0
    for name in trials(("again", "after a kill"), CASES):
        found = list(Saves(stage, name, tmp_path).each(calls, KILL))
        assert len(found) > trials(15, 80)
        for one in found:
            assert one.reached
            assert one.made[-1].startswith(f"{one.calls}(")
        count += len(found)
    print(f"saves: killed at {count} system calls")


def test_every_system_call_fails(stage: Stage, tmp_path: Path, trials: Trials) -> None:
    """An OSError, or all is as if nothing had happened."""
    told: Counter[str] = Counter()
    for error in trials(("EIO",), ("EIO", "ENOSPC")):
        for name in trials(("lower",), CASES):
            place = tmp_path / error
            place.mkdir(exist_ok=True)
            for found in Saves(stage, name, place).each(FAILING, f"error={error}"):
                assert found.status == 0, found.printed
                assert found.reached
                (what,) = [text.split()[0] for _, text in found.events]
                told[what] += 1
    assert told.keys() == {"saved", "OSError"}
    print(f"saves: {told.total()} system calls failed, of which {told['OSError']} were raised")


# ---- power cuts


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[powercut.Act]]:
    """A folder as it is before the saves of all cases, and all that they do."""
    base = tmp_path_factory.mktemp("disk")
    before = tmp_path_factory.mktemp("before")
    for name, case in CASES.items():
        saving.prepare(case, base / name)
    shutil.copytree(base, before, dirs_exist_ok=True)
    acts = powercut.record(base, saving.__file__, str(base))
    shutil.rmtree(base)
    shutil.move(before, base)
    return base, acts


def cut(
    name: str, base: Path, acts: Sequence[powercut.Act], images: int, place: Path
) -> Iterator[str]:
    """After each act of a save, in several ways: what is wrong then, mostly nothing."""
    disk = powercut.Disk(base / name)
    draw, begun = random.Random(name), False
    for act in acts:
        begun, saved = begun or marks(act, name, "begins"), marks(act, name, "saved")
        if not begun or not (disk(act) or saved):
            continue
        for fate in powercut.fates(images, draw):
            folder = place / "folder"
            powercut.lay_out(disk.root, fate, folder)
            wrong = saving.judge(CASES[name], folder, saved)
            yield wrong and f"{name}, power cut after {act.name} {act.texts}: {wrong}"
            shutil.rmtree(folder)
        if saved:
            return


def marks(act: powercut.Act, name: str, what: str) -> bool:
    return act.texts[:1] == (f"/{name}/{what}".encode(),)


@pytest.mark.parametrize(
    "name", [*(c for c in CASES if c not in REPEATED_CUTS), *thorough(*REPEATED_CUTS)]
)
def test_the_power_is_cut(
    recorded: tuple[Path, list[powercut.Act]], tmp_path: Path, trials: Trials, name: str
) -> None:
    """After each act: whatever was not forced onto the disk may be lost, or torn."""
    base, acts = recorded
    found = list(cut(name, base, acts, trials(1, 40), tmp_path))
    assert len(found) > 60
    assert not any(found), "\n".join(filter(None, found))
    print(f"saves: {len(found)} states after power cuts, {name}")


@pytest.mark.thorough
def test_fsyncs_are_needed(
    recorded: tuple[Path, list[powercut.Act]], tmp_path: Path, trials: Trials
) -> None:
    """Without them (with --many: without any one of them) power cuts are seen."""
    base, acts = recorded
    for name in ("first", "only"):
        begin = next(i for i, act in enumerate(acts) if marks(act, name, "begins"))
        end = next(i for i, act in enumerate(acts) if marks(act, name, "saved"))
        syncs = [i for i in range(begin, end) if acts[i].name == "fsync"]
        assert len(syncs) >= 5
        for missing in trials([syncs], [[i] for i in syncs]):
            folder = tmp_path / f"{name}-{missing[0]}"
            folder.mkdir()
            rest = [act for i, act in enumerate(acts) if i not in missing]
            assert any(cut(name, base, rest, 40, folder)), f"{name}: {missing} do nothing"
