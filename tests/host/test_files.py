"""Files in folders of strangers: links are not followed, pipes and devices are not opened (T7)."""

from __future__ import annotations

import os
import resource
import signal
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from synkhronos._host import files

LINKS = ("file", "missing", "device")


@pytest.fixture(params=LINKS)
def linked(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, Path]:
    """A folder whose name `a` is a link, and what it leads to."""
    folder = tmp_path / "theirs"
    folder.mkdir()
    target = Path("/dev/null") if request.param == "device" else tmp_path / "mine"
    if request.param == "file":
        target.write_text("thesis")
    (folder / "a").symlink_to(target)
    return folder, target


def test_replace_takes_the_place_of_a_link(linked: tuple[Path, Path]) -> None:
    folder, target = linked
    before = target.read_bytes() if target.exists() else None
    files.replace(folder / "a", "new")
    assert (folder / "a").read_text() == "new"
    assert not (folder / "a").is_symlink()
    assert (target.read_bytes() if target.exists() else None) == before
    assert [p.name for p in folder.iterdir()] == ["a"]


@pytest.mark.parametrize("opens", [files.appending, files.updating])
def test_what_is_written_in_place_is_no_link(
    opens: Callable[[Path], int], linked: tuple[Path, Path]
) -> None:
    folder, target = linked
    there = target.exists()
    with pytest.raises(OSError, match="is a link, which is not followed"):
        opens(folder / "a")
    assert target.exists() == there
    with pytest.raises(FileExistsError):
        files.create(folder / "a", "new")
    assert target.exists() == there


def test_pipes_devices_and_folders_are_no_files(tmp_path: Path) -> None:
    """None of these calls waits for another process, or reads without an end."""
    pipe, link = tmp_path / "pipe", tmp_path / "zero"
    os.mkfifo(pipe)
    link.symlink_to("/dev/zero")
    for name in (pipe, link):
        for read in (files.read_bytes, files.read_text, files.check_regular):
            with pytest.raises(OSError, match="it is no regular file") as caught:
                read(name)
            assert caught.value.filename == str(name)
    for write in (files.appending, files.updating, lambda p: files.replace(p, "x")):
        with pytest.raises(OSError, match="it is no regular file"):
            write(pipe)
    for call in (files.read_bytes, files.updating, files.check_regular, files.check_place):
        with pytest.raises(IsADirectoryError):
            call(tmp_path)
    for write in (files.replace, files.write):
        with pytest.raises(IsADirectoryError):
            write(tmp_path, "x")
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["pipe", "zero"]


def test_a_name_of_the_user_may_be_a_link_or_a_pipe(tmp_path: Path) -> None:
    target, link, pipe = tmp_path / "target", tmp_path / "link", tmp_path / "pipe"
    target.write_text("old")
    link.symlink_to(target)
    files.write(link, "new")
    assert link.is_symlink()
    assert target.read_text() == "new"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        files.write(pipe, "through\udcff")
        assert os.read(reader, 100) == b"through\\udcff"
    finally:
        os.close(reader)
    files.write("/dev/null", b"lost")
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)


def test_permissions_stay_and_new_files_obey_the_umask(tmp_path: Path) -> None:
    private = tmp_path / "private"
    private.write_text("old")
    private.chmod(0o600)
    before = os.umask(0o027)
    try:
        files.replace(private, "new")
        files.replace(tmp_path / "shared", "new")
    finally:
        os.umask(before)
    assert stat.S_IMODE(private.stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "shared").stat().st_mode) == 0o640


def test_what_is_read_has_a_bound(tmp_path: Path) -> None:
    place = tmp_path / "a"
    place.write_bytes(b"x\r\ny\rz")
    assert files.read_bytes(place, 6) == b"x\r\ny\rz"
    assert files.read_text(place, None) == "x\ny\nz"
    with pytest.raises(OSError, match="more than 5 bytes"):
        files.read_bytes(place, 5)
    with place.open("r+b") as file:
        file.truncate(1 << 40)  # takes no place on the disk
    with pytest.raises(OSError, match="more than 67,108,864 bytes"):
        files.read_bytes(place)
    place.write_bytes(b"\xff")
    with pytest.raises(OSError, match="it is not UTF-8"):
        files.read_text(place)


def test_a_write_that_fails_leaves_the_earlier_file(tmp_path: Path) -> None:
    """As on a full disk: here a limit of the process."""
    place = tmp_path / "a"
    place.write_text("old")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        for write in (files.replace, files.write):
            with pytest.raises(OSError, match="too large"):
                write(place, "x" * 2000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert place.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


def test_a_place_that_cannot_be_written_to(tmp_path: Path) -> None:
    files.check_place(tmp_path / "new")
    assert not (tmp_path / "new").exists()
    files.check_place("/dev/null")
    with pytest.raises(FileNotFoundError):
        files.check_place(tmp_path / "missing" / "a")
    (tmp_path / "file").write_text("")
    with pytest.raises(NotADirectoryError):
        files.check_place(tmp_path / "file" / "a")


def test_whether_a_name_is_still_that_of_an_open_file(tmp_path: Path) -> None:
    place = tmp_path / "a"
    descriptor = files.appending(place)
    try:
        assert files.is_still(place, descriptor)
        place.rename(tmp_path / "b")
        assert not files.is_still(place, descriptor)
        place.symlink_to(tmp_path / "b")
        assert not files.is_still(place, descriptor)
        assert not files.is_still(tmp_path / "b" / "c", descriptor)
    finally:
        os.close(descriptor)


SECRET, SETUID = 0o600, 0o4755


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """A private file of ours."""
    place = tmp_path / "secret"
    place.write_text("secret")
    place.chmod(SECRET)
    return place


def swapped(calls: Callable[..., Any], *swaps: Callable[[], None]) -> Callable[..., Any]:
    """A function that first does what a stranger does meanwhile, once."""
    left = list(swaps)

    def call(*args: Any, **kwargs: Any) -> Any:
        while left:
            left.pop()()
        return calls(*args, **kwargs)

    return call


def test_permissions_are_not_set_by_a_name(
    secret: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stranger puts a link in the place of the new file, before it gets its permissions."""
    folder = tmp_path / "theirs"
    folder.mkdir()
    (folder / "a").write_text("old")
    (folder / "a").chmod(0o666)

    def swap() -> None:
        (new,) = folder.glob("*.new")
        new.unlink()
        new.symlink_to(secret)

    monkeypatch.setattr(os, "fsync", swapped(os.fsync, swap))
    with pytest.raises(FileExistsError, match="another process has put something in its place"):
        files.replace(folder / "a", "new")
    assert stat.S_IMODE(secret.stat().st_mode) == SECRET
    assert secret.read_text() == "secret"
    assert (folder / "a").read_text() == "old"
    assert [p.name for p in folder.iterdir()] == ["a"]


@pytest.mark.parametrize("whose", ["mine", "another's"])
def test_which_permissions_stay(
    tmp_path: Path, whose: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No bits that run a file as its owner, and none of a stranger's file."""
    place = tmp_path / "a"
    place.write_text("old")
    place.chmod(SETUID | 0o2020)
    if whose != "mine":
        monkeypatch.setattr(os, "geteuid", lambda: place.stat().st_uid + 1)
    (tmp_path / "plain").touch()
    plain = stat.S_IMODE((tmp_path / "plain").stat().st_mode)
    files.replace(place, "new")
    assert stat.S_IMODE(place.stat().st_mode) == (0o775 if whose == "mine" else plain)
    files.replace(place, "new", mode=SECRET)
    assert stat.S_IMODE(place.stat().st_mode) == SECRET


def test_a_new_folder_that_is_taken_away(secret: Path, tmp_path: Path) -> None:
    """What is written goes into the folder that was made, whatever leads to it."""
    place, away, mine = tmp_path / "new", tmp_path / "away", tmp_path / "mine"
    mine.mkdir()
    (mine / "a").write_text("thesis")

    def write() -> None:
        with files.new_folder(place) as inside:
            assert stat.S_IMODE(place.stat().st_mode) == 0o700
            place.rename(away)
            place.symlink_to(mine)
            (inside / "a").write_text("new")

    with pytest.raises(FileExistsError, match="another process has put something in its place"):
        write()
    assert (mine / "a").read_text() == "thesis"
    assert (away / "a").read_text() == "new"
    place.unlink()
    with pytest.raises(OSError, match="symbolic"), files.new_folder(place) as inside:
        (inside / "a").symlink_to(secret)
    assert stat.S_IMODE(secret.stat().st_mode) == SECRET


def test_a_device_that_becomes_a_file(
    secret: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)

    def swap() -> None:
        pipe.unlink()
        pipe.hardlink_to(secret)

    monkeypatch.setattr(os, "open", swapped(os.open, swap))
    with pytest.raises(FileExistsError, match="another process"):
        files.write(pipe, "x")
    assert secret.read_text() == "secret"


@pytest.mark.skipif(os.getuid() != 0, reason="it takes root to make a link of another user")
def test_folders_behind_links_of_others(tmp_path: Path) -> None:
    mine, link = tmp_path / "mine", tmp_path / "link"
    mine.mkdir()
    link.symlink_to(mine)
    files.make_folder(link)  # of this user
    os.lchown(link, 65534, 65534)
    with pytest.raises(OSError, match="it is a link of another user"):
        files.make_folder(link)
    files.make_folder(tmp_path / "a" / "b", files.OWN)
    assert stat.S_IMODE((tmp_path / "a" / "b").stat().st_mode) == 0o700
