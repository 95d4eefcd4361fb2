"""Results of items: files in a folder, each of which is written as a whole."""

from __future__ import annotations

import json
import os
import shutil
import stat
import tempfile
import weakref
from collections.abc import Hashable, Iterator, Mapping
from pathlib import Path
from typing import Any

from synkhronos._errors import InputError, SynkhronosError
from synkhronos._host import files
from synkhronos._transport.serialization import pack_graph, unpack_graph
from synkhronos.pymc._fleet.names import file_of

_SEED, _FAILED = "seed.json", "failed.json"


class Folder:
    """A folder of results, which only this user writes to, since results are pickles.

    Parameters
    ----------
    given : path or None
        None: a temporary one, which is removed with this object.

    Raises
    ------
    InputError
        It cannot be made, or another user may write to it.
    """

    def __init__(self, given: str | os.PathLike[str] | None) -> None:
        if given is None:
            given = tempfile.mkdtemp(prefix="synk-map-")
            weakref.finalize(self, shutil.rmtree, given, ignore_errors=True)
        self.path = Path(os.fspath(given)).absolute()
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            _check_own(self.path)
        except OSError as exc:
            raise InputError(f"map: folder={str(self.path)!r}: {exc.strerror}") from None

    def entropy(self, asked: int | None, fresh: int) -> int:
        """The seed of the fleet: that of the folder, else the one that was asked for, or `fresh`.

        Raises
        ------
        InputError
            The folder has another one.
        """
        path = self.path / _SEED
        if not path.exists():
            found = fresh if asked is None else asked
            files.replace(path, json.dumps({"random_seed": found}))
            return found
        kept = int(json.loads(files.read_text(path))["random_seed"])
        if asked not in (None, kept):
            raise InputError(
                f"map: random_seed={asked}, and the results in {str(self.path)!r} have {kept}: "
                "give this, or another folder"
            )
        return kept

    def note_failed(self, failed: Mapping[Hashable, str]) -> None:
        """Write down which items have failed, and why."""
        text = json.dumps({str(name): why for name, why in failed.items()}, indent=1)
        files.replace(self.path / _FAILED, text)

    def has(self, name: Hashable, item: str) -> bool:
        """Whether there is a result of this item.

        Raises
        ------
        InputError
            It is of another item with the name.
        """
        path = self.path / file_of(name)
        if not path.exists():
            return False
        _check_own(path)
        with files.reading(path) as file:
            head = json.loads(file.readline())
        if head["item"] != item:
            raise InputError(
                f"map: {str(path)!r} is the result of another item named {name}: remove it, or "
                "give another folder"
            )
        return True

    def read(self, name: Hashable) -> Any:
        """The result of an item."""
        path = self.path / file_of(name)
        _check_own(path)
        _, _, packed = files.read_bytes(path, None).partition(b"\n")
        return unpack_graph(packed)


def write_result(folder: str, name: str, item: str, result: object) -> None:
    """Write the result of an item.

    Raises
    ------
    OSError
    """
    head = json.dumps({"name": name, "item": item}).encode()
    files.replace(Path(folder) / file_of(name), head + b"\n" + pack_graph(result))


def _check_own(path: Path) -> None:
    found = path.stat()
    if found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) & stat.S_IWOTH:
        raise InputError(
            f"map: another user may write to {str(path)!r}, and results are pickles, which can run "
            "any code: give a folder of your own"
        )


class Fits(Mapping[Hashable, Any]):
    """The results of `map`: a mapping from the names of items to what was sampled or returned.

    A result is read from its file when it is asked for, and not kept in memory.

    Attributes
    ----------
    failed : dict
        Why an item has no result, by name.
    folder : pathlib.Path
        Where the results are.

    Examples
    --------
    ::

        fits = synk.pymc.map(fit, shops)
        slopes = {name: idata.posterior["slope"].mean().item() for name, idata in fits.items()}
    """

    def __init__(
        self, folder: Folder, names: list[Hashable], failed: Mapping[Hashable, str]
    ) -> None:
        self._folder = folder
        self._names = dict.fromkeys(name for name in names if name not in failed)
        self.failed = dict(failed)
        self.folder = folder.path

    def __getitem__(self, name: Hashable) -> Any:
        if name in self.failed:
            raise SynkhronosError(f"item {name} has failed: {self.failed[name]}")
        if name not in self._names:
            raise KeyError(name)
        return self._folder.read(name)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[Hashable]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __repr__(self) -> str:
        return f"<{len(self)} fits, {len(self.failed)} failed, in {str(self.folder)!r}>"
