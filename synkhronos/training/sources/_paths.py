"""Lists of files, and folders of them."""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from synkhronos._checks import shown
from synkhronos._errors import InputError, InputTypeError
from synkhronos._host import files
from synkhronos._host.secrets import without_secrets
from synkhronos._warnings import log
from synkhronos.training.sources._copies import KEEPING, is_remote

_OF_ARCHIVES = "__MACOSX"  # macOS packs copies of all names into it
_PART = re.compile(r"(.*)-\d+-of-\d+\b.*")  # as data sets of Hugging Face name their parts
_FEW = 5

# Protocols that a line of a list may name. A list may come from a stranger, and other protocols
# read files of the user, open connections by his keys, or render templates.
_PROTOCOLS = frozenset({"http", "https", "s3", "s3a", "gs", "gcs", "az", "abfs", "abfss"})


def listed(what: str, paths: Any, endings: tuple[str, ...] = ()) -> tuple[str, ...]:
    """The files that `paths` names: one, several, or a ``.list`` file with one on each line.

    With `endings`, a folder names all files in it that end so, at any depth, sorted.

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
        for name in _lines(what, path) if path.lower().endswith(".list") else [path]:
            found += _parts(what, name, endings) if endings and os.path.isdir(name) else [name]
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


def _parts(what: str, folder: str, endings: tuple[str, ...]) -> list[str]:
    """The files of a folder in the order of their names; a line in the log names others."""
    left_out: list[str] = []
    found = sorted(files_below(what, Path(folder), left_out, hidden=(".", "_")))
    parts = [str(path) for path in found if path.name.lower().endswith(endings)]
    others = [path.name for path in found if not path.name.lower().endswith(endings)]
    if not parts:
        raise InputError(f"{what}: the folder {folder} has no file that ends in {few(endings)}")
    kinds = sorted({match[1] for path in parts if (match := _PART.fullmatch(path))})
    if len(kinds) > 1:
        names = [os.path.basename(kind) for kind in kinds]
        raise InputError(
            f"{what}: the folder {folder} has parts of {few(names)}, which are several data sets: "
            "give the paths of one of them"
        )
    if others:
        log.warning("%s: %s: left out: %s", what, folder, few(others))
    return parts


def files_below(
    what: str, folder: Path, left_out: list[str], hidden: tuple[str, ...] = (".",)
) -> Iterator[Path]:
    """The files of a folder at any depth; each folder once, however many links lead to it.

    Names that begin as `hidden`, which users do not see, come into `left_out`; and links to folders
    whose files are there.
    """
    seen: set[tuple[int, int]] = set()
    folders, links = [folder], deque[Path]()
    while folders or links:
        place = folders.pop() if folders else links.popleft()
        try:
            status, entries = place.stat(), sorted(place.iterdir())
        except OSError as exc:
            raise InputError(f"{what}: the folder {place} cannot be read: {exc.strerror}") from None
        if (status.st_dev, status.st_ino) in seen:
            left_out.append(place.name)
            continue
        seen.add((status.st_dev, status.st_ino))
        for entry in entries:
            if is_hidden(entry.name, hidden):
                left_out.append(entry.name)
            elif not entry.is_dir():
                yield entry
            elif entry.is_symlink():
                links.append(entry)  # after the folders, so that files have their own paths
            else:
                folders.append(entry)


def is_hidden(name: str, hidden: tuple[str, ...] = (".",)) -> bool:
    """Whether a name is of a kind that users do not see, such as ``.DS_Store`` and ``._1.png``."""
    return name.startswith(hidden) or name == _OF_ARCHIVES


def few(names: Sequence[str]) -> str:
    """The first of several names, and how many there are beside them."""
    more = [f"{len(names) - _FEW} more"] if len(names) > _FEW else []
    return ", ".join([*names[:_FEW], *more])


def cache_folder(name: str) -> Path:
    """The folder of this name among those of this package in the user's folder for caches."""
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(home) / "synkhronos" / name
