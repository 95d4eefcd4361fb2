"""Whether hosts can be reached by ssh, before a launcher waits for them."""

from __future__ import annotations

import contextlib
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence

from synkhronos._errors import StartFailed

# The variables that give launchers another program than ssh, which this module cannot try.
AGENTS = (
    *("HYDRA_LAUNCHER", "HYDRA_BOOTSTRAP", "HYDRA_LAUNCHER_EXEC", "I_MPI_HYDRA_BOOTSTRAP"),
    *("OMPI_MCA_plm_rsh_agent", "OMPI_MCA_plm_ssh_agent", "PRTE_MCA_plm_ssh_agent"),
)
_OWN_SECONDS = 2.0  # for ssh to end by its own limit, which says more


def check_reached(hosts: Sequence[str], seconds: float) -> None:
    """Run `true` on all hosts at the same time; raise if one of them does not answer in time.

    Raises
    ------
    StartFailed
        It names each host that has not answered, and the last line that ssh said.
    """
    options = ["-o", "BatchMode=yes", "-o", f"ConnectTimeout={max(1, round(seconds))}"]
    troubles = {}
    with contextlib.ExitStack() as stack:
        until = time.monotonic() + seconds + _OWN_SECONDS
        running = {h: stack.enter_context(_trying(h, options)) for h in dict.fromkeys(hosts)}
        for host, tried in running.items():
            if why := tried(until):
                troubles[host] = why
    if troubles:
        named = "; ".join(f"{host}: {why}" for host, why in troubles.items())
        raise StartFailed(
            f"{len(troubles)} of {len(running)} hosts cannot be reached by ssh: {named}. "
            f"`ssh -o BatchMode=yes HOST true` must succeed without a password, within "
            f"{seconds:g} s (--start-timeout)"
        )


@contextlib.contextmanager
def _trying(host: str, options: list[str]) -> Iterator[Callable[[float], str]]:
    """Run ssh; yields a function that waits for it, and says why the host has not answered.

    The errors go to a file: ssh may leave a process behind that keeps a pipe open (ControlPersist).
    """
    with tempfile.TemporaryFile() as said:
        try:
            tried = subprocess.Popen(
                ["ssh", *options, "--", host, "true"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=said,
            )
        except FileNotFoundError:
            raise StartFailed(
                f"the host {host} is on another machine, and ssh is not installed"
            ) from None

        def trouble(until: float) -> str:
            try:
                code = tried.wait(max(0.0, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                return "no answer"
            said.seek(0)
            lines = said.read().decode(errors="replace").strip().splitlines()
            return "" if not code else lines[-1] if lines else f"ssh ended with code {code}"

        try:
            yield trouble
        finally:
            tried.kill()
            tried.wait()
