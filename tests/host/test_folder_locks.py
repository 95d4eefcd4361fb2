"""Locks of folders: whose they are after a fork, and after a kill."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from fork_to import fork_to
from user_scripts import alive

from synkhronos._host.folder_locks import FolderLock


def test_a_fork_cannot_release_it(tmp_path: Path) -> None:
    lock, other = FolderLock(tmp_path), FolderLock(tmp_path)
    assert lock.take()
    assert os.waitpid(fork_to(lock.close), 0)[1] == 0
    assert not other.take()
    for _ in range(2):
        lock.close()
    assert other.take()
    other.close()


def test_a_fork_that_outlives_a_killed_process_does_not_keep_it(tmp_path: Path) -> None:
    read, write = os.pipe()

    def killed() -> None:
        lock = FolderLock(tmp_path)
        assert lock.take()
        os.write(write, str(fork_to(lambda: time.sleep(60))).encode())
        os.kill(os.getpid(), signal.SIGKILL)

    assert os.waitpid(fork_to(killed), 0)[1] == signal.SIGKILL
    left = int(os.read(read, 20))
    lock = FolderLock(tmp_path)
    try:
        assert alive([left])
        assert lock.take()
    finally:
        os.kill(left, signal.SIGKILL)
        for close in (lock.close, lambda: os.close(read), lambda: os.close(write)):
            close()
    while alive([left]):
        time.sleep(0.01)
