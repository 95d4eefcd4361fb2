"""How often Python looks for garbage while functions are made."""

import gc

import pytest

from synkhronos._compiling.memory import rarely_collected


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
