"""TensorBoard's event files, written by tensorboardX."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from tensorboardX import SummaryWriter
from tensorboardX.proto.event_pb2 import Event, SessionLog

from synkhronos.training._record.exporters.target import Target, finite, numbers_of
from synkhronos.training._record.run_folder import read_starts, step_of_return


class TensorBoard(Target):
    """Scalars ``KIND/NAME`` over the step, and the configuration as a text.

    Each export writes a file of its own, which replaces the earlier ones for a reader: TensorBoard
    drops what comes before a mark of the start of a session and has no smaller step.
    """

    def __init__(self, run: Path, folder: Path | None) -> None:
        self._folder = folder or run / "tensorboard"
        self._writer = SummaryWriter(str(self._folder), purge_step=0, flush_secs=3600)
        for number, start in enumerate(read_starts(run)):
            text = json.dumps(start.get("config"), indent=2)
            self._writer.add_text(f"config/{number}", f"```json\n{text}\n```", 0)
        self._step = 0.0

    @property
    def place(self) -> str:
        return str(self._folder)

    def take(self, lines: Sequence[Mapping[str, object]]) -> None:
        for line in lines:
            if (to := step_of_return(line)) is not None:
                self._drop_after(int(to))
            self._step = finite(line.get("step"), self._step)
            when = finite(line.get("time"), 0.0)
            for name, value in numbers_of(line).items():
                tag = f"{line.get('kind')}/{name}"
                self._writer.add_scalar(tag, value, int(self._step), when)
        self._writer.flush()

    def _drop_after(self, step: int) -> None:
        start = SessionLog(status=SessionLog.START)
        self._writer.file_writer.add_event(Event(session_log=start), step + 1)

    def close(self, ended: bool) -> None:
        self._writer.close()
