"""The mode of a function that one thread compiles is no default of another thread."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile.mode import Mode, get_default_mode
from pytensor.graph.rewriting.basic import GraphRewriter

from synkhronos._compiling import thread_flags  # noqa: F401

SECONDS = 60  # the longest wait


class Asking(GraphRewriter):
    """Calls a function while a graph is rewritten."""

    def __init__(self, call: Callable[[], object]) -> None:
        super().__init__()
        self.call = call

    def apply(self, fgraph: Any) -> None:
        self.call()


def compiled(call: Callable[[], object]) -> Mode:
    """Compile a function in a mode that calls while it rewrites; returns this mode."""
    mode = Mode(linker="py", optimizer=Asking(call))
    x = pt.dscalar()
    assert pytensor.function([x], x + 1, mode=mode)(2) == 3
    return mode


def flags() -> tuple[object, int]:
    return pytensor.config.mode, pytensor.config.traceback__limit


class Rewriting:
    """A thread that rewrites a graph until it may end, with what it has seen meanwhile."""

    def __init__(self, pool: ThreadPoolExecutor) -> None:
        self.inside, self.may_end = threading.Event(), threading.Event()
        self.seen: list[object] = []
        self.mode: Future[Mode] = pool.submit(compiled, self.wait)
        assert self.inside.wait(SECONDS)

    def wait(self) -> None:
        self.inside.set()
        assert self.may_end.wait(SECONDS)
        self.seen.append(pytensor.config.mode)

    def end(self) -> None:
        self.may_end.set()
        mode = self.mode.result(SECONDS)
        assert self.seen == [mode]


def test_a_thread_reads_its_own_mode_while_others_rewrite() -> None:
    """And none stays, in whatever order they end."""
    before, default = flags(), get_default_mode()
    with ThreadPoolExecutor() as pool:
        first, second = Rewriting(pool), Rewriting(pool)
        assert flags() == before
        assert get_default_mode() is default
        first.end()
        assert flags() == before
        second.end()
    assert flags() == before


def test_a_rewrite_compiles_another_function() -> None:
    seen = []

    def inner() -> None:
        outer = pytensor.config.mode
        own = compiled(lambda: seen.append(pytensor.config.mode))
        seen.extend([own, pytensor.config.mode, outer])

    before = flags()
    mode = compiled(inner)
    assert seen == [seen[1], seen[1], mode, mode]
    assert flags() == before


def test_an_error_restores_the_flags() -> None:
    def fail() -> None:
        raise ZeroDivisionError

    before = flags()
    with pytest.raises(ZeroDivisionError):
        compiled(fail)
    assert flags() == before


def test_users_still_change_the_mode_for_all_threads() -> None:
    with ThreadPoolExecutor() as pool, pytensor.config.change_flags(mode="FAST_COMPILE"):
        assert pool.submit(lambda: pytensor.config.mode).result() == "FAST_COMPILE"


def test_a_change_inside_of_a_rewrite_ends_there() -> None:
    seen = []

    def change() -> None:
        with pytensor.config.change_flags(mode="FAST_COMPILE"):
            seen.append(pytensor.config.mode)
        seen.append(pytensor.config.mode)

    before = flags()
    mode = compiled(change)
    assert seen == ["FAST_COMPILE", mode]
    assert flags() == before
