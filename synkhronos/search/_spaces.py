"""What `synk search` draws, as texts: ``batch~32,64,128``, ``optimizer.rate~log:1e-4..1e-1``."""

from __future__ import annotations

import json
import re
import tomllib
from dataclasses import dataclass
from typing import Any

from synkhronos._errors import InputError

_NUMBER = r"[-+]?[\d.]+(?:e[-+]?\d+)?"
_RANGE = re.compile(rf"(log:)?({_NUMBER}?)\.\.({_NUMBER})(?::({_NUMBER}))?", re.IGNORECASE)
_GIVE = (
    "a range, as in epochs~3..10, width~16..128:16 or rate~log:1e-4..1e-1; or values, as in "
    "batch~32,64,128"
)


@dataclass(frozen=True)
class Space:
    """The values that one key of a config may get.

    `choices`, or a range from `low` to `high`; of integers if both are.
    """

    key: str
    choices: tuple[object, ...] = ()
    low: float = 0
    high: float = 0
    step: float | None = None
    log: bool = False

    @staticmethod
    def of(text: str) -> Space:
        """Read one.

        >>> Space.of("epochs~3..10")
        Space(key='epochs', choices=(), low=3, high=10, step=None, log=False)
        >>> Space.of("optimizer~adam,sgd").choices
        ('adam', 'sgd')

        Raises
        ------
        InputError
        """
        key, tilde, given = (part.strip() for part in text.partition("~"))
        if not (key and tilde and given):
            raise InputError(f"{text!r}: give {_GIVE}")
        if ".." in given:
            return _range(text, key, given)
        choices = tuple(_value(text, part.strip()) for part in given.split(","))
        return Space(key, choices)

    def drawn(self, trial: Any) -> object:
        """A value for a trial."""
        if self.choices:
            return trial.suggest_categorical(self.key, self.choices)
        if isinstance(self.low, int) and isinstance(self.high, int):
            step = 1 if self.step is None else int(self.step)
            return trial.suggest_int(self.key, self.low, self.high, step=step, log=self.log)
        return trial.suggest_float(self.key, self.low, self.high, step=self.step, log=self.log)


def _range(text: str, key: str, given: str) -> Space:
    found = _RANGE.fullmatch(given)
    if found is None:
        raise InputError(f"{text!r}: give {_GIVE}")
    low, high = (_number(text, found[n]) for n in (2, 3))
    step = None if found[4] is None else _number(text, found[4])
    log = bool(found[1])
    whole = isinstance(low, int) and isinstance(high, int)
    if not low < high or (step is not None and not 0 < step <= high - low):
        raise InputError(f"{text!r}: the range is empty")
    if log and (low <= 0 or step is not None):
        raise InputError(f"{text!r}: log: is for a range above 0, without a step")
    if whole and not isinstance(step, int | None):
        raise InputError(f"{text!r}: integers need a step that is one")
    return Space(key, (), low, high, step, log)


def _number(text: str, given: str) -> float:
    try:
        return int(given)
    except ValueError:
        pass
    try:
        return float(given)
    except ValueError:
        raise InputError(f"{text!r}: {given!r} is not a number; give {_GIVE}") from None


def _value(text: str, given: str) -> object:
    """One of several values: TOML, or a bare word."""
    try:
        found = tomllib.loads(f"value = {given}")["value"]
    except tomllib.TOMLDecodeError:
        found = given
    if found == "" or not isinstance(found, bool | int | float | str):
        raise InputError(f"{text!r}: {given!r} is not a number, a text, true or false")
    return found


def override(key: str, value: object) -> str:
    """A value as `config.read` takes it.

    >>> override("optimizer.rate", 0.1), override("optimizer", "adam"), override("shuffle", True)
    ('optimizer.rate=0.1', 'optimizer="adam"', 'shuffle=true')
    """
    # JSON writes numbers, texts and truth values as TOML does, except for one control character
    text = json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return f"{key}={text}"
