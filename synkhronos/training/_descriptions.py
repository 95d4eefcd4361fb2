"""What ``run.json`` says of an update rule: its name, its settings, and the rules inside of it.

A rule is a function, so its settings are where Python keeps them: keywords of a partial
application, defaults, and what a function that was made by another one refers to. The latter holds
for `ema` and the other wrappers here, and for the rules and schedules of pytensor-ml.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Constant

from synkhronos._checks import plain

_DEEPEST = 8  # functions in each other; one may refer to itself


def described(function: object, depth: int = 0) -> dict[str, object]:
    """The name of a function, its settings that are numbers, texts or functions, and theirs.

    >>> import functools
    >>> from synkhronos.extensions import updates
    >>> from synkhronos.training import ema
    >>> described(functools.partial(updates.sgd, learning_rate=0.1))
    {'name': 'sgd', 'weight_decay': 0.0, 'decoupled': False, 'learning_rate': 0.1}
    >>> found = described(ema(updates.sgd, 0.5))
    >>> found["name"], found["decay"], found["rule"]["name"]
    ('ema', 0.5, 'sgd')
    """
    if isinstance(function, functools.partial):
        inner = described(function.func, depth)
        return inner | dict(_settings(function.keywords, depth))
    name = getattr(function, "__qualname__", type(function).__qualname__)
    outer, made, _ = name.partition(".<locals>")
    given = _referred(function) if made and not hasattr(function, "rule") else _defaults(function)
    label = outer if made and given else name.rpartition(".")[2]
    return {"name": label, **dict(_settings(given, depth))}


def _settings(given: Mapping[str, object], depth: int) -> Iterator[tuple[str, object]]:
    for name, value in given.items():
        found = _setting(value, depth + 1)
        if found is not None and name != "name":
            yield name, found


def _setting(value: Any, depth: int) -> object:
    """A value as JSON has it; None for what is not a setting."""
    if isinstance(value, SharedVariable):
        value = value.get_value(borrow=True)
    elif isinstance(value, Constant):
        value = value.data
    if isinstance(value, np.ndarray) and value.ndim == 0:
        value = value.item()
    value = plain(value)
    if isinstance(value, bool | int | float | str):
        return value
    if depth > _DEEPEST:
        return None
    if isinstance(value, Mapping):
        return dict(_settings(value, depth)) or None
    if isinstance(value, list | tuple):
        found = [_setting(each, depth) for each in value]
        return None if None in found else found or None
    return described(value, depth) if callable(value) and not isinstance(value, type) else None


def _referred(function: Any) -> dict[str, object]:
    """The variables of the function that has made this one, as far as it refers to them."""
    names = getattr(getattr(function, "__code__", None), "co_freevars", ())
    found = {}
    for name, cell in zip(names, getattr(function, "__closure__", None) or (), strict=False):
        try:
            found[name] = cell.cell_contents
        except ValueError:  # it has no value yet
            continue
    return found


def _defaults(function: Any) -> dict[str, object]:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return {}
    return {p.name: p.default for p in parameters if p.default is not p.empty}
