"""The options of a run, as its trainer has checked them; which of them says the rows of a step."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from synkhronos.rules._base import Rule


@dataclass(frozen=True)
class Options:
    """The options of all runs of a trainer."""

    folder: Path | None
    keep: int | None
    skips: bool
    restores: bool
    config: Mapping[str, object]
    progress: bool
    export: Sequence[str]


@dataclass(frozen=True)
class Due:
    """When something is due: the end after `epochs`, the others at intervals of epochs or steps."""

    epochs: int
    validate: int
    save: int | None


def taken_by(function: Callable[..., object], given: Mapping[str, object]) -> dict[str, Any]:
    """Those of some arguments that a function takes by their names.

    An option goes by it through several functions, and only the first and the last name it.

    >>> taken_by(Due, {"epochs": 3, "save": None, "batch": 20})
    {'epochs': 3, 'save': None}
    """
    return {name: given[name] for name in inspect.signature(function).parameters if name in given}


Option = tuple[str, Any]  # its name and its value


def step_rows(rule: Rule | None, batch: object, member_batch: object) -> tuple[Option, Option]:
    """The option that says the rows of a step, and the one that must be None.

    Without a rule members step together.
    """
    of_group, of_member = ("batch", batch), ("member_batch", member_batch)
    if rule is None or rule.counts_batches_by == "group":
        return of_group, of_member
    return of_member, of_group
