"""Compare the members' values; make local statistics equal."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from synkhronos._api.collectives import (
    Operands,
    Variables,
    all_reduce_reserved,
    as_weights,
    operands,
    reduction,
    reserved,
    weights_by_name,
)
from synkhronos._compiling.graph_types import tensor_type
from synkhronos._engine.commands.collectives import Collective, GetValue
from synkhronos._engine.group import Group
from synkhronos._engine.member import Member
from synkhronos._engine.runner import retried
from synkhronos._engine.variables import Entry, is_array
from synkhronos._errors import GroupError, InputTypeError

_DIGEST_BYTES = 16


@dataclass(frozen=True)
class Checksums(Collective):
    """A checksum of each variable in each member."""

    @property
    def pure(self) -> bool:  # type: ignore[override]
        """Unless it carries new values."""
        return self.new is None

    def act(self, member: Member) -> tuple[bytes, ...]:
        """This member's."""
        return tuple([checksum(np.asarray(a)) for a in self.arrays(member)])

    def answer(self, member: Member, own: Any, reports: dict[int, Any]) -> list[list[int]]:
        """For each variable, the ranks whose checksum is not the master's."""
        return [
            [r for r, sums in sorted(reports.items()) if sums[i] != mine]
            for i, mine in enumerate(own)
        ]


def checksum(value: np.ndarray) -> bytes:
    """BLAKE2b of an array's dtype, shape and bytes.

    >>> a = np.arange(6.0).reshape(2, 3)
    >>> checksum(a) == checksum(np.asfortranarray(a)), checksum(a) == checksum(a.reshape(3, 2))
    (True, False)
    """
    found = hashlib.blake2b(f"{value.dtype.str}{value.shape}".encode(), digest_size=_DIGEST_BYTES)
    found.update(_bytes_of(value).data)
    return found.digest()


@retried
def check_consistency(shared_vars: Variables, *, timeout: float | None = None) -> None:
    """Raise unless every member holds the same values, bit for bit.

    Parameters
    ----------
    shared_vars : shared variable, name, or list of them
        Random generators are ignored, because each member has its own stream. Variables that were
        made to differ on purpose (`scatter`, local updates) are reported like any other.
    timeout : float, optional
        Seconds that other members may keep the master waiting, in each round; default: the group's.

    Raises
    ------
    GroupError
        The message names the variables that differ from the master's, and for each the ranks, the
        number of elements and the largest absolute difference. No value has changed, and the group
        can be used further.

    Notes
    -----
    Cost: one round; each member reads its values once, about 1 s for a GB. The round also sends the
    values that were set in the master since the last call, as a call would. One more round for each
    rank that differs fetches the differing values.

    Examples
    --------
    >>> import numpy as np, pytensor, synkhronos as synk
    >>> from synkhronos._api.consistency import check_consistency
    >>> _ = synk.fork(2)
    >>> s = pytensor.shared(np.zeros(3), name="s")
    >>> check_consistency(s)
    >>> synk.set_value(1, s, np.array([0.0, 0.5, 0.0]))
    >>> check_consistency(s)
    Traceback (most recent call last):
        ...
    synkhronos.GroupError: check_consistency: 1 of 1 variables differ from the master's:
      s (rank 1): 1 of 3 elements, by at most 0.5
    Give all members the master's values with synk.broadcast, or average them with synk.sync
    >>> synk.close()
    """
    with reserved("check_consistency", timeout):
        found = operands(shared_vars, "check_consistency", arrays=False)
        found.entries = _comparable(found.entries)
        differing = _differing(found)
        if differing:
            lines = _describe(found.group, differing)
            raise GroupError(
                f"check_consistency: {len(differing)} of {len(found.entries)} variables differ "
                "from the master's:\n  " + "\n  ".join(lines) + "\nGive all members the master's "
                "values with synk.broadcast, or average them with synk.sync"
            )


@weights_by_name
@retried
def sync(
    shared_vars: Variables,
    op: str = "avg",
    *,
    weights: Sequence[float] | None = None,
    timeout: float | None = None,
) -> None:
    """Make local statistics, such as the running means of batch norm, equal in all members.

    Parameters
    ----------
    shared_vars : shared variable, name, or list of them
        Floats are combined. Integers and bools (counters) are not combined: they must be equal in
        all members.
    op : {"avg", "sum", "prod", "min", "max"}
    weights : sequence of float, optional
        For avg: one for each rank, such as the number of its rows so far.
    timeout : float, optional
        Seconds that other members may keep the master waiting, in each round; default: the group's.

    Raises
    ------
    GroupError
        Integers differ. Nothing has changed; the message is that of `check_consistency`.

    Notes
    -----
    Cost: one round for the floats, as for `all_reduce`; one more if there are integers.

    Examples
    --------
    >>> import numpy as np, pytensor, synkhronos as synk
    >>> from synkhronos._api.consistency import sync
    >>> _ = synk.fork(2)
    >>> mean = pytensor.shared(np.zeros(2), name="mean")
    >>> synk.set_value(1, mean, np.array([1.0, 3.0]))
    >>> sync(mean); mean.get_value().tolist(), synk.get_value(1, mean).tolist()
    ([0.5, 1.5], [0.5, 1.5])
    >>> synk.close()
    """
    with reserved("sync", timeout):
        found = operands(shared_vars, "sync")
        as_weights(weights, reduction(op, "sync"), found.group)
        floats = [e for e in found.entries if _dtype(e).kind in "fc"]
        found.entries = [e for e in found.entries if _dtype(e).kind not in "fc"]
        differing = _differing(found)
        if differing:
            raise GroupError(
                "sync: integers are not averaged and must be equal in all members; these differ:"
                "\n  "
                + "\n  ".join(_describe(found.group, differing))
                + "\nGive all members the master's with synk.broadcast"
            )
        if floats:
            all_reduce_reserved([e.variable for e in floats], op, weights)


def _dtype(entry: Entry) -> np.dtype:
    kind = tensor_type(entry.variable)
    return np.dtype(kind.dtype)


def _comparable(entries: Sequence[Entry]) -> list[Entry]:
    found = [e for e in entries if not e.is_stream]
    wrong = [e.label for e in found if not is_array(e)]
    if wrong:
        raise InputTypeError(f"check_consistency: the values of {wrong} are not arrays")
    return found


def _differing(found: Operands) -> dict[Entry, list[int]]:
    """The variables that differ, and the ranks in which they do."""
    if not found.entries:
        return {}
    ranks = found.run(Checksums)
    return {e: r for e, r in zip(found.entries, ranks, strict=True) if r}


def _describe(group: Group, differing: dict[Entry, list[int]]) -> list[str]:
    """A line for each variable and rank; fetches the values of one rank at a time."""
    lines: dict[Entry, list[str]] = {e: [] for e in differing}
    for rank in sorted({r for ranks in differing.values() for r in ranks}):
        wanted = [e for e, ranks in differing.items() if rank in ranks]
        command = GetValue(tuple([e.number for e in wanted]), rank)
        values = group.runner.run(command, "check_consistency")
        for entry, value in zip(wanted, values, strict=True):
            said = difference(np.asarray(group.member.array(entry)), value)
            lines[entry].append(f"{entry.label} (rank {rank}): {said}")
    return [line for found in lines.values() for line in found]


def difference(mine: np.ndarray, other: np.ndarray) -> str:
    """Describe how another member's value differs from the master's.

    >>> difference(np.array([1, 2, 250], "uint8"), np.array([1, 4, 0], "uint8"))
    '2 of 3 elements, by at most 250'
    """
    if mine.shape != other.shape or mine.dtype != other.dtype:
        return f"{other.dtype} {other.shape} instead of {mine.dtype} {mine.shape}"
    unequal = (_bytes_of(mine) != _bytes_of(other)).reshape(mine.size, -1).any(axis=1)
    a, b = mine.reshape(-1)[unequal], other.reshape(-1)[unequal]
    return f"{len(a)} of {mine.size} elements, by at most {_largest_gap(a, b)}"


def _largest_gap(a: np.ndarray, b: np.ndarray) -> str:
    if a.dtype.kind == "b":
        return "1"
    if a.dtype.kind in "iu":  # unsigned: every difference of two integers fits
        gaps = (np.maximum(a, b) - np.minimum(a, b)).view(a.dtype.str.replace("i", "u"))
        return str(gaps.max())
    finite = np.isfinite(a) & np.isfinite(b)
    wide = np.complex128 if a.dtype.kind == "c" else np.float64
    with np.errstate(over="ignore"):
        gaps = np.abs(a[finite].astype(wide) - b[finite].astype(wide))
    rest = "" if finite.all() else f" ({np.count_nonzero(~finite)} of them not finite)"
    return (f"{gaps.max():.6g}" if len(gaps) else "nan") + rest


def _bytes_of(value: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(value).reshape(-1).view(np.uint8)
