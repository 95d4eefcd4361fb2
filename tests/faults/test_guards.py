"""Guards that other tests do not see alone, since another one stands behind them (promise 23)."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest
from user_scripts import run_script

import synkhronos as synk
from synkhronos._host import arena
from synkhronos._host.memory_limits import Limit
from synkhronos._transport.channels import one_node, one_node_end
from synkhronos._transport.shared_state import waiting


def test_a_worker_whose_master_died_before_its_guards_stood(tmp_path: Path) -> None:
    text = """
        import os, synkhronos as synk
        from synkhronos._transport.channels import one_node
        from synkhronos._transport.processes import guards
        guard = guards.guard
        def seen(**given):
            guard(**given)
            os.write(1, b"serves")
        guards.guard = seen
        wiring = one_node.OneNodeChannel._wiring
        def orphan(self, *args):
            made = wiring(self, *args)
            return type(made)(**{**vars(made), "parent": made.parent + 1})
        one_node.OneNodeChannel._wiring = orphan
        try:
            synk.fork(2, start="fork")
        except synk.WorkerDied as exc:
            print(exc)
    """
    said = run_script(tmp_path, text)
    assert "rank 1" in said
    assert "exited with code 1" in said
    assert "serves" not in said


def test_the_end_wakes_all_who_sleep(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the abort descriptor, not because they look again after a while."""
    monkeypatch.setattr(waiting, "NAP_MS", 60_000)
    group = synk.Group(3, start="fork")
    workers = group.channel.workers
    time.sleep(0.1)  # they sleep
    group.close()
    assert [w.ended for w in workers] == ["exited with code 0"] * 2


def test_a_worker_that_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(one_node, "READY_SECONDS", 0.3)
    monkeypatch.setattr(one_node_end.OneNodeEnd, "ready", lambda self: time.sleep(600))
    with pytest.raises(synk.GroupError, match=r"ranks \[1, 2\] did not start within"):
        synk.Group(3, start="fork")


def test_workers_ignore_interrupts() -> None:
    with synk.Group(2, start="fork") as group:
        status = Path(f"/proc/{group.channel.pid(1)}/status").read_text()
        ignored = int(status.split("SigIgn:")[1].split()[0], 16)
        assert ignored >> (signal.SIGINT - 1) & 1


def test_memory_is_taken_when_it_is_allocated(group2: synk.Group) -> None:
    """A page that was only promised is a SIGBUS later."""
    before = os.fstat(group2.arena.fd).st_blocks
    held = group2.arena.empty((1 << 22,), np.dtype(np.uint8))
    assert (os.fstat(group2.arena.fd).st_blocks - before) * 512 >= held.nbytes


def test_limits_are_asked_first(group2: synk.Group, monkeypatch: pytest.MonkeyPatch) -> None:
    """An allocation above a cgroup's limit would end in the OOM killer."""
    limit = Limit(30_000_000, 50_000_000, "the limit of cgroup /x is 50,000,000")
    monkeypatch.setattr(arena, "available", lambda: limit)
    with pytest.raises(MemoryError, match=r"asked for 33,554,432 bytes.*the limit of cgroup /x is"):
        synk.data(np.zeros(1 << 22))
    assert synk.data(np.zeros(1 << 18)).data.sum() == 0


def test_no_child_of_the_master_frees_its_memory(group2: synk.Group) -> None:
    d = synk.data(np.ones(1 << 20))
    del group2
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            del d
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(pid, 0)[1] == 0
    assert d.data.all()
