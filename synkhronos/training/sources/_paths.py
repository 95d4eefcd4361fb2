"""Lists of files, and copies of remote files on this machine."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from synkhronos._errors import BackendMissing, InputError, InputTypeError, shown

_KEEPING = ("filecache::", "simplecache::", "blockcache::")


def listed(what: str, paths: Any) -> tuple[str, ...]:
    """The files that `paths` names: one, several, or a ``.list`` file with one on each line.

    A line that begins with # is a comment. A relative line starts from the folder of the list.
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
    return [
        name if is_remote(name) else os.path.join(folder, name)
        for name in names
        if name and not name.startswith("#")
    ]


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
            f"{path} is not on this machine: give cache=folder, into which it is copied whole"
        )
    options: dict[str, Any] = {}
    if not keeps:
        path = f"filecache::{path}"
    if cache is not None:
        # check_files: a file that has changed is fetched again
        options[path.partition("::")[0]] = {"cache_storage": cache, "check_files": True}
    return os.fspath(fsspec.open_local(path, **options))
