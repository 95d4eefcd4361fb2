"""Tables as TOML text, with comments, which libraries that write TOML leave out."""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Iterator, Mapping

from synkhronos._checks import shown
from synkhronos._errors import InputTypeError

_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")  # not allowed in comments
_BARE = re.compile(r"[A-Za-z0-9_-]+")


def toml_of(table: Mapping[str, object], comments: Mapping[str, str] | None = None) -> str:
    """The text of a table, which `tomllib` reads as the same table.

    Tables in the outer table become sections, at the end of the text; deeper ones stay in their
    line.

    Parameters
    ----------
    table : mapping
    comments : mapping of str, optional
        Lines to write above a key. Keys are "epochs", "data.train"; "" is the beginning.

    Raises
    ------
    InputTypeError
        TOML has no such value.

    Examples
    --------
    >>> text = toml_of({"data": {"train": "a.h5"}, "epochs": 3}, {"epochs": "in all"})
    >>> text.splitlines()
    ['# in all', 'epochs = 3', '', '[data]', 'train = "a.h5"']
    """
    said = comments or {}
    lines = [*_comment(said.get("")), ""] if "" in said else []
    sections = {key: value for key, value in table.items() if isinstance(value, Mapping)}
    rest = {key: value for key, value in table.items() if key not in sections}
    lines += _lines(rest, said, "")
    for key, section in sections.items():
        lines += ["", *_comment(said.get(key)), f"[{_key(key)}]"]
        lines += _lines(section, said, f"{key}.")
    return "\n".join(lines).lstrip("\n") + "\n"


def _lines(table: Mapping[str, object], comments: Mapping[str, str], inside: str) -> Iterator[str]:
    for key, value in table.items():
        name = _key(key)
        yield from _comment(comments.get(f"{inside}{key}"))
        yield f"{name} = {_value(f'{inside}{key}', value)}"


def _comment(text: str | None) -> list[str]:
    lines = (text or "").splitlines()
    return [f"# {_CONTROL.sub('?', line)}".rstrip() for line in lines]


def _key(name: object) -> str:
    if not isinstance(name, str):
        raise InputTypeError(f"TOML has no key {shown(name)}: give a text")
    return name if _BARE.fullmatch(name) else _text(name)


def _value(where: str, value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)  # TOML also writes inf and nan so
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, list | tuple):
        return f"[{', '.join(_value(where, item) for item in value)}]"
    if isinstance(value, Mapping):
        pairs = [f"{_key(k)} = {_value(f'{where}.{k}', v)}" for k, v in value.items()]
        return f"{{ {', '.join(pairs)} }}" if pairs else "{}"
    raise InputTypeError(f"{where}={shown(value)}: TOML has no such value")


def _text(value: str) -> str:
    # JSON's escapes are TOML's; only TOML also wants the last control character of ASCII escaped
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
