"""Lists of files."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

from synkhronos._checks import shown
from synkhronos._errors import InputError, InputTypeError
from synkhronos._host import files
from synkhronos._host.secrets import without_secrets
from synkhronos.training.sources._copies import KEEPING, is_remote

# What a line of a list may ask for. A list may come from a stranger, and other protocols read files
# of the user, open connections by his keys, or render templates.
_PROTOCOLS = frozenset({"http", "https", "s3", "s3a", "gs", "gcs", "az", "abfs", "abfss"})


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
        lines = files.read_text(path, most=None).splitlines()
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
                f"{', '.join(KEEPING)}. Give other paths in a Python list"
            )
        found.append(name)
    return found


def _is_usual(name: str) -> bool:
    for cache in KEEPING:
        name = name.removeprefix(cache)
    protocol, separator, rest = name.partition("://")
    return protocol in _PROTOCOLS and bool(separator) and "::" not in rest
