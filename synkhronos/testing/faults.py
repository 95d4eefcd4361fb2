"""Commands that fail in some members, for tests of how the others and the master react."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from synkhronos._engine.commands.base import Command
from synkhronos._engine.member import Member


@dataclass(frozen=True)
class Fault(Command):
    """Fail in the members of `ranks`, while the other members wait at a barrier or return.

    Attributes
    ----------
    kind : str
        How they fail: a key of KINDS.
    ranks : tuple of int
        The members that fail.
    meet : bool
        Whether the other members wait at a barrier, which the failing ones never reach.
    members : tuple of int, optional
        Whose barrier it is. Default: of all members.
    """

    kind: str
    ranks: tuple[int, ...] = (1,)
    meet: bool = True
    members: tuple[int, ...] | None = None

    def run(self, member: Member) -> int:
        """Fail, or wait for the members that fail."""
        if member.rank in self.ranks:
            KINDS[self.kind](member)
        if self.meet:
            member.communicator.barrier(self.members)
        return member.rank


class BadStr(Exception):
    """An exception whose `__str__` raises."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


class FatalStr(Exception):
    """An exception whose `__str__` raises SystemExit."""

    def __str__(self) -> str:
        raise SystemExit(3)


class NoStr(Exception):
    """An exception whose `__str__` does not return a str."""

    def __str__(self) -> Any:
        return 3


class BadRepr:
    """An argument whose `__repr__` raises KeyboardInterrupt."""

    def __repr__(self) -> str:
        raise KeyboardInterrupt


class Touchy(Exception):
    """An exception that raises on every access to an attribute."""

    def __getattribute__(self, name: str) -> object:
        raise RuntimeError(f"asked for {name}")


class _Nameless(type):
    def __getattribute__(cls, name: str) -> object:
        raise RuntimeError(f"asked for {name}")


class Unshippable(ValueError):
    """An exception that cannot be pickled."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.lock = threading.Lock()

    def __reduce__(self) -> Any:
        raise TypeError("not me")


class TwoArguments(Exception):
    """An exception that cannot be made from its text."""

    def __init__(self, a: object, b: object) -> None:
        super().__init__(a)
        self.b = b


def _raise(make: Callable[[], BaseException]) -> object:
    """Raise a new exception each time: one that was raised keeps its traceback and notes."""

    def act(member: Member) -> None:
        raise make()

    return act


def _nameless(member: Member) -> None:
    """Raise an exception whose class raises on every access to an attribute."""
    error: Any = _Nameless("Nameless", (Exception,), {})
    raise error


def _chained(member: Member) -> None:
    try:
        try:
            raise KeyError("the first")
        except KeyError as exc:
            raise TypeError("the second") from exc
    except TypeError:
        raise ValueError("the third")  # noqa: B904 (the implicit context is the case to test)


def _circular(member: Member) -> None:
    one, two = ValueError("one"), TypeError("two")
    one.__cause__, two.__cause__ = two, one
    raise one


def _with_notes(notes: Any) -> Any:
    def make() -> BaseException:
        error = ValueError("with notes")
        error.__notes__ = notes
        return error

    return _raise(make)


def _deep_group(member: Member) -> None:
    error: Exception = ValueError("inmost")
    for depth in range(2000):
        error = ExceptionGroup(f"at {depth}", [error])
    raise error


def _signal(number: int) -> object:
    return lambda member: os.kill(os.getpid(), number)


def _recurse(member: Member) -> None:
    _recurse(member)


def _spin(member: Member) -> None:
    while True:
        pass


def _c_call(member: Member) -> None:
    """Match a regular expression that takes years in C and holds the interpreter's lock."""
    re.match("(a+)+$", "a" * 64 + "b")


def _nap(member: Member) -> None:
    time.sleep(1)


def _eat(member: Member) -> None:
    """Allocate memory until none is left."""
    eaten = []
    while True:
        eaten.append(b"x" * (1 << 22))


def _compile(member: Member) -> None:
    with member.compiling():
        _nap(member)


_NO_PLACE: Any = ("file", "line", object(), 3)  # where a SyntaxError says file, line, column, text

KINDS: dict[str, Any] = {
    "ValueError": _raise(lambda: ValueError("bad value")),
    "KeyError": _raise(lambda: KeyError("missing")),
    "OSError": _raise(lambda: OSError(2, "no such thing")),
    "MemoryError": _raise(lambda: MemoryError("no memory")),
    "StopIteration": _raise(lambda: StopIteration(3)),
    "SystemExit": _raise(lambda: SystemExit(4)),
    "KeyboardInterrupt": _raise(KeyboardInterrupt),
    "RecursionError": _recurse,
    "group": _raise(lambda: ExceptionGroup("several", [ValueError("one"), TypeError("two")])),
    "broken str": _raise(BadStr),
    "two arguments": _raise(lambda: TwoArguments("a", "b")),
    "surrogates": _raise(lambda: ValueError("\ud800 lone")),
    "10 MB": _raise(lambda: ValueError("x" * 10_000_000)),
    "fatal str": _raise(FatalStr),
    "no str": _raise(NoStr),
    "broken repr": _raise(lambda: ValueError(BadRepr())),
    "touchy": _raise(lambda: Touchy("hands off")),
    "nameless": _nameless,
    "unpicklable": _raise(lambda: Unshippable("with a lock")),
    "chained": _chained,
    "circular": _circular,
    "notes": _with_notes([3, BadRepr(), "\ud800"]),
    "no notes": _with_notes(3),
    "deep group": _deep_group,
    "fatal group": _raise(
        lambda: BaseExceptionGroup("several", [KeyboardInterrupt(), SystemExit()])
    ),
    "GeneratorExit": _raise(GeneratorExit),
    "SyntaxError": _raise(lambda: SyntaxError("bad", _NO_PLACE)),
    "UnicodeDecodeError": _raise(lambda: UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad byte")),
    "SIGKILL": _signal(signal.SIGKILL),
    "SIGSEGV": _signal(signal.SIGSEGV),
    "SIGABRT": _signal(signal.SIGABRT),
    "exit": lambda member: os._exit(0),
    "eat": _eat,
    "sleep": lambda member: time.sleep(3600),
    "spin": _spin,
    "C call": _c_call,
    "nap": _nap,
    "compile": _compile,
}

DEADLY = ("SIGKILL", "SIGSEGV", "SIGABRT", "exit")
GREEDY = ("eat",)  # use only where the process has a memory limit
STUCK = ("sleep", "spin", "C call")
SLOW = ("nap", "compile")  # last one second
RAISING = tuple(k for k in KINDS if k not in (*DEADLY, *GREEDY, *STUCK, *SLOW))
