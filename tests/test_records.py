"""Dataclasses that are made sooner do what those of Python do."""

from __future__ import annotations

import copy
import dataclasses
import functools
import inspect
import pickle
import typing
from collections.abc import Callable
from dataclasses import FrozenInstanceError, field
from typing import Any, ClassVar

import pytest

from synkhronos import _records


class Bodies:
    """What the classes below have in their bodies, undecorated."""

    class Plain:
        shared: ClassVar[int] = 3
        a: int
        b: float = 0.5
        c: list[int] = field(default_factory=list)
        d: int = field(default=7, init=False)
        e: dict[str, int] = field(default_factory=dict, init=False, repr=False, compare=False)
        f: int = field(default=1, kw_only=True)
        g: list[str] = field(default_factory=list, kw_only=True, hash=False)
        late: int = field(init=False)

        def __post_init__(self) -> None:
            object.__setattr__(self, "late", self.a + 1)

    class One:
        a: Any

    class Empty:
        pass

    class Own:
        a: int
        b: int = 2

        def __repr__(self) -> str:
            return "mine"

        def __hash__(self) -> int:
            return 5

    class OwnEquality:
        a: int

        def __eq__(self, other: object) -> bool:
            return True


BODIES: list[type] = [v for v in vars(Bodies).values() if isinstance(v, type)]
OPTIONS = [
    {},
    {"eq": False},
    {"frozen": True},
    {"frozen": True, "eq": False},
    {"frozen": True, "repr": False},
    {"frozen": True, "kw_only": True},
]


def both(body: type, **options: bool) -> list[Any]:
    """The class made by Python's decorator and by ours."""
    made: list[Any] = []
    for decorate in (dataclasses.dataclass, _records.dataclass):
        attributes = {k: v for k, v in vars(body).items() if k not in ("__dict__", "__weakref__")}
        attributes = {k: copy.copy(v) for k, v in attributes.items()}
        made.append(decorate(**options)(type("Made", (), attributes)))
    return made


def outcome(call: Callable[[], object]) -> object:
    """The value, or the kind of the exception and its text."""
    try:
        return call()
    except Exception as exc:
        return type(exc), str(exc)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("body", BODIES, ids=lambda body: body.__name__)
def test_they_are_those_of_python(body: type, options: dict[str, bool]) -> None:
    theirs, ours = both(body, **options)
    signatures = [inspect.signature(each) for each in (theirs, ours)]
    assert str(signatures[0]) == str(signatures[1])
    hints = [typing.get_type_hints(each.__init__) for each in (theirs, ours)]
    assert hints[0] == hints[1]
    assert theirs.__match_args__ == ours.__match_args__
    names = [[f.name for f in dataclasses.fields(each)] for each in (theirs, ours)]
    assert names[0] == names[1]
    if body is Bodies.OwnEquality and not options.get("frozen"):
        assert theirs.__hash__ is ours.__hash__ is None
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
        ((), {}),
        ((1,), {}),
        ((), {"a": 1}),
        ((1, 2.0, [3]), {"f": 4, "g": ["x"]}),
        ((1, 2.0, [3], 4), {}),
        ((float("nan"),), {}),
    ]
    for given, named in calls:
        found = [outcome(lambda c=c, g=given, n=named: vars(c(*g, **n))) for c in (theirs, ours)]
        assert str(found[0]) == str(found[1])
        if not isinstance(found[0], dict):
            continue
        for use in USES:
            results = []
            for cls in (theirs, ours):
                instance = cls(*given, **named)
                results.append(outcome(functools.partial(use, instance, cls, given, named)))
            assert str(results[0]) == str(results[1]), use


USES: list[Callable[..., object]] = [
    lambda i, c, given, named: i == c(*given, **named),
    lambda i, c, given, named: i == i,
    lambda i, c, given, named: i != object(),
    lambda i, c, given, named: i.__eq__(3) is NotImplemented,
    lambda i, c, given, named: hash(i) == hash(c(*given, **named)),
    lambda i, c, given, named: c.__hash__ is None,
    lambda i, c, given, named: c.__repr__ is object.__repr__ or repr(i),
    lambda i, c, given, named: setattr(i, "a", 9),
    lambda i, c, given, named: setattr(i, "other", 9),
    lambda i, c, given, named: delattr(i, "a"),
    lambda i, c, given, named: vars(dataclasses.replace(i, a=5)),
    lambda i, c, given, named: dataclasses.asdict(i),
    lambda i, c, given, named: vars(copy.deepcopy(i)),
]


@_records.dataclass(frozen=True)
class Base:
    """Of two, whose values are pickled."""

    a: int
    b: int = 2


@_records.dataclass(frozen=True)
class Derived(Base):
    """It has fields of its own behind those of the other."""

    b: int = 3
    c: Any = None


class Loose(Derived):
    """No dataclass: names that are no fields are free."""


def test_derived_classes() -> None:
    assert Derived(1) == Derived(1, 3, None) != Base(1, 3)
    assert repr(Derived(1, c="x")) == "Derived(a=1, b=3, c='x')"
    assert pickle.loads(pickle.dumps(Derived(1))) == Derived(1)
    loose = Loose(1)
    loose.other = 4  # type: ignore[attr-defined]
    for name in ("a", "c"):
        with pytest.raises(FrozenInstanceError, match=f"cannot assign to field '{name}'"):
            setattr(loose, name, 4)
        with pytest.raises(FrozenInstanceError, match=f"cannot delete field '{name}'"):
            delattr(loose, name)
    del loose.other  # type: ignore[attr-defined]


def test_classes_of_python_are_derived_from_ours() -> None:
    @dataclasses.dataclass(frozen=True)
    class Theirs(Derived):
        d: int = 4

    assert repr(Theirs(1)).endswith("Theirs(a=1, b=3, c=None, d=4)")
    with pytest.raises(FrozenInstanceError):
        Theirs(1).d = 5  # type: ignore[misc]
    with pytest.raises(TypeError, match="cannot inherit non-frozen"):
        dataclasses.dataclass(type("Thawed", (Base,), {}))


def test_a_value_that_holds_itself_is_shown() -> None:
    held: list[Any] = []
    held.append(Derived(1, c=held))
    assert repr(held[0]) == "Derived(a=1, b=3, c=[...])"
