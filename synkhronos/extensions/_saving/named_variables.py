"""The variables of checkpoints, by the names that they have in files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from pytensor.compile.sharedvalue import SharedVariable

from synkhronos._checks import shown
from synkhronos._errors import InputError, InputTypeError
from synkhronos.extensions._step.training_function import TrainingFunction

type Saved = Mapping[str, SharedVariable] | Sequence[SharedVariable] | TrainingFunction


def named_variables(variables: Saved) -> dict[str, SharedVariable]:
    """The variables by the names that they have in files."""
    pairs: list[tuple[str | None, SharedVariable]]
    if isinstance(variables, Mapping):
        pairs = list(variables.items())
    elif isinstance(variables, TrainingFunction):
        pairs = list(_parts_of(variables))
    elif isinstance(variables, list | tuple):
        pairs = [(getattr(v, "name", None), v) for v in variables]
    else:
        raise InputTypeError(
            f"Checkpoints: {shown(variables)} is not a list or dict of shared variables, and not a "
            "train function"
        )
    wrong = [v for _, v in pairs if not isinstance(v, SharedVariable)]
    if wrong:
        raise InputTypeError(f"Checkpoints: {shown(wrong)} are not shared variables")
    nameless = [i for i, (n, _) in enumerate(pairs) if not isinstance(n, str) or not n]
    if nameless:
        raise InputError(
            f"Checkpoints: the variables at {nameless} have no name: name them, or give a dict"
        )
    names = [n for n, _ in pairs if n]
    twice = sorted({n for n in names if names.count(n) > 1})
    if twice or "__metadata__" in names:
        raise InputError(
            f"Checkpoints: several variables are named {twice or '__metadata__'}, but names in a "
            "file are unique: rename them, or give a dict"
        )
    if len({v for _, v in pairs}) < len(pairs):
        raise InputError("Checkpoints: a variable is listed twice")
    return {n: v for n, v in pairs if n}


def _parts_of(train: TrainingFunction) -> Iterator[tuple[str, SharedVariable]]:
    """The variables of a train function by name; unnamed ones by their position."""
    parts = {
        "params": train.params,
        "state": train.state,
        "streams": train.streams,
        "settings": train.settings,
    }
    places: dict[SharedVariable, str] = {}
    for part, variables in parts.items():
        for i, variable in enumerate(variables):
            places.setdefault(variable, f"{part}.{i}")
    names = [v.name for v in places]
    for variable, place in places.items():
        own = variable.name
        yield (own if own and names.count(own) == 1 else place), variable


def check_array(name: str, variable: SharedVariable) -> None:
    value = np.asarray(variable.get_value(borrow=True))
    if value.dtype.kind not in "biufc":
        raise InputTypeError(
            f"Checkpoints: the value of {name} ({variable.type}) is not an array of numbers, and "
            "not a random generator"
        )
