"""Questions to the current group: its size, this member's rank, the rows of each member."""

from __future__ import annotations

from itertools import pairwise

from synkhronos._checks import check_integer
from synkhronos._engine.group import Group, current, current_or_none
from synkhronos._engine.member import Member
from synkhronos._plan.rows import edges


def current_group() -> Group | None:
    """The group that module functions act on, or None if none is open.

    Notes
    -----
    Cost: nothing is sent.

    Examples
    --------
    >>> import synkhronos as synk
    >>> synk.current_group() is None
    True
    >>> _ = synk.fork(2)
    >>> synk.current_group().restarts
    0
    >>> synk.close()
    """
    return current_or_none()


def size() -> int:
    """The number of members of the current group; in a worker, of the group that it works for.

    Raises
    ------
    NotForked
        No group is open.

    Notes
    -----
    Cost: nothing is sent.

    Examples
    --------
    >>> import synkhronos as synk
    >>> _ = synk.fork(2)
    >>> synk.size()
    2
    >>> synk.close()
    """
    return _member("synk.size").size


def rank() -> int:
    """The rank of this process: in the script that of the master, 0 unless `master_rank` is given.

    Operations that users write in Python also run in workers. There it is the worker's rank.

    Raises
    ------
    NotForked
        No group is open.

    Notes
    -----
    Cost: nothing is sent.

    Examples
    --------
    >>> import synkhronos as synk
    >>> _ = synk.fork(2)
    >>> synk.rank()
    0
    >>> synk.close()
    """
    return _member("synk.rank").rank


def part_lengths(n: int) -> list[int]:
    """The number of rows that each member gets of n rows, in the order of ranks.

    Calls divide rows in this way, after `batch` has selected them. The lengths differ by at most
    one, and the first members have the longer parts.

    Parameters
    ----------
    n : int, at least 0
        A number of rows.

    Raises
    ------
    NotForked
        No group is open.
    InputError, InputTypeError
        `n` is not a number of rows.

    Notes
    -----
    Cost: nothing is sent.

    Examples
    --------
    >>> import synkhronos as synk
    >>> _ = synk.fork(2)
    >>> synk.part_lengths(5)
    [3, 2]
    >>> synk.close()
    """
    members = _member("synk.part_lengths").size
    rows = check_integer("synk.part_lengths: n", n, 0, rest=", such as len(x)")
    return [b - a for a, b in pairwise(edges(rows, members))]


def _member(what: str) -> Member:
    group = current_or_none()
    if group is None and Member.serving is not None:
        return Member.serving
    return current(what).member
