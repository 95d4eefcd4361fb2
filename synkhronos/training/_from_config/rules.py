"""Training rules and exchanges of gradients that a config names."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from synkhronos import rules
from synkhronos._errors import InputError
from synkhronos.extensions import HalfPrecision, TopK
from synkhronos.extensions._step.exchanges import Exchange
from synkhronos.training._from_config.functions import called, meant
from synkhronos.training._from_config.optimizer import ConfiguredOptimizer
from synkhronos.training.config import named, optimizer_of

_BASES = ("Rule", "RoundRule", "FreeRule", "TurnRule")
RULES: dict[str, type[rules.Rule]] = {
    name: getattr(rules, name) for name in rules.__all__ if name not in _BASES
}
EXCHANGES: dict[str, type[Exchange]] = {"TopK": TopK, "HalfPrecision": HalfPrecision}

type Described = str | Mapping[str, object] | None  # by a name, or a table with a name


def training_rule_of(value: Described, path: str, base: str) -> rules.Rule | None:
    """The training rule that a name, or a table with a name, describes.

    Raises
    ------
    InputError
    """
    if value is None:
        return None
    name, arguments = named(value, path)
    made: dict[str, object] = {}
    for key, given in arguments.items():
        inner = f"{path}.{key}"
        if key == "centre":
            made[key] = ConfiguredOptimizer(optimizer_of(given, inner), inner, base).made(None)
        elif key in ("inside", "between"):
            made[key] = training_rule_of(given, inner, base)
        else:
            made[key] = given
    if name == "Nodes":
        made.setdefault("inside", None)  # TOML has no word for it
    return _made("rule", RULES, name, made, path)


def exchange_of(value: Described, path: str) -> Exchange | None:
    """The exchange of gradients that a name, or a table with a name, describes.

    Raises
    ------
    InputError
    """
    if value is None:
        return None
    name, arguments = named(value, path)
    return _made("exchange", EXCHANGES, name, arguments, path)


def _made[T](
    what: str,
    kinds: Mapping[str, Callable[..., T]],
    name: str,
    arguments: Mapping[str, object],
    path: str,
) -> T:
    """Make the one of `kinds` that has this name; the text of errors begins with `path`."""
    if name not in kinds:
        raise InputError(
            f"{path}: there is no {what} {name!r}{meant(name, kinds)}; there are {', '.join(kinds)}"
        )
    try:
        return called(kinds[name], arguments, path)
    except (InputError, TypeError) as exc:
        text = str(exc)
        named = text.startswith((f"{path}.", f"{path}:"))
        raise InputError(text if named else f"{path}: {text}") from None
