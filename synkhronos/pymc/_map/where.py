"""Where a call of `map` fits its items: in slots of this machine, or on a pool."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from synkhronos._checks import check_integer, check_seconds, or_none
from synkhronos._errors import InputError
from synkhronos._host import files
from synkhronos._host.cores import available, of_slurm_task, shares
from synkhronos._transport.pools.chosen import pool_of
from synkhronos._transport.pools.pool import Pool


@dataclass(frozen=True)
class Where:
    """The options of a call that say where its items are fitted, and for how long."""

    pool: Pool | None  # None: slots of this machine
    cores: int  # of this machine
    members: int
    limit: float | None  # seconds for an item
    log_dir: Path | None

    def slots(self, items: int) -> list[list[int]]:
        """The cores of each slot, for this number of items."""
        count = min(self.cores // self.members, items)
        return shares(available()[: self.cores], count)[::-1]


def where_of(
    what: str,
    on: object = None,
    cores: int | None = None,
    members: int = 1,
    limit: float | None = None,
    log_dir: str | os.PathLike[str] | None = None,
) -> Where:
    """Check these options of the call `what`, and make the folder for logs.

    Raises
    ------
    InputError, InputTypeError, BackendMissing
    """
    members = check_integer(f"{what}: members", members, 1)
    asked = or_none(check_integer, f"{what}: cores", cores, 1)
    limit = check_seconds(f"{what}: limit", limit)
    if on is not None:
        for name, given in (("cores", cores), ("log_dir", log_dir)):
            if given is not None:
                raise InputError(
                    f"{what}: {name}= is for slots of this machine: leave it out, or on="
                )
        return Where(pool_of(what, on, members), own_cores(None), members, limit, None)
    own = own_cores(asked)
    if members > own:
        raise InputError(f"{what}: members={members}: there are {own} cores")
    return Where(None, own, members, limit, _log_folder(what, log_dir))


def own_cores(asked: int | None) -> int:
    """The number of cores of this machine for a call: as asked, else as Slurm has given."""
    there = len(available())
    return min(asked or of_slurm_task() or there, there)


def _log_folder(what: str, given: str | os.PathLike[str] | None) -> Path | None:
    if given is None:
        return None
    folder = Path(os.fspath(given)).absolute()
    try:
        files.make_folder(folder)
    except OSError as exc:
        raise InputError(f"{what}: log_dir={str(folder)!r}: {exc.strerror}") from None
    return folder
