"""Whatever a member raises arrives, and the next call is right (promise 4; S71, S72, S74, S75)."""

from __future__ import annotations

import builtins
import itertools
import time

import numpy as np
import pytensor.tensor as pt
import pytest
from modes import FAST

import synkhronos as synk
from synkhronos.testing import faults
from synkhronos.testing.faults import Fault

PROMPT = 60.0  # seconds; all of these take milliseconds, the limit only catches waits
EXEC = ("ValueError", "touchy")  # the way of starting does not matter to the others


def check(start: str, *kinds: str) -> None:
    """One raises, another, all workers, all others but one, the master, everybody."""
    with synk.Group(3, start=start) as group:
        x = pt.vector("x", dtype="float64")
        f = synk.function([x], x.mean(), mode=FAST)
        everyone = ((1,), (2,), (1, 2), (0,), (0, 2), (0, 1, 2))
        for kind, ranks in itertools.product(kinds, everyone):
            began = time.monotonic()
            with pytest.raises(BaseException) as caught:  # noqa: PT011 (SystemExit is one of them)
                group.run(Fault(kind, ranks), "a test")
            assert time.monotonic() - began < PROMPT
            if 0 in ranks:
                assert not issubclass(caught.type, synk.SynkhronosError)
            else:
                check_error(caught.value, group, kind, ranks)
            assert f(np.arange(5.0)) == 2
            assert f(np.arange(4.0)) == 1.5


def check_error(error: BaseException, group: synk.Group, kind: str, ranks: tuple[int, ...]) -> None:
    """Who, where, and of the class that it was of."""
    assert isinstance(error, synk.WorkerError)
    assert isinstance(error, RuntimeError)  # as in 2017
    assert error.rank == ranks[0]
    assert error.ranks == ranks
    assert error.pid == group.channel.pid(ranks[0])
    assert "a test" in str(error)
    text = str(error.__cause__)
    assert "faults.py" in text
    assert ", line " in text
    assert len(text) < 1 << 17
    wanted = getattr(builtins, kind, None)
    if isinstance(wanted, type) and issubclass(wanted, Exception):
        assert isinstance(error, wanted) or kind == "UnicodeDecodeError"
    if kind == "chained":
        assert all(word in text for word in ("the first", "the second", "the third"))


@pytest.mark.parametrize("kind", faults.RAISING)
def test_a_raising_member(kind: str) -> None:
    check("fork", kind)


@pytest.mark.thorough  # forked ones: the test above
def test_a_raising_member_that_was_execd() -> None:
    check("exec", *EXEC)


def test_a_note_beside_strange_notes() -> None:
    """The master's own exception goes out as it is, with a note."""
    with synk.Group(2) as group:
        with pytest.raises(ValueError) as caught:  # noqa: PT011 (`match` reads the notes, too)
            group.run(Fault("notes", (0,)), "a test")
        assert any("a test" in note for note in caught.value.__notes__ if isinstance(note, str))
