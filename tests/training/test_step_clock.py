"""The seconds of steps, without validation and checkpoints between them."""

from __future__ import annotations

import pytest

from synkhronos.training._run import phases


def test_what_is_aside_is_no_steps_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(phases.time, "monotonic", lambda: now[0])
    aside: list[float] = []
    clock = phases.StepClock(aside.append)

    def passes(seconds: float) -> None:
        now[0] += seconds

    clock.start()
    passes(2)
    assert (clock.step(), clock.latest) == (2, 102)
    passes(1)  # of the script, which is the next step's
    with clock.aside():
        passes(8)
    passes(3)
    assert (clock.step(), aside) == (1 + 3, [8])
    clock.leave()
    passes(16)
    clock.start()
    passes(4)
    assert (clock.step(), aside) == (4, [8, 16])
    with pytest.raises(OSError, match="full"), clock.aside():
        raise OSError("full")
    assert aside == [8, 16]
