"""When a run stops: the options `stop`, `patience` and `target`, and the text before them."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from synkhronos._checks import shown
from synkhronos._errors import DeprecatedWarning, InputError, InputTypeError
from synkhronos._warnings import warn
from synkhronos.training._directions import usual_mode
from synkhronos.training.callbacks import EarlyStopping, Target

_OLD = re.compile(r"\s*(\w+)\s*,\s*(~?)([<>])\s*,\s*([-+.\deE]+)\s*")
_TARGET = re.compile(r"\s*(.*?)\s*([<>])=?\s*([^\s<>=]+)\s*")
_PATIENCE = 5


def stops_of(
    stop: object, patience: int | None, target: object, toml: bool = False
) -> tuple[list[EarlyStopping], list[Target]]:
    """The callbacks that the options describe; with `toml` messages are for a config.

    >>> stops_of("val_loss", 3, "val_acc >= 0.97")
    ([<synkhronos EarlyStopping of val_loss, min>], [<synkhronos Target of val_acc, max>])
    """
    stops: list[EarlyStopping] = []
    targets: list[Target] = []
    waits, old = False, False
    for each in _listed(stop):
        if isinstance(each, EarlyStopping):
            stops.append(each)
        elif not isinstance(each, str):
            raise InputTypeError(
                f'stop={shown(each)}: give the name of a value, such as "val_loss", or '
                "EarlyStopping"
            )
        elif "," in each:
            made, old = _of_old_text(each), True
            (stops if isinstance(made, EarlyStopping) else targets).append(made)  # type: ignore[arg-type]
        elif re.search("[<>=]", each):
            raise InputError(
                f'stop={shown(each)}: give the name of a value, such as "val_loss"; a value to '
                'reach is a target, as in target="val_acc >= 0.97"'
            )
        else:
            stops.append(EarlyStopping(each, _PATIENCE if patience is None else patience))
            waits = True
    if patience is not None and not waits:
        raise InputError(
            f"patience={shown(patience)}: it is of the values that stop= names, as in "
            'stop="val_loss"'
        )
    targets += [_target_of(each) for each in _listed(target)]
    if old:
        spelled = ("stop = {}" if toml else "stop={}").format(_quoted(stop))
        new = (" and " if toml else ", ").join(_spelled(stops, targets, toml))
        warn(f"{spelled} is an old spelling: write {new}", DeprecatedWarning)
    return stops, targets


def _listed(given: object) -> list[object]:
    return list(given) if isinstance(given, list | tuple) else [given]


def _of_old_text(text: str) -> EarlyStopping | Target:
    """An integer was a patience, a number with a point a target."""
    match = _OLD.fullmatch(text)
    if match is None:
        raise InputError(
            f'stop={shown(text)}: write stop="val_loss", patience=5 to stop after 5 validations '
            'without a better value, or target="val_acc >= 0.97" to stop at a target'
        )
    metric, smooth, sign, number = match.groups()
    mode: Any = "min" if sign == "<" else "max"
    if number.isdecimal():
        return EarlyStopping(metric, int(number), mode, smooth=bool(smooth))
    if smooth:
        raise InputError(f"stop={text!r}: a target is not smoothed; a patience is an integer")
    return Target(metric, _number(f"stop={text!r}", number), mode)


def _target_of(given: object) -> Target:
    if isinstance(given, Target):
        return given
    match = _TARGET.fullmatch(given) if isinstance(given, str) else None
    if match is None or not match[1]:
        raise InputError(
            f"target={shown(given)}: give the name of a value and a number, such as "
            '"val_acc >= 0.97" or "val_loss <= 0.1"'
        )
    metric, sign, number = match.groups()
    return Target(metric, _number(f"target={given!r}", number), "min" if sign == "<" else "max")


def _number(what: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise InputError(f"{what}: {text} is not a number") from None


def _spelled(stops: Sequence[EarlyStopping], targets: Sequence[Target], toml: bool) -> list[str]:
    """The options by which a program, or a config, describes these."""
    given: dict[str, str] = {}
    words = [_words(each) for each in stops]
    if all(len(each) == 2 for each in words) and len({each.patience for each in stops}) == 1:
        given["stop"] = _one_or_list([_quoted(each.metric) for each in stops])
        given["patience"] = str(stops[0].patience)
    elif stops:
        made = [_in_toml(each) if toml else _in_python(each) for each in words]
        given["stop"] = _one_or_list(made)
    if targets:
        texts = [f"{t.metric} {'<=' if t.mode == 'min' else '>='} {t.value!r}" for t in targets]
        given["target"] = _one_or_list([_quoted(text) for text in texts])
    return [f"{key} = {value}" if toml else f"{key}={value}" for key, value in given.items()]


def _words(stop: EarlyStopping) -> dict[str, object]:
    """The arguments that are not the defaults; always the value's name and the patience."""
    usual = {"mode": usual_mode(stop.metric), "by": 0.0, "smooth": False}
    found = {name: getattr(stop, name) for name in ("metric", "patience", *usual)}
    return {k: v for k, v in found.items() if k not in usual or v != usual[k]}


def _in_python(words: dict[str, object]) -> str:
    others = [f"{k}={v!r}" for k, v in words.items() if k not in ("metric", "mode")]
    mode = [f"mode={_quoted(words['mode'])}"] if "mode" in words else []
    return f"EarlyStopping({', '.join([_quoted(words['metric']), *others, *mode])})"


def _in_toml(words: dict[str, object]) -> str:
    return f"{{ {', '.join(f'{k} = {json.dumps(v)}' for k, v in words.items())} }}"


def _one_or_list(texts: Sequence[str]) -> str:
    return texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]"


def _quoted(given: object) -> str:
    """Texts in double quotes, as the documentation has them."""
    if isinstance(given, str):
        return json.dumps(given, ensure_ascii=False)
    if isinstance(given, list | tuple):
        return f"[{', '.join(map(_quoted, given))}]"
    return repr(given)
