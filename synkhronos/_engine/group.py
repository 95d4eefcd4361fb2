"""Starting and closing a group, running a command in it, watching for deaths."""

from __future__ import annotations

import atexit
import contextlib
import functools
import logging
import math
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

from synkhronos._backends.compile_cache import import_numba
from synkhronos._engine.commands.base import Command, WithoutMaster
from synkhronos._engine.group_options import GroupOptions, check_options, check_seconds
from synkhronos._engine.member import Member
from synkhronos._engine.reports import check_reports, note_master
from synkhronos._engine.startup import cancelling, follow, launched, start_members
from synkhronos._engine.transactions import Transactions
from synkhronos._engine.variables import Entry, lost_with_workers
from synkhronos._errors import (
    GroupClosed,
    GroupError,
    GroupTimeout,
    NotForked,
    StartFailed,
    WorkerDied,
)
from synkhronos._host import cores as _cores
from synkhronos._transport.channels.waiting import GroupEnded, PeerDied, PeerFailed

log = logging.getLogger("synkhronos")

LEAVE_SECONDS = 5.0  # that close() waits for another thread to leave its command

_current: Group | None = None


class Group:
    """The processes that work together: this one, the master, and its workers.

    Parameters
    ----------
    n_parallel : int, optional
        Members, the master included. Default: one per GPU where there are GPUs and the mode is
        JAX, else one per physical core that this process may use.
    devices : str or sequence, optional
        What the members compute on in mode JAX: "cpu"; "cuda", a member for each GPU; or one for
        each, as in "cuda:0,cuda:2" or ["cuda:0", "cuda:0", "cpu"], where two share a GPU. They
        count as this process sees them. Or for each member its cores (a list of their numbers).
    master_rank : int
        The master's rank; it decides which part of the rows is the master's.
    start : {"fork", "exec"}, optional
        How workers start. Default: fork where that is safe, else a fresh interpreter.
    cores : sequence of int, optional
        The cores to share out, all that this process may use unless given.
    infer : bool
        Whether reductions are inferred from graphs; False: "avg" for every output that names none.
    profile_workers : bool
        Write a cProfile of each worker, synk_worker_<rank>.prof.
    debug : bool
        Workers keep the terminal (for pdb) and print directly.
    timeout : float, optional
        Seconds that the others may keep the master waiting in a call or collective: then
        GroupTimeout names them and shows their stacks. A member that compiles has ten minutes.
    stall_warning : float, optional
        Seconds after which a warning says the same. None: no warning.
    mpi : bool, optional
        Whether the group spans all processes of an MPI launch. Default: if there is one, and no
        other such group is alive. `n_parallel` is then the number of members on each node.
    max_restarts : int
        How often, in the group's life, workers are started anew after one has died. They get
        functions and shared variables from the master, and the call is made again, unless
        something was lost with the worker: then WorkerDied says what, and the group goes on.

    Attributes
    ----------
    devices : tuple of Device
        What each member computes on.
    lock : threading.RLock
        Held from the making of a command to its end: one thread at a time.
    restarts : int
        How often the workers have been restarted.

    Raises
    ------
    InputError
        Sizes, ranks or devices that cannot be.
    BackendMissing
        GPUs were asked for, and JAX has no plugin for them.
    GroupError
        JAX runs on another device than the master's in this process.

    Notes
    -----
    Cost: a fork of 2 workers takes some tens of milliseconds, by exec about a second, since each
    imports PyTensor; a restart as much, and the shipping of what is used again.

    Examples
    --------
    >>> import synkhronos as synk
    >>> with synk.Group(2) as group:
    ...     group.size
    2
    """

    _ended = "has not been started"

    def __init__(
        self,
        n_parallel: int | None = None,
        devices: Any = None,
        master_rank: int = 0,
        *,
        start: str | None = None,
        cores: Any = None,
        infer: bool = True,
        profile_workers: bool = False,
        debug: bool = False,
        timeout: float | None = None,
        stall_warning: float | None = 60.0,
        max_restarts: int = 0,
        mpi: bool | None = None,
    ) -> None:
        self._options = GroupOptions.of(
            *(n_parallel, devices, cores),
            master=master_rank,
            start=start,
            profile=profile_workers,
            debug=debug,
            timeout=timeout,
            stall_warning=stall_warning,
            max_restarts=max_restarts,
            launch=launched(mpi),
        )
        follow(self._options)
        self.devices, self.cores = self._options.devices, self._options.cores
        self.size = len(self.devices)
        self.rank = self.master = master_rank
        self.infer = infer
        self._owner = os.getpid()
        self.lock = threading.RLock()
        self._running = False
        self._task: Task | None = None
        self._ending = threading.Lock()  # taken by whoever ends the group, for good
        self._turning = threading.RLock()  # held while workers are ended or restarted
        self._left = False  # the workers have ended, the rest waits for a command to leave
        self.restarts = 0
        self._first_death = ""
        self.functions: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
        self.forgotten: list[int] = []
        self._next_number = 0
        import_numba()
        self.master_cores = self._options.master_cores()
        try:
            with contextlib.ExitStack() as undo:
                with cancelling(self._options):
                    undo.callback(self._options.bind())
                    self.arena = self._options.arena()
                    undo.callback(self.arena.close_fd)
                self._open()
                self._undo = undo.pop_all()
        except OSError as exc:
            raise StartFailed.of(self.size, exc) from exc
        if self.size > 1:
            _cores.keep_freed_memory()
        self._ended = ""
        _groups.add(self)

    def __del__(self) -> None:
        """A group that nobody can use any more ends."""
        self.close()

    def _open(self) -> None:
        """Start the members."""
        self._channel, self.member = start_members(self._options, self.arena, self.master_cores)
        self.size, self.devices = self.member.size, self._options.devices
        self._transactions = Transactions(self.member, self._channel, _tell_other_groups)
        self.wake: Callable[[], None] = self._channel.wake
        self._interrupts = self._channel.interrupts

    def __enter__(self) -> Group:
        global _current
        self._outer = _current
        _current = self
        return self

    def __exit__(self, *exc: object) -> None:
        global _current
        _current = self._outer
        self.close()

    @contextlib.contextmanager
    def active(self) -> Iterator[Group]:
        """Make this the group that module functions act on, for a while.

        >>> import synkhronos as synk
        >>> a, b = synk.Group(1), synk.Group(1)
        >>> with a.active():
        ...     d = synk.data([1.0, 2.0])
        >>> a.close(); b.close()
        """
        global _current
        outer, _current = _current, self
        try:
            yield self
        finally:
            _current = outer

    def __repr__(self) -> str:
        how, state = self._channel.started, self._ended or "alive"
        return f"<synkhronos.Group of {self.size}, master rank {self.master}, {how}, {state}>"

    @property
    def alive(self) -> bool:
        """Whether the group takes orders."""
        return not self._ended

    def number(self) -> int:
        """A fresh number for a function."""
        self._next_number += 1
        return self._next_number

    def check(self, what: str) -> None:
        """Raise unless the group takes orders from this process."""
        if not self._ended:
            return
        if self._owner == os.getpid():
            raise GroupClosed(
                f"{what}: the group {self._ended}. Call synk.fork() to start another, and make "
                "functions and Data anew"
            )
        raise GroupClosed(
            f"{what}: this process (pid {os.getpid()}) is a fork of the group's master "
            f"(pid {self._owner}) and cannot use the group; synk.fork() starts one of its own"
        )

    def run(
        self,
        command: Command,
        what: str = "a command",
        then: Callable[[Any], Any] | None = None,
        master_input: Any = None,
        timeout: float | None = None,
    ) -> Any:
        """Run a command in all members; all of what it changes stands, or nothing.

        >>> import synkhronos as synk
        >>> from synkhronos.testing.faults import Fault
        >>> with synk.Group(2) as group:
        ...     group.run(Fault("KeyError", ranks=()))  # a barrier, and nothing bad
        0

        Parameters
        ----------
        command : Command
        what : str
            How error messages name it.
        then : callable, optional
            Makes the result of the command's answer; if it raises, nothing stands.
        master_input : object, optional
            What the master's part of the command finds as `member.master_input`.
        timeout : float, optional
            Another limit than the group's, in seconds.

        Returns
        -------
        object
            The command's answer, or what `then` made of it.

        Raises
        ------
        WorkerError
            A member raised. All values are as before and the group goes on.
        WorkerDied
            A member is gone. The group has been closed, or its workers have been restarted.
        GroupTimeout
            Members have not answered in time. All values are as before.
        GroupClosed, GroupError
        """
        with self.lock:
            if self._ended or self._running or self._task is not None:
                self.check_idle(what)
            self._running = True
            try:
                if timeout is None:
                    return self._run(command, what, then, master_input)
                with self.limited(timeout):
                    return self._run(command, what, then, master_input)
            finally:
                self._running = False
                self.member.master_input = None
                if self._transactions.undecided or self._left:
                    self._leave()

    def turn(self, timeout: float | None) -> AbstractContextManager[Any]:
        """A context in which only this thread runs commands, each within `timeout` seconds.

        None: the group's own limit.
        """
        return self.lock if timeout is None else self.limited(timeout)

    @contextlib.contextmanager
    def limited(self, timeout: float) -> Iterator[None]:
        """Another limit than the group's for all that this thread runs inside."""
        check_seconds("timeout", timeout)
        with self.lock, self._channel.inspector.limited(timeout):
            yield

    def check_idle(self, what: str) -> None:
        """Raise unless the group takes a command from this thread now."""
        self.check(what)
        if self._running:
            raise GroupError(f"{what}: the group is busy with another command of this thread")
        if self._task is not None:
            raise GroupError(f"{what}: the group is busy with {self._task.what}: wait() for it")

    def _run(
        self, command: Command, what: str, then: Callable[[Any], Any] | None, master_input: Any
    ) -> Any:
        member, transactions = self.member, self._transactions
        try:
            if transactions.undecided:
                transactions.settle()
            member.master_input = master_input
            own, reports = transactions.run(command, what)
            if reports:
                check_reports(reports, what, self._channel)
            answer = command.answer(member, own, reports)
            if then is not None:
                answer = then(answer)
            if command.pure:
                transactions.undecided = False
            else:
                transactions.commit()
        except BaseException as exc:
            self._recover(exc, what)
            raise
        return answer

    def _leave(self) -> None:
        """Do what has been put off until the command was left."""
        if self._transactions.undecided:
            self._transactions.settle()
        if self._left:
            self._finish()

    def _recover(self, exc: BaseException, what: str) -> None:
        """After a failure: undo everywhere; raise what is to be raised in place of `exc`."""
        # a member that stands still in the middle of that would go on with it at any time
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
            if why := self._channel.broken:
                self._lose(found, why)
            elif writes:
                self._lose(found, "a member stood still while values were written")

    def _explain(self, exc: BaseException, what: str) -> None:
        """Raise what the master's `exc` was caused by elsewhere, or say where it comes from."""
        kind = type(exc)  # isinstance would ask the exception, which may be anyone's
        if issubclass(kind, PeerDied | GroupEnded):
            raise self._channel.loss(what) from None
        if issubclass(kind, PeerFailed):
            reports = self._channel.collect(self._channel.number)
            check_reports(reports, what, self._channel)
            raise GroupError(f"{what}: the members lost each other") from None
        note_master(exc, self.rank, self.devices[self.rank], what)

    def _lose(self, found: BaseException, why: str) -> None:
        """Members are gone: start the workers anew if that is left to do, else end the group."""
        died = found if isinstance(found, WorkerDied) else None
        self._first_death = self._first_death or str(died or "")
        lost, most = lost_with_workers(self.member.variables), self._options.max_restarts
        while not self._ended and self.restarts < most:
            self.restarts += 1
            log.warning("%s: restart %d of %d begins. %s", why, self.restarts, most, died or "")
            if self._restarted():
                if died is not None:
                    died.restarted(lost)
                return
        self._shut(f"was closed since {why}")
        if died is not None:
            died.closed(self.restarts, self._first_death)
        else:
            found.add_note(f"synkhronos: the group could not go on, and was closed, since {why}")

    def _restarted(self) -> bool:
        """Replace all workers; whether they have started."""
        with self._turning, self._interrupts:
            if self._transactions.undecided:
                self._transactions.settle()
            replicas = self.member.replicas
            self._channel.quit(0.0)
            self._channel.close()
            self.member.release()
            try:
                self._open()
            except (OSError, GroupError, WorkerDied) as exc:
                log.warning("restart %d has failed: %s", self.restarts, exc)
                return False
            self.member.replicas = replicas
            for function in list(self.functions.values()):
                function.restart()
            if self._ended:  # close() has come meanwhile, and has ended the workers before these
                self._channel.quit(0.0)
            return True

    def start(self, command: Command, what: str = "a long command") -> Task:
        """Let the workers run a command while the master goes on.

        >>> import synkhronos as synk
        >>> from synkhronos.testing.faults import Fault
        >>> with synk.Group(2) as group:
        ...     group.start(Fault("nap", meet=False)).wait()  # what each worker has returned
        {1: 1}

        Parameters
        ----------
        command : Command
            It should count with `member.progress(n)` and return once `member.stopping` is true.
            Its members may meet in collectives that name them (``members=``), without the master.
            Any other collective raises GroupError in the member, and on several nodes each does.

        Returns
        -------
        Task
            With `progress()`, `stop()` and `wait()`. Until `wait` has returned, the group takes no
            other command. In a group of one the command runs inside `wait`.
        """
        with self.lock:
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

    def await_task(self, task: Task) -> dict[int, Any]:
        """Wait for what a task's workers report; it stands, or is undone."""
        with self.lock:
            self.check(task.what)
            if self._task is not task or self._running:
                raise GroupError(f"{task.what}: it has been waited for already")
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
                with self._channel.inspector.limited(math.inf):
                    reports = self._channel.collect(task.number)
            check_reports(reports, task.what, self._channel)
            self._transactions.commit()
        except BaseException as exc:
            self._recover(exc, task.what)
            raise
        return reports

    def close(self) -> None:
        """End the group; safe to call again, anywhere, at any time.

        A command that runs meanwhile, in another thread or below a signal handler, raises
        GroupClosed. Data and results stay readable, and every shared variable keeps its value.
        """
        if not self._ended:
            self._shut("has been closed")

    def _shut(self, how: str) -> None:
        """End the workers at once, and all else as soon as no command runs."""
        if not self._ending.acquire(blocking=False):
            return
        with self._interrupts:
            self._ended = how
            try:
                with self._turning:
                    self._channel.quit(self._options.grace)
            finally:
                self._left = True
                if self.lock.acquire(timeout=LEAVE_SECONDS):
                    try:
                        if not self._running:
                            self._finish()
                    finally:
                        self.lock.release()

    def _finish(self) -> None:
        """Close the descriptors, and leave the user's variables and settings to the user."""
        with self._interrupts:
            self._left = False
            try:
                self._channel.close()
            finally:
                self._undo.close()
                self.member.release()
                if self.master_cores is not None:
                    self.master_cores.release()
                if self.size > 1:
                    _cores.give_freed_memory_back()
                _groups.discard(self)


class Task:
    """A command under way; made by `Group.start`."""

    def __init__(self, group: Group, command: Command, number: int, what: str) -> None:
        self._group = group
        self.command = command
        self.number = number
        self.what = what

    def progress(self) -> list[int]:
        """What each worker has counted so far, in the order of ranks."""
        counts = self._group._channel.progress(self.number)
        return [n for rank, n in enumerate(counts) if rank != self._group.rank]

    def stop(self) -> None:
        """Ask the workers to return."""
        self._group._channel.stop(self.number)

    def wait(self) -> dict[int, Any]:
        """Wait for the workers: {rank: outcome}. Ctrl-C stops them, and undoes what they changed.

        Raises
        ------
        WorkerError, WorkerDied, GroupClosed
        GroupError
            It has been waited for already.
        """
        return self._group.await_task(self)


_groups: weakref.WeakSet[Group] = weakref.WeakSet()


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
    """In a fork of the master: its groups are not this process's to use or to end."""
    for group in list(_groups):
        group._ended = "belongs to another process"
        _groups.discard(group)


os.register_at_fork(after_in_child=_disown_groups)


@atexit.register
def _close_all() -> None:
    for group in list(_groups):
        group.close()


def current(what: str = "this") -> Group:
    """The group that module functions act on."""
    if _current is None or not _current.alive:
        if _current is not None and _current._owner != os.getpid():
            _current.check(what)
        raise NotForked(what)
    return _current


def fork(
    n_parallel: int | None = None,
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

    Parameters
    ----------
    n_parallel, devices, master_rank, profile_workers, **options
        As for `Group`.
    use_gpu, max_n_var, max_dim
        Accepted as in 2017; there are no such limits now, and the mode decides about GPUs.

    Returns
    -------
    int
        The number of members.

    Raises
    ------
    GroupError
        A group is alive already.

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
    if _current is not None and _current.alive:
        raise GroupError(
            f"{_current!r} is alive already: call synk.close() first, or make a second with "
            "synk.Group"
        )
    _current = Group(n_parallel, devices, master_rank, profile_workers=profile_workers, **options)
    return _current.size


def close() -> None:
    """End the group of `fork`; without one, do nothing.

    >>> import synkhronos as synk
    >>> synk.close()
    """
    global _current
    if _current is not None:
        _current.close()
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
