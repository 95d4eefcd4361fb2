"""The folder of what is kept: whole entries or none, whatever others do to it."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path
from typing import Any

import pytest
from unprivileged import unprivileged

import synkhronos as synk
from synkhronos._compiling.kept import folder as folders
from synkhronos._compiling.kept.folder import Folder, is_keeping, keeping, kept_folder

KEY = "0a1b"
DATA = b"machine code" * 100


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path / "kept")


def _file(folder: Folder) -> Path:
    [file] = folder.path.iterdir()
    return file


def test_what_is_written_is_read(folder: Folder) -> None:
    assert folder.read(KEY) is None
    assert folder.size() == (0, 0)
    folder.clear()
    folder.write(KEY, b"earlier")
    folder.write(KEY, DATA)
    folder.write("2c", b"")
    assert (folder.read(KEY), folder.read("2c")) == (DATA, b"")
    assert folder.size()[0] == 2
    assert folder.path.stat().st_mode & 0o777 == 0o700
    assert all(file.stat().st_mode & 0o777 == 0o600 for file in folder.path.iterdir())
    folder.clear()
    assert (folder.read(KEY), folder.size()) == (None, (0, 0))


@pytest.mark.parametrize("key", ["", "../a", "a/b", "ä", "a.kept"])
def test_keys_are_no_paths(folder: Folder, key: str) -> None:
    with pytest.raises(ValueError, match="is no key"):
        folder.read(key)
    with pytest.raises(ValueError, match="is no key"):
        folder.write(key, b"")


def _flipped(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


HARMS: dict[str, Any] = {
    "magic": lambda f: _flipped(f, 0),
    "version": lambda f: _flipped(f, 15),
    "length": lambda f: _flipped(f, 16),
    "digest": lambda f: _flipped(f, 30),
    "data": lambda f: _flipped(f, 100),
    "cut": lambda f: os.truncate(f, f.stat().st_size - 1),
    "longer": lambda f: f.write_bytes(f.read_bytes() + b"0"),
    "empty": lambda f: os.truncate(f, 0),
    "another key": lambda f: f.replace(f.with_name("3d.kept")),
    "folder": lambda f: (f.unlink(), f.mkdir()),
    "pipe": lambda f: (f.unlink(), os.mkfifo(f)),
    "link": lambda f: (f.replace(f.with_name("target")), f.symlink_to("target")),
    "others may write": lambda f: f.chmod(0o666),
    "stranger": lambda f: os.chown(f, 12345, -1),
}


@pytest.mark.parametrize("harm", HARMS)
def test_a_harmed_entry_is_absent(folder: Folder, harm: str) -> None:
    if harm == "stranger" and os.geteuid():
        pytest.skip("root gives files to others")
    folder.write(KEY, DATA)
    HARMS[harm](_file(folder))
    assert folder.read(KEY) is None
    if harm == "another key":
        assert folder.read("3d") is None
    if harm != "folder":
        folder.write(KEY, DATA)
        assert folder.read(KEY) == DATA


def test_a_larger_entry_than_the_limit_is_not_read(folder: Folder) -> None:
    folder.write(KEY, DATA)
    assert Folder(folder.path, len(DATA) - 1).read(KEY) is None


REFUSED: dict[str, Any] = {
    "others may write": lambda path: path.chmod(0o702),
    "a group may write": lambda path: path.chmod(0o720),
    "stranger": lambda path: os.chown(path, 12345, -1),
    "link": lambda path: (path.rename(path.with_name("real")), path.symlink_to("real")),
}


@pytest.mark.parametrize("why", REFUSED)
def test_a_folder_of_others_is_refused_with_one_warning(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, why: str
) -> None:
    if why == "stranger" and os.geteuid():
        pytest.skip("root gives folders to others")
    monkeypatch.setattr(folders, "place", lambda: tmp_path / "kept")
    monkeypatch.delenv(folders.SETTING, raising=False)
    folder = kept_folder()
    assert folder is not None
    folder.write(KEY, DATA)
    REFUSED[why](folder.path)
    with pytest.warns(synk.UnusedWarning, match="nothing is kept between runs") as told:
        assert kept_folder() is None
    assert kept_folder() is None
    assert len(told) == 1
    before = sorted(tmp_path.rglob("*"))
    folder.write("2c", DATA)
    assert folder.read(KEY) is None
    assert sorted(tmp_path.rglob("*")) == before


def test_the_environment_switches_it_off_and_bounds_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(folders, "place", lambda: tmp_path / "synkhronos-kept")
    monkeypatch.delenv(folders.SETTING, raising=False)
    found = kept_folder()
    assert found == Folder(tmp_path / "synkhronos-kept", 500_000_000)
    for wanted in (False, True):
        with keeping(wanted):
            assert is_keeping() is wanted
            assert kept_folder() == (found if wanted else None)
            assert kept_folder(even_if_off=True) == found
    monkeypatch.setenv(folders.SETTING, "7")
    assert kept_folder() == Folder(found.path, 7_000_000)
    monkeypatch.setenv(folders.SETTING, "0")
    assert kept_folder() is None
    monkeypatch.setenv(folders.SETTING, "much")
    with pytest.raises(synk.InputError, match="SYNKHRONOS_KEEP is 'much'"):
        kept_folder()
    assert not list(tmp_path.iterdir())


def test_what_was_not_read_for_longest_goes(tmp_path: Path) -> None:
    """Also the file of a writer that was killed."""
    folder = Folder(tmp_path / "kept", 4 * (len(DATA) + 56))
    for key in "abcd":
        folder.write(key, DATA)
    (folder.path / "0123.new").write_bytes(DATA)
    for age, name in enumerate(("0123.new", "a.kept", "b.kept", "c.kept", "d.kept")):
        os.utime(folder.path / name, ns=(age, age))
    assert folder.read("a") == DATA
    folder.write("e", DATA)
    assert {key for key in "abcde" if folder.read(key)} == set("acde")
    assert folder.size() == (4, folder.limit)
    folder.write("f", b"0" * folder.limit)
    assert folder.size() == (4, folder.limit)


@pytest.mark.parametrize(("size", "on_disk"), [(1, 4096), (50_000, 50_000)])
def test_few_writes_look_at_all_entries(
    size: int, on_disk: int, folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At random a hundred of them, while as much as the limit is written."""
    looks: list[int] = []
    monkeypatch.setattr(Folder, "_bound", lambda *_: looks.append(size))
    for drawn, look in ((100 * on_disk - 1, True), (100 * on_disk, False)):
        looks.clear()
        monkeypatch.setattr(folders.secrets, "randbelow", lambda most, drawn=drawn: drawn)
        folder.write(KEY, bytes(size))
        assert bool(looks) == look


def test_a_full_disk_costs_the_entry_alone(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.write(KEY, DATA)

    def full(*args: Any, **named: Any) -> Any:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(folders.os, "replace", full)
        folder.write(KEY, b"other")
        folder.write("2c", DATA)
    assert (folder.read(KEY), folder.size()[0]) == (DATA, 1)


def test_a_folder_that_cannot_be_written(folder: Folder) -> None:
    folder.write(KEY, DATA)
    folder.path.chmod(0o500)
    with unprivileged():
        folder.write("2c", DATA)
        assert (folder.read(KEY), folder.read("2c")) == (DATA, None)
        with pytest.raises(PermissionError):
            folder.clear()
    folder.path.chmod(0o700)
    inside = Folder(folder.path / "0a1b.kept" / "kept")
    inside.write(KEY, DATA)
    assert (inside.read(KEY), inside.size()) == (None, (0, 0))


def test_writers_at_the_same_time_leave_one_whole_entry(folder: Folder) -> None:
    values = [bytes([n]) * 100_000 for n in range(4)]
    together, found = threading.Barrier(len(values)), []

    def write(value: bytes) -> None:
        together.wait()
        for _ in range(20):
            folder.write(KEY, value)
            found.append(folder.read(KEY))

    threads = [threading.Thread(target=write, args=(value,)) for value in values]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 80
    assert set(found) <= set(values)
    assert folder.size()[0] == 1
