"""Results on disk, as zarr arrays without compression: each chunk is one file of numbers.

zarr makes the arrays, in the process of the user. Processes that compute write chunks as plain
files, each under another name first. So they need no zarr, which would start threads in them, and a
kill or a full disk leaves whole chunks only. The same call then goes on with the chunks that are
missing.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np
from xarray import Dataset, DataTree, open_zarr

from synkhronos._checks import shown
from synkhronos._errors import InputError, InputTypeError, needing
from synkhronos._host import files

DONE, DRAWS = "draws_done", "draws"  # attributes of a group
_MADE_OF, _SEED = "made_of", "random_seed"  # too: what a call goes on with


@dataclass(frozen=True)
class StoredArray:
    """One array of a store: a folder of chunks."""

    folder: str
    lead: tuple[int, ...]  # the lengths of the dimensions of the draws
    block: int  # the length of a chunk along the last of them
    event: tuple[int, ...]  # the shape of the values of one draw, all of which are in one chunk
    dtype: np.dtype

    def path(self, draws: range) -> Path:
        """The file of the chunk of a block."""
        places = list(np.unravel_index(draws.start, self.lead)) if self.lead else []
        if places:
            places[-1] //= self.block
        return Path(self.folder, "c", *map(str, places), *("0" for _ in self.event))

    def has(self, draws: range) -> bool:
        """Whether the chunk of a block is there, as a whole."""
        if not math.prod(self.event):
            return True
        try:
            return self.path(draws).stat().st_size == math.prod(self.chunk) * self.dtype.itemsize
        except OSError:
            return False

    @property
    def chunk(self) -> tuple[int, ...]:
        """The shape of a chunk; zarr knows no dimension of length 0 in one."""
        lead = (*(1 for _ in self.lead[1:]), self.block) if self.lead else ()
        return lead + tuple(max(1, n) for n in self.event)

    def write(self, draws: range, values: np.ndarray) -> None:
        """Write the chunk of a block; chunks at the end of a chain are filled up with zeros."""
        if not values.size:
            return
        full = values
        if self.lead and len(values) < self.block:
            full = np.zeros((self.block, *self.event), self.dtype)
            full[: len(values)] = values
        path = self.path(draws)
        files.make_folder(path.parent)
        files.replace(path, memoryview(np.ascontiguousarray(full)).cast("B"), lasting=False)


@dataclass(frozen=True)
class Store:
    """A zarr store with the groups of one result."""

    path: str
    groups: tuple[str, ...]
    # of the computed variables, in the order of a calculation's outputs
    arrays: tuple[StoredArray, ...]
    draws: int
    # a digest of all that the values follow from. A call whose digest is another one does not go on
    # with the store
    made_of: str
    seed: int | Sequence[int]

    @staticmethod
    def of(
        path: str,
        groups: Mapping[str, Dataset],  # values of the computed variables are of no interest
        names: Sequence[str],  # the computed variables
        sample_shape: Sequence[int],
        block: int,  # the draws in a chunk
        *,
        made_of: str,
        seed: int | Sequence[int],
    ) -> Store:
        """The store of a result; nothing is written yet."""
        arrays: dict[str, StoredArray] = {}
        lead = tuple(sample_shape)
        for group, found in groups.items():
            for name in (str(v) for v in found.data_vars if v in names):
                shape, dtype = found[name].shape, found[name].dtype
                if shape[: len(lead)] != lead:
                    raise InputError(
                        f"store: {name} has the shape {shape}, which is not that of draws {lead} "
                        "and more dimensions: leave store= out"
                    )
                folder = os.path.join(path, group, name)
                arrays[name] = StoredArray(folder, lead, block, shape[len(lead) :], dtype)
        ordered = tuple(arrays[name] for name in names)
        return Store(path, tuple(groups), ordered, math.prod(lead), made_of, seed)

    def is_there(self) -> bool:
        """Whether an earlier call has made the groups, of the same values.

        Raises
        ------
        InputError
            There are groups of other values.
        """
        there = [group for group in self.groups if _lies_in(self.path, group)]
        if not there:
            return False
        for group in self.groups:
            if _attributes(self.path, group).get(_MADE_OF) != self.made_of:
                raise InputError(
                    f"store={self.path!r}: the group {there[0]!r} is there already, of another "
                    "model, other draws, another seed, other arguments or another machine: delete "
                    "it, or name another store"
                )
        return True

    def cleaned(self) -> None:
        """Remove files that a killed process has not written to their end."""
        for array in self.arrays:
            for path in Path(array.folder).rglob(".*.new"):
                path.unlink(missing_ok=True)

    def has(self, draws: range) -> bool:
        """Whether all values of a block are there."""
        return all(array.has(draws) for array in self.arrays)

    def make(self, groups: Mapping[str, Dataset]) -> None:
        """Make the groups with all that is not computed, and the arrays of what is."""
        import zarr

        stored = {array.folder: array for array in self.arrays}
        for group, found in groups.items():
            folders = {str(v): os.path.join(self.path, group, str(v)) for v in found.data_vars}
            computed = [name for name, folder in folders.items() if folder in stored]
            found.drop_vars(computed).to_zarr(
                self.path, group=group, mode="a", zarr_format=3, consolidated=False
            )
            made = zarr.open_group(self.path, path=group, mode="r+")
            for name in computed:
                variable = found[name]
                made.create_array(
                    name,
                    shape=variable.shape,
                    chunks=stored[folders[name]].chunk,
                    dtype=variable.dtype,
                    filters=None,
                    compressors=None,
                    fill_value=np.array(
                        np.nan if variable.dtype.kind == "f" else 0, variable.dtype
                    )[()],
                    dimension_names=[str(dim) for dim in variable.dims],
                    attributes=dict(variable.attrs),
                )
        self.note(0)

    def note(self, done: int) -> None:
        """Write how many draws are done into the attributes of the groups."""
        seed = self.seed if isinstance(self.seed, int) else list(self.seed)
        noted = {DONE: done, DRAWS: self.draws, _MADE_OF: self.made_of, _SEED: json.dumps(seed)}
        for group in self.groups:
            path = Path(self.path, group, "zarr.json")
            described = json.loads(files.read_text(path))
            described.setdefault("attributes", {}).update(noted)
            # zarr warns of what is left in the folder of a group, and not of that in an array's
            new = Path(self.arrays[0].folder, f".{secrets.token_hex(8)}.new")
            try:
                files.create(new, json.dumps(described))
                new.replace(path)
            except BaseException:
                new.unlink(missing_ok=True)
                raise

    def opened(self) -> dict[str, DataTree]:
        """The groups, whose values are read when they are used."""
        return {
            group: DataTree(open_zarr(self.path, group=group, consolidated=False, chunks=None))
            for group in self.groups
        }


def _lies_in(path: str, group: str) -> bool:
    return os.path.lexists(os.path.join(path, group))


def _attributes(path: str, group: str) -> Mapping[str, object]:
    """The attributes of a group; none if it is no group of zarr."""
    try:
        found: dict[str, object] = json.loads(files.read_text(Path(path, group, "zarr.json")))
        attributes = found["attributes"]
    except (OSError, ValueError, KeyError, TypeError) as exc:
        if files.is_shortage(exc):  # else the message would be to delete the group
            raise
        return {}
    return attributes if isinstance(attributes, dict) else {}


def seed_in(path: str | None, groups: Sequence[str]) -> int | list[int] | None:
    """The seed of the call that has made the groups of a store; None if they are not there."""
    if path is None:
        return None
    for seed in (_attributes(path, group).get(_SEED) for group in groups):
        with contextlib.suppress(ValueError, TypeError):  # damaged: the call then has another seed
            found: int | list[int] = json.loads(cast(str, seed))
            return found
    return None


def check_store(store: object, groups: Sequence[str]) -> str | None:
    """The path of a store that can be written.

    Parameters
    ----------
    store : path or None
    groups : sequence of str
        Groups that may be there only if a call like this one has made them.

    Raises
    ------
    InputTypeError
        It is not a path.
    InputError
        It is an address, or it has one of these groups, and no such call has made it.
    BackendMissing
        zarr is not installed.
    """
    if store is None:
        return None
    if not isinstance(store, str | os.PathLike):
        raise InputTypeError(f'store={shown(store)}: give a path, such as "predictions.zarr"')
    if files.is_address(store):
        raise InputError(
            f"store={str(store)!r}: processes write files of this machine, and this is an address: "
            "give a path, such as one where it is mounted"
        )
    with needing("zarr", "data"):
        import zarr  # noqa: F401
    path = os.path.abspath(os.fspath(store))
    for group in groups:
        if _lies_in(path, group) and _MADE_OF not in _attributes(path, group):
            raise InputError(
                f"store={os.fspath(store)!r}: the group {group!r} is there already, and no call of "
                "synk.pymc has made it to the end: delete it, or name another store"
            )
    return path
