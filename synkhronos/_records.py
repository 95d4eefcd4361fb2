"""Dataclasses that are made in a third of the time: a process that starts makes 200 of them.

`dataclasses` compiles the text of each method of each class. Here `__init__` alone is compiled, and
the other methods are shared functions that read the fields. They do what those of `dataclasses` do,
and so do `fields` and `replace`. Options that no class here needs are left out.
"""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import MISSING, Field, FrozenInstanceError
from operator import attrgetter
from reprlib import recursive_repr
from typing import TYPE_CHECKING, Any

__all__ = ["dataclass"]


class _Factory:
    """Stands for the value that a factory makes, in signatures."""

    def __repr__(self) -> str:
        return "<factory>"


_MADE = _Factory()
_set = object.__setattr__


if TYPE_CHECKING:  # checkers know this one
    from dataclasses import dataclass
else:

    def dataclass(
        cls: type | None = None,
        /,
        *,
        frozen: bool = False,
        eq: bool = True,
        repr: bool = True,
        kw_only: bool = False,
    ) -> Any:
        """As `dataclasses.dataclass`."""

        def made(cls: type) -> type:
            _make(cls, frozen, eq, repr, kw_only)
            return cls

        return made if cls is None else made(cls)


def _make(cls: type, frozen: bool, eq: bool, shown: bool, kw_only: bool) -> None:
    """Give a class its fields and methods; those that its body has stay."""
    own = set(vars(cls))
    hashed = vars(cls).get("__hash__") is not None or {"__hash__", "__eq__"} & own == {"__hash__"}
    if not cls.__doc__:
        cls.__doc__ = cls.__name__  # else a signature, for which it is inspected
    with _thawed(cls):
        dataclasses.dataclass(init=False, repr=False, eq=False, kw_only=kw_only)(cls)
    cls.__dataclass_params__.frozen = frozen  # type: ignore[attr-defined]
    given = dataclasses.fields(cls)
    new: dict[str, Any] = {"__init__": _init(cls, given, frozen)}
    if shown:
        new["__repr__"] = _repr([f.name for f in given if f.repr])
    if eq:
        new["__eq__"] = _eq(_values([f.name for f in given if f.compare]))
    if frozen:
        new |= {name: _refusal(cls, given, name) for name in ("__setattr__", "__delattr__")}
    for name, method in new.items():
        if name not in own:
            method.__name__, method.__module__ = name, cls.__module__
            method.__qualname__ = f"{cls.__qualname__}.{name}"
            setattr(cls, name, method)
    if eq and not hashed:
        kept = [f.name for f in given if (f.compare if f.hash is None else f.hash)]
        cls.__hash__ = _hash(_values(kept)) if frozen else None  # type: ignore[assignment]


@contextlib.contextmanager
def _thawed(cls: type) -> Iterator[None]:
    """Meanwhile the bases do not count as frozen: a frozen class would have its methods compiled.

    Afterwards they do, so that Python's own frozen classes can be derived from them.
    """
    noted = [getattr(base, "__dataclass_params__", None) for base in cls.__mro__[1:]]
    frozen = {id(each): each for each in noted if each is not None and each.frozen}
    for each in frozen.values():
        each.frozen = False
    try:
        yield
    finally:
        for each in frozen.values():
            each.frozen = True


def _init(cls: type, given: Sequence[Field[Any]], frozen: bool) -> Any:
    """`__init__` with the parameters of the fields, which is compiled: it is called most."""
    known: dict[str, Any] = {"_set": _set, "_MADE": _MADE}
    parameters: list[tuple[str, bool]] = []
    lines: list[str] = []
    for f in given:
        name, value = f.name, f.name
        if f.default is not MISSING:
            known[f"_default_{name}"] = f.default
        if f.default_factory is not MISSING:
            known[f"_make_{name}"] = f.default_factory
            value = (
                f"_make_{name}() if {name} is _MADE else {name}" if f.init else f"_make_{name}()"
            )
        if f.init:
            default = f"=_default_{name}" * (f.default is not MISSING)
            default = default or "=_MADE" * (f.default_factory is not MISSING)
            parameters.append((name + default, bool(f.kw_only)))
        elif f.default_factory is MISSING:
            continue  # the class has the default, if there is one
        lines.append(f"_set(self, {name!r}, {value})" if frozen else f"self.{name} = {value}")
    if hasattr(cls, "__post_init__"):
        lines.append("self.__post_init__()")
    plain = [text for text, named in parameters if not named]
    named = [text for text, named in parameters if named]
    signature = ", ".join(["self", *plain, *["*"] * bool(named), *named])
    body = "\n    ".join(lines or ["pass"])
    made: dict[str, Any] = {}
    text = f"  def __init__({signature}):\n    {body}\n  return __init__"
    text = f"def make({', '.join(known)}):\n{text}"
    exec(text, vars(sys.modules[cls.__module__]), made)  # annotations are names of the module
    found = made["make"](**known)
    found.__annotations__ = {f.name: f.type for f in given if f.init} | {"return": None}
    return found


def _values(names: Sequence[str]) -> Callable[[object], Any]:
    """A function that reads these fields, as a tuple."""
    if len(names) > 1:
        return attrgetter(*names)
    return lambda each: tuple([getattr(each, name) for name in names])


def _repr(names: Sequence[str]) -> Any:
    def found(self: object) -> str:
        shown = ", ".join([f"{name}={getattr(self, name)!r}" for name in names])
        return f"{type(self).__qualname__}({shown})"

    return recursive_repr()(found)


def _eq(values: Callable[[object], Any]) -> Any:
    def found(self: object, other: object) -> bool:
        if other.__class__ is self.__class__:
            return bool(values(self) == values(other))
        return NotImplemented

    return found


def _hash(values: Callable[[object], Any]) -> Any:
    def __hash__(self: object) -> int:
        return hash(values(self))

    return __hash__


def _refusal(cls: type, given: Sequence[Field[Any]], method: str) -> Any:
    """The method of a frozen class that sets or deletes an attribute."""
    names = {f.name for f in given}
    what = "assign to" if method == "__setattr__" else "delete"

    def found(self: object, name: str, *value: object) -> None:
        if type(self) is cls or name in names:
            raise FrozenInstanceError(f"cannot {what} field {name!r}")
        getattr(super(cls, self), method)(name, *value)

    return found
