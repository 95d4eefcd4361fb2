"""Lists of files, and copies of remote files on this machine."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from synkhronos._errors import BackendMissing, InputError, InputTypeError, shown
from synkhronos._host.secrets import without_secrets

# What a line of a list may ask for. A list may come from a stranger, and other protocols read files
# of the user, open connections by his keys, or render templates.
_PROTOCOLS = frozenset({"http", "https", "s3", "s3a", "gs", "gcs", "az", "abfs", "abfss"})
_KEEPING = ("filecache::", "simplecache::", "blockcache::")


def listed(what: str, paths: Any) -> tuple[str, ...]:
    """The files that `paths` names: one, several, or a ``.list`` file with one on each line.

    A line that begins with # is a comment. A relative line starts from the folder of the list. A
    remote one has one of the usual protocols, and may have one of fsspec's caches before it.
    """
    single = isinstance(paths, str | os.PathLike)
    if not single and not isinstance(paths, Iterable):
        raise InputTypeError(f"{what}: {shown(paths)} is not a path, and not a list of paths")
    found: list[str] = []
    for each in [paths] if single else paths:
        if not isinstance(each, str | os.PathLike):
            raise InputTypeError(f"{what}: {shown(each)} is not a path")
        path = os.fspath(each)
        found += _lines(what, path) if path.endswith(".list") else [path]
    if not found:
        raise InputError(f"{what}: {shown(paths)} names no file")
    return tuple(found)


def _lines(what: str, path: str) -> list[str]:
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as exc:
        raise InputError(f"{what}: the list {path} cannot be read: {exc}") from exc
    names = [line.strip() for line in lines]
    folder = os.path.dirname(path)
    found = []
    for number, name in enumerate(names, 1):
        if not name or name.startswith("#"):
            continue
        if not is_remote(name):
            name = os.path.join(folder, name)
        elif not _is_usual(name):
            raise InputError(
                f"{what}: line {number} of {path}, {without_secrets(name)!r}: a line may begin "
                f"with {', '.join(f'{p}://' for p in sorted(_PROTOCOLS))}, after at most one of "
                f"{', '.join(_KEEPING)}. Give other paths in a Python list"
            )
        found.append(name)
    return found


def _is_usual(name: str) -> bool:
    for cache in _KEEPING:
        name = name.removeprefix(cache)
    protocol, separator, rest = name.partition("://")
    return protocol in _PROTOCOLS and bool(separator) and "::" not in rest


def is_remote(path: str) -> bool:
    """Whether fsspec has to fetch it."""
    return "://" in path or "::" in path


def on_this_machine(path: str, cache: str | None) -> str:
    """The path itself, or that of a copy of a remote file, which is made or renewed if need be."""
    if not is_remote(path):
        return path
    try:
        import fsspec
    except ImportError:
        raise BackendMissing("fsspec", "data") from None
    keeps = path.startswith(_KEEPING)
    if not keeps and cache is None:
        raise InputError(
            f"{without_secrets(path)} is not on this machine: give cache=folder, into which it is "
            "copied whole"
        )
    options: dict[str, Any] = {}
    if not keeps:
        path = f"filecache::{path}"
    if cache is not None:
        # check_files: a file that has changed is fetched again
        options[path.partition("::")[0]] = {"cache_storage": cache, "check_files": True}
    return os.fspath(fsspec.open_local(path, **options))
