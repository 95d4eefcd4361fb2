"""AtomicReference: no change is lost, whoever interrupts a change."""

from __future__ import annotations

import sys
import threading
from typing import Any

import pytest
from entering import enter_at_each_line

from synkhronos._host import atomic
from synkhronos._host.atomic import AtomicReference


def test_a_change_at_each_line_of_a_change() -> None:
    made = AtomicReference[tuple[int, ...]](())
    changes = 0

    def add() -> None:
        nonlocal changes
        changes += 1
        mine = changes
        made.update(lambda found: ((*found, mine), None))

    enter_at_each_line(add, add, runs=1)
    enter_at_each_line(add, add)
    assert changes > 16 + 5
    assert sorted(made.value) == list(range(1, changes + 1))


def test_an_exception_at_each_line_of_a_change() -> None:
    """It leaves the old value or the new one, and the next change works."""
    left = set()
    for number in range(1, 100):
        made, passed = AtomicReference(0), 0

        def trace(frame: Any, event: str, arg: Any, number: int = number) -> Any:
            nonlocal passed
            if frame.f_code.co_filename != atomic.__file__:
                return None
            passed += event == "line"
            if passed == number:
                raise KeyboardInterrupt
            return trace

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            made.update(lambda found: (found + 1, None))
        except KeyboardInterrupt:
            pass
        else:
            break  # all lines had their turn
        finally:
            sys.settrace(before)
        left.add(value := made.value)
        assert made.update(lambda found: (found + 1, found)) == value
    assert left == {0, 1}


def test_changes_of_threads() -> None:
    made, each = AtomicReference(0), 3_000
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)

    def work() -> None:
        for _ in range(each):
            made.update(lambda found: (found + 1, None))

    threads = [threading.Thread(target=work) for _ in range(4)]
    try:
        for thread in threads:
            thread.start()
    finally:
        for thread in threads:
            thread.join()
        sys.setswitchinterval(before)
    assert made.value == 4 * each


@pytest.mark.parametrize("number", [1, 20_000])
def test_old_values_are_dropped(number: int) -> None:
    class Value:
        alive = 0

        def __init__(self) -> None:
            Value.alive += 1

        def __del__(self) -> None:
            Value.alive -= 1

    made = AtomicReference(Value())
    for _ in range(number):
        made.update(lambda found: (Value(), None))
    assert Value.alive == 1
