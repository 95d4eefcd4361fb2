"""A disk whose power is cut: what may be on it after any moment of a recorded program.

A file system may keep until an fsync, or lose, each change of a name and each write by itself, and
half a write at that; what has been forced is there. This is harsher than any that is in use.
"""

from __future__ import annotations

import random
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

TRACED = (
    "access,open,openat,openat2,creat,mkdir,mkdirat,write,pwrite64,writev,pwritev,ftruncate,truncate,"
    "rename,renameat,renameat2,unlink,unlinkat,rmdir,link,linkat,symlink,symlinkat,fsync,fdatasync,"
    "fallocate,copy_file_range,sendfile,close,dup,dup2,dup3,sync,syncfs,sync_file_range"
)
_LINE = re.compile(r"(?:\d+ +)?(\w+)\((.*)\) += (-?\d+)")
_OPEN = re.compile(r"/proc/self/fd/(\d+)")
_TEXT = re.compile(r'"((?:\\x[0-9a-f]{2})*)"')


@dataclass
class File:
    """A file's bytes on the disk, and what has been written since."""

    kept: bytes = b""
    writes: list[tuple[int, bytes | None]] = field(default_factory=list)  # None: cut, or stretched
    at: int = 0

    def force(self) -> None:
        self.kept = self.content([1.0] * len(self.writes))
        self.writes.clear()

    def content(self, shares: Sequence[float]) -> bytes:
        """With so much of each write on the disk."""
        found = bytearray(self.kept)
        for (offset, data), share in zip(self.writes, shares, strict=True):
            if data is None:
                if share:
                    found = found[:offset].ljust(offset, b"\0")
                continue
            data = data[: int(share * len(data))]
            found = found.ljust(offset, b"\0") if data else found
            found[offset : offset + len(data)] = data
        return bytes(found)


@dataclass
class Folder:
    """A folder's names on the disk, and as they are; each change gives names new meanings."""

    kept: dict[str, File | Folder] = field(default_factory=dict)
    names: dict[str, File | Folder] = field(default_factory=dict)
    changes: list[dict[str, File | Folder | None]] = field(default_factory=list)

    def change(self, meanings: dict[str, File | Folder | None]) -> None:
        self.changes.append(meanings)
        _apply(self.names, meanings)

    def force(self) -> None:
        self.kept = dict(self.names)
        self.changes.clear()


def _apply(names: dict[str, File | Folder], meanings: dict[str, File | Folder | None]) -> None:
    for name, node in meanings.items():
        if node is None:
            names.pop(name, None)
        else:
            names[name] = node


@dataclass(frozen=True)
class Act:
    """A system call that went well: its name, its texts, its numbers, its answer."""

    name: str
    texts: tuple[bytes, ...]
    numbers: tuple[int, ...]
    flags: str
    answer: int


def record(base: Path, *command: str) -> list[Act]:
    """What a program does in a folder, and which files it looks for."""
    log = base / "log"
    what = ["-f", "-qq", "-xx", "-s", "10000000", "-e", f"trace={TRACED}", "-e", "signal=none"]
    subprocess.run(
        ["strace", "-o", str(log), *what, "--", sys.executable, *command], check=True, timeout=100
    )
    lines = log.read_text().splitlines()
    log.unlink()
    return [act for line in lines if (act := _parsed(line)) is not None]


def _parsed(line: str) -> Act | None:
    match = _LINE.match(line)
    if match is None or (match[3] == "-1" and match[1] != "access"):
        return None
    texts = tuple(bytes.fromhex(t.replace("\\x", "")) for t in _TEXT.findall(match[2]))
    rest = _TEXT.sub("", match[2])
    numbers = tuple(int(n) for n in re.findall(r"(?<![\w])\d+(?!\w)", rest))
    return Act(match[1], texts, numbers, rest, int(match[3]))


class Disk:
    """A file system below one folder, which is empty or as `base` is when it is made."""

    def __init__(self, base: Path) -> None:
        self._base = str(base)
        self.root = _copied(base)
        self._open: dict[int, File | Folder] = {}
        self._paths: dict[int, str] = {}

    def __call__(self, act: Act) -> bool:
        """Do what a program has done; whether anything on the disk may have changed."""
        do = getattr(self, f"_{act.name}", None)
        if do is not None:
            return bool(do(act))
        ours = any(t.decode(errors="replace").startswith(self._base) for t in act.texts)
        if ours or (act.numbers and act.numbers[0] in self._open):
            raise AssertionError(f"{act.name} is not understood")
        return False

    def _whole(self, act: Act) -> str:
        """The path of a call that may name a file in an open folder."""
        path = act.texts[0].decode()
        inside = not path.startswith("/") and not act.flags.startswith("AT_FDCWD")
        return f"{self._paths[act.numbers[0]]}/{path}" if inside else path

    def _find(self, path: str) -> tuple[Folder, str] | None:
        """The folder in which a path's last name stands."""
        path = _OPEN.sub(lambda match: self._paths.get(int(match[1]), match[0]), path)
        if not path.startswith(self._base + "/"):
            return None
        *folders, name = path[len(self._base) + 1 :].split("/")
        folder = self.root
        for part in folders:
            inner = folder.names[part]
            assert isinstance(inner, Folder)
            folder = inner
        return folder, name

    def _access(self, act: Act) -> bool:
        return False

    def _openat(self, act: Act) -> bool:
        path = self._whole(act)
        found = self._find(path)
        if path == self._base:
            self._open[act.answer] = self.root
        elif found is None:
            self._open.pop(act.answer, None)
        else:
            folder, name = found
            created = name not in folder.names
            if created:
                assert "O_CREAT" in act.flags
                folder.change({name: File()})
            self._open[act.answer] = node = folder.names[name]
            self._paths[act.answer] = path
            if isinstance(node, File):
                node.at = 0
                if "O_TRUNC" in act.flags:
                    node.writes.append((0, None))
            return created or "O_TRUNC" in act.flags
        self._paths[act.answer] = path
        return False

    def _close(self, act: Act) -> bool:
        self._open.pop(act.numbers[0], None)
        return False

    def _mkdir(self, act: Act) -> bool:
        found = self._find(act.texts[0].decode())
        if found is not None:
            found[0].change({found[1]: Folder()})
        return found is not None

    def _write(self, act: Act) -> bool:
        node = self._open.get(act.numbers[0])
        if node is None:
            return False
        assert isinstance(node, File)
        data = act.texts[0][: act.answer]
        node.writes.append((node.at, data))
        node.at += len(data)
        return True

    def _ftruncate(self, act: Act) -> bool:
        node = self._open.get(act.numbers[0])
        if node is None:
            return False
        assert isinstance(node, File)
        node.writes.append((act.numbers[1], None))
        return True

    def _rename(self, act: Act) -> bool:
        found = self._find(act.texts[0].decode())
        if found is None:
            return False
        (folder, old), target = found, self._find(act.texts[1].decode())
        assert target is not None
        assert target[0] is folder, "from one folder to another"
        folder.change({old: None, target[1]: folder.names[old]})
        return True

    _renameat = _rename

    def _unlinkat(self, act: Act) -> bool:
        return self._removed(self._whole(act))

    def _unlink(self, act: Act) -> bool:
        return self._removed(act.texts[0].decode())

    _rmdir = _unlink

    def _removed(self, path: str) -> bool:
        found = self._find(path)
        if found is not None:
            found[0].change({found[1]: None})
        return found is not None

    def _fsync(self, act: Act) -> bool:
        node = self._open.get(act.numbers[0])
        if node is not None:
            node.force()
        return node is not None

    _fdatasync = _fsync


def _copied(folder: Path) -> Folder:
    found = Folder()
    for path in folder.iterdir():
        found.names[path.name] = _copied(path) if path.is_dir() else File(path.read_bytes())
    found.force()
    return found


class Fate:
    """What the power cut leaves: nothing that was not forced, all of it, or what a draw says."""

    def __init__(self, names: float, writes: float, draw: random.Random | None = None) -> None:
        self._names, self._writes, self._draw = names, writes, draw

    def name(self) -> bool:
        """Whether a change of a name is there."""
        return self._names > (self._draw.random() if self._draw else 0.0)

    def share(self) -> float:
        """How much of a write is there."""
        if self._draw is None:
            return self._writes
        return self._draw.choice((0.0, self._draw.random(), 1.0))


def fates(count: int, draw: random.Random) -> Iterator[Fate]:
    """The extremes, and some of those in between."""
    yield Fate(0.0, 0.0)
    yield Fate(1.0, 0.0)
    yield Fate(1.0, 0.5)
    yield Fate(1.0, 1.0)
    for _ in range(count):
        yield Fate(draw.random(), 0.0, draw)


def lay_out(folder: Folder, fate: Fate, target: Path) -> None:
    """Make a folder what is found after the power has come back."""
    names = dict(folder.kept)
    for meanings in folder.changes:
        if fate.name():
            _apply(names, meanings)
    target.mkdir()
    for name, node in names.items():
        if isinstance(node, Folder):
            lay_out(node, fate, target / name)
        else:
            shares = [fate.share() for _ in node.writes]
            (target / name).write_bytes(node.content(shares))
