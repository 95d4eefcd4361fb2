"""Training rules and exchanges of gradients that a config names."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from synkhronos import rules
from synkhronos._errors import InputError
from synkhronos.extensions import HalfPrecision, TopK
from synkhronos.extensions._step.exchanges import Exchange
from synkhronos.training._configured.functions import called, meant
from synkhronos.training._configured.optimizer import ConfiguredOptimizer
from synkhronos.training.config import named, optimizer_of

RULES = tuple(n for n in rules.__all__ if n not in ("Rule", "RoundRule", "FreeRule"))
EXCHANGES: dict[str, Any] = {"TopK": TopK, "HalfPrecision": HalfPrecision}


def training_rule_of(value: Any, path: str, base: str) -> rules.Rule | None:
    """The training rule that a name, or a table with a name, describes.

    Raises
    ------
    InputError
    """
    if value is None:
        return None
    name, arguments = named(value, path)
    if name not in RULES:
        raise InputError(
            f"{path}: there is no rule {name!r}{meant(name, RULES)}; there are {', '.join(RULES)}"
        )
    kind = getattr(rules, name)
    known = [f.name for f in fields(kind)]
    made: dict[str, Any] = {}
    for key, given in arguments.items():
        if key not in known:
            raise InputError(
                f"{path}.{key}: {name} has no such argument{meant(key, known)}; there are "
                f"{', '.join(known)}"
            )
        inner = f"{path}.{key}"
        if key == "centre":
            made[key] = ConfiguredOptimizer(optimizer_of(given, inner), inner, base).made(None)
        elif key in ("inside", "between"):
            made[key] = training_rule_of(given, inner, base)
        else:
            made[key] = given
    if kind is rules.Nodes:
        made.setdefault("inside", None)  # TOML has no word for it
    try:
        return kind(**made)
    except TypeError as exc:  # InputTypeError is one
        raise InputError(f"{path}: {exc}") from None
    except InputError as exc:
        raise InputError(f"{path}: {exc}") from None


def exchange_of(value: Any, path: str) -> Exchange | None:
    """The exchange of gradients that a name, or a table with a name, describes.

    Raises
    ------
    InputError
    """
    if value is None:
        return None
    name, arguments = named(value, path)
    if name not in EXCHANGES:
        raise InputError(
            f"{path}: there is no exchange {name!r}{meant(name, EXCHANGES)}; there are "
            f"{', '.join(EXCHANGES)}"
        )
    try:
        found: Exchange = called(EXCHANGES[name], arguments, path)
    except InputError as exc:
        text = str(exc)
        raise InputError(text if text.startswith(path) else f"{path}: {text}") from None
    return found
