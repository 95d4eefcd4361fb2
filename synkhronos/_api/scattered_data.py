"""Data of which each node keeps only its own rows, so that they can exceed one node's memory."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from synkhronos._api.data import Data
from synkhronos._engine.commands.base import Command
from synkhronos._engine.commands.call import ScatteredSource
from synkhronos._engine.group import Group
from synkhronos._engine.member import Member
from synkhronos._errors import InputError, InputTypeError
from synkhronos._plan.rows import edges

Loader = Callable[[int, int], object]  # rows start to stop, of the whole


@dataclass(frozen=True)
class Load(Command):
    """Each member writes its own rows into the memory of its node."""

    number: int  # under which members know the rows
    # of all rows
    shape: tuple[int, ...]
    dtype: str
    loader: Loader | None  # None: the master sends the rows

    @property
    def foreign(self) -> bool:
        """Whether it holds a function of the user's."""
        return self.loader is not None

    def run(self, member: Member) -> None:
        """Allocate in the node's leader. Each member fills, and so first touches, its own rows."""
        comm = member.communicator
        home, borders = comm.home, edges(self.shape[0], member.size)
        first = member.rank - home.rank
        start, stop = borders[first], borders[first + home.size]
        shape = (stop - start, *self.shape[1:])
        leads = home.rank == comm.leader
        made = [home.empty(shape, np.dtype(self.dtype))] if leads else []
        whole = home.expose(made)[comm.leader][0]
        lo, hi = borders[member.rank], borders[member.rank + 1]
        whole[lo - start : hi - start] = self._rows(member, lo, hi, borders)
        member.on_node.scattered_rows[self.number] = whole, start
        comm.barrier()

    def _rows(self, member: Member, lo: int, hi: int, borders: Sequence[int]) -> np.ndarray:
        if self.loader is None:
            mine = member.rank == member.master
            given = [member.master_input] if mine else None
            return member.communicator.scatter(given, member.master, borders)[0]
        rows = np.asarray(self.loader(lo, hi))
        if rows.shape != (hi - lo, *self.shape[1:]) or not np.can_cast(rows.dtype, self.dtype):
            raise InputTypeError(
                f"the loader's rows {lo} to {hi} should be {self.dtype} of shape "
                f"{(hi - lo, *self.shape[1:])}, found {rows.dtype} of shape {rows.shape}"
            )
        return rows


def load_scattered(
    group: Group,
    dtype: np.dtype,
    shape: tuple[int, ...],
    loader: Loader | None,
    value: np.ndarray | None,
    name: str | None,
) -> ScatteredData:
    """Let each member load its rows, or take them from the master's value."""
    number = group.inventory.number()
    group.run(Load(number, shape, dtype.str, loader), "synk.data", master_input=value)
    return ScatteredData(group, dtype, shape, number, name)


class ScatteredData(Data):
    """Data whose rows are divided among the nodes; made by ``synk.data(..., scatter=True)``.

    Each member has the rows that it computes on in a call without `batch`. Each member computes the
    rows of a batch that it has; a batch must be in ascending order.

    Parameters
    ----------
    number : int
        Under which members know the rows already.
    """

    def __init__(
        self, group: Group, dtype: np.dtype, shape: tuple[int, ...], number: int, name: str | None
    ) -> None:
        super().__init__(group, dtype, len(shape), name, minibatch=False)
        self._shape = shape
        weakref.finalize(self, group.inventory.forgotten.append, number)
        self._take(group.member.on_node.scattered_rows[number][0])
        self._source = ScatteredSource(number)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of all rows together."""
        return self._shape

    @property
    def size(self) -> int:
        """The number of elements of all rows."""
        return int(np.prod(self._shape, dtype=np.int64))

    @property
    def ref(self) -> Any:
        """The name by which members find their rows."""
        return self._source

    def __len__(self) -> int:
        return self._shape[0]

    @property
    def readable(self) -> np.ndarray:
        """Raise InputError: no member has all rows."""
        self._refuse("to have it whole")

    def __array__(self, dtype: object = None, copy: bool | None = None) -> np.ndarray:
        self._refuse("to have it whole")

    def __getitem__(self, key: object) -> Any:
        self._refuse("to read rows (those of this node are in d.data)")

    def __setitem__(self, key: object, value: object) -> None:
        self._refuse("to write to it")

    def _contents(self) -> NoReturn:
        self._refuse("to copy or pickle it")

    def set_value(self, input_data: object, force_cast: bool = False, oversize: float = 1) -> None:
        """Raise InputError: scattered Data cannot be set."""
        self._refuse("to set it")

    def set_shape(self, shape: Sequence[int] | int, oversize: float = 1) -> None:
        """Raise InputError: scattered Data keep their shape."""
        self._refuse("to give it another shape")

    def free_memory(self) -> None:
        """Raise InputError: the next shipping of functions frees the memory of dropped Data."""
        self._refuse("to free it; drop the last reference instead (del)")

    def _refuse(self, what: str) -> NoReturn:
        raise InputError(
            f"{self!r} was made with scatter=True and is divided among the nodes: there is no way "
            f"{what}. Make another, or make it without scatter="
        )
