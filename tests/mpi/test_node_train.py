"""`synk train` under MPI: the losses that one process prints."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from configs import place as place
from launching import Job, Launcher
from user_scripts import without_progress

from synkhronos.cli import _command_line as command_line


@pytest.mark.thorough  # of `fit`: test_node_fit.py
@pytest.mark.slow
def test_two_processes_print_the_losses_of_one(
    mpi: Launcher, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command_line.main(["train", "config.toml", "-n", "2"]) == 0
    wanted = capsys.readouterr().out
    line = ["train", "config.toml", "-n", "1", "mode=FAST_COMPILE"]
    made = Job(mpi, 2, [sys.executable, "-P", "-m", "synkhronos", *line], place)
    try:
        assert made.wait() == 0, made.text
        made.check_gone()
    finally:
        made.kill()
    assert without_progress(made.text) == without_progress(wanted)
