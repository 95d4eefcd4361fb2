"""Two network namespaces of this machine as two hosts, joined by a slow wire."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

DELAY, RATE = "0.2ms", "1gbit"  # one way; of each direction

# what the launcher takes for ssh: [options] host command...
_REMOTE = """#!/bin/bash
while [[ "$1" == -* ]]; do shift; done
host=$1
shift
exec ip netns exec "{name}$host" unshare --uts sh -c "hostname host-$host; $*"
"""


@dataclass(frozen=True)
class Hosts:
    """Their addresses, a command that runs in the first, and a stand-in for ssh."""

    addresses: tuple[str, str]
    first: tuple[str, ...]
    remote: Path


@contextmanager
def two_hosts(folder: Path) -> Iterator[Hosts]:
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
        ends = [f"sk{os.getpid()}{side}" for side in "ab"]
        _run(
            *("ip", "link", "add", ends[0], "netns", spaces[0]),
            *("type", "veth", "peer", "name", ends[1], "netns", spaces[1]),
        )
        for space, end, address in zip(spaces, ends, addresses, strict=True):
            inside = ("ip", "netns", "exec", space)
            _run(*inside, "ip", "address", "add", f"{address}/24", "dev", end)
            _run(*inside, "ip", "link", "set", end, "up")
            _run(*inside, "ip", "link", "set", "lo", "up")
            _slow_down(inside, end)
        remote = folder / "remote"
        remote.write_text(_REMOTE.format(name=name))
        remote.chmod(remote.stat().st_mode | stat.S_IXUSR)
        yield Hosts(addresses, ("ip", "netns", "exec", spaces[0]), remote)
    finally:
        for space in made:
            _run("ip", "netns", "delete", space)


def _slow_down(inside: tuple[str, ...], end: str) -> None:
    """A delay and a bandwidth, or where the kernel has no netem the bandwidth alone."""
    add = ("tc", "qdisc", "add", "dev", end, "root")
    if not _done(*inside, *add, "netem", "delay", DELAY, "rate", RATE):
        _run(*inside, *add, "tbf", "rate", RATE, "burst", "256kb", "latency", "50ms")


def _run(*command: str) -> None:
    if not _done(*command):
        pytest.skip(f"not allowed here: {' '.join(command)}")


def _done(*command: str) -> bool:
    return not subprocess.run(command, capture_output=True, timeout=20, check=False).returncode
