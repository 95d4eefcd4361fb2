"""Starting and closing a group, running a command in it, watching for deaths."""

from __future__ import annotations

import atexit
import contextlib
import functools
import inspect
import itertools
import logging
import math
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from synkhronos._backends.compile_cache import import_numba
from synkhronos._checks import check_options, check_seconds, options_checked
from synkhronos._engine.commands.base import Command, WithoutMaster, clock
from synkhronos._engine.commands.tracing import traced
from synkhronos._engine.exit_codes import tell_launcher
from synkhronos._engine.fork_safe_lock import ForkSafeLock
from synkhronos._engine.group_options import (
    GroupOptions,
    followed,
    given_options,
    listed,
    the_members,
)
from synkhronos._engine.member import Member
from synkhronos._engine.process_bound import ProcessBound
from synkhronos._engine.progress import stop_telling
from synkhronos._engine.reports import check_reports, note_master
from synkhronos._engine.startup import cancelling, described, follow, launched, start_members
from synkhronos._engine.trace import Trace, check_path
from synkhronos._engine.transactions import Transactions
from synkhronos._engine.variables import Entry, lost_with_workers
from synkhronos._errors import (
    GroupClosed,
    GroupError,
    GroupTimeout,
    InputError,
    NotForked,
    StartFailed,
    WorkerDied,
)
from synkhronos._host import cores as _cores
from synkhronos._host.first_process import end_by_signals
from synkhronos._host.launch_settings import LaunchSettings, launch_settings
from synkhronos._host.system import trouble
from synkhronos._transport.channels.channel import Failure, Left
from synkhronos._transport.channels.one_node import await_killed
from synkhronos._transport.processes.child_process import END_SECONDS
from synkhronos._transport.words.status import Status
from synkhronos._transport.words.waiting import GroupEnded, PeerDied, PeerFailed
from synkhronos._transport.words.worker_output import logged, write_by_the_line

log = logging.getLogger("synkhronos")

_BUSY = (
    "the group is busy with another command of this thread; a signal handler or a finalizer cannot "
    "make a call meanwhile"
)

# After a death, for killed workers to be gone before it is raised. The end of a process takes about
# 10 ms of a core, so those of a large group end later.
PATIENCE_SECONDS, FEW = 0.1, 8
LEAVE_SECONDS = 5.0  # that close() waits for another thread to leave its command

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
    _ended = "has not been started"
    _traced: AbstractContextManager[Trace] | None = None  # for the whole life

    @options_checked
    def __init__(
        self,
        members: int | None = None,
        devices: Any = None,
        master_rank: int = 0,
        *,
        start: str | None = None,
        cores: Any = None,
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
        self._options = GroupOptions.of(
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
        follow(self._options)
        self.devices, self.cores = self._options.devices, self._options.cores
        self.size = len(self.devices)
        self.rank = self.master = master_rank
        self.infer, self.vectorised = infer, vectorised
        self._forked_with: dict[str, Any] | None = None  # the user's options, if made by `fork`
        self._owner = os.getpid()
        self.lock = threading.RLock()
        # as threading.Condition asks a lock; it is the mark of a turn, and cannot be left behind
        self._has_turn: Callable[[], bool] = self.lock._is_owned  # type: ignore[attr-defined]
        self._running = False
        self._task: Task | None = None
        self._ending = threading.Lock()  # acquired once, by the caller that ends the group
        self._turning = threading.RLock()  # held while workers are ended or restarted
        self._left = False  # the workers have ended; resources are freed when the command returns
        self.restarts = 0
        self._first_death = ""
        self.functions: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
        self.forgotten: list[int] = []
        self._numbers = itertools.count(1)  # one call of C, which no handler interrupts
        import_numba()
        self.master_cores = self._options.master_cores()
        try:
            with contextlib.ExitStack() as undo:
                if settings.log_dir:
                    undo.enter_context(logged(Path(settings.log_dir)))
                undo.callback(end_by_signals())
                with cancelling(self._options):
                    undo.callback(self._options.bind())
                    self.arena = self._options.arena()
                    undo.callback(self.arena.close_fd)
                self._open()
                self._undo = undo.pop_all()
        except StartFailed:
            raise
        except OSError as exc:
            raise StartFailed.of(self.size, exc) from exc
        except MemoryError as exc:
            if isinstance(exc.__cause__, OSError):  # no descriptor to look at the free memory
                raise StartFailed.of(self.size, exc.__cause__) from exc
            raise
        if self.size > 1:
            _cores.keep_freed_memory()
        self._ended = ""
        _groups.add(self)
        log.info("%s", described(self._options, self.channel, self.member))
        if trace is not None:
            self._traced = self.trace(trace)
            self._traced.__enter__()

    def __del__(self) -> None:
        """Close a group that is not referenced any more."""
        if not self._ended:  # at the end of the interpreter, little else works
            self.close()

    def _open(self) -> None:
        """Start the members."""
        self.channel, self.member = start_members(self._options, self.arena, self.master_cores)
        self.size, self.devices = self.member.size, self._options.devices
        self._transactions = Transactions(self.member, self.channel, _tell_other_groups)
        self.wake: Callable[[], None] = self.channel.wake
        self._interrupts = self.channel.interrupts

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
        how, state = self.channel.started, self._ended or "alive"
        return f"<synkhronos.Group of {self.size}, master rank {self.master}, {how}, {state}>"

    @property
    def alive(self) -> bool:
        """Whether the group accepts commands."""
        return not self._ended

    def _kept_by_fork(self, asked: dict[str, Any]) -> int:
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

    def number(self) -> int:
        """A new number for a function."""
        return next(self._numbers)

    def check(self, what: str) -> None:
        """Raise unless the group accepts commands from this process."""
        if not self._ended:
            return
        if self._owner == os.getpid():
            raise GroupClosed(
                f"{what}: the group {self._ended}. Call synk.fork() to start another, and make the "
                "functions and Data again"
            )
        raise GroupClosed(
            f"{what}: this process (pid {os.getpid()}) is a fork of the group's master "
            f"(pid {self._owner}) and cannot use the group; synk.fork() starts another one here"
        )

    def run(
        self,
        command: Command,
        what: str = "a command",
        then: Callable[[Any], Any] | None = None,
        master_input: Any = None,
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
        with self.turn(what, timeout):
            return self.run_in_turn(command, what, then, master_input)

    def run_in_turn(
        self,
        command: Command,
        what: str,
        then: Callable[[Any], Any] | None = None,
        master_input: Any = None,
    ) -> Any:
        """As `run`, inside of a `turn`."""
        transactions = self._transactions
        if self._ended or self._running or self._task is not None:
            self.check_idle(what)
        self._running = True
        spans = self.member.spans
        began = 0.0 if spans is None else clock()
        try:
            if transactions.undecided:
                transactions.settle()
            self.member.master_input = master_input
            own, reports = transactions.run(command, what)
            for outcome in reports.values():
                if type(outcome) is Failure or type(outcome) is Left:
                    check_reports(reports, what, self.channel)  # raises
            answer = command.answer(self.member, own, reports)
            if then is not None:
                answer = then(answer)
            if command.pure:
                transactions.undecided = False
            else:
                transactions.commit()
            return answer
        except BaseException as exc:
            self._recover(exc, what)
            raise
        finally:
            if spans is not None:
                spans.add_command(began, clock(), what)
            self._running = False
            self.member.master_input = None
            if self._transactions.undecided or self._left:  # a restart has made others
                self._leave()

    def turn(self, what: str, timeout: float | None = None) -> AbstractContextManager[Any]:
        """A context in which this thread, and nobody else, makes and runs commands.

        Parameters
        ----------
        what : str
            How error messages name the caller.
        timeout : float, optional
            A limit for the commands instead of the group's, in seconds.

        Raises
        ------
        GroupError
            This thread has a turn already: a signal handler or a finalizer, which has interrupted
            it, would overwrite arrays and rows of the call that is being made.
        """
        if self._has_turn():
            self.check(what)
            raise GroupError(f"{what}: {_BUSY}")
        return self.lock if timeout is None else self._limited(timeout)

    @contextlib.contextmanager
    def _limited(self, timeout: float) -> Iterator[None]:
        check_seconds("timeout", timeout)
        with self.lock, self.channel.inspector.limited(timeout):
            yield

    def run_alone(self, compute: Callable[[], Any], what: str) -> Any:
        """Run in a group of one, inside of a turn, what changes nothing: without a transaction."""
        if self._ended or self._running or self._task is not None:
            self.check_idle(what)
        self._running = True
        try:
            if self._transactions.undecided:
                self._transactions.settle()
            if self.member.spans is None:  # a context would cost half as much as a tiny call
                return compute()
            with self.span(what):
                return compute()
        except BaseException as exc:
            note_master(exc, self.rank, self.devices[self.rank], what)
            raise
        finally:
            self._running = False
            if self._left:
                self._leave()

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
        return traced(self, path, spans)

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
        spans = self.member.spans
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
        Status(self.arena).note(text)

    def check_idle(self, what: str) -> None:
        """Raise unless the group accepts a command from this thread now."""
        self.check(what)
        if self._running:
            raise GroupError(f"{what}: {_BUSY}")
        if self._task is not None:
            raise GroupError(f"{what}: the group is busy with {self._task.what}: wait() for it")

    def _leave(self) -> None:
        """Do what had to wait for the end of the command."""
        if self._transactions.undecided:
            self._transactions.settle()
        if self._left:
            self._finish()

    def _recover(self, exc: BaseException, what: str) -> None:
        """After a failure: undo the command in all members, and raise the error to show.

        That is `exc` itself if this returns.
        """
        # a member that stalls while it writes in place would continue to write later
        writes = issubclass(type(exc), GroupTimeout) and bool(self.member.in_place)
        found = exc
        try:
            if self._transactions.undecided:
                self._transactions.settle()
            self._explain(exc, what)
        except BaseException as explained:
            found = explained
            raise
        finally:
            self._interrupts.release()
            if why := self.channel.broken:
                self._lose(found, why)
            elif writes:
                self._lose(found, "a member stalled while values were written in place")
            elif isinstance(found, GroupTimeout) and not self._ended:
                found.goes_on()

    def _explain(self, exc: BaseException, what: str) -> None:
        """Raise the error of another member that caused `exc`; else note the rank on `exc`."""
        kind = type(exc)  # isinstance would call methods of the exception, which may raise
        if issubclass(kind, PeerDied | GroupEnded):
            raise self.channel.loss(what) from None
        if issubclass(kind, PeerFailed):
            reports = self.channel.collect(self.channel.number)
            check_reports(reports, what, self.channel)
            raise GroupError(f"{what}: the members lost touch with each other") from None
        note_master(exc, self.rank, self.devices[self.rank], what)

    def _lose(self, found: BaseException, why: str) -> None:
        """Members are lost: restart the workers if restarts are left, else end the group."""
        died = found if isinstance(found, WorkerDied) else None
        self._first_death = self._first_death or str(died or "")
        lost, most = lost_with_workers(self.member.variables), self._options.max_restarts
        lost += self.member.apart.values()
        while not self._ended and self.restarts < most:
            self.restarts += 1
            log.warning("%s: restart %d of %d begins. %s", why, self.restarts, most, died or "")
            if self._restarted():
                if died is not None:
                    died.restarted(lost)
                return
        patience = PATIENCE_SECONDS if self.size <= FEW else 0.0
        self._shut(f"was closed since {why}", self._options.grace_after_loss, patience)
        if died is not None:
            died.closed(self.restarts, self._first_death)
        else:
            found.add_note(f"synkhronos: the group could not continue, and was closed, since {why}")

    def _restarted(self) -> bool:
        """Replace all workers; returns whether they have started."""
        stop_telling()  # its thread would keep the workers from being forked
        with self._turning, self._interrupts:
            if self._transactions.undecided:
                self._transactions.settle()
            replicas = self.member.replicas
            self.channel.quit(0.0)
            self.channel.close()
            self.member.release()
            try:
                self._open()
            except (OSError, GroupError, WorkerDied) as exc:
                log.warning("restart %d has failed: %s", self.restarts, exc)
                return False
            self.member.replicas = replicas
            for function in list(self.functions.values()):
                function.restart()
            if self._ended:  # close() was called meanwhile, and has ended the old workers only
                self.channel.quit(0.0)
            return True

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
        with self.turn(what):
            return self.start_in_turn(command, what)

    def start_in_turn(self, command: Command, what: str) -> Task:
        """As `start`, inside of a `turn`."""
        self.check_idle(what)
        try:
            if self._transactions.undecided:
                self._transactions.settle()
            number = self._transactions.post(WithoutMaster(command), what)
            self._task = Task(self, command, number, what)
            return self._task
        except BaseException as exc:
            self._task = None
            self._recover(exc, what)
            raise

    @contextlib.contextmanager
    def joined(self, task: Task) -> Iterator[None]:
        """A context in which the master takes part in a task."""
        with self.turn(task.what):
            self.check(task.what)
            if self._task is not task or self._running:
                raise GroupError(f"{task.what}: it has ended, or the group is busy with it already")
            self._running = True
            try:
                yield
            except GroupEnded:
                raise self.channel.loss(task.what) from None
            finally:
                self._running = False
                if self._left:
                    self._leave()

    def end_task(self, task: Task, least: int = 1) -> dict[int, Any]:
        """End a task of which each worker has reported or died; returns the reports.

        After a death the workers are restarted, or the group is closed.

        Raises
        ------
        WorkerError
            A worker raised.
        WorkerDied
            Fewer than `least` members are left.
        """
        with self.turn(task.what):
            self._running = True
            late = self.channel.late(task.number)
            try:
                if not late:
                    self.channel.collect(task.number)
                reports = self.channel.reports(task.number)
                self._transactions.commit()
                died = self.channel.loss(task.what) if late else None
            finally:
                self._running, self._task = False, None
            if died is not None:
                self._lose(died, self.channel.broken)
                if self.size - len(late) < least:
                    raise died
            check_reports(reports, task.what, self.channel)
            return reports

    def await_task(self, task: Task) -> dict[int, Any]:
        """Wait for the reports of a task's workers; its changes are kept, or undone."""
        with self.turn(task.what):
            return self.await_in_turn(task)

    def await_in_turn(self, task: Task) -> dict[int, Any]:
        """As `await_task`, inside of a `turn`."""
        self.check(task.what)
        if self._task is not task or self._running:
            raise GroupError(f"{task.what}: wait() has been called already")
        self._running = True
        try:
            return self._finish_task(task)
        finally:
            self._running = False
            self._task = None
            if self._transactions.undecided or self._left:
                self._leave()

    def _finish_task(self, task: Task) -> dict[int, Any]:
        try:
            if self.size == 1:
                reports = {self.rank: task.command.run(self.member)}
            else:
                with self.channel.inspector.limited(math.inf):
                    reports = self.channel.collect(task.number)
            check_reports(reports, task.what, self.channel)
            self._transactions.commit()
        except BaseException as exc:
            self._recover(exc, task.what)
            raise
        return reports

    def close(self) -> None:
        """End the group. This may be called at any time, by any thread, and repeatedly.

        A command that is running, in another thread or under a signal handler, raises GroupClosed.
        Data and results stay readable, and every shared variable keeps its value.
        """
        if self._ended:
            await_killed()
            return
        traced, self._traced = self._traced, None
        if traced is not None and not self._running and self._task is None:
            try:
                with self.channel.inspector.limited(LEAVE_SECONDS):
                    traced.__exit__(None, None, None)
            except Exception as exc:
                log.warning("the trace was not written: %s: %s", type(exc).__name__, exc)
        self._shut("has been closed", self._options.grace)

    def _shut(self, how: str, grace: float, patience: float = END_SECONDS) -> None:
        """End the workers within `grace` seconds, and free the rest as soon as no command runs."""
        if not self._ending.acquire(blocking=False):
            return
        with self._interrupts:
            self._ended = how
            try:
                with self._turning:
                    self.channel.quit(grace, patience)
            finally:
                self._left = True
                if self.lock.acquire(timeout=LEAVE_SECONDS):
                    try:
                        if not self._running:
                            self._finish()
                    finally:
                        self.lock.release()

    def _finish(self) -> None:
        """Close the descriptors, and restore the user's variables and settings."""
        with self._interrupts:
            self._left = False
            try:
                self.channel.close()
            finally:
                self._undo.close()
                self.member.release()
                if self.master_cores is not None:
                    self.master_cores.release()
                if self.size > 1:
                    _cores.give_freed_memory_back()
                _groups.discard(self)


class Task:
    """A command that the workers run; made by `Group.start`."""

    def __init__(self, group: Group, command: Command, number: int, what: str) -> None:
        self._group = group
        self.command = command
        self.number = number
        self.what = what

    def progress(self) -> list[int]:
        """The latest count of each worker, in the order of ranks."""
        counts = self._group.channel.progress(self.number)
        return [n for rank, n in enumerate(counts) if rank != self._group.rank]

    @property
    def done(self) -> bool:
        """Whether all workers have reported."""
        return not self._group.channel.late(self.number)

    def stop(self) -> None:
        """Ask the workers to return."""
        self._group.channel.stop(self.number)

    def wait(self) -> dict[int, Any]:
        """Wait for the workers; returns {rank: outcome}. Ctrl-C stops them and undoes the command.

        Raises
        ------
        WorkerError, WorkerDied, GroupClosed
        GroupError
            `wait` has been called already.
        """
        return self._group.await_task(self)


_groups: weakref.WeakSet[Group] = weakref.WeakSet()


def _settings() -> LaunchSettings:
    """Settings of a new group; a second one beside a living one is the script's own matter."""
    if any(group.alive for group in list(_groups)):
        return LaunchSettings()
    return launch_settings()


def _tell_other_groups(member: Member, changed: list[Entry]) -> None:
    """Let the other groups send the values again that one group has changed, maybe in place."""
    if len(_groups) < 2:
        return
    changed += [e for e in member.variables if e.view is not None]
    variables = [v for e in changed if (v := e.ref()) is not None]
    for group in _groups:
        for variable in variables if group.member is not member else ():
            theirs = group.member.variables.find(variable)
            if theirs is not None:
                theirs.seen = None


def _disown_groups() -> None:
    """In a fork of the master: this process must neither use nor end the master's groups."""
    for group in list(_groups):
        group._ended = "belongs to another process"
        _groups.discard(group)


def _copy_in_operations() -> None:
    """Before a fork of the master inside of an operation: the fork must not write what it shares.

    It may return from the operation, and compute the rest of the call once more.
    """
    for group in list(_groups):
        group.arena.copied_in_forks = group._running


os.register_at_fork(before=_copy_in_operations, after_in_child=_disown_groups)


@atexit.register
def _close_all() -> None:
    for group in list(_groups):
        group.close()


def _found() -> Group | None:
    own = _own.get()
    if own is not None or (_current is not None and _current.alive):
        return own or _current
    return _entered[-1] if _entered else _current


def current(what: str = "this") -> Group:
    """The group that module functions act on in this thread."""
    group = _found()
    if group is None or not group.alive:
        if group is not None and group._owner != os.getpid():
            group.check(what)
        raise NotForked(what)
    return group


def current_or_none() -> Group | None:
    """The group that module functions act on in this thread; None if none is open."""
    group = _found()
    return group if group is not None and group.alive else None


@contextlib.contextmanager
def current_or_temporary(what: str, members: int | None, devices: Any = None) -> Iterator[Group]:
    """The current group; or one of this thread only, for the time of this context.

    Threads take turns.

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
    devices: Any = None,
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


def retried[**P, R](call: Callable[P, R]) -> Callable[P, R]:
    """Decorate what is called again after a restart of the workers in which nothing was lost."""

    @functools.wraps(call)
    def again(*args: P.args, **kwargs: P.kwargs) -> R:
        while True:
            try:
                return call(*args, **kwargs)
            except WorkerDied as exc:
                if not exc.again:
                    raise

    return again
