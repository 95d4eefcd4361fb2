"""Runs a group of two processes under a launcher of MPI."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

from synkhronos.cli._mpi_launcher import version_of

SECONDS = 60.0  # limit of a job; each of its processes imports PyTensor
_SCRIPT = """
import sys, time
import numpy as np, pytensor.tensor as pt, synkhronos as synk
size = synk.fork(1)
x = pt.vector("x", dtype="float64")
f = synk.function([x], (x.sum(), "sum"), mode="FAST_COMPILE")
rows = synk.data(np.ones(1000))
total = float(f(rows))
times = []
for _ in range(100):
    began = time.perf_counter()
    f(rows)
    times.append(time.perf_counter() - began)
sys.stdout.write(f"found {size} {total} {1e6 * np.median(times):.0f}\\n")
sys.stdout.flush()
"""


def round_trip(command: str) -> tuple[bool, str]:
    """Whether two processes form a group and compute a sum, and what was found."""
    options: list[str] = []
    if "Open MPI" in version_of(command) or "OpenRTE" in version_of(command):
        options = ["--oversubscribe", *(["--allow-run-as-root"] if os.geteuid() == 0 else [])]
    job = subprocess.Popen(
        [command, *options, "-n", "2", sys.executable, "-P", "-c", _SCRIPT],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, err = job.communicate(timeout=SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(job.pid, signal.SIGKILL)
        job.communicate()
        return False, f"two processes have not answered for {SECONDS:.0f} s"
    found = [line.split()[1:] for line in out.splitlines() if line.startswith("found ")]
    if job.returncode or not found:
        last = (err.strip() or out.strip() or f"exit code {job.returncode}").splitlines()[-1]
        return False, last
    size, total, micro = found[0]
    if (size, total) != ("2", "1000.0"):
        return False, f"2 processes formed a group of {size}, and the sum of 1000 ones was {total}"
    return True, f"2 processes form a group; a call takes {micro} us"
