"""The command lines of mpirun and srun: one process on each node. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

# Also sent to other hosts by Open MPI, which sends none by itself: what decides the graphs' types,
# and where modules are.
SENT = ("PYTHONPATH", "PYTENSOR_FLAGS", "PYTENSORRC")
_MPI4PY = ("MPI4PY_MPIABI", "MPI4PY_LIBMPI")


@dataclass(frozen=True)
class Mpi:
    """An MPI launcher."""

    command: str  # its path
    version: str  # in its own words

    @property
    def is_open_mpi(self) -> bool:
        """Whether it has the options of Open MPI; others have those of MPICH's hydra."""
        return "Open MPI" in self.version or "OpenRTE" in self.version

    def line(
        self, nodes: int, hosts: Sequence[str], exported: Sequence[str], root: bool = False
    ) -> list[str]:
        """The words before the program.

        Parameters
        ----------
        nodes : int
        hosts : sequence of str
            One for each node; none: all nodes are on this machine.
        exported : sequence of str
            The variables that every process needs.
        root : bool
            Whether the user is root, which Open MPI must be told to allow.
        """
        if self.is_open_mpi:
            where = ["--oversubscribe"]
            if hosts:
                where = ["--host", ",".join(hosts), "--map-by", "ppr:1:node"]
            return [
                *(self.command, "-n", str(nodes), *where, "--bind-to", "none"),
                *(["--allow-run-as-root"] if root else []),
                *(word for name in exported for word in ("-x", name)),
            ]
        where = ["-hosts", ",".join(hosts), "-ppn", "1"] if hosts else []
        return [self.command, *where, "-n", str(nodes)]

    def environment(self, environ: Mapping[str, str], library: Path | None) -> dict[str, str]:
        """Further variables: what mpi4py's wheel needs to load this MPI, unless it is set."""
        if not self.is_open_mpi:
            return {}
        found = {"SYNKHRONOS_RESUME": ""}  # for a restart; the line names it from the first start
        if library is not None and not any(name in environ for name in _MPI4PY):
            found |= zip(_MPI4PY, ("openmpi", str(library)), strict=True)
        return found


def library_beside(command: str) -> Path | None:
    """The MPI library of a launcher that a wheel has installed."""
    folder = Path(command).parent.parent / "lib"
    return next(iter(sorted(folder.glob("libmpi.so.*"))), None)


def srun_line(
    nodes: int, hosts: Sequence[str], environ: Mapping[str, str], given: Sequence[str]
) -> list[str]:
    """The words before the program: srun's options, then those that the user gives.

    Each process gets all cores that the job has on its node. `fork` divides them.

    >>> " ".join(srun_line(2, [], {"SLURM_JOB_CPUS_PER_NODE": "32(x2)"}, []))  # doctest: +ELLIPSIS
    'srun --nodes=2 --ntasks=2 --ntasks-per-node=1 --cpus-per-task=32 --cpu-bind=none ...'
    """
    cores = _cores(environ)
    own = {
        "--nodes": f"{nodes}",
        "--nodelist": ",".join(hosts),
        "--ntasks": f"{nodes}",
        "--ntasks-per-node": "1",
        "--cpus-per-task": f"{cores or ''}",
        "--cpu-bind": "none",
        "--kill-on-bad-exit": "1",
        "--export": "ALL",
        "--mpi": "" if "SLURM_MPI_TYPE" in environ else "pmix",
    }
    asked = {word.partition("=")[0] for word in given}
    chosen = [f"{name}={value}" for name, value in own.items() if value and name not in asked]
    return ["srun", *chosen, *given]


def _cores(environ: Mapping[str, str]) -> int:
    """The cores that the job has on each node, the fewest of them; 0: not known.

    "72(x2),36" means 72 on each of two nodes, and 36 on a third.
    """
    counts = environ.get("SLURM_JOB_CPUS_PER_NODE", environ.get("SLURM_CPUS_PER_TASK", ""))
    found = re.findall(r"(\d+)(?:\(x\d+\))?", counts)
    return min(map(int, found), default=0)


def under_a_launcher(environ: Mapping[str, str]) -> str:
    """The variable that says that a launcher has started several of this process, or empty."""
    if "SYNKHRONOS_LAUNCHED" in environ:  # a launched process has started this one
        return ""
    for name in ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE"):
        if environ.get(name, "1") != "1":
            return f"{name}={environ[name]}"
    step = environ.get("SLURM_STEP_NUM_TASKS", "1")
    return f"SLURM_STEP_NUM_TASKS={step}" if "PMIX_RANK" in environ and step != "1" else ""
