"""The precision of matrix products on GPUs, while a run trains."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

from synkhronos._backends import jax as jax_backend
from synkhronos._checks import check_word
from synkhronos._engine.commands.base import Command
from synkhronos._engine.member import Member
from synkhronos._errors import InputError
from synkhronos.extensions._step.training_function import TrainingFunction

_NAMES = {"float32": "float32", "tf32": "tensorfloat32", "bf16": "bfloat16"}


@dataclass(frozen=True)
class SetPrecision(Command):
    """Set the precision of matrix products in all members; the answer is what it was."""

    name: str | None

    def run(self, member: Member) -> object:
        """Set JAX's option in this process."""
        return jax_backend.set_precision(self.name)


def check_precision(train: TrainingFunction, precision: object) -> None:
    """Raise if the precision is unknown, or members do not compute on GPUs."""
    if check_word("fit: precision", precision, (*_NAMES, None)) is None:
        return
    if not train.on_gpus:
        raise InputError(
            f"fit: precision={precision!r} is for members on GPUs, in mode JAX; these compute on "
            "cores: leave it out"
        )


@contextlib.contextmanager
def precision_of(train: TrainingFunction, precision: str | None) -> Iterator[None]:
    """A context in which members multiply matrices of float32 with this precision."""
    if precision is None:
        yield
        return
    group = train.group
    before = group.run(SetPrecision(_NAMES[precision]), "fit")
    try:
        yield
    finally:
        if group.alive:
            group.run(SetPrecision(before), "fit")
