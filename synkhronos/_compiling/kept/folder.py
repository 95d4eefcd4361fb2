"""Bytes by their keys, in a folder that outlives processes and belongs to the user alone.

numba's index and data files and PyTensor's compile directory have no bound, and read whatever is
there. `diskcache` has a bound, and locks of SQLite, on which homes on NFS fail. Here an entry is
one file that is written as a whole, so no process waits for another.

All names are looked up by a descriptor of the folder, which has been checked. So others who may
write above the folder can take it away, and put nothing into it.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
import struct
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

import pytensor

from synkhronos._errors import InputError, UnusedWarning
from synkhronos._warnings import log, warn

SETTING = "SYNKHRONOS_KEEP"  # megabytes; 0 keeps nothing
MEGABYTES = 500

# A look at all entries takes 7 us for each of them. There are this many while the limit is written.
_LOOKS = 100
_LEAST = 4096  # bytes of an entry on a disk

_HEAD = struct.Struct("<16sQ32s")  # magic with version, length, digest of key and data
_MAGIC = b"synkhronos kept1"
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_OPENS = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_is_wanted = ContextVar("_is_wanted", default=True)
_told: set[str] = set()  # folders that were refused with a warning


def kept_folder(even_if_off: bool = False) -> Folder | None:
    """The folder of what is kept, unless it is switched off, or unsafe: then a warning says so.

    It lies beside PyTensor's compile directories, in ``base_compiledir``, as what it holds is as
    old as theirs.

    Raises
    ------
    InputError
        The environment has another setting than megabytes.
    """
    text = os.environ.get(SETTING) or str(MEGABYTES)
    if not text.isdecimal():
        raise InputError(f"{SETTING} is {text!r}: give megabytes, such as 500; 0 keeps nothing")
    folder = Folder(place(), int(text) * 1_000_000)
    is_on = folder.limit > 0 and _is_wanted.get()
    return folder if (is_on or even_if_off) and folder.is_safe() else None


@contextlib.contextmanager
def keeping(wanted: bool) -> Iterator[None]:
    """A context in which nothing is kept, or taken from what is kept, unless that is wanted."""
    token = _is_wanted.set(wanted)
    try:
        yield
    finally:
        _is_wanted.reset(token)


def is_keeping() -> bool:
    """Whether this context keeps something, unless the environment says otherwise."""
    return _is_wanted.get()


def place() -> Path:
    """Where the folder is, or would be."""
    return Path(pytensor.config.base_compiledir) / "synkhronos-kept"


@dataclass(frozen=True)
class Folder:
    """Entries, each written as a whole. A fault costs what would be gained, and nothing else.

    Attributes
    ----------
    path : Path
    limit : int
        Bytes of all entries; those that were not read for longest go first. There may be about a
        hundredth more of them, until a write looks.
    """

    path: Path
    limit: int = MEGABYTES * 1_000_000

    def __str__(self) -> str:
        count, size = self.size()
        entries = f"{count:,} entr{'y' if count == 1 else 'ies'}"
        bound = f" of {self.limit / 1e6:,.0f}" if self.limit else ""
        off = "" if self.limit else f"; {SETTING}=0, so nothing is added"
        return f"{self.path}: {entries}, {size / 1e6:.1f}{bound} MB{off}"

    def read(self, key: str) -> bytes | None:
        """The entry of this key; None if it is absent, damaged, or of another version."""
        name = _name(key)
        try:
            with self._opened() as folder:
                descriptor = os.open(name, os.O_RDONLY | _OPENS, dir_fd=folder)
                with open(descriptor, "rb") as file:
                    found = os.fstat(descriptor)
                    if not stat.S_ISREG(found.st_mode) or not _is_own(found):
                        return None
                    magic, length, digest = _HEAD.unpack(file.read(_HEAD.size))
                    if magic != _MAGIC or length != found.st_size - _HEAD.size:
                        return None
                    if length > self.limit:
                        return None
                    data = file.read(length)
                    if _digest(key, data) != digest:
                        return None
                    with contextlib.suppress(OSError):  # such as a folder that is only read
                        os.utime(descriptor)
                    return data
        except (OSError, struct.error) as exc:
            log.debug("%s is not read: %s", key, exc)
            return None

    def write(self, key: str, data: bytes) -> None:
        """Keep an entry, in place of an earlier one of this key."""
        name, new = _name(key), f"{secrets.token_hex(8)}.new"
        if len(data) + _HEAD.size > self.limit:
            log.debug("%s is not kept: it has %d bytes", key, len(data))
            return
        try:
            with self._opened(make=True) as folder:
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _OPENS
                descriptor = os.open(new, flags, 0o600, dir_fd=folder)
                try:
                    with open(descriptor, "wb") as file:
                        file.write(_HEAD.pack(_MAGIC, len(data), _digest(key, data)))
                        file.write(data)
                    os.replace(new, name, src_dir_fd=folder, dst_dir_fd=folder)
                finally:
                    _remove(folder, new)
                if secrets.randbelow(self.limit) < _LOOKS * max(len(data), _LEAST):
                    self._bound(folder)
        except OSError as exc:
            log.debug("%s is not kept: %s", key, exc)

    def size(self) -> tuple[int, int]:
        """How many entries there are, and their bytes."""
        with contextlib.suppress(OSError), self._opened() as folder:
            sizes = [size for _, size, _ in _files(folder)]
            return len(sizes), sum(sizes)
        return 0, 0

    def clear(self) -> None:
        """Remove all entries.

        Raises
        ------
        OSError
            The folder is not this user's alone, or cannot be written.
        """
        with contextlib.suppress(FileNotFoundError), self._opened() as folder:
            for _, _, name in _files(folder):
                os.unlink(name, dir_fd=folder)

    def is_safe(self) -> bool:
        """Whether the folder is this user's alone, or not there; a warning says why not, once."""
        try:
            with self._opened():
                return True
        except PermissionError as exc:
            if str(self.path) not in _told:
                _told.add(str(self.path))
                text = f"nothing is kept between runs: {self.path}: {exc.strerror}"
                warn(f"{text}. Remove the folder, or set {SETTING}=0", UnusedWarning)
            return False
        except OSError:  # it is not there, or cannot be
            return True

    @contextlib.contextmanager
    def _opened(self, make: bool = False) -> Iterator[int]:
        """A context with a descriptor of the folder.

        Raises
        ------
        PermissionError
            Another user owns it or may write to it, or it is a link.
        OSError
        """
        if make:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(FileExistsError):
                self.path.mkdir(0o700)
        if self.path.is_symlink():
            raise PermissionError(0, "it is a link, which is not followed")
        folder = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | _OPENS)
        try:
            if not _is_own(os.fstat(folder)):
                raise PermissionError(0, "another user owns it or may write to it")
            yield folder
        finally:
            os.close(folder)

    def _bound(self, folder: int) -> None:
        """Remove the entries that were not read for longest, and the files of killed writers."""
        files = sorted(_files(folder))
        size = sum(size for _, size, _ in files)
        for _, each, name in files:
            if size <= self.limit:
                return
            size -= each
            _remove(folder, name)


def _files(folder: int) -> Iterator[tuple[int, int, str]]:
    """The time, the size and the name of each file."""
    for name in os.listdir(folder):
        with contextlib.suppress(FileNotFoundError):  # another process has removed it
            found = os.stat(name, dir_fd=folder, follow_symlinks=False)
            if not stat.S_ISDIR(found.st_mode):
                yield found.st_mtime_ns, found.st_size, name


def _is_own(found: os.stat_result) -> bool:
    return found.st_uid == os.geteuid() and not found.st_mode & _OTHERS_WRITE


def _digest(key: str, data: bytes) -> bytes:
    return blake2b(data, digest_size=32, key=key.encode()[:64]).digest()


def _name(key: str) -> str:
    if not (key.isascii() and key.isalnum()):
        raise ValueError(f"{key!r} is no key: letters and digits")
    return f"{key}.kept"


def _remove(folder: int, name: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(name, dir_fd=folder)
