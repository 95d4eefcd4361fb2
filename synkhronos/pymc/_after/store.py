"""Results on disk, as zarr arrays without compression: each chunk is one file of numbers.

zarr makes the arrays, in the process of the user. Processes that compute write chunks as plain
files, each under another name first. So they need no zarr, which would start threads in them, and a
kill or a full disk leaves whole chunks only.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from xarray import Dataset, DataTree, open_zarr

from synkhronos._checks import shown
from synkhronos._errors import BackendMissing, InputError, InputTypeError
from synkhronos._host import files

DONE, DRAWS = "draws_done", "draws"  # attributes of a group


@dataclass(frozen=True)
class StoredArray:
    """One array of a store: a folder of chunks.

    Attributes
    ----------
    folder : str
    lead : tuple of int
        The lengths of the dimensions of the draws.
    block : int
        The length of a chunk along the last of them.
    event : tuple of int
        The shape of the values of one draw, all of which are in one chunk.
    dtype : dtype
    """

    folder: str
    lead: tuple[int, ...]
    block: int
    event: tuple[int, ...]
    dtype: np.dtype

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
        places = list(np.unravel_index(draws.start, self.lead)) if self.lead else []
        if places:
            places[-1] //= self.block
        path = Path(self.folder, "c", *map(str, places), *("0" for _ in self.event))
        path.parent.mkdir(parents=True, exist_ok=True)
        files.replace(path, memoryview(np.ascontiguousarray(full)).cast("B"), lasting=False)


@dataclass(frozen=True)
class Store:
    """A zarr store with the groups of one result.

    Attributes
    ----------
    path : str
    groups : tuple of str
    arrays : tuple of StoredArray
        Of the computed variables, in the order of a calculation's outputs.
    draws : int
    """

    path: str
    groups: tuple[str, ...]
    arrays: tuple[StoredArray, ...]
    draws: int

    @staticmethod
    def make(
        path: str,
        groups: Mapping[str, Dataset],
        names: Sequence[str],
        sample_shape: Sequence[int],
        block: int,
    ) -> Store:
        """Make groups with all that is not computed, and the arrays of what is.

        Parameters
        ----------
        path : str
        groups : mapping
            The groups of the result, where values of the computed variables are of no interest.
        names : sequence of str
            The computed variables.
        sample_shape : sequence of int
            The lengths of the dimensions of the draws.
        block : int
            The draws in a chunk.
        """
        import zarr

        arrays: dict[str, StoredArray] = {}
        lead = tuple(sample_shape)
        for group, found in groups.items():
            computed = [name for name in found.data_vars if name in names]
            found.drop_vars(computed).to_zarr(
                path, group=group, mode="a", zarr_format=3, consolidated=False
            )
            folder = zarr.open_group(path, path=group, mode="r+")
            for name in computed:
                variable = found[name]
                if variable.shape[: len(lead)] != lead:
                    raise InputError(
                        f"store: {name} has the shape {variable.shape}, which is not that of draws "
                        f"{lead} and more dimensions: leave store= out"
                    )
                stored = StoredArray(
                    os.path.join(path, group, name),
                    lead,
                    block,
                    variable.shape[len(lead) :],
                    variable.dtype,
                )
                folder.create_array(
                    name,
                    shape=variable.shape,
                    chunks=stored.chunk,
                    dtype=variable.dtype,
                    filters=None,
                    compressors=None,
                    fill_value=np.array(
                        np.nan if variable.dtype.kind == "f" else 0, variable.dtype
                    )[()],
                    dimension_names=[str(dim) for dim in variable.dims],
                    attributes=dict(variable.attrs),
                )
                arrays[name] = stored
        store = Store(path, tuple(groups), tuple(arrays[name] for name in names), math.prod(lead))
        store.note(0)
        return store

    def note(self, done: int) -> None:
        """Write how many draws are done into the attributes of the groups."""
        for group in {Path(array.folder).parent for array in self.arrays}:
            described = json.loads(files.read_text(group / "zarr.json"))
            described.setdefault("attributes", {}).update({DONE: done, DRAWS: self.draws})
            files.replace(group / "zarr.json", json.dumps(described))

    def opened(self) -> dict[str, DataTree]:
        """The groups, whose values are read when they are used."""
        return {
            group: DataTree(open_zarr(self.path, group=group, consolidated=False, chunks=None))
            for group in self.groups
        }


def check_store(store: object, groups: Sequence[str]) -> str | None:
    """The path of a store that can be written.

    Parameters
    ----------
    store : path or None
    groups : sequence of str
        Groups that must not be there yet.

    Raises
    ------
    InputTypeError
        It is not a path.
    InputError
        It has one of these groups already.
    BackendMissing
        zarr is not installed.
    """
    if store is None:
        return None
    if not isinstance(store, str | os.PathLike):
        raise InputTypeError(f'store={shown(store)}: give a path, such as "predictions.zarr"')
    try:
        import zarr  # noqa: F401
    except ImportError:
        raise BackendMissing("zarr", "data") from None
    path = os.path.abspath(os.fspath(store))
    there = [group for group in groups if os.path.lexists(os.path.join(path, group))]
    if there:
        raise InputError(
            f"store={os.fspath(store)!r}: the group {there[0]!r} is there already; delete it, or "
            "name another store"
        )
    return path
