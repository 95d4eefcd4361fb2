"""What each worker prints and logs, in a file of its own."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

from synkhronos._transport.worker_output import listening


@contextlib.contextmanager
def logs_of_workers(folder: Path) -> Iterator[None]:
    """A context in which workers' lines are also appended to ``rank-N.log`` in a folder.

    Each line begins with the time. Only workers of this node have files. The folder and the files
    are made with the first line. What cannot be written is left out: the run goes on.
    """
    files: dict[int, int] = {}

    def keep(rank: int, text: str) -> None:
        with contextlib.suppress(OSError):
            if rank not in files:
                folder.mkdir(parents=True, exist_ok=True)
                how = os.O_WRONLY | os.O_APPEND | os.O_CREAT
                files[rank] = os.open(folder / f"rank-{rank}.log", how, 0o666)
            now = time.strftime("%Y-%m-%d %H:%M:%S")
            os.write(files[rank], f"{now} {text}\n".encode("utf-8", "backslashreplace"))

    try:
        with listening(keep):
            yield
    finally:
        for descriptor in files.values():
            os.close(descriptor)
