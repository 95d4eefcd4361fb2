"""The start of a run of members that take batches by themselves: checks, and what they do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

import numpy as np

from synkhronos._api.request import Request
from synkhronos._checks import shown
from synkhronos._errors import InputError, InputTypeError
from synkhronos.extensions._apart.free.claims import BatchOrder
from synkhronos.extensions._apart.free.commands import Rehearse
from synkhronos.extensions._apart.free.free_member import Assignment
from synkhronos.extensions._rows.batches import Batches
from synkhronos.extensions._step.installed_step import InstalledStep
from synkhronos.rules._base import Rule


def check_start(
    made: InstalledStep, args: Sequence[object], kwargs: dict[str, object], batches: object
) -> None:
    """Raise unless members can train on these inputs and batches."""
    what = made.function.what
    made.group.check("train.start")
    if not isinstance(batches, Batches):
        raise InputTypeError(
            f"{what}: start() takes the inputs, then the Batches, found {shown(batches)}"
        )
    given = made.function.arguments.bind(args, kwargs)
    for variable, value in made.data_of(given, "start()"):
        if len(value) < batches.n:
            raise InputError(
                f"{what}: {variable} has {len(value)} rows, the batches are of {batches.n}"
            )


def refuse_call(made: InstalledStep, rule: Rule) -> NoReturn:
    """Raise for a call of a training function whose members step by themselves."""
    raise InputTypeError(
        f"{made.function.what}: {rule} has no step of all members: call "
        "train.start(x_data, y_data, batches)"
    )


def assignment_of(
    made: InstalledStep,
    given: Sequence[object],
    kwargs: dict[str, object],
    batches: Batches,
    epochs: int,
    fixed: bool = False,
    record: bool = False,
) -> Assignment:
    """The command of a run; members compile it here, and get all values that it needs."""
    group = made.group
    rows = np.arange(min(batches.n, batches.size * group.size))
    call = made.function.make(Request(given, kwargs, batch=rows))
    if call.first or call.new is not None:
        with made.function.telling():
            group.runner.run(Rehearse(call), "train.start")
        made.function.compiled(call)
        call = made.function.make(Request(given, kwargs, batch=rows))
    made.post_leaves(given, kwargs)
    average, order = made.plan.goal.average, BatchOrder.of(batches, epochs)
    return Assignment(call, average, made.partials, order, fixed, record)
