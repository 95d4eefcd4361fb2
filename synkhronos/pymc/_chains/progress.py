"""How far chains are: in memory that another process reads, and as a line.

Those that have processes of their own write it for the process of the script. Those that are
sampled into a folder write it for `synk top`.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, Protocol

import numpy as np

from synkhronos._libraries.library import optional_gain
from synkhronos._libraries.pymc import PYMC
from synkhronos._warnings import log

_RECORD = np.dtype(
    [
        ("started", "?"),
        ("finished_draws", "i8"),
        ("total_draws", "i8"),
        ("divergences", "i8"),
        ("latest_num_steps", "i8"),
        ("step_size", "f8"),
        ("runtime_ms", "i8"),
    ]
)


SHOWN = "synkhronos-chains-"  # begins the name of a memory that `synk top` reads
_MOST_SAID = 1 << 16  # bytes
_COUNTED = ("finished", "total")


class NutpieProgress(Protocol):
    """The attributes of `nutpie.ChainProgress` that PyMC's table shows."""

    @property
    def started(self) -> bool:
        """Whether the chain draws, or has drawn."""

    @property
    def finished_draws(self) -> int:
        """The number of draws, also of those that tune."""

    @property
    def total_draws(self) -> int:
        """The number of draws at the end."""

    @property
    def divergent_draws(self) -> Any:
        """A sequence with an item for each divergence."""

    @property
    def latest_num_steps(self) -> int:
        """Gradients of the latest draw."""

    @property
    def step_size(self) -> float:
        """Of the latest draw."""

    @property
    def runtime_ms(self) -> int:
        """Milliseconds since the chain has started."""


@dataclass(frozen=True)
class ChainProgress:
    """The same, of a chain in another process."""

    started: bool
    finished_draws: int
    total_draws: int
    divergent_draws: range
    latest_num_steps: int
    step_size: float
    runtime_ms: int

    @property
    def done(self) -> bool:
        """Whether all is drawn."""
        return self.started and self.finished_draws >= self.total_draws


class ChainRecords:
    """A record for each chain, in a file of memory that two processes map."""

    def __init__(self, fd: int, chains: int) -> None:
        size = chains * _RECORD.itemsize
        if os.fstat(fd).st_size < size:
            os.ftruncate(fd, size)
        self._records = np.frombuffer(mmap.mmap(fd, size), _RECORD)

    def write(self, chains: Iterable[NutpieProgress]) -> None:
        """Write the chains, in the process that samples them."""
        for record, chain in zip(self._records, chains, strict=True):
            record["started"] = chain.started
            record["finished_draws"] = chain.finished_draws
            record["total_draws"] = chain.total_draws
            record["divergences"] = len(chain.divergent_draws)
            record["latest_num_steps"] = chain.latest_num_steps
            record["step_size"] = chain.step_size
            record["runtime_ms"] = chain.runtime_ms

    def read(self) -> list[ChainProgress]:
        """Read the chains, in another process."""
        return [
            ChainProgress(started, done, total, range(divergences), *others)
            for started, done, total, divergences, *others in self._records.tolist()
        ]


class ShownChains:
    """Chains that `synk top` shows, for as long as this context lasts.

    Parameters
    ----------
    folder : path
    found : sequence of int
        The draws of each chain that were there before.
    """

    def __init__(self, folder: os.PathLike[str], found: Sequence[int]) -> None:
        self._found = list(found)
        self._fd = os.memfd_create(f"{SHOWN}{len(self._found)}")
        self._records = ChainRecords(self._fd, len(self._found))
        said = json.dumps({"folder": os.fspath(folder), "found": self._found})
        os.pwrite(self._fd, said.encode(), len(self._found) * _RECORD.itemsize)

    def __enter__(self) -> ShownChains:
        return self

    def __exit__(self, *exc: object) -> None:
        del self._records  # and its mapping, even if a traceback holds this object
        os.close(self._fd)

    def write(self, chains: Sequence[ChainProgress]) -> None:
        """Write how far they are."""
        self._records.write(chains)


def shown_chains(path: str, chains: int) -> tuple[str, list[int], list[ChainProgress]] | None:
    """The folder, the draws that were there before, and the chains, of a process's memory.

    None: the process has ended, or has just begun.
    """
    with contextlib.suppress(OSError, ValueError, KeyError), open_shared(path) as fd:
        size = chains * _RECORD.itemsize
        said = json.loads(os.pread(fd, _MOST_SAID, size))
        return said["folder"], said["found"], ChainRecords(fd, chains).read()
    return None


@contextlib.contextmanager
def open_shared(path: str) -> Iterator[int]:
    """A context with the memory of another process, by a file of the kernel."""
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)


def line_of(chains: Sequence[ChainProgress], found: Sequence[int]) -> str:
    """How far all chains are, and about how long the rest takes."""
    made, total = (sum(getattr(c, f"{what}_draws") for c in chains) for what in _COUNTED)
    divergences = sum(len(c.divergent_draws) for c in chains)
    new, seconds = made - sum(found), max(c.runtime_ms for c in chains) / 1e3
    left = ""
    if new > 0 and made < total:
        rest = timedelta(seconds=round(seconds * (total - made) / new))
        left = f", about {rest} left"
    count = f"{len(chains)} chain{'s' * (len(chains) > 1)}"
    return f"{count}, {made:,} of {total:,} draws (tuning too), {divergences:,} divergences{left}"


class WrittenProgress:
    """A context, as the table in which PyMC shows chains of nutpie, which writes them."""

    def __init__(self, records: ChainRecords) -> None:
        self.update = records.write

    def __enter__(self) -> WrittenProgress:
        return self

    def __exit__(self, *exc: object) -> None:
        """Nothing was shown here."""


def write_progress(records: ChainRecords) -> None:
    """Let `pm.sample` write how far chains of nutpie are, in this process; it shows nothing."""
    with optional_gain():
        PYMC.replace({"NutpieProgressBarManager": lambda **given: WrittenProgress(records)})


def while_read(
    *show: Callable[[list[ChainProgress]], object],
) -> Callable[[list[ChainProgress]], None]:
    """Calls each with how far chains are; one whose reader has gone is left out from then on.

    A terminal may end before a long run.
    """
    left = list(show)

    def each(chains: list[ChainProgress]) -> None:
        for one in list(left):
            try:
                one(chains)
            except (OSError, ValueError) as exc:  # of a stream that is closed
                left.remove(one)
                log.debug("it is shown no more how far chains are: %s", exc)

    return each


def same_totals(chains: Sequence[ChainProgress]) -> list[ChainProgress]:
    """The chains, also those that are not written yet, with the total of the others."""
    total = max((chain.total_draws for chain in chains), default=0)
    return [replace(chain, total_draws=total) for chain in chains] if total else []


def table(chains: int, arguments: Mapping[str, Any]) -> Any:
    """The table that `pm.sample` shows for chains of nutpie, with its arguments; a context.

    Where there is no terminal, the table is printed once, at the end.
    """
    shown = arguments.get("progressbar", True) if not arguments.get("quiet") else False
    with optional_gain():
        return PYMC.get("NutpieProgressBarManager")(
            chains=chains,
            draws=arguments.get("draws", 1000),
            progressbar=shown,
            progressbar_theme=arguments.get(
                "progressbar_theme", PYMC.get("default_progress_theme")
            ),
        )
    return nullcontext(SimpleNamespace(update=lambda chains: None))
