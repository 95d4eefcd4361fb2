"""The hosts of a launch: those that the user names, or those that a scheduler has allocated."""

from __future__ import annotations

import itertools
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from synkhronos._host import files
from synkhronos.cli._run.usage import UsageError

_SECONDS = 10.0  # limit of scontrol, which answers without its server
_PIECE = re.compile(r"\[([^\]]*)\]|([^\[\]]+)")  # of Slurm's names: a list in brackets, or text
_RANGE = re.compile(r"(\d+)(?:-(\d+))?")
_COUNT = re.compile(r"0*[1-9][0-9]{0,8}")
_NAME = re.compile(r"[^\W_][\w.-]*")  # never an option of ssh or of a launcher


@dataclass(frozen=True)
class Host:
    """A machine, and the number of members on it, if the user gives it."""

    name: str
    members: int | None = None


@dataclass(frozen=True)
class Allocation:
    """The machines that a scheduler has given to this job."""

    scheduler: str
    hosts: tuple[str, ...]


def named_hosts(text: str) -> list[Host]:
    """The hosts of the option -H.

    >>> named_hosts("node1:4,node2")
    [Host(name='node1', members=4), Host(name='node2', members=None)]
    """
    return [_host(entry.strip(), "", f"-H {text}") for entry in text.split(",")]


def listed_hosts(text: str, file: str) -> list[Host]:
    """The hosts of a hosts file; the members of a host that is listed several times add up.

    >>> listed_hosts("node1 slots=4  # fast", "hosts")
    [Host(name='node1', members=4)]
    """
    found: list[Host] = []
    for number, line in enumerate(text.splitlines(), 1):
        entry, *rest = line.partition("#")[0].split() or [""]
        if entry:
            slots = next((word[6:] for word in rest if word.startswith("slots=")), "")
            found.append(_host(entry, slots, f"{file}, line {number}"))
    listed: dict[str, list[Host]] = {}
    for host in found:
        listed.setdefault(host.name, []).append(host)
    return [
        same[0] if len(same) == 1 else Host(name, sum(host.members or 1 for host in same))
        for name, same in listed.items()
    ]


def _host(entry: str, slots: str, where: str) -> Host:
    name, _, count = entry.partition(":")
    count = slots or count
    if not _NAME.fullmatch(name) or (count and not _COUNT.fullmatch(count)):
        raise UsageError(f"{where}: {entry!r} is not a host, such as node1 or node1:4")
    return Host(name, int(count) if count else None)


def allocation(
    environ: Mapping[str, str], hostnames: Callable[[str], list[str]] | None = None
) -> Allocation | None:
    """The hosts of the job that this process is a part of: Slurm's, PBS's or LSF's.

    `hostnames` expands Slurm's list; default: `scontrol` where it is installed.
    """
    if nodes := environ.get("SLURM_JOB_NODELIST", environ.get("SLURM_NODELIST", "")):
        return Allocation("Slurm", _unique((hostnames or expanded)(nodes)))
    if file := environ.get("PBS_NODEFILE", ""):
        return Allocation("PBS", _unique(_words_of(file, "PBS_NODEFILE")))
    if counts := environ.get("LSB_MCPU_HOSTS", ""):
        return Allocation("LSF", _unique(counts.split()[::2]))
    if names := environ.get("LSB_HOSTS", ""):
        return Allocation("LSF", _unique(names.split()))
    if file := environ.get("LSB_DJOB_HOSTFILE", ""):
        return Allocation("LSF", _unique(_words_of(file, "LSB_DJOB_HOSTFILE")))
    return None


def _unique(names: list[str]) -> tuple[str, ...]:
    wrong = [name for name in names if not _NAME.fullmatch(name)]
    if wrong:
        raise UsageError(f"the scheduler's list of hosts has {wrong[0]!r}, which is not a host")
    return tuple(dict.fromkeys(names))


def _words_of(file: str, variable: str) -> list[str]:
    try:
        return files.read_text(file).split()
    except OSError as exc:
        raise UsageError(f"{variable}={file}: {exc.strerror}") from None


def expanded(nodes: str) -> list[str]:
    """The names in Slurm's list of nodes."""
    if command := shutil.which("scontrol"):
        asked = [command, "show", "hostnames", nodes]
        try:
            done = subprocess.run(
                asked, capture_output=True, text=True, timeout=_SECONDS, check=True
            )
            return done.stdout.split()
        except (OSError, subprocess.SubprocessError):
            pass
    return expanded_by_hand(nodes)


def expanded_by_hand(nodes: str) -> list[str]:
    """The same without Slurm.

    >>> expanded_by_hand("n[001-003,7],gpu2,r[1-2]c[0-1]")
    ['n001', 'n002', 'n003', 'n7', 'gpu2', 'r1c0', 'r1c1', 'r2c0', 'r2c1']
    """
    entries = re.split(r",(?![^\[]*\])", nodes.strip())  # at commas outside of brackets
    return [name for entry in entries if entry for name in _names(entry, nodes)]


def _names(entry: str, nodes: str) -> Iterator[str]:
    pieces = list(_PIECE.finditer(entry))
    if "".join(piece[0] for piece in pieces) != entry:
        raise UsageError(f"SLURM_JOB_NODELIST={nodes}: {entry!r} cannot be read")
    choices = [[piece[2]] if piece[2] else _numbers(piece[1], nodes) for piece in pieces]
    return ("".join(chosen) for chosen in itertools.product(*choices))


def _numbers(text: str, nodes: str) -> list[str]:
    """The numbers of "001-003,7", with their leading zeros."""
    found: list[str] = []
    for part in text.split(","):
        limits = _RANGE.fullmatch(part)
        if limits is None:
            raise UsageError(f"SLURM_JOB_NODELIST={nodes}: {part!r} is not a range of numbers")
        first, last = limits[1], limits[2] or limits[1]
        found += [f"{number:0{len(first)}}" for number in range(int(first), int(last) + 1)]
    return found
