"""The metric of a call of `sample`: one that is named, or a choice that is kept."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import astuple

from synkhronos._errors import InputError
from synkhronos._host.thread_pools import ThreadLimits
from synkhronos.pymc._density.adaptation import AUTO, Auto
from synkhronos.pymc._density.metric import Choice
from synkhronos.pymc._kept.models import KeptModel


def check_sampler(metric: str, sampler: str) -> None:
    """Raise an InputError if a metric is named, and nutpie does not sample."""
    if sampler != "nutpie":
        raise InputError(
            f'adaptation="{metric}" is a metric of nutpie, and "{sampler}" samples this model with '
            "these arguments: leave it out"
        )


def choice_of(metric: str | None, seconds: float, kept: KeptModel | None) -> Auto | None:
    """The choice that is to be made; `seconds` are those of the rows of a gradient."""
    if metric != AUTO:
        return None
    return Auto(seconds, functools.partial(_remembered, kept))


def _remembered(
    kept: KeptModel | None, key: Sequence[object], find: Callable[[], Choice]
) -> Choice:
    """The choice for the model with its data, which is made once on a machine."""
    if kept and (known := kept.recall("metric", *key)) is not None:
        return Choice(*known)
    with ThreadLimits(1):  # the same rounding with any number of cores
        found = find()
    if kept:
        kept.note(astuple(found), "metric", *key)
    return found
