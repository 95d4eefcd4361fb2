"""Large messages of mpi4py's futures: MPI is called while they are sent, and not longer."""

from __future__ import annotations

import sys
import threading
import time
from types import SimpleNamespace

import pytest

from synkhronos._backends import mpi
from synkhronos._backends.mpi import Mover

LARGE = 1 << 20


class Stand:
    """In place of mpi4py's MPI: counts the calls."""

    COMM_WORLD = property(lambda self: self)
    ANY_SOURCE, THREAD_MULTIPLE = -2, 3

    def __init__(self) -> None:
        self.threads, self.calls = 3, 0

    def Query_thread(self) -> int:
        return self.threads

    def Is_initialized(self) -> bool:
        return True

    def Iprobe(self, *_: object) -> bool:
        self.calls += 1
        return False


@pytest.fixture
def stand(monkeypatch: pytest.MonkeyPatch) -> Stand:
    made = Stand()
    monkeypatch.setitem(sys.modules, "mpi4py", SimpleNamespace(MPI=made))
    monkeypatch.setitem(sys.modules, "mpi4py.MPI", made)
    return made


def movers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "synk-mpi"]


def ended() -> None:
    for thread in movers():
        thread.join(30)
        assert not thread.is_alive()


def test_a_message_is_moved_from_its_begin_on(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For as long as it may take; then the thread ends, and another message gets a new one."""
    begun = threading.Event()
    mover = Mover()
    monkeypatch.setattr(mpi, "_MOVED_A_SECOND", LARGE / 0.2)
    mover.sends(LARGE, begun.is_set)
    time.sleep(0.05)
    assert len(movers()) == 1
    assert not stand.calls
    began = time.monotonic()
    begun.set()
    ended()
    assert stand.calls
    assert time.monotonic() > began + 0.2
    before = stand.calls
    mover.sends(LARGE)
    mover.sends(LARGE)
    assert len(movers()) == 1
    ended()
    assert stand.calls > before


def test_a_message_that_has_been_sent_is_left(stand: Stand) -> None:
    mover = Mover()
    mover.sends(1 << 50)
    mover.sends(LARGE, lambda: False)
    mover.rest()
    ended()


def test_what_is_not_moved(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small messages; all, if MPI takes calls of one thread only, or is not used."""
    mover = Mover()
    mover.sends(1000)
    stand.threads = 2
    mover.sends(LARGE)
    monkeypatch.delitem(sys.modules, "mpi4py.MPI")
    mover.sends(LARGE)
    assert not movers()
