"""Any order of calls, with faults among them (promise 20): a sample of orders.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test
from orders import Orders, how
from selection import thorough

from synkhronos._api import data
from synkhronos._engine.changes import Changes

# the orders set values that differ on purpose, and pick batches without rows
pytestmark = [
    pytest.mark.filterwarnings("ignore::synkhronos.ReplicaWarning"),
    pytest.mark.filterwarnings("ignore::synkhronos.BatchWarning"),
]


@pytest.mark.slow
@pytest.mark.parametrize("sequences", [4, *thorough(8)])
def test_any_order(sequences: int) -> None:
    before = Orders.counts.steps
    run_state_machine_as_test(Orders, settings=settings(how(sequences, 70), derandomize=True))
    assert Orders.counts.steps - before > 37 * sequences


def only_the_master_changes(change: Callable[..., None]) -> Callable[..., None]:
    def act(changes: Changes, entry: Any, value: Any) -> None:
        if changes._communicator.rank == changes._master:
            change(changes, entry, value)

    return act


NEGATIVE_BELOW = 45  # rows of which the first half are not negative, and others are

DEFECTS: dict[str, tuple[object, str, Callable[..., Any], Callable[[Orders], None]]] = {
    "a worker that keeps its value": (
        Changes,
        "set",
        only_the_master_changes,
        lambda o: o.broadcast(which=0, name="w", number=7, given=True),
    ),
    "a failure that is not undone": (
        Changes,
        "undo",
        lambda undo: Changes._forget_command,
        lambda o: o.call_with_updates(0, "checked", 0, NEGATIVE_BELOW, None, 1, 1),
    ),
    "rows that are not cleared": (
        data,
        "_keep_common",
        lambda keep: lambda old, new, same_memory: None,
        lambda o: (o.resize(0, 2, 0, "l"), o.resize(0, 9, 0, "l")),
    ),
}


@pytest.mark.parametrize("defect", DEFECTS)
def test_a_defect_is_seen(defect: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The model is no rubber stamp."""
    place, name, spoilt, steps = DEFECTS[defect]
    for spoil in (False, True):
        if spoil:
            monkeypatch.setattr(place, name, spoilt(getattr(place, name)))
        machine = Orders()
        try:
            machine.opened(2, 0, 0)
            steps(machine)
            if spoil:
                with pytest.raises(AssertionError):
                    check(machine)
            else:
                check(machine)
        finally:
            machine.finish(look=False)


def check(machine: Orders) -> None:
    machine.all_is_as_it_should_be()
    machine.look(which=0)
