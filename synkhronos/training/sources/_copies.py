"""Copies of remote files on this machine. A copy is never written again: its name has its version.

fsspec's own caches download onto the file that a reader may have mapped. Its rows would change, and
where it became shorter, an access beyond its end would kill the process (SIGBUS).
"""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path
from typing import Any

from synkhronos._errors import InputError, needing
from synkhronos._host import files
from synkhronos._host.secrets import without_secrets

KEEPING = ("filecache::", "simplecache::", "blockcache::")

# of fsspec's file systems: what a server says of the contents, or of when they were written
_VERSION = (
    *("ETag", "etag", "Content-MD5", "Digest", "md5", "md5Hash", "crc32c", "generation"),
    *("VersionId", "version_id", "LastModified", "Last-Modified", "last_modified", "updated"),
    *("mtime", "created", "size"),
)
_UNUSUAL = re.compile(r"[^\w.-]+", re.ASCII)
_LONGEST = 80  # characters of the file's own name; the rest of a copy's name has 50


def is_remote(path: str) -> bool:
    """Whether fsspec has to fetch it."""
    return "://" in path or "::" in path


def on_this_machine(path: str, cache: str | None, described: str = "") -> str:
    """The path itself, or that of a copy of a remote file, which is made if there is none.

    Parameters
    ----------
    path : str
    cache : path, optional
        The folder of the copies.
    described : str
        What this function has returned when the file was described, perhaps on another machine.
        Then it returns the copy of the same version.

    Raises
    ------
    InputError
        The path is remote, and there is no `cache`.
    OSError
        It cannot be fetched, or has another version than the one that was described.
    """
    if not is_remote(path):
        files.check_regular(path)
        return path
    with needing("fsspec", "data"):
        import fsspec
    if cache is None:
        if not path.startswith(KEEPING):
            raise InputError(
                f"{without_secrets(path)} is not on this machine: give cache=folder, into which it "
                "is copied whole"
            )
        return os.fspath(fsspec.open_local(path))  # where fsspec's configuration says
    if described and os.path.exists(described):
        return described
    for keeping in KEEPING:
        path = path.removeprefix(keeping)
    system, inside = fsspec.core.url_to_fs(path)
    found = _copy(system, inside, path, Path(cache))
    if described and Path(described).name != found.name:
        raise OSError("the remote file has changed since the source was made. Make the source anew")
    return str(found)


def _copy(system: Any, inside: str, url: str, cache: Path) -> Path:
    """The copy of the present version of a file, from `inside` of a file system of fsspec."""
    version = _version(system, inside)
    found = cache / name_of_copy(url, version, inside.partition("?")[0])
    if found.exists():
        return found
    files.make_folder(cache)
    with files.draft(found, mode=files.OWN_FILE) as file:
        system.get_file(inside, files.name_of(file.fileno()))
        if _version(system, inside) != version:
            raise OSError("the remote file was written while it was copied. Try again")
    return found


def name_of_copy(origin: str, version: str, path: str) -> str:
    """The name of a copy of a version of `origin`; it ends as `path` does."""
    own = _UNUSUAL.sub("-", path.rpartition("/")[2])[-_LONGEST:]
    return f"{_short(origin)}-{_short(version)}-{own}"


def _version(system: Any, inside: str) -> str:
    system.invalidate_cache()
    about = system.info(inside)
    return repr([(name, str(about[name])) for name in _VERSION if about.get(name)])


def _short(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:24]
