"""Runs the commands of a group: one at a time, each with a verdict; recovers after a failure.

The law of verdicts:

* One command at a time. The caller *reserves* the runner (its lock) while it makes a command, runs
  it and reads its result. A command that a signal handler or a finalizer of the same thread would
  run meanwhile is refused: it would overwrite the arrays of the first.
* Each command that was posted gets one verdict, which reaches all members: its changes are kept,
  or undone. A command that changes nothing (`pure`) needs none. No command is posted while another
  is undecided, so whoever finds one undecided, after any exception at any line, settles it first.
* The verdict is "kept" only after every member has reported, no report is a failure, and the
  command's answer has been made. Anything else undoes the command in all members, so an error that
  the user sees means that no value has changed.
* A command that is committed stays so. An exception after that moment does not undo it.
* Where a member is lost, or may write later, there is no verdict that all could follow. Then the
  workers are replaced, or the group ends. It never goes on with members in doubt.
* `close` may come at any moment, from any thread. It ends the workers at once, and frees the rest
  when the running command has left: memory that a command reads is never unmapped under it.

These must never happen: a wait for a member without a look at its death; an exception that leaves
`running` set; a second thread that ends or restarts workers meanwhile (`_replacing`).
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import math
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from synkhronos._checks import check_seconds
from synkhronos._compiling.compile_cache import import_numba
from synkhronos._compiling.progress import stop_telling
from synkhronos._engine.commands.base import Command, WithoutMaster, clock
from synkhronos._engine.group_options import GroupOptions
from synkhronos._engine.member import Member
from synkhronos._engine.reports import check_reports, note_master, parted
from synkhronos._engine.shippable import Inventory
from synkhronos._engine.startup import cancelling, start_members
from synkhronos._engine.trace import Trace
from synkhronos._engine.transactions import Transactions
from synkhronos._engine.variables import Entry, lost_with_workers
from synkhronos._errors import GroupClosed, GroupError, GroupTimeout, StartFailed, WorkerDied
from synkhronos._host import cores as _cores
from synkhronos._host.first_process import end_by_signals
from synkhronos._transport.channels.channel import Failure, Left
from synkhronos._transport.channels.one_node import await_killed
from synkhronos._transport.processes.child_process import END_SECONDS
from synkhronos._transport.shared_state.waiting import GroupEnded, PeerDied, PeerFailed
from synkhronos._transport.shared_state.worker_output import logged
from synkhronos._warnings import log

_BUSY = (
    "the group is busy with another command of this thread; a signal handler or a finalizer cannot "
    "make a call meanwhile"
)

# After a death, for killed workers to be gone before it is raised. The end of a process takes about
# 10 ms of a core, so those of a large group end later.
PATIENCE_SECONDS, FEW = 0.1, 8
LEAVE_SECONDS = 5.0  # that close() waits for another thread to leave its command


class Runner:
    """Starts the members, runs commands in them, and ends or replaces them.

    Parameters
    ----------
    options : GroupOptions
    log_dir : str
        A folder for the output of members; "": none.
    """

    ended = "has not been started"  # how the group has ended; "" while it lives
    # a trace of the whole life, which `close` ends
    traced: AbstractContextManager[Trace] | None = None

    def __init__(self, options: GroupOptions, log_dir: str = "") -> None:
        self._options = options
        self._owner = os.getpid()
        self._make_lock()
        self.running = False  # a command is being run
        self._task: Task | None = None
        self._ending = threading.Lock()  # acquired once, by the caller that ends the group
        self._replacing = threading.RLock()  # held while workers are ended or restarted
        self._left = False  # the workers have ended; resources are freed when the command returns
        self.restarts = 0  # how often the workers have been replaced
        self._first_death = ""
        self.inventory = Inventory()
        import_numba()
        self._master_cores = options.master_cores()
        size = len(options.devices)
        try:
            self._begin(log_dir)
        except StartFailed:
            raise
        except OSError as exc:
            raise StartFailed.of(size, exc) from exc
        except MemoryError as exc:
            if isinstance(exc.__cause__, OSError):  # no descriptor to look at the free memory
                raise StartFailed.of(size, exc.__cause__) from exc
            raise
        if self.member.size > 1:
            _cores.keep_freed_memory()
        self.ended = ""
        _runners.add(self)

    def _make_lock(self) -> None:
        self.lock = threading.RLock()  # the mark that the runner is reserved
        # as threading.Condition asks a lock; the mark cannot be left behind
        self._is_reserved_here: Callable[[], bool] = self.lock._is_owned  # type: ignore[attr-defined]

    def disown(self) -> None:
        """In a fork of the master: this process must neither use nor end the group.

        Another thread of the master may have held the lock, and would hold it here for ever.
        """
        self.ended = "belongs to another process"
        self._make_lock()

    def __del__(self) -> None:
        """Close a group that is not referenced any more."""
        if not self.ended:  # at the end of the interpreter, little else works
            self.close()

    def _begin(self, log_dir: str) -> None:
        with contextlib.ExitStack() as undo:
            if log_dir:
                undo.enter_context(logged(Path(log_dir)))
            undo.callback(end_by_signals())
            with cancelling(self._options):
                undo.callback(self._options.bind())
                self.arena = self._options.arena()  # the shared memory of this node
                undo.callback(self.arena.close_fd)
            self._open()
            self._undo = undo.pop_all()

    def _open(self) -> None:
        """Start the members."""
        # the channel to the workers, and the master; a restart makes others
        self.channel, self.member = start_members(self._options, self.arena, self._master_cores)
        self._transactions = Transactions(self.member, self.channel, _tell_other_groups)
        self.wake: Callable[[], None] = self.channel.wake
        self._interrupts = self.channel.interrupts

    @property
    def foreign(self) -> bool:
        """Whether this process is a fork of the master's."""
        return self._owner != os.getpid()

    def check(self, what: str) -> None:
        """Raise unless the group accepts commands from this process."""
        if not self.ended:
            return
        if not self.foreign:
            raise GroupClosed(
                f"{what}: the group {self.ended}. Call synk.fork() to start another, and make the "
                "functions and Data again"
            )
        raise GroupClosed(
            f"{what}: this process (pid {os.getpid()}) is a fork of the group's master "
            f"(pid {self._owner}) and cannot use the group; synk.fork() starts another one here"
        )

    def run(
        self,
        command: Command,
        what: str,
        then: Callable[[Any], object] | None = None,
        master_input: object = None,
    ) -> Any:
        """As `Group.run`, while it is `reserved`."""
        transactions = self._transactions
        if self.ended or self.running or self._task is not None:
            self.check_idle(what)
        self.running = True
        spans = self.member.measured.spans
        began = 0.0 if spans is None else clock()
        try:
            # an exception at any line has left it by an earlier command
            if transactions.undecided:
                transactions.settle()
            self.member.master_input = master_input
            own, reports = transactions.run(command, what)
            # looked at here: without a failure no function is called
            for outcome in reports.values():
                if type(outcome) is Failure or type(outcome) is Left:
                    check_reports(reports, what, self.channel)  # raises
            # before the verdict: where no answer can be made, no value changes
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
            self.running = False
            self.member.master_input = None
            if self._transactions.undecided or self._left:  # a restart has made others
                self._leave()

    def reserved(self, what: str, timeout: float | None = None) -> AbstractContextManager[object]:
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
            This thread has reserved it already: a signal handler or a finalizer, which has
            interrupted it, would overwrite arrays and rows of the call that is being made.
        """
        if self._is_reserved_here():
            self.check(what)
            raise GroupError(f"{what}: {_BUSY}")
        return self.lock if timeout is None else self._limited(timeout)

    @contextlib.contextmanager
    def _limited(self, timeout: float) -> Iterator[None]:
        check_seconds("timeout", timeout)
        with self.lock, self.channel.inspector.limited(timeout):
            yield

    def run_alone(self, compute: Callable[[], object], what: str) -> Any:
        """Run in a group of one, while `reserved`, what changes nothing: without a transaction."""
        if self.ended or self.running or self._task is not None:
            self.check_idle(what)
        self.running = True
        try:
            if self._transactions.undecided:
                self._transactions.settle()
            spans = self.member.measured.spans
            if spans is None:  # a context would cost half as much as a tiny call
                return compute()
            began = clock()
            try:
                return compute()
            finally:
                spans.add_named(began, clock(), what)
        except BaseException as exc:
            note_master(exc, self.member.rank, self._options.devices[self.member.rank], what)
            raise
        finally:
            self.running = False
            if self._left:
                self._leave()

    def check_idle(self, what: str) -> None:
        """Raise unless the group accepts a command from this thread now."""
        self.check(what)
        if self.running:
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

        If this returns, the error to show is `exc` itself.
        """
        # a member that stalls while it writes in place would continue to write later
        writes = issubclass(type(exc), GroupTimeout) and bool(self.member.changes.in_place)
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
            why = self.channel.broken
            if not (why or writes):
                self.member.changes.take_done()
            if why:
                self._lose(found, why)
            elif writes:
                self._lose(found, "a member stalled while values were written in place")
            elif isinstance(found, GroupTimeout) and not self.ended:
                found.goes_on()

    def _explain(self, exc: BaseException, what: str) -> None:
        """Raise the error of another member that caused `exc`; else note the rank on `exc`."""
        kind = type(exc)  # isinstance would call methods of the exception, which may raise
        if issubclass(kind, PeerDied | GroupEnded):
            raise self.channel.loss(what) from None
        if issubclass(kind, PeerFailed):
            reports = self.channel.collect(self.channel.number)
            check_reports(reports, what, self.channel)
            raise parted(what) from None
        note_master(exc, self.member.rank, self._options.devices[self.member.rank], what)

    def _lose(self, found: BaseException, why: str) -> None:
        """Members are lost: restart the workers if restarts are left, else end the group."""
        died = found if isinstance(found, WorkerDied) else None
        self._first_death = self._first_death or str(died or "")
        lost, most = lost_with_workers(self.member.variables), self._options.max_restarts
        lost += self.member.held.own_values.values()
        done = self.member.changes.take_done()
        while not self.ended and self.restarts < most:
            self.restarts += 1
            log.warning("%s: restart %d of %d begins. %s", why, self.restarts, most, died or "")
            if self._restarted():
                if died is not None:
                    died.restarted(lost, done)
                return
        patience = PATIENCE_SECONDS if self.member.size <= FEW else 0.0
        self._shut(f"was closed since {why}", self._options.grace_after_loss, patience)
        if died is not None:
            died.closed(self.restarts, self._first_death)
        else:
            found.add_note(f"synkhronos: the group could not continue, and was closed, since {why}")

    def _restarted(self) -> bool:
        """Replace all workers; returns whether they have started."""
        stop_telling()  # its thread would keep the workers from being forked
        with self._replacing, self._interrupts:
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
            self.inventory.restart()
            if self.ended:  # close() was called meanwhile, and has ended the old workers only
                self.channel.quit(0.0)
            return True

    def start(self, command: Command, what: str) -> Task:
        """As `Group.start`, while it is `reserved`."""
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
        with self.reserved(task.what):
            self.check(task.what)
            if self._task is not task or self.running:
                raise GroupError(f"{task.what}: it has ended, or the group is busy with it already")
            self.running = True
            try:
                yield
            except GroupEnded:
                raise self.channel.loss(task.what) from None
            finally:
                self.running = False
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
        with self.reserved(task.what):
            self.running = True
            late = self.channel.late(task.number)
            try:
                if not late:
                    self.channel.collect(task.number)
                reports = self.channel.reports(task.number)
                self._transactions.commit()
                died = self.channel.loss(task.what) if late else None
            finally:
                self.running, self._task = False, None
            if died is not None:
                self._lose(died, self.channel.broken)
                if self.member.size - len(late) < least:
                    raise died
            check_reports(reports, task.what, self.channel)
            return reports

    def await_task(self, task: Task) -> dict[int, Any]:
        """Wait for the reports of a task's workers; its changes are kept, or undone."""
        with self.reserved(task.what):
            return self.await_reserved(task)

    def await_reserved(self, task: Task) -> dict[int, object]:
        """As `await_task`, while it is `reserved`."""
        self.check(task.what)
        if self._task is not task or self.running:
            raise GroupError(f"{task.what}: wait() has been called already")
        self.running = True
        try:
            return self._finish_task(task)
        finally:
            self.running = False
            self._task = None
            if self._transactions.undecided or self._left:
                self._leave()

    def _finish_task(self, task: Task) -> dict[int, object]:
        try:
            if self.member.size == 1:
                reports = {self.member.rank: task.command.run(self.member)}
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
        if self.ended:
            await_killed()
            return
        traced, self.traced = self.traced, None
        if traced is not None and not self.running and self._task is None:
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
            self.ended = how
            try:
                with self._replacing:
                    self.channel.quit(grace, patience)
            finally:
                self._left = True
                if self.lock.acquire(timeout=LEAVE_SECONDS):
                    try:
                        if not self.running:
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
                if self._master_cores is not None:
                    self._master_cores.release()
                if self.member.size > 1:
                    _cores.give_freed_memory_back()
                _runners.discard(self)


class Task:
    """A command that the workers run; made by `Group.start`."""

    def __init__(self, runner: Runner, command: Command, number: int, what: str) -> None:
        self._runner = runner
        self.command = command
        self.number = number
        self.what = what

    def progress(self) -> list[int]:
        """The latest count of each worker, in the order of ranks."""
        counts = self._runner.channel.progress(self.number)
        return [n for rank, n in enumerate(counts) if rank != self._runner.member.rank]

    @property
    def done(self) -> bool:
        """Whether all workers have reported."""
        return not self._runner.channel.late(self.number)

    @property
    def failed(self) -> bool:
        """Whether a worker of this node has died, or has raised: `wait` will raise."""
        channel = self._runner.channel
        if any(worker.dead() for worker in channel.workers):
            return True
        return any(type(found) is Failure for found in channel.reports(self.number).values())

    def stop(self) -> None:
        """Ask the workers to return."""
        self._runner.channel.stop(self.number)

    def wait(self) -> dict[int, Any]:
        """Wait for the workers; returns {rank: outcome}. Ctrl-C stops them and undoes the command.

        Raises
        ------
        WorkerError, WorkerDied, GroupClosed
        GroupError
            `wait` has been called already.
        """
        return self._runner.await_task(self)


_runners: weakref.WeakSet[Runner] = weakref.WeakSet()


def any_alive() -> bool:
    """Whether this process has a living group."""
    return any(not runner.ended for runner in list(_runners))


def close_all() -> None:
    """End all groups of this process."""
    for runner in list(_runners):
        runner.close()


def _tell_other_groups(member: Member, changed: list[Entry]) -> None:
    """Let the other groups send the values again that one group has changed, maybe in place."""
    if len(_runners) < 2:
        return
    changed += [e for e in member.variables if e.view is not None]
    variables = [v for e in changed if (v := e.ref()) is not None]
    for runner in _runners:
        for variable in variables if runner.member is not member else ():
            theirs = runner.member.variables.find(variable)
            if theirs is not None:
                theirs.seen = None


def _disown_groups() -> None:
    for runner in list(_runners):
        runner.disown()
        _runners.discard(runner)


def _copy_in_operations() -> None:
    """Before a fork of the master inside of an operation: the fork must not write what it shares.

    It may return from the operation, and compute the rest of the call once more.
    """
    for runner in list(_runners):
        runner.arena.copied_in_forks = runner.running


os.register_at_fork(before=_copy_in_operations, after_in_child=_disown_groups)
atexit.register(close_all)


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
