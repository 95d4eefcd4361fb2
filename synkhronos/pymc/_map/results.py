"""Results of items: files in a folder, each of which is written as a whole."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
from collections.abc import Hashable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np

from synkhronos._checks import shown
from synkhronos._errors import InputError, InputTypeError, SynkhronosError, printable
from synkhronos._host import files
from synkhronos._transport.serialization import pack_graph, unpack_graph
from synkhronos._warnings import log
from synkhronos.pymc._map.digests import digest
from synkhronos.pymc._map.names import file_of
from synkhronos.pymc._map.stores import OwnFolder, Store

_SEED = "seed.json"
_LONGEST_HEAD = 1 << 20  # bytes of the first line of a result
_PIECE = 1 << 20  # bytes that are read together
_LONGEST = 200  # characters of an argument; of a longer one results have its digest


class Folder:
    """The results of items in a store, with their seed.

    Raises
    ------
    InputError, InputTypeError, BackendMissing
        There can be none, or another user may write to it.
    """

    def __init__(self, given: str | os.PathLike[str] | None, part: str = "") -> None:
        self._failed = f"failed{part}.json"  # parts of the items fail apart
        self._lasts = given is not None
        self._seed: int | None = None
        self._arguments: Mapping[str, str] = {}  # of this call
        self._earlier: Mapping[str, str] | None = None  # of results that do not say theirs
        self._others: set[str] = set()  # what results have in place of arguments of this call
        self._store = _store_of(given)
        self.at = self._store.at
        self.shown = self._store.shown
        self.path = self._store.path  # where processes leave results

    @property
    def goes_on(self) -> str:
        """How a call that has ended too soon goes on, in messages."""
        if self._lasts:
            return f"The results so far are in {self.shown!r}: the same call goes on there"
        return "The results so far are gone: with folder= they stay, and the same call goes on"

    def entropy(self, asked: int | None, fresh: int, arguments: Mapping[str, object] = {}) -> int:
        """The seed of the fleet: that of the folder, else the one that was asked for, or `fresh`.

        Results that `has` finds are compared with the arguments of `pm.sample`.

        Raises
        ------
        InputError
            The folder has another one, or its file is damaged or cannot be read.
        """
        self._arguments = texts_of(arguments)
        kept = self.noted_seed(asked)
        if kept is None:
            kept = fresh if asked is None else asked
            self._note(_SEED, {"random_seed": kept})
        self._seed = kept
        return kept

    def noted_seed(self, asked: int | None) -> int | None:
        """The seed of earlier calls; None: there was none. For exceptions see `entropy`."""
        said: Any = {}
        try:
            said = json.loads(self._store.noted(_SEED))
            kept = said["random_seed"]
        except FileNotFoundError:
            return None
        except OSError as exc:
            if exc.errno != errno.EILSEQ:
                raise InputError(
                    f"map: {self.shown + '/' + _SEED!r} cannot be read: {exc.strerror or exc}"
                ) from None
            kept = None
        except (ValueError, KeyError, TypeError, RecursionError):
            kept = None
        if type(kept) is not int or kept < 0:
            raise InputError(
                f"map: {self.shown + '/' + _SEED!r} is damaged: it has no random_seed. Write "
                '{"random_seed": N} into it, with the seed of the results, or give another folder'
            )
        if asked not in (None, kept):
            raise InputError(
                f"map: random_seed={asked}, and the results in {self.shown!r} have {kept}: "
                "give this, or another folder"
            )
        if isinstance(earlier := said.get("arguments"), dict):
            self._earlier = texts_of(earlier)
        return kept

    def warn_of_others(self) -> None:
        """Warn if results that `has` has found have other arguments of `pm.sample`; they stay."""
        if self._others:
            log.warning(
                "map: results in %s are of calls with %s, and stay: give another folder for new "
                "ones",
                self.shown,
                printable("; ".join(sorted(self._others))),
            )

    def note_failed(self, failed: Mapping[Hashable, str]) -> None:
        """Write down which items have failed, and why."""
        self._note(self._failed, {str(name): why for name, why in failed.items()})

    def _note(self, file: str, said: Mapping[str, object]) -> None:
        self._store.note(file, json.dumps(said, indent=1))

    def _file(self, name: Hashable) -> str:
        return f"{self.shown}/{file_of(name)}"

    def came(self, name: Hashable) -> None:
        """The process of an item has left its result in `path`.

        Raises
        ------
        SynkhronosError
            A result cannot be kept.
        """
        self._store.came(file_of(name))

    @contextlib.contextmanager
    def keeping(self) -> Iterator[None]:
        """A context after which all that came is kept; for exceptions see `came`."""
        try:
            yield
        finally:
            self._store.finish()

    def missing(self, items: Mapping[Hashable, str]) -> set[Hashable]:
        """The names of items without a result, given with their digests; see `has`."""
        found = self._store.each(lambda name: self.has(name, items[name]), items)
        return {name for name, there in zip(items, found, strict=True) if not there}

    def has(self, name: Hashable, item: str) -> bool:
        """Whether there is a whole result of this item; a damaged one counts as missing.

        Raises
        ------
        InputError
            It is of another item with the name, or of another seed, or another user may write to
            it.
        SynkhronosError
            It cannot be read.
        """
        try:
            with self._store.opened(file_of(name)) as file:
                head = _head(file)
                whole = head is not None and _digest(file) == head["blake2b"]
        except FileNotFoundError:
            return False
        except OSError as exc:
            raise self._unread(name, exc) from None
        if head is None or not whole:
            log.warning("map: %s is damaged: item %s is fitted again", self._file(name), name)
            return False
        if head["item"] != item:
            raise InputError(
                f"map: {self._file(name)!r} is the result of another item named {name}: remove "
                "it, or give another folder"
            )
        if self._seed is not None and head.get("seed", str(self._seed)) != str(self._seed):
            raise InputError(
                f"map: {self._file(name)!r} is the result of item {name} by random_seed="
                f"{head['seed']}, and this call has {self._seed}: remove it, or give another folder"
            )
        self._compare(head.get("arguments", self._earlier))
        return True

    def _compare(self, found: object) -> None:
        """Compare the arguments of a result with those of this call."""
        if isinstance(found, dict) and found != self._arguments:
            names = sorted(found.keys() | self._arguments.keys())
            others = [n for n in names if found.get(n) != self._arguments.get(n)]
            self._others.add(", ".join(f"{name}={found.get(name)}" for name in others))

    def read(self, name: Hashable) -> Any:
        """The result of an item.

        Raises
        ------
        SynkhronosError
            Its file is damaged, or is there no more.
        """
        try:
            with self._store.opened(file_of(name)) as file:
                head = _head(file)
                packed = file.read()
        except OSError as exc:
            raise self._unread(name, exc) from None
        if head is None or hashlib.blake2b(packed).hexdigest() != head["blake2b"]:
            raise SynkhronosError(
                f"map: the result of item {name}, {self._file(name)!r}, is damaged: call map "
                "again, which fits the item again"
            )
        return unpack_graph(packed)

    def forget(self, name: Hashable) -> None:
        """Remove the result of an item: the same call fits it again.

        Raises
        ------
        SynkhronosError
            It cannot be removed.
        """
        try:
            self._store.remove(file_of(name))
        except OSError as exc:
            raise SynkhronosError(
                f"map: the result of item {name}, {self._file(name)!r}, cannot be removed: "
                f"{exc.strerror or exc}"
            ) from None

    def _unread(self, name: Hashable, exc: OSError) -> SynkhronosError:
        return SynkhronosError(
            f"map: the result of item {name}, {self._file(name)!r}, cannot be read: "
            f"{exc.strerror or exc}"
        )


def packed_result(
    name: str, item: str, seed: int, result: object, arguments: Mapping[str, str] = {}
) -> bytes:
    """The contents of the file of a result, by the name and the digest of its item.

    `arguments` are those of `pm.sample`, see `texts_of`.
    """
    packed = pack_graph(result)
    found = hashlib.blake2b(packed).hexdigest()
    head = {
        "name": name,
        "item": item,
        "seed": str(seed),
        "arguments": dict(arguments),
        "blake2b": found,
    }
    return b"".join([json.dumps(head).encode(), b"\n", packed])


def write_result(folder: str | Path, name: Hashable, packed: bytes, lasting: bool = True) -> None:
    """Write a result of `packed_result`, which nobody else may read: a pickle is code.

    If it need not be `lasting`, a crash of the machine may damage it, which `Folder.has` notices.

    Raises
    ------
    OSError
    """
    files.replace(Path(folder) / file_of(name), packed, lasting, files.OWN_FILE)


def _store_of(given: str | os.PathLike[str] | None) -> Store:
    """The store that ``folder=`` names: a path, or an address of fsspec.

    Raises
    ------
    InputError, InputTypeError, BackendMissing
        It is neither, or an address as a `pathlib.Path`; and see the stores.
    """
    if given is not None and not isinstance(given, str | os.PathLike):
        raise InputTypeError(f"map: folder={shown(given)}: give a path, or an address as a text")
    if isinstance(given, os.PathLike) and files.is_address(given):
        raise InputError(
            f"map: folder={str(given)!r}: a path has one slash where an address has two, and would "
            'be a folder of this machine: give the address as a text, such as "s3://bucket/fits"'
        )
    if isinstance(given, str):
        if given.startswith("file://"):
            return OwnFolder(given.removeprefix("file://"))
        if "://" in given:
            from synkhronos.pymc._map.remote import Remote

            return Remote(given)
    return OwnFolder(given)


def texts_of(arguments: Mapping[str, object]) -> dict[str, str]:
    """Those arguments of `pm.sample` that JSON can hold, as texts; a long one ends in a digest."""
    found: dict[str, str] = {}
    for name, value in arguments.items():
        with contextlib.suppress(TypeError, ValueError, RecursionError):
            text = repr(json.loads(json.dumps(value, default=_listed, sort_keys=True)))
            if len(text) > _LONGEST:
                text = f"{text[:_LONGEST]}... ({digest(text.encode())})"
            found[name] = text
    return found


def _listed(value: object) -> object:
    """Numbers and arrays of numpy as Python's."""
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    raise TypeError


def _head(file: IO[bytes]) -> Mapping[str, Any] | None:
    """The first line of a result; None if it is damaged."""
    try:
        head = json.loads(file.readline(_LONGEST_HEAD))
    except ValueError:
        return None
    return head if isinstance(head, dict) and {"item", "blake2b"} <= head.keys() else None


def _digest(file: IO[bytes]) -> str:
    """Of the rest of a file."""
    found = hashlib.blake2b()
    while piece := file.read(_PIECE):
        found.update(piece)
    return found.hexdigest()


class Fits(Mapping[Hashable, Any]):
    """The results of `map`: a mapping from the names of items to what was sampled or returned.

    A result is read from its file when it is asked for, and not kept in memory.

    Attributes
    ----------
    failed : dict
        Why an item has no result, by name.
    folder : pathlib.Path or str
        Where the results are: a folder, or an address.

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
        self.folder = folder.at

    def __getitem__(self, name: Hashable) -> Any:
        if name in self.failed:
            raise SynkhronosError(f"item {name} has failed: {self.failed[name]}")
        if name not in self._names:
            raise KeyError(name)
        return self._folder.read(name)

    def get(self, name: Hashable, default: Any = None) -> Any:
        """The result of an item; the default for one that has failed, or that there is not."""
        if name not in self:
            return default
        return self[name]

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[Hashable]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __repr__(self) -> str:
        return f"<{len(self)} fits, {len(self.failed)} failed, in {self._folder.shown!r}>"


def forget(fits: Fits, names: Iterable[Hashable]) -> None:
    """Remove results; for exceptions see `Folder.forget`."""
    for name in names:
        fits._folder.forget(name)
