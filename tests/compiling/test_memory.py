"""Settings of the process while functions are made: garbage that is looked for, and C code."""

import gc
import os
import threading
from collections.abc import Callable

import pytensor
import pytest

from synkhronos._compiling.lean.mode import without_c
from synkhronos._compiling.memory import rarely_collected
from synkhronos._libraries.library import Replacing


@pytest.mark.parametrize("first", [700, 10**9, 0])
def test_thresholds_are_as_before_when_the_last_one_leaves(first: int) -> None:
    """Those of a program that collects never, or more rarely, stay."""
    before = gc.get_threshold()
    gc.set_threshold(first, 7, 5)
    try:
        one, two = rarely_collected(), rarely_collected()
        one.__enter__()
        inside = gc.get_threshold()
        assert inside == (first and max(first, inside[0]), 7, 5)
        assert inside[0] > 100_000 or not first
        two.__enter__()
        one.__exit__(None, None, None)
        assert gc.get_threshold() == inside
        two.__exit__(None, None, None)
        assert gc.get_threshold() == (first, 7, 5)
    finally:
        gc.set_threshold(*before)


def test_a_threshold_that_the_program_sets_meanwhile_stays() -> None:
    before = gc.get_threshold()
    try:
        with rarely_collected():
            gc.set_threshold(1234, 7, 5)
        assert gc.get_threshold() == (1234, 7, 5)
    finally:
        gc.set_threshold(*before)


def test_c_is_on_again_when_the_last_one_leaves() -> None:
    """The first one to come is also the first one to leave."""
    with pytensor.config.change_flags(cxx="some"):
        one, two = without_c("NUMBA"), without_c("NUMBA")
        one.__enter__()
        two.__enter__()
        one.__exit__(None, None, None)
        assert pytensor.config.cxx == ""
        two.__exit__(None, None, None)
        assert pytensor.config.cxx == "some"


def test_a_compiler_that_the_program_sets_meanwhile_stays() -> None:
    with pytensor.config.change_flags(cxx="some"):
        with without_c("NUMBA"):
            pytensor.config.cxx = "another"
        assert pytensor.config.cxx == "another"


def in_a_fork(check: Callable[[], bool]) -> bool:
    """Whether it holds in a fork of this process; one that hangs is ended."""
    child = os.fork()
    if not child:
        threading.Timer(60, os._exit, [2]).start()
        try:
            os._exit(0 if check() else 1)
        finally:
            os._exit(3)
    return os.waitpid(child, 0)[1] == 0


def test_a_fork_is_in_no_context() -> None:
    """Also if it leaves those of its parent; in the parent nothing changes."""
    before = gc.get_threshold()
    with pytensor.config.change_flags(cxx="some"), without_c("NUMBA"):
        inherited = rarely_collected()
        inherited.__enter__()

        def restored() -> bool:
            found = (gc.get_threshold(), pytensor.config.cxx) == (before, "some")
            inherited.__exit__(None, None, None)
            with rarely_collected():
                inside = gc.get_threshold()
            return found and inside != before == gc.get_threshold()

        assert in_a_fork(restored)
        assert gc.get_threshold() != before
        assert pytensor.config.cxx == ""
        inherited.__exit__(None, None, None)
    assert gc.get_threshold() == before


def test_a_fork_can_enter_what_another_thread_was_entering() -> None:
    entering, leave = threading.Event(), threading.Event()

    def replace() -> Callable[[], None]:
        entering.set()
        leave.wait(60)
        return lambda: None

    context = Replacing(replace)

    def enter() -> None:
        with context:
            pass

    thread = threading.Thread(target=enter)
    thread.start()
    assert entering.wait(60)

    def entered() -> bool:
        leave.set()  # of the fork
        with context:
            return True

    assert in_a_fork(entered)
    leave.set()
    thread.join()
