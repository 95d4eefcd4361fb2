"""The plan of a launch: its hosts, its command line and its environment, before anything starts."""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from synkhronos._errors import StartFailed
from synkhronos._host import files
from synkhronos._host.launch_settings import LaunchSettings, without_settings
from synkhronos._host.secrets import HIDDEN, is_telling, words_without_secrets
from synkhronos.cli import _mpi_launcher
from synkhronos.cli._run.hosts import Host, allocation, listed_hosts, named_hosts
from synkhronos.cli._run.launchers import SENT, Mpi, library_beside, srun_line, under_a_launcher
from synkhronos.cli._run.reach import AGENTS
from synkhronos.cli._run.usage import UsageError, words_of

_LOCAL = ("localhost", "127.0.0.1")
_EVERYWHERE = ("-m", "synkhronos.pymc._everywhere.script")


@dataclass(frozen=True)
class Machine:
    """The properties of this machine that decide a plan."""

    name: str
    python: tuple[str, ...]  # the interpreter, with its options
    root: bool  # whether the user is root
    find_mpi: Callable[[], Mpi | None]  # returns the launcher of MPI; None if there is none

    @staticmethod
    def here() -> Machine:
        """This machine, this interpreter and this user."""
        flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
        return Machine(os.uname().nodename, (sys.executable, *flags), os.geteuid() == 0, _find_mpi)

    def is_here(self, host: str) -> bool:
        """Whether a host is this machine."""
        return host in _LOCAL or host.partition(".")[0] == self.name.partition(".")[0]


def _find_mpi() -> Mpi | None:
    command = _mpi_launcher.launcher()
    return None if command is None else Mpi(command, _mpi_launcher.version_of(command))


@dataclass(frozen=True)
class Plan:
    """A launch."""

    launcher: str  # "fork", "mpirun" or "srun"
    words: tuple[str, ...]  # the command line
    # the environment, without `variables` and `settings`
    base: Mapping[str, str] = field(repr=False)
    variables: Mapping[str, str]  # what the user has asked to set, and what the launch needs
    settings: LaunchSettings  # for the script
    # variables whose values are not shown: the user has not typed them, or the name is telling
    hidden: frozenset[str] = frozenset()
    remote: tuple[str, ...] = ()  # hosts to try by ssh first
    shown: frozenset[int] | None = None  # the ranks whose output is shown; None: all
    max_restarts: int = 0
    start_timeout: float = 0.0

    @property
    def log_dir(self) -> Path | None:
        """The folder of the files rank-N.log."""
        return Path(self.settings.log_dir) if self.settings.log_dir else None

    @property
    def relays(self) -> bool:
        """Whether the output passes through `synk run`; else the script writes to the terminal."""
        return self.shown is not None or bool(self.settings.log_dir)

    def starting(self, start: int) -> Plan:
        """The plan of the n-th start, counted from 1: a restart goes on from a checkpoint."""
        resume = "auto" if start > 1 else self.settings.resume
        return replace(self, settings=replace(self.settings, start=start, resume=resume))

    @property
    def environment(self) -> dict[str, str]:
        """All variables."""
        return {**self.base, **self.variables, **self.settings.environment()}

    def __str__(self) -> str:
        """The line, as a shell takes it; without secrets."""
        added = {**self.variables, **self.settings.environment()}
        given = [
            f"{name}={HIDDEN if name in self.hidden else shlex.quote(value)}"
            for name, value in added.items()
        ]
        words = [w if HIDDEN in w else shlex.quote(w) for w in words_without_secrets(self.words)]
        return " ".join([*given, *words])


@dataclass(frozen=True)
class Place:
    """Where the processes of a launch run: the first `nodes` hosts, or this machine."""

    nodes: int
    hosts: tuple[Host, ...]
    scheduler: str  # that has allocated the hosts; empty if the user has named them
    all_here: bool  # whether all of them are this machine

    @staticmethod
    def of(options: argparse.Namespace, environ: Mapping[str, str], machine: Machine) -> Place:
        """As the user asks, or as a scheduler has allocated."""
        hosts, scheduler = _hosts(options, environ)
        nodes = options.nodes or len(hosts) or 1
        if hosts and nodes > len(hosts):
            whose = f"the job of {scheduler} has" if scheduler else "-H or --hostfile names"
            named = ", ".join(host.name for host in hosts)
            raise UsageError(f"--nodes {nodes}: {whose} {len(hosts)} hosts, {named}")
        hosts = hosts[:nodes]
        all_here = all(machine.is_here(host.name) for host in hosts)
        names = [host.name for host in hosts]
        if twice := [name for name in names if names.count(name) > 1 and not all_here]:
            raise UsageError(
                f"{twice[0]} is named twice: a host is one node, and {twice[0]}:4 has 4 members"
            )
        return Place(nodes, hosts, scheduler, all_here)

    @property
    def names(self) -> tuple[str, ...]:
        """The hosts for a launcher; none if all processes run on this machine."""
        return () if self.all_here else tuple(host.name for host in self.hosts)

    def members(self, asked: int | None) -> tuple[int, ...]:
        """The members of each node, or one number for all; empty: the script decides."""
        counts = [host.members for host in self.hosts]
        known = [count for count in counts if count is not None]
        if asked is not None:
            return (asked,)
        if len(known) not in (0, len(counts)):
            raise UsageError("give the members of all hosts, as in -H a:4,b:2, or of none")
        return tuple(known[:1] if len(set(known)) < 2 else known)


def _hosts(options: argparse.Namespace, environ: Mapping[str, str]) -> tuple[tuple[Host, ...], str]:
    """The hosts, and the scheduler that has allocated them."""
    if options.hosts and options.hostfile:
        raise UsageError("-H and --hostfile: give one of them")
    if options.hosts:
        return tuple(named_hosts(options.hosts)), ""
    if options.hostfile:
        try:
            text = files.read_text(options.hostfile)
        except OSError as exc:
            raise UsageError(f"--hostfile {options.hostfile}: {exc.strerror}") from None
        if not (found := listed_hosts(text, options.hostfile)):
            raise UsageError(f"--hostfile {options.hostfile}: it names no host")
        return tuple(found), ""
    if (job := allocation(environ)) is not None:
        return tuple(Host(name) for name in job.hosts), job.scheduler
    return (), ""


def plan_of(options: argparse.Namespace, environ: Mapping[str, str], machine: Machine) -> Plan:
    """Make the plan.

    Raises
    ------
    UsageError
        The options contradict each other, or the allocation.
    StartFailed
        The launcher is not installed.
    """
    if name := under_a_launcher(environ):
        raise UsageError(
            f"a launcher has started several of this process ({name}): start `synk run` once, "
            "without mpirun or srun; it starts them itself"
        )
    if options.sbatch_args:
        raise UsageError("--sbatch-args are for --array, and this launch submits no job")
    place = Place.of(options, environ, machine)
    launcher = _launcher(options.launcher, place)
    base = without_settings(environ)
    variables = exported(options.exported, base)
    settings = LaunchSettings(
        members=place.members(options.members),
        devices=options.devices or "",
        timeout=options.timeout,
        log_dir=os.path.abspath(options.log_dir) if options.log_dir else "",
        resume="auto" if options.resume else "",
        nodes=place.nodes,
        start=1,
    )
    given = words_of("--launcher-args", options.launcher_args)
    before: list[str] = []
    if launcher == "fork" and given:
        raise UsageError("--launcher-args are for mpirun and srun, and this launch needs neither")
    if launcher == "srun":
        named_by_user = () if place.scheduler else place.names
        before = srun_line(place.nodes, named_by_user, environ, given)
    elif launcher == "mpirun":
        mpi = machine.find_mpi()
        if mpi is None:
            raise StartFailed(
                "mpiexec and mpirun were not found, and several nodes need one of them: load the "
                'cluster\'s MPI, or pip install "synkhronos[mpich]"'
            )
        variables |= mpi.environment(base, library_beside(mpi.command))
        named = {*variables, *settings.environment(), *(name for name in SENT if name in base)}
        before = [*mpi.line(place.nodes, place.names, sorted(named), machine.root), *given]
    by_ssh = launcher == "mpirun" and not place.scheduler and not set(AGENTS) & base.keys()
    return Plan(
        launcher=launcher,
        words=(*before, *machine.python, *_everywhere(options), *program(options)),
        base=base,
        variables=variables,
        settings=settings,
        hidden=_hidden(options.exported),
        remote=tuple(n for n in place.names if by_ssh and not machine.is_here(n)),
        shown=options.tee,
        max_restarts=options.max_restarts,
        start_timeout=options.start_timeout,
    )


def _launcher(asked: str | None, place: Place) -> str:
    if asked == "fork" and (place.nodes > 1 or not place.all_here):
        raise UsageError(
            "--launcher fork is for one node, which is this machine; leave it out, or choose "
            "mpirun or srun"
        )
    if asked is not None:
        return asked
    if place.nodes == 1 and place.all_here:
        return "fork"
    return "srun" if place.scheduler == "Slurm" else "mpirun"


def exported(given: Sequence[str], environ: Mapping[str, str]) -> dict[str, str]:
    """The variables of the options -x.

    Raises
    ------
    UsageError
        One has no name, or no value here.
    """
    found = {}
    for entry in given:
        name, equals, value = entry.partition("=")
        if not name:
            raise UsageError(f"-x {entry}: give a name, as in -x NAME=value")
        if not equals and name not in environ:
            raise UsageError(f"-x {entry}: it is not set here; give a value, as in -x {entry}=1")
        found[name] = value if equals else environ[name]
    return found


def _hidden(given: Sequence[str]) -> frozenset[str]:
    """The variables of the options -x whose values are not shown."""
    names = [(entry.partition("=")[0], "=" in entry) for entry in given]
    return frozenset(name for name, typed in names if not typed or is_telling(name))


def _everywhere(options: argparse.Namespace) -> list[str]:
    """The module that runs the program with PyMC's functions replaced, and its option."""
    folder = options.pymc_folder
    if not options.pymc and folder is None:
        return []
    return [*_EVERYWHERE, *([] if folder is None else ["--folder", folder])]


def program(options: argparse.Namespace) -> list[str]:
    """The words behind the interpreter.

    Raises
    ------
    UsageError
        There is no such script, or none is named.
    """
    rest = options.program
    if options.module:
        return ["-m", *options.module, *rest]
    if options.code:
        if _everywhere(options):
            raise UsageError("--pymc is for a script or a module: name one instead of -c CODE")
        return ["-c", *options.code, *rest]
    if rest[:1] == ["--"]:
        rest = rest[1:]
    if not rest:
        raise UsageError("name a script, or a module with -m, or code with -c")
    if not Path(rest[0]).exists():
        raise UsageError(f"{rest[0]}: there is no such script")
    return list(rest)
