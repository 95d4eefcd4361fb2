"""The files rank-N.log: what each member of a node prints and logs."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

from synkhronos._host.descriptors import Descriptor
from synkhronos._host.files import appending, make_folder


class RankLogs:
    """Appends lines to a file for each rank, with the time in front.

    The folder and the files are made with the first line. Lines that cannot be written are left
    out: the run goes on.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: dict[int, Descriptor] = {}

    def write(self, rank: int, text: str) -> None:
        """Append a line."""
        with contextlib.suppress(OSError):
            if rank not in self._files or not self._files[rank].is_ours:
                make_folder(self._folder)
                path = self._folder / f"rank-{rank}.log"
                self._files[rank] = Descriptor(appending(path))
            now = time.strftime("%Y-%m-%d %H:%M:%S")
            os.write(self._files[rank], f"{now} {text}\n".encode("utf-8", "backslashreplace"))

    def known(self) -> list[int]:
        """The ranks that have files, of this run and of earlier ones."""
        names = (path.stem.removeprefix("rank-") for path in self._folder.glob("rank-*.log"))
        return sorted(int(name) for name in names if name.isdigit())

    def close(self) -> None:
        """Close the files."""
        for descriptor in self._files.values():
            descriptor.close()
        self._files.clear()
