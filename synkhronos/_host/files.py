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
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path

MOST = 1 << 26  # bytes of a file that is read as a whole, if the caller sets no other bound

_READS = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC  # a pipe would wait for a writer
_CREATES = os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_SHARED_MODE = 0o666  # without what the umask takes away

type Name = str | os.PathLike[str]


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


def replace(path: Name, contents: str | bytes | memoryview, lasting: bool = True) -> None:
    """Write a file as a whole; what had the name before stays until the new one is on the disk.

    A link is replaced, and not followed. The permissions of an earlier file stay. If it need not be
    `lasting`, that holds for kills and full disks, and not for a crash of the machine.

    Raises
    ------
    OSError
        It cannot be written, or the name is that of a folder, a pipe or a device.
    """
    path = Path(path)
    earlier = _status(path)
    if earlier is not None and stat.S_ISLNK(earlier.st_mode):
        earlier = None
    if earlier is not None:
        _check_regular(earlier, path)
    new = path.with_name(f".{secrets.token_hex(8)}.new")
    try:
        create(new, contents, lasting)
        if earlier is not None:
            new.chmod(stat.S_IMODE(earlier.st_mode))
        new.replace(path)
        if lasting:
            sync(path.parent)
    except OSError as exc:
        exc.filename = os.fspath(path)
        raise
    finally:
        new.unlink(missing_ok=True)


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
    with open(place, "wb") as file:  # such as /dev/stdout, or the pipe of >(...) in a shell
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
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def is_still(path: Name, descriptor: int) -> bool:
    """Whether a name is that of the file that a descriptor has open."""
    named, opened = _status(Path(path)), os.fstat(descriptor)
    return named is not None and os.path.samestat(named, opened)


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
