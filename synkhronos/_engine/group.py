"""The user's group, and which of several groups the functions of the package act on.

A `Group` is what users hold. All that happens in it is its runner's (`_engine.runner`); here are
its options and documents, and these rules:

* A thread's own group comes first: that of ``with group:`` or `active`. Then comes the group of
  `fork`, if it is alive. Then the one that any thread has entered last.
* A module function never starts a group by itself. Only what says so in its documents makes one
  for the time of its call, and then for one thread at a time (`temporary`).
* A restart that has lost nothing is not the user's matter: what `retried` decorates is called
  again.
"""

from __future__ import annotations

import contextlib
import inspect
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from synkhronos._checks import check_options, options_checked
from synkhronos._engine.commands.base import Command, clock
from synkhronos._engine.commands.tracing import traced
from synkhronos._engine.exit_codes import tell_launcher
from synkhronos._engine.group_options import (
    GroupOptions,
    followed,
    given_options,
    listed,
    the_members,
)
from synkhronos._engine.member import Member
from synkhronos._engine.process_bound import ProcessBound
from synkhronos._engine.runner import Runner, Task, any_alive
from synkhronos._engine.startup import described, follow, launched
from synkhronos._engine.trace import Trace, check_path
from synkhronos._errors import GroupError, InputError, NotForked, StartFailed
from synkhronos._host.arena import Arena
from synkhronos._host.launch_settings import LaunchSettings, launch_settings
from synkhronos._host.system import trouble
from synkhronos._libraries.fork_safe_lock import ForkSafeLock
from synkhronos._transport.channels.channel import Channel
from synkhronos._transport.shared_state.status import Status
from synkhronos._transport.shared_state.worker_output import write_by_the_line
from synkhronos._warnings import log

# The group of module functions: this thread's own, else that of `fork`, else the one that any
# thread has entered last.
_own: ContextVar[Group | None] = ContextVar("_own", default=None)
_current: Group | None = None
_entered: list[Group] = []

# Taken by a thread that may start a group for a time: groups of two compete for the cores.
temporary = ForkSafeLock()


class Group(ProcessBound):
    """A master, which is this process, and its workers.

    Parameters
    ----------
    members : int, optional
        How many, the master included. Default: one per GPU where there are GPUs and the mode is
        JAX, else one per physical core that this process may use.
    devices : str or sequence, optional
        What the members compute on in mode JAX: "cpu"; "cuda", a member for each GPU; or one for
        each, as in "cuda:0,cuda:2" or ["cuda:0", "cuda:0", "cpu"], where two use one GPU. GPUs
        are numbered as this process sees them. Or a list of core numbers for each member.
    master_rank : int
        The master's rank, which decides which part of the rows the master gets.
    start : {"fork", "exec"}, optional
        How workers start. Default: "fork" if that is safe, else "exec", a fresh interpreter.
    cores : sequence of int, optional
        The cores to divide among the members. Default: all that this process may use.
    infer : bool
        Whether reductions are inferred from graphs. If not, an output that names none gets "avg".
    vectorised : bool
        Whether elementary and special functions (exp, tanh, erf, gammaln and others) are computed
        by vectorised code in mode NUMBA, to 2 units in the last place. If not, by PyTensor's own.
    profile_workers : bool
        Each worker writes a profile (cProfile) to synk_worker_<rank>.prof when it ends. `close`
        waits for that, up to 10 seconds.
    debug : bool
        Workers read the terminal (for pdb) and print to it directly.
    timeout : float, optional
        Seconds that other members may keep the master waiting in a call or collective. After that
        GroupTimeout names them and shows their stacks. Compiling does not count, up to ten minutes.
    stall_warning : float, optional
        Seconds after which a warning shows the same. None: no warning.
    mpi : bool, optional
        Whether the group spans all processes of an MPI launch. Default: yes, if there is a launch
        and no other such group is alive. `members` is then the number on each node.
    max_restarts : int
        How often, until the group is closed, all workers are restarted after a death. They get
        functions and shared variables from the master, and the call is repeated. If a value was
        lost with the worker, WorkerDied names it instead, and the group continues.
    trace : path, optional
        Trace the whole life of the group, and write the latest spans to this file when it is
        closed; see `trace` for the formats.
    n_parallel : int, optional
        The name that `members` had in 2017.

    Attributes
    ----------
    size : int
        The number of members.
    rank, master : int
        The rank of the master, which is this process.
    devices : tuple of Device
        What each member computes on.
    lock : threading.RLock
        Held while a call is made and run. Another thread's call waits for it. A call of the thread
        that holds it raises GroupError.
    restarts : int
        How often the workers have been restarted so far.

    Raises
    ------
    InputError
        Impossible sizes, ranks or devices.
    BackendMissing
        The user asked for GPUs, and JAX has no plugin for them.
    GroupError
        JAX runs on another device than the master's in this process.

    Notes
    -----
    Cost: 2 workers start by fork in some tens of milliseconds, by exec in about a second, since
    each imports PyTensor. A restart costs the same; functions are sent again at their next call.

    Examples
    --------
    >>> import synkhronos as synk
    >>> with synk.Group(2) as group:
    ...     group.size
    2
    """

    _instead = "start one in the other process, by synk.fork() or synk.Group()"

    @options_checked
    def __init__(
        self,
        members: int | None = None,
        devices: object = None,
        master_rank: int = 0,
        *,
        start: str | None = None,
        cores: object = None,
        infer: bool = True,
        vectorised: bool = True,
        profile_workers: bool = False,
        debug: bool = False,
        timeout: float | None = None,
        stall_warning: float | None = 60.0,
        max_restarts: int = 0,
        mpi: bool | None = None,
        trace: str | Path | None = None,
        n_parallel: int | None = None,
    ) -> None:
        members = the_members("synk.Group", members, n_parallel)
        if why := trouble():
            raise StartFailed(f"synk.fork: {why}")
        if trace is not None:
            check_path(trace)
        launch, settings = launched(mpi), _settings()
        if settings.start:
            tell_launcher()
            write_by_the_line()
        asked = members, devices, timeout
        members, devices, timeout = followed(settings, launch, mpi is not False, *asked)
        options = GroupOptions.of(
            *(members, devices, cores),
            master=master_rank,
            start=start,
            profile=profile_workers,
            debug=debug,
            timeout=timeout,
            stall_warning=stall_warning,
            max_restarts=max_restarts,
            launch=launch,
        )
        follow(options)
        self._forked_with: dict[str, object] | None = None  # the user's options, if made by `fork`
        self.infer, self.vectorised = infer, vectorised
        self.runner = Runner(options, settings.log_dir)
        self.inventory = self.runner.inventory
        self.size, self.devices, self.cores = self.member.size, options.devices, options.cores
        self.rank = self.master = master_rank
        log.info("%s", described(options, self.channel, self.member))
        if trace is not None:
            traced = self.trace(trace)
            traced.__enter__()
            self.runner.traced = traced

    def __enter__(self) -> Group:
        self._outer = _own.get()
        _own.set(self)
        _entered.append(self)
        return self

    def __exit__(self, *exc: object) -> None:
        _own.set(self._outer)
        if self in _entered:
            _entered.remove(self)
        self.close()

    @contextlib.contextmanager
    def active(self) -> Iterator[Group]:
        """A context in which module functions of this thread act on this group.

        >>> import synkhronos as synk
        >>> a, b = synk.Group(1), synk.Group(1)
        >>> with a.active():
        ...     d = synk.data([1.0, 2.0])
        >>> a.close(); b.close()
        """
        outer = _own.get()
        _own.set(self)
        try:
            yield self
        finally:
            _own.set(outer)

    def __repr__(self) -> str:
        how, state = self.channel.started, self.runner.ended or "alive"
        return f"<synkhronos.Group of {self.size}, master rank {self.master}, {how}, {state}>"

    @property
    def alive(self) -> bool:
        """Whether the group accepts commands."""
        return not self.runner.ended

    @property
    def lock(self) -> threading.RLock:
        """Held while a call is made and run."""
        return self.runner.lock

    @property
    def restarts(self) -> int:
        """How often the workers have been restarted so far."""
        return self.runner.restarts

    @property
    def member(self) -> Member:
        """The master, as commands see it."""
        return self.runner.member

    @property
    def channel(self) -> Channel:
        """The channel to the workers."""
        return self.runner.channel

    @property
    def arena(self) -> Arena:
        """The shared memory of this node."""
        return self.runner.arena

    def _kept_by_fork(self, asked: dict[str, object]) -> int:
        """Its size, if a repeated `fork` asks for the options that it was made with."""
        made = self._forked_with
        call = f"synk.fork({listed(asked)})"
        if made == asked:
            log.warning(
                "%s: %r is alive already and is kept, with its functions and Data; "
                "synk.close() ends it",
                call,
                self,
            )
            return self.size
        maker = "synk.Group" if made is None else f"synk.fork({listed(made)})"
        raise GroupError(
            f"{call}: {self!r}, made by {maker}, is alive already: call synk.close() first, or "
            "make a second group with synk.Group"
        )

    def check(self, what: str) -> None:
        """Raise unless the group accepts commands from this process."""
        self.runner.check(what)

    def run(
        self,
        command: Command,
        what: str = "a command",
        then: Callable[[Any], object] | None = None,
        master_input: object = None,
        timeout: float | None = None,
    ) -> Any:
        """Run a command in all members; either all its changes are kept, or none.

        >>> import synkhronos as synk
        >>> from synkhronos.testing.faults import Fault
        >>> with synk.Group(2) as group:
        ...     group.run(Fault("KeyError", ranks=()))  # a barrier; no member raises
        0

        Parameters
        ----------
        command : Command
        what : str
            How error messages name the command.
        then : callable, optional
            Computes the result from the command's answer. If it raises, the command is undone.
        master_input : object, optional
            `member.master_input` in the master, while the command runs.
        timeout : float, optional
            A limit for this command instead of the group's, in seconds.

        Returns
        -------
        object
            The command's answer, or what `then` made of it.

        Raises
        ------
        WorkerError
            A member raised. All values are as before, and the group continues.
        WorkerDied
            A member died. The group has been closed, or its workers have been restarted.
        GroupTimeout
            Members have not answered in time. All values are as before.
        GroupClosed, GroupError
        """
        with self.runner.reserved(what, timeout):
            return self.runner.run(command, what, then, master_input)

    def trace(
        self, path: str | Path | None = None, spans: int = 43_000
    ) -> AbstractContextManager[Trace]:
        """A context in which all members keep what they do, and when.

        >>> import synkhronos as synk
        >>> with synk.Group(2) as group, group.trace() as trace:
        ...     with group.span("my work"):
        ...         pass
        >>> len(trace.members), trace.lost
        (2, 0)

        Parameters
        ----------
        path : path, optional
            Write the trace at the end: .json or .json.gz for viewers such as Perfetto
            (ui.perfetto.dev), .bin for `Trace.load`.
        spans : int
            Each member keeps this number of its latest spans: of 24 bytes, in its own memory.

        Returns
        -------
        Trace
            It is empty until the context ends. After a failure that ends the group it stays empty.

        Raises
        ------
        GroupError
            The group is being traced already.
        InputError
            `spans` is not a number of at least 1, or the path ends otherwise.

        Notes
        -----
        Cost: about 1 us for a span; a call has 3 in the master, a training step 9 in each member.
        On several nodes the clocks are compared at the begin and at the end, in 64 small meetings.
        Members that are restarted after a death are not traced any more.
        """
        return traced(self.runner, path, spans)

    @contextlib.contextmanager
    def span(self, name: str) -> Iterator[None]:
        """A context that a trace shows as a span of the master.

        >>> import synkhronos as synk
        >>> with synk.Group(1) as group, group.span("reading"):
        ...     rows = list(range(10))

        Parameters
        ----------
        name : str
        """
        spans = self.member.measured.spans
        if spans is None:
            yield
            return
        began = clock()
        try:
            yield
        finally:
            spans.add_named(began, clock(), name)

    def note(self, text: str) -> None:
        """Leave a short text for `synk top`, such as how far a program is.

        >>> import synkhronos as synk
        >>> with synk.Group(1) as group:
        ...     group.note("3 of 20 files")

        Parameters
        ----------
        text : str
            Up to 512 bytes of UTF-8; the rest is cut off.
        """
        Status(self.runner.arena).note(text)

    def start(self, command: Command, what: str = "a long command") -> Task:
        """Run a command in the workers while the master continues.

        >>> import synkhronos as synk
        >>> from synkhronos.testing.faults import Fault
        >>> with synk.Group(2) as group:
        ...     group.start(Fault("nap", meet=False)).wait()  # what each worker has returned
        {1: 1}

        Parameters
        ----------
        command : Command
            It should call `member.progress(n)`, and return once `member.stopping` is true. It may
            use collectives that name its members (``members=``), without the master. Any other
            collective raises GroupError in the member; on several nodes every collective does.

        Returns
        -------
        Task
            Has `progress()`, `done`, `stop()` and `wait()`. Until `wait` returns, the group accepts
            no other command. In a group of one the command runs inside `wait`.
        """
        with self.runner.reserved(what):
            return self.runner.start(command, what)

    def close(self) -> None:
        """End the group. This may be called at any time, by any thread, and repeatedly.

        A command that is running, in another thread or under a signal handler, raises GroupClosed.
        Data and results stay readable, and every shared variable keeps its value.
        """
        self.runner.close()


def _settings() -> LaunchSettings:
    """Settings of a new group; a second one beside a living one is the script's own matter."""
    return LaunchSettings() if any_alive() else launch_settings()


def _found() -> Group | None:
    own = _own.get()
    if own is not None or (_current is not None and _current.alive):
        return own or _current
    return _entered[-1] if _entered else _current


def current(what: str = "this") -> Group:
    """The group that module functions act on in this thread."""
    group = _found()
    if group is None or not group.alive:
        if group is not None and group.runner.foreign:
            group.check(what)
        raise NotForked(what)
    return group


def current_or_none() -> Group | None:
    """The group that module functions act on in this thread; None if none is open."""
    group = _found()
    return group if group is not None and group.alive else None


@contextlib.contextmanager
def current_or_temporary(what: str, members: int | None, devices: object = None) -> Iterator[Group]:
    """The current group; or one of this thread only, for the time of this context.

    Threads wait for each other.

    Raises
    ------
    InputError
        The current group has another number of members.
    """
    with temporary.held():
        group = current_or_none()
        if group is not None:
            if members not in (None, group.size):
                raise InputError(
                    f"{what}: members={members}, and the current group has {group.size}: close it "
                    "first, or leave members out"
                )
            yield group
            return
        group = Group(members, devices)
        group._forked_with = given_options(Group, members=members, devices=devices)
        try:
            with group.active():
                yield group
        finally:
            group.close()


_SHARED = "members, devices, master_rank, profile_workers, **options\n    As for `Group`.\n"


def _with_parameters_of_group[**P, R](function: Callable[P, R]) -> Callable[P, R]:
    """Write the parameters of `Group` where the docstring refers to them; ``-OO`` removes both."""
    if function.__doc__ and Group.__doc__:
        _, _, text = inspect.cleandoc(Group.__doc__).partition("Parameters\n----------\n")
        parameters, _, _ = text.partition("\n\nAttributes\n")
        own = inspect.cleandoc(function.__doc__)
        function.__doc__ = own.replace(_SHARED, f"{parameters}\n")
    return function


@_with_parameters_of_group
def fork(
    members: int | None = None,
    devices: object = None,
    master_rank: int = 0,
    *,
    use_gpu: bool | None = None,
    profile_workers: bool = False,
    max_n_var: int | None = None,
    max_dim: int | None = None,
    **options: Any,
) -> int:
    """Start the group that module functions act on, and return its size.

    A second call with the same options keeps the group that the first has started, so that a
    notebook's cell can be run again. To start another group, call `close` first.

    Parameters
    ----------
    members, devices, master_rank, profile_workers, **options
        As for `Group`.
    use_gpu, max_n_var, max_dim
        Accepted as in 2017, and ignored: there are no such limits, and the mode selects GPUs.

    Returns
    -------
    int
        The number of members.

    Raises
    ------
    GroupError
        A group with other options is alive, or one that `Group` has made.

    Notes
    -----
    Logs one line at INFO to the logger "synkhronos": members, cores and threads, mode, nodes, and
    how the workers were started.

    Examples
    --------
    >>> import synkhronos as synk
    >>> synk.fork(2)
    2
    >>> synk.close()
    """
    global _current
    del use_gpu, max_n_var, max_dim
    check_options("synk.fork", options, Group)
    options["profile_workers"] = profile_workers
    members = the_members("synk.fork", members, options.pop("n_parallel", None))
    asked = given_options(
        Group, members=members, devices=devices, master_rank=master_rank, **options
    )
    alive = current_or_none()
    if alive is not None:
        return alive._kept_by_fork(asked)
    _current = Group(members, devices, master_rank, **options)
    _current._forked_with = asked
    _own.set(None)  # a closed one
    return _current.size


def close() -> None:
    """End the group that `fork` started, if there is one.

    >>> import synkhronos as synk
    >>> synk.close()
    """
    global _current
    group = _found()
    if group is None:
        return
    group.close()
    if group is _own.get():
        _own.set(None)
    if group is _current:
        _current = None
