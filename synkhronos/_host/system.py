"""The operating system: groups need Linux; on others an error names the ways to have one.

On macOS the package can be imported, and only the start of a group fails. On Windows Python has
neither `fcntl` nor `resource`: `synkhronos.pymc` has what needs no group, and other names raise.
"""

from __future__ import annotations

import os
import sys

# the variables in which launchers of MPI tell a process its rank
MPI_RANKS = {"Open MPI": "OMPI_COMM_WORLD_RANK", "MPICH": "PMI_RANK", "Slurm": "PMIX_RANK"}

_CONTAINER = (
    "run it in a Linux container: the repository has a Dockerfile (docker build -t synkhronos . "
    "and docker run --rm -it synkhronos)"
)
_NAMES = {"darwin": "macOS", "win32": "Windows"}
_WAYS = {
    "darwin": _CONTAINER,
    "win32": f"use WSL2 (wsl --install, then install synkhronos inside of it), or {_CONTAINER}",
}


def trouble(platform: str = sys.platform) -> str:
    """Why no group can be started on this system, and what to do; empty on Linux."""
    if platform == "linux":
        return ""
    ways = _WAYS.get(platform, "use a Linux machine, or a virtual one")
    return (
        "groups need Linux 5.3 or later (memfd, eventfd, pidfd), and this is "
        f"{_NAMES.get(platform, platform)}: {ways}"
    )


def works(platform: str = sys.platform) -> str:
    """Say what works on a system without groups, and what needs Linux; empty on Linux."""
    if platform not in _NAMES:
        return trouble(platform)
    return (
        f"on {_NAMES[platform]} synkhronos.pymc.fast works, the faster density of PyMC models, and "
        f"synkhronos.pymc.sample on one core for each chain; {trouble(platform)}"
    )


def has_mpi_rank() -> bool:
    """Whether a launcher of MPI has started this process, or one above it."""
    return not os.environ.keys().isdisjoint(MPI_RANKS.values())


def tell() -> None:
    """At the import on other systems: what works there, in the log or to a person at a prompt."""
    if not (said := works(sys.platform)):
        return
    import logging  # here, since it takes as long as the rest of the import

    log = logging.getLogger("synkhronos")
    if log.hasHandlers() and log.isEnabledFor(logging.INFO):
        log.info(said)
    elif hasattr(sys, "ps1"):  # of Python's prompt, IPython and Jupyter
        sys.stderr.write(f"synkhronos: {said}\n")


def refuse_windows(name: str) -> None:
    """Raise on Windows, where `name` cannot be imported."""
    if sys.platform == "win32":
        raise ImportError(f"synkhronos.{name} cannot be imported: {trouble(sys.platform)}")
