"""Two network namespaces of this machine as two hosts, joined by a slow wire."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from launching import Launcher

DELAY, RATE = "0.2ms", "1gbit"  # one way; of each direction

END = "wire"  # the device's name in both hosts
_REPLACE = ("tc", "qdisc", "replace", "dev", END, "root")

# MPI would find the memory that both hosts have in common, and leave the wire alone
_WIRED = {
    "UCX_TLS": "tcp",
    "UCX_NET_DEVICES": END,
    "OMPI_MCA_pml": "ob1",
    "OMPI_MCA_btl": "tcp,self",
    "OMPI_MCA_btl_tcp_if_include": END,
}

# what the launcher takes for ssh: [options] host command...
_REMOTE = """#!/bin/bash
while [[ "$1" == -* ]]; do shift; done
host=$1
shift
exec ip netns exec "{name}$host" unshare --uts sh -c "hostname host-$host; $*"
"""


@dataclass(frozen=True)
class Hosts:
    """Their addresses, commands that run in each, a stand-in for ssh, and the link's qdisc."""

    addresses: tuple[str, str]
    inside: tuple[tuple[str, ...], ...]
    remote: Path
    qdisc: tuple[str, ...]

    @property
    def first(self) -> tuple[str, ...]:
        """What runs a command in the first host."""
        return self.inside[0]

    def cut(self) -> list[list[str]]:
        """The commands that cut the link: all packets are lost, and neither end is told."""
        return [[*inside, *_REPLACE, "blackhole"] for inside in self.inside]

    def heal(self) -> list[list[str]]:
        """The commands that make it whole again."""
        return [[*inside, *_REPLACE, *self.qdisc] for inside in self.inside]

    def launcher(self, mpi: Launcher) -> Launcher:
        """The same, run in the first host; it starts one process on each."""
        return Launcher(
            mpi.kind,
            (*self.first, *mpi.command, *self._options(mpi)),
            {**mpi.environment, **_WIRED, "PYTHONPATH": os.environ.get("PYTHONPATH", "")},
        )

    def _options(self, mpi: Launcher) -> list[str]:
        if mpi.kind == "mpich":
            remote = ["-launcher", "ssh", "-launcher-exec", str(self.remote)]
            where = ["-hosts", ",".join(self.addresses), "-localhost", self.addresses[0]]
            return [*remote, *where, "-ppn", "1"]
        remote = ["--prtemca", "plm_ssh_agent", str(self.remote)]
        exported = [
            word for name in (*mpi.environment, *_WIRED, "PYTHONPATH") for word in ("-x", name)
        ]
        return [*remote, "--host", ",".join(self.addresses), "--map-by", "ppr:1:node", *exported]


@contextmanager
def two_hosts(folder: Path, rate: str = RATE) -> Iterator[Hosts]:
    """Make them; skips the test, with the reason, where that is not allowed."""
    if os.geteuid() or not shutil.which("ip") or not shutil.which("tc"):
        pytest.skip("network namespaces need root, and the programs ip and tc")
    name = f"synk{os.getpid()}-"
    addresses = ("10.213.7.1", "10.213.7.2")
    spaces = [f"{name}{address}" for address in addresses]
    made = []
    try:
        for space in spaces:
            _run("ip", "netns", "add", space)
            made.append(space)
        _run(
            *("ip", "link", "add", END, "netns", spaces[0]),
            *("type", "veth", "peer", "name", END, "netns", spaces[1]),
        )
        for space, address in zip(spaces, addresses, strict=True):
            here = ("ip", "netns", "exec", space)
            _run(*here, "ip", "address", "add", f"{address}/24", "dev", END)
            _run(*here, "ip", "link", "set", END, "up")
            _run(*here, "ip", "link", "set", "lo", "up")
            qdisc = _slow_down(here, rate)
        for space in spaces:
            _await_link(space)
        remote = folder / "remote"
        remote.write_text(_REMOTE.format(name=name))
        remote.chmod(remote.stat().st_mode | stat.S_IXUSR)
        inside = tuple(("ip", "netns", "exec", space) for space in spaces)
        yield Hosts(addresses, inside, remote, qdisc)
    finally:
        for space in made:
            _run("ip", "netns", "delete", space)


def _slow_down(inside: tuple[str, ...], rate: str) -> tuple[str, ...]:
    """A delay and a bandwidth, or where the kernel has no netem the bandwidth alone."""
    both = ("netem", "delay", DELAY, "rate", rate)
    if _done(*inside, *_REPLACE, *both):
        return both
    alone = ("tbf", "rate", rate, "burst", "256kb", "latency", "50ms")
    _run(*inside, *_REPLACE, *alone)
    return alone


def _await_link(space: str) -> None:
    """Wait for the kernel's word that the link is up, which MPI heeds; it may take a second."""
    show = ("ip", "-netns", space, "link", "show", "dev", END)
    until = time.monotonic() + 10
    while b"state UP" not in subprocess.check_output(show):
        assert time.monotonic() < until, "the link does not come up"
        time.sleep(0.05)


def _run(*command: str) -> None:
    if not _done(*command):
        pytest.skip(f"not allowed here: {' '.join(command)}")


def _done(*command: str) -> bool:
    return not subprocess.run(command, capture_output=True, timeout=20, check=False).returncode
