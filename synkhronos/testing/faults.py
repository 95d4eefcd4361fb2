"""Commands that misbehave in one member, for tests of what the others and the master then do."""

from __future__ import annotations

import os
import re
import signal
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from synkhronos._commands import Command

if TYPE_CHECKING:
    from synkhronos._member import Member


@dataclass(frozen=True)
class Fault(Command):
    """Do something bad in the members of `ranks`, before or inside a meeting of all.

    Attributes
    ----------
    kind : str
        A key of KINDS.
    ranks : tuple of int
    meet : bool
        Let the members meet at a barrier, for which the bad ones never come.
    """

    kind: str
    ranks: tuple[int, ...] = (1,)
    meet: bool = True

    def run(self, member: Member) -> int:
        """Misbehave, or wait for those who do."""
        if member.rank in self.ranks:
            KINDS[self.kind](member)
        if self.meet:
            member.communicator.barrier()
        return member.rank


class BadStr(Exception):
    """An exception whose text cannot be had."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


class TwoArguments(Exception):
    """An exception that cannot be made of its text."""

    def __init__(self, a: Any, b: Any) -> None:
        super().__init__(a)
        self.b = b


def _raise(error: BaseException) -> Any:
    def act(member: Member) -> None:
        raise error

    return act


def _signal(number: int) -> Any:
    return lambda member: os.kill(os.getpid(), number)


def _recurse(member: Member) -> None:
    _recurse(member)


def _spin(member: Member) -> None:
    while True:
        pass


def _c_call(member: Member) -> None:
    """Years in C, holding the interpreter's lock."""
    re.match("(a+)+$", "a" * 64 + "b")


def _nap(member: Member) -> None:
    time.sleep(1)


def _compile(member: Member) -> None:
    with member.compiling():
        _nap(member)


KINDS: dict[str, Any] = {
    "ValueError": _raise(ValueError("bad value")),
    "KeyError": _raise(KeyError("missing")),
    "OSError": _raise(OSError(2, "no such thing")),
    "MemoryError": _raise(MemoryError("no memory")),
    "StopIteration": _raise(StopIteration(3)),
    "SystemExit": _raise(SystemExit(4)),
    "KeyboardInterrupt": _raise(KeyboardInterrupt()),
    "RecursionError": _recurse,
    "group": _raise(ExceptionGroup("several", [ValueError("one"), TypeError("two")])),
    "broken str": _raise(BadStr()),
    "two arguments": _raise(TwoArguments("a", "b")),
    "surrogates": _raise(ValueError("\ud800 lone")),
    "10 MB": _raise(ValueError("x" * 10_000_000)),
    "SIGKILL": _signal(signal.SIGKILL),
    "SIGSEGV": _signal(signal.SIGSEGV),
    "SIGABRT": _signal(signal.SIGABRT),
    "exit": lambda member: os._exit(0),
    "sleep": lambda member: time.sleep(3600),
    "spin": _spin,
    "C call": _c_call,
    "nap": _nap,
    "compile": _compile,
}

DEADLY = ("SIGKILL", "SIGSEGV", "SIGABRT", "exit")
STUCK = ("sleep", "spin", "C call")
SLOW = ("nap", "compile")  # a second
RAISING = tuple(k for k in KINDS if k not in (*DEADLY, *STUCK, *SLOW))
