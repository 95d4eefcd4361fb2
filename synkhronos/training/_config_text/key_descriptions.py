"""The values that a key of a config takes, in words that follow from its type."""

from __future__ import annotations

import types
from collections.abc import Iterator
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

_BOUNDS = (("ge", "of at least"), ("gt", "of more than"), ("lt", "less than"))


def words_of_keys(struct: type, path: str = "") -> Iterator[tuple[str, str]]:
    """Each key of a Struct, and of the Structs in it, with what can be given for it."""
    for name, kind in get_type_hints(struct, include_extras=True).items():
        key = f"{path}{name}"
        yield key, what_to_give(kind)
        for inner in _structs(kind):
            yield from words_of_keys(inner, f"{key}.")


def what_to_give(kind: object) -> str:
    """The values of a type: its own description, or one that follows from its bounds.

    >>> what_to_give(Literal["keep", "drop"] | None), what_to_give(bool)
    ('keep or drop', 'true or false')
    """
    own = [meta.description for meta in getattr(kind, "__metadata__", ()) if meta.description]
    if own:
        return str(own[0])
    parts = [part for part in _alternatives(kind) if part is not types.NoneType]
    if len(parts) > 1:
        numbers = [what_to_give(part) for part in parts if not _words(part)]
        words = [f'"{word}"' for part in parts for word in _words(part)]
        return ", or ".join([*numbers, *words])
    [part] = parts
    if part is not kind:
        return what_to_give(part)
    if words := _words(kind):
        return " or ".join([", ".join(words[:-1]), words[-1]])
    if _is_struct(kind):
        return "a table"
    return "true or false" if kind is bool else _number(kind)


def _number(kind: Any) -> str:
    """A number with its bounds."""
    bounds = [
        f"{words} {bound:g}"
        for meta in kind.__metadata__
        for name, words in _BOUNDS
        if (bound := getattr(meta, name)) is not None
    ]
    noun = "an integer" if get_args(kind)[0] is int else "a number"
    return f"{noun} {' and '.join(bounds)}"


def _alternatives(kind: Any) -> tuple[object, ...]:
    """The types of a union, or the one type."""
    return get_args(kind) if get_origin(kind) in (Union, types.UnionType) else (kind,)


def _words(kind: object) -> list[str]:
    return [str(word) for word in get_args(kind)] if get_origin(kind) is Literal else []


def _structs(kind: Any) -> Iterator[type]:
    """The Structs among the alternatives of a type, with or without a description."""
    if _is_struct(kind):
        yield kind
    elif get_origin(kind) in (Union, types.UnionType, Annotated):
        for inner in get_args(kind):
            yield from _structs(inner)


def _is_struct(kind: object) -> bool:
    return hasattr(kind, "__struct_fields__")
