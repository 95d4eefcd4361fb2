"""Which values of a metric are better: lower or higher ones.

A direction belongs to its metric. A name says it only where it cannot mean anything else: losses,
and the metrics of `synkhronos.training.metrics`. Nothing is guessed from a part of a name.
"""

from __future__ import annotations

from typing import Literal

Mode = Literal["min", "max"]

WORDS = {"min": "lower", "max": "higher"}  # as texts for people have it
_LOWER = ("loss", "error", "mse", "rmse", "mae")
_HIGHER = ("accuracy", "acc", "top_k", "f1", "r2")


def usual_mode(value: str) -> Mode | None:
    """Which values are better, by the name alone; None if it does not say so.

    The prefix of validations does not count. Functions that take turns have ``loss_NAME``.

    >>> usual_mode("val_loss"), usual_mode("val_accuracy"), usual_mode("val_perplexity")
    ('min', 'max', None)
    """
    name = value.removeprefix("val_")
    if name in _LOWER or name.startswith("loss_"):
        return "min"
    return "max" if name in _HIGHER else None
