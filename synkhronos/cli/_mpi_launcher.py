"""Finds the launcher of MPI, and asks for its version."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

_SECONDS = 60.0  # for an answer
_NAMES = ("mpiexec.hydra", "mpiexec", "mpirun")


def launcher() -> str | None:
    """The launcher beside this interpreter, which a wheel has installed, else that of the PATH."""
    beside = [str(Path(sys.executable).parent / name) for name in _NAMES]
    return next((found for name in (*beside, *_NAMES) if (found := shutil.which(name))), None)


def version_of(command: str) -> str:
    """The version that a launcher prints."""
    done = subprocess.run(
        [command, "--version"], capture_output=True, text=True, timeout=_SECONDS, check=False
    )
    lines = [line.strip() for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    if lines and "HYDRA" in lines[0]:
        return f"MPICH {lines[1].split()[-1]}"
    return lines[0] if lines else "its version is unknown"
