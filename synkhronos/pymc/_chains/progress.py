"""How far chains are that have processes of their own, which write it into shared memory."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, Protocol

import numpy as np

from synkhronos._libraries.library import optional_gain
from synkhronos._libraries.pymc import PYMC

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
