"""Reads and writes files in folders that a stranger may have filled.

Such a folder may hold links, pipes and devices under the names that we use. So we read regular
files only, and no name that we write to is followed if it is a link. A file is replaced as a whole:
a kill or a full disk at any moment leaves the earlier contents.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import re
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path

OWN = 0o700  # of a folder that only its owner enters
OWN_FILE = 0o600
MOST = 1 << 26  # bytes of a file that is read as a whole, if the caller sets no other bound

_READS = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC  # a pipe would wait for a writer
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_CREATES = os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_SHARED_MODE = 0o666  # without what the umask takes away

_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")

type Name = str | os.PathLike[str]


def is_address(name: Name) -> bool:
    """Whether a name is an address, such as ``s3://bucket/fits``, of which a path is no place.

    `pathlib` takes one of its slashes out.

    >>> [is_address(name) for name in ("s3://bucket", Path("s3://bucket"), "a:b", "C:/")]
    [True, True, False, False]
    """
    return _ADDRESS.match(str(name)) is not None


@contextlib.contextmanager
def reading(path: Name) -> Iterator[io.BufferedReader]:
    """A context with a regular file, opened to be read.

    Raises
    ------
    OSError
        It cannot be opened, or is something else, such as a pipe or a device.
    """
    with open(path, "rb", opener=lambda name, _: os.open(name, _READS)) as file:
        _check_regular(os.fstat(file.fileno()), path)
        yield file


def read_bytes(path: Name, most: int | None = MOST) -> bytes:
    """The contents of a regular file, of at most `most` bytes.

    Raises
    ------
    OSError
        It cannot be read, is no regular file, or has more bytes.
    """
    with reading(path) as file:
        if most is None:
            return file.read()
        found = file.read(most + 1)
    if len(found) > most:
        raise OSError(errno.EFBIG, f"it has more than {most:,} bytes", os.fspath(path))
    return found


def read_text(path: Name, most: int | None = MOST) -> str:
    """The text of a regular file in UTF-8; each line ends with a line feed alone.

    Raises
    ------
    OSError
        See `read_bytes`; or it is not UTF-8.
    """
    try:
        text = read_bytes(path, most).decode("utf-8")
    except UnicodeDecodeError as exc:
        raise OSError(errno.EILSEQ, f"it is not UTF-8 ({exc})", os.fspath(path)) from None
    return text.replace("\r\n", "\n").replace("\r", "\n")


def check_regular(path: Name) -> None:
    """Raise an OSError if a file that exists is no regular one; for libraries that open by name."""
    _check_regular(os.stat(path), path)


def create(path: Name, contents: str | bytes | memoryview, lasting: bool = True) -> None:
    """Make a new file, and force it to the disk if it shall outlast a crash of the machine.

    Raises
    ------
    FileExistsError
        There is something of this name, be it a link.
    OSError
    """
    descriptor = os.open(path, os.O_WRONLY | _CREATES, _SHARED_MODE)
    with open(descriptor, "wb") as file:
        file.write(_raw(contents))
        file.flush()
        if lasting:
            os.fsync(descriptor)


def replace(
    path: Name,
    contents: str | bytes | memoryview,
    lasting: bool = True,
    # the permissions. Default: those of an earlier file of this user, else what the umask leaves. A
    # stranger's file gives none
    mode: int | None = None,
) -> None:
    """Write a file as a whole; what had the name before stays until the new one is on the disk.

    A link is replaced, and not followed. If it need not be `lasting`, that holds for kills and full
    disks, and not for a crash of the machine.

    Raises
    ------
    OSError
        It cannot be written, or the name is that of a folder, a pipe or a device.
    """
    path = Path(path)
    earlier = _status(path)
    if earlier is not None and not stat.S_ISLNK(earlier.st_mode):
        _check_regular(earlier, path)
        if mode is None and earlier.st_uid == os.geteuid():
            mode = earlier.st_mode & 0o777
    try:
        with draft(path, lasting, mode) as file:
            file.write(_raw(contents))
    except OSError as exc:
        exc.filename = os.fspath(path)
        raise


@contextlib.contextmanager
def draft(path: Name, lasting: bool = True, mode: int | None = None) -> Iterator[io.BufferedWriter]:
    """A context with a new file, which gets the name `path` at the end.

    If the context raises, the file goes. For a library that opens files by name: see `name_of`.

    Parameters
    ----------
    path : path
    lasting : bool
    mode : int, optional
        The permissions. Default: what the umask leaves.

    Raises
    ------
    OSError
    """
    path = Path(path)
    new = path.with_name(f".{secrets.token_hex(8)}.new")
    try:
        # more permissions come after its making, by the descriptor: the name may be a link by then
        descriptor = os.open(new, os.O_RDWR | _CREATES, _SHARED_MODE if mode is None else 0)
        with open(descriptor, "wb") as file:
            if mode is not None:
                os.fchmod(descriptor, mode)
            yield file
            file.flush()
            if lasting:
                os.fsync(descriptor)
            _check_still(new, descriptor)
            new.replace(path)
        if lasting:
            sync(path.parent)
    finally:
        new.unlink(missing_ok=True)


def name_of(descriptor: int) -> str:
    """A name of what a descriptor has open, in this process, whatever becomes of its own name."""
    return f"/proc/self/fd/{descriptor}"


@contextlib.contextmanager
def new_folder(path: Name) -> Iterator[Path]:
    """A context with another name of a new folder, which leads to it whatever becomes of its own.

    Nobody else enters it before the end. Then its files, and it, are forced to the disk, with the
    permissions that the umask leaves.

    Raises
    ------
    FileExistsError
        There is something of this name, or another user has put it there.
    OSError
    """
    os.mkdir(path)
    descriptor = os.open(path, _FOLDER | os.O_NOFOLLOW)
    try:
        made = os.fstat(descriptor)
        if made.st_uid == os.geteuid():
            os.fchmod(descriptor, OWN)
        if made.st_uid != os.geteuid() or os.listdir(descriptor):
            raise _taken(path)
        yield Path(name_of(descriptor))
        for name in os.listdir(descriptor):
            inner = os.open(name, _READS | os.O_NOFOLLOW, dir_fd=descriptor)
            try:
                os.fchmod(inner, made.st_mode & _SHARED_MODE)
                os.fsync(inner)
            finally:
                os.close(inner)
        os.fchmod(descriptor, stat.S_IMODE(made.st_mode))
        os.fsync(descriptor)
        _check_still(path, descriptor)
    finally:
        os.close(descriptor)


def make_folder(path: Name, mode: int = 0o777, lasting: bool = False) -> None:
    """Make a folder, and those above it, unless it is there.

    If it shall be `lasting`, the names of new ones outlast a crash of the machine.

    Raises
    ------
    OSError
        It cannot be made, or the name is that of a file, or of a link that another user has made.
    """
    path = Path(path)
    new = [each for each in (path, *path.parents) if not each.exists()] if lasting else []
    path.mkdir(mode, parents=True, exist_ok=True)
    for each in reversed(new):
        sync(each.parent)
    found = path.lstat()
    if stat.S_ISLNK(found.st_mode) and found.st_uid not in (0, os.geteuid()):
        text = "it is a link of another user, which is not followed: name the folder itself"
        raise OSError(errno.ELOOP, text, os.fspath(path))


def write(path: Name, contents: str | bytes) -> None:
    """Write a file that the user has named: as `replace`, but behind a link, and into a device.

    Raises
    ------
    OSError
    """
    place = Path(os.path.realpath(path))
    if not place.exists() or place.is_file():
        replace(place, contents)
        return
    # such as /dev/stdout, or the pipe of >(...) in a shell; not what has come in its place since
    descriptor = os.open(place, os.O_WRONLY | os.O_NOFOLLOW | os.O_NOCTTY | os.O_CLOEXEC)
    with open(descriptor, "wb") as file:
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise _taken(path)
        file.write(_raw(contents))


def check_place(path: Name) -> None:
    """Raise what `write` would raise without a folder or a permission; make nothing.

    Raises
    ------
    OSError
    """
    place = Path(os.path.realpath(path))
    if place.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
    folder = place.parent
    folder.stat()  # raises if there is none
    if not folder.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), os.fspath(path))
    needed = [place] * place.exists() + [folder] * (place.is_file() or not place.exists())
    for each in needed:
        if not os.access(each, os.W_OK, effective_ids=True):
            read_only = os.statvfs(each).f_flag & os.ST_RDONLY
            number = errno.EROFS if read_only else errno.EACCES
            raise OSError(number, os.strerror(number), os.fspath(path))


def appending(path: Name) -> int:
    """A descriptor of a regular file that reads, and appends what is written; links are refused.

    The file is made if there is none.

    Raises
    ------
    OSError
    """
    return _opened(path, os.O_APPEND)


def updating(path: Name) -> int:
    """As `appending`, and what is written goes where the caller says."""
    return _opened(path, 0)


def _opened(path: Name, flags: int) -> int:
    flags |= os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags, _SHARED_MODE)
    except OSError as exc:
        if exc.errno != errno.ELOOP:
            raise
        text = "it is a link, which is not followed: remove it"
        raise OSError(errno.ELOOP, text, os.fspath(path)) from None
    try:
        _check_regular(os.fstat(descriptor), path)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def sync(path: Name) -> None:
    """Force a file, or a folder's list of names, to the disk."""
    descriptor = os.open(path, _READS)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def is_shortage(error: BaseException) -> bool:
    """Whether the process or the machine lacks descriptors or memory: the file may be whole."""
    return getattr(error, "errno", None) in (errno.EMFILE, errno.ENFILE, errno.ENOMEM)


def is_own(found: os.stat_result) -> bool:
    """Whether only this user may write to a file or a folder."""
    return found.st_uid == os.geteuid() and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def is_still(path: Name, descriptor: int) -> bool:
    """Whether a name is that of the file that a descriptor has open."""
    named, opened = _status(Path(path)), os.fstat(descriptor)
    return named is not None and os.path.samestat(named, opened)


def _check_still(path: Name, descriptor: int) -> None:
    if not is_still(path, descriptor):
        raise _taken(path)


def _taken(path: Name) -> OSError:
    text = "another process has put something in its place"
    return FileExistsError(errno.EEXIST, text, os.fspath(path))


def _raw(contents: str | bytes | memoryview) -> bytes | memoryview:
    return contents.encode("utf-8", "backslashreplace") if isinstance(contents, str) else contents


def _status(path: Path) -> os.stat_result | None:
    try:
        return path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return None


def _check_regular(found: os.stat_result, path: Name) -> None:
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "it is no regular file", os.fspath(path))
