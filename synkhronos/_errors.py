"""Every error and every warning a user can see.

::

    SynkhronosError
      InputError(ValueError)              an argument is not possible; no member was asked
        BatchError(IndexError)            the batch names rows that do not exist
        InputTypeError(TypeError)         a value has the wrong type, dtype or ndim
      GroupError(RuntimeError)            the group cannot run commands
        NotForked                         no group has been started
        GroupClosed                       the group has ended, or belongs to another process
        StartFailed(OSError)              too few processes, descriptors or bytes for a group
        GroupTimeout(TimeoutError)        members did not answer in time
      WorkerError(RuntimeError)           a member raised (see the cause); the group goes on
      WorkerDied(RuntimeError)            a member died; the group is closed or restarted
      StateTorn                           a failure left a value half written
      CheckpointError                     a checkpoint is damaged, or has another format
      SourceError                         rows cannot be read, or are not what they were said to be
      NonFinite(ArithmeticError)          a loss or a gradient is infinite or not a number
      BackendMissing(ImportError)         an optional library is missing; names its extra

    SynkhronosWarning(UserWarning)
      LocalUpdateWarning                  an update makes the members' values of a variable differ
      ReductionWarning                    a reduction that does not give the value over all rows
      ReplicaWarning                      members' values differ; says which of them count
      BatchWarning                        the batch selects no rows, or always the same first ones
      CheckpointWarning                   a checkpoint is not wholly restored, or is another run's
      UnusedWarning                       something that was passed has no effect
      VersionWarning                      another version of a library costs a gain
      DeprecatedWarning(FutureWarning)    an old spelling, which a later version will refuse

Every message says what was asked, what was found and what to do.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import sys
from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import Any


def printable(text: str, kept: str = "") -> str:
    r"""A text for the terminal, without characters that it would obey: their escapes instead.

    `kept` are characters that may be in it, as the ends of lines.

    >>> printable("red: \x1b[31m\n", kept="\n")
    'red: \\x1b[31m\n'
    """
    if text.isprintable():
        return text
    return "".join([c if c.isprintable() or c in kept else ascii(c)[1:-1] for c in text])


class SynkhronosError(Exception):
    """Base class of all errors of this package; names in its text cannot steer a terminal."""

    def __str__(self) -> str:
        return printable(Exception.__str__(self), kept="\n\t")


class InputError(SynkhronosError, ValueError):
    """An argument is not possible; no command was sent to any member."""


class BatchError(InputError, IndexError):
    """The batch names rows that do not exist."""


class InputTypeError(InputError, TypeError):
    """A value has the wrong type, dtype or number of dimensions."""


class GroupError(SynkhronosError, RuntimeError):
    """The group cannot run commands."""


class NotForked(GroupError):
    """No group has been started."""

    def __init__(self, what: str = "this") -> None:
        super().__init__(f"{what} needs a group, and no group is open: call synk.fork() first")


class GroupClosed(GroupError):
    """The group has ended, or belongs to another process."""


class StartFailed(GroupError, OSError):
    """The machine has too few processes, descriptors or bytes left for a group."""

    @staticmethod
    def of(size: int, cause: OSError) -> StartFailed:
        """Make the error, with the remedy that fits the cause's errno."""
        resource: Any = import_module("resource")  # which Windows lacks
        remedies = {
            errno.EMFILE: f"the group needs about {10 + 4 * size} descriptors: raise `ulimit -n`, "
            f"now {resource.getrlimit(resource.RLIMIT_NOFILE)[0]}",
            errno.ENFILE: "the machine has no descriptors left: raise fs.file-max",
            errno.EAGAIN: f"the group needs {size - 1} more processes: raise `ulimit -u`, now "
            f"{resource.getrlimit(resource.RLIMIT_NPROC)[0]}, or the container's pids limit",
            errno.ENOMEM: "free memory, or ask for fewer members",
            errno.ENOSPC: "free memory, or ask for fewer members",
            errno.ENOSYS: "the group needs Linux 5.3 or later; a sandbox has to allow memfd, "
            "eventfd and pidfd",
        }
        remedy = remedies.get(cause.errno or 0, "no process and no memory has been left behind")
        return StartFailed(f"a group of {size} members cannot be started: {cause}; {remedy}")


class GroupTimeout(GroupError, TimeoutError):
    """Members have not answered within the limit; no value has changed.

    The members keep running. The next command waits for them, and raises this error again if they
    still do not answer.

    Attributes
    ----------
    ranks : tuple of int
        The members that had not answered.
    """

    ranks: tuple[int, ...] = ()

    @staticmethod
    def of(ranks: tuple[int, ...], text: str) -> GroupTimeout:
        """Make the error."""
        error = GroupTimeout(text)
        error.ranks = ranks
        return error

    def goes_on(self) -> None:
        """Say that the group can be used further."""
        first, _, stacks = str(self.args[0]).partition("\n")
        more = "No value has changed, and the group goes on: the next command waits for the member"
        self.args = ("\n".join(filter(None, [f"{first}. {more}.", stacks])),)


class StateTorn(SynkhronosError):
    """A failure left a value half written: set it again or load a checkpoint."""


class CheckpointError(SynkhronosError):
    """A checkpoint is damaged, or has another format; no value was set. Name another step.

    Attributes
    ----------
    damaged : str
        Which checkpoint is damaged, and how; empty if it only has another format.
    """

    damaged: str = ""


class SourceError(SynkhronosError):
    """Rows of a source cannot be read, or are not what they should be; it names file and row.

    Attributes
    ----------
    lost : tuple of int
        The rows to leave out of the batch. Empty unless the source was made with ``skip=True``.
    """

    lost: tuple[int, ...] = ()


class BackendMissing(SynkhronosError, ImportError):
    """An optional library is missing; without `extras`, it has the name that pip installs."""

    def __init__(self, library: str, *extras: str) -> None:
        named = " or ".join(f'"synkhronos[{extra}]"' for extra in extras) or library
        super().__init__(f"this needs {library}, which is not installed: pip install {named}")


@contextlib.contextmanager
def needing(library: str, *extras: str) -> Iterator[None]:
    """A context that imports a library; without it, BackendMissing says how to install it."""
    try:
        yield
    except ImportError:
        raise BackendMissing(library, *extras) from None


class RemoteTraceback(Exception):
    """The text of a traceback from another process, shown as the cause of a WorkerError."""

    __str__ = SynkhronosError.__str__


class WorkerError(SynkhronosError, RuntimeError):
    """A member raised; the group goes on.

    Attributes
    ----------
    rank, pid : int
        The member that raised; the lowest rank if several did.
    device : str
        What it computes on: "cpu", "cuda:0", ...; in a group of several nodes also its node.
    ranks : tuple of int
        All members that raised.
    """

    rank: int = -1
    pid: int = -1
    device: str = ""
    ranks: tuple[int, ...] = ()
    _kind = ""

    @staticmethod
    def of(
        rank: int,
        pid: int,
        device: str,
        ranks: tuple[int, ...],
        what: str,
        summary: str,
        text: str,
        kind: str,
        place: str = "",
    ) -> WorkerError:
        """Make the error; also an instance of the member's exception type, if it is importable."""
        others = f" (so did ranks {[r for r in ranks if r != rank]})" if len(ranks) > 1 else ""
        at = f"at {place}\n" if place else ""  # the user's line, where there is one
        error = _worker_error_type(kind)(
            f"{member_named(rank, pid, device)} failed in {what}{others}: {summary}\n{at}"
            "No value of any member was changed, and the group goes on."
        )
        error.rank, error.pid, error.device, error.ranks = rank, pid, device, ranks
        error._kind = kind
        error.__cause__ = RemoteTraceback(f"\n{text}")
        return error

    def __reduce__(self) -> tuple[object, ...]:
        """Pickled by its attributes, since its class may have been made at run time."""
        said = (str(self), self.rank, self.pid, self.device, self.ranks, self._kind)
        return _worker_error, said


def member_named(rank: int, pid: int, device: str, doing: str = "") -> str:
    """How messages name a member: rank, pid, and its device unless that is the cpu."""
    known = [f"pid {pid}", "" if device == "cpu" else device, doing]
    return f"rank {rank} ({', '.join(filter(None, known))})"


@functools.cache
def _worker_error_type(kind: str) -> type[WorkerError]:
    """A subclass of WorkerError and of the exception class `kind` ("module:name"), if importable.

    The class is looked up, never unpickled: loading a stranger's exception object can hang or
    run its code (cpython issues 79492 and 103061).
    """
    module, _, name = kind.partition(":")
    found = getattr(sys.modules.get(module), name, None)
    if not (isinstance(found, type) and issubclass(found, Exception)):
        return WorkerError
    if issubclass(found, WorkerError):
        return found
    body = {"__init__": Exception.__init__, "__str__": SynkhronosError.__str__}
    try:
        made = type(f"WorkerError[{name}]", (WorkerError, found), body)
        made.__module__ = WorkerError.__module__
        usable = made("probe").ranks == () and made.__name__ == f"WorkerError[{name}]"
    except Exception:  # classes whose layouts, constructors or attributes do not go together
        usable = False
    return made if usable else WorkerError


def _worker_error(
    text: str, rank: int, pid: int, device: str, ranks: tuple[int, ...], kind: str
) -> WorkerError:
    error = _worker_error_type(kind)(text)
    error.rank, error.pid, error.device, error.ranks = rank, pid, device, ranks
    error._kind = kind
    return error


class WorkerDied(SynkhronosError, RuntimeError):
    """A member died; the group has been closed cleanly, or its workers were restarted.

    Attributes
    ----------
    ranks : tuple of int
        The members found dead.
    again : bool
        The workers were restarted and no value is lost, so the call can be repeated. The
        package's own calls repeat it, and the user does not see this error.
    """

    ranks: tuple[int, ...] = ()
    again: bool = False

    @staticmethod
    def of(deaths: dict[int, tuple[int, str, str]], what: str) -> WorkerDied:
        """Make the error from {rank: (pid, device, how it ended)}."""
        listed = "; ".join(f"{member_named(r, p, on)}: {how}" for r, (p, on, how) in deaths.items())
        error = WorkerDied(f"a worker died during {what}: {listed}")
        error.ranks = tuple(deaths)
        return error

    def closed(self, restarts: int, first: str) -> None:
        """Say that the group is closed; `first` is the first death if workers were restarted."""
        after = f" after {restarts} restarts (the first death: {first})" if restarts else ""
        self._add(
            f"The group has been closed{after}. Data, results and shared variables of the master "
            "remain readable. Call synk.fork() to start again."
        )

    def restarted(self, lost: list[str], done: Sequence[str] = ()) -> None:
        """Say that the workers have been restarted, and which values are lost.

        `done`: variables to which the call has given their new values in place.
        """
        self.again = not (lost or done)
        made = "the call was not made"
        if done:
            made = (
                f"the call has changed {', '.join(done)}, and its result is lost: a repetition "
                "would change them twice"
            )
        if lost:
            self._add(
                f"The workers have been restarted, but values were lost: {', '.join(lost)}. "
                "Variables that differed between members have the master's value everywhere. Set "
                f"the values that are half written, or load a checkpoint. T{made[1:]}."
            )
        else:
            nothing = "No value" if done else "Nothing"
            self._add(f"The workers have been restarted. {nothing} is lost; {made}.")

    def _add(self, text: str) -> None:
        self.args = (f"{self.args[0]}. {text}",)


class NonFinite(SynkhronosError, ArithmeticError):
    """A loss or a gradient is infinite or not a number; the message names the step and the rows.

    Attributes
    ----------
    step, epoch : int
        The epoch from 0, as `Trainer.epoch`; the message counts it from 1.
    rows : list of int
        Rows of the data that were found to give such a gradient; empty if none was looked for.
    """

    def __init__(self, text: str, step: int = 0, epoch: int = 0, rows: Sequence[int] = ()) -> None:
        super().__init__(text)
        self.step = step
        self.epoch = epoch
        self.rows = list(rows)

    def __reduce__(self) -> Any:
        return type(self), (self.args[0], self.step, self.epoch, self.rows)


class SynkhronosWarning(UserWarning):
    """Base class of all warnings of this package; each names the line of the user's program."""


class LocalUpdateWarning(SynkhronosWarning):
    """An update depends on scattered rows and on its own variable: the members' values will differ.

    The fourth element of the update says which is meant: ``(w, new, "avg", "all")`` gives all
    members one value, ``(w, new, "avg", "local")`` each member its own.
    """


class ReductionWarning(SynkhronosWarning):
    """A reduction over members does not give the value over all rows, or may not."""


class ReplicaWarning(SynkhronosWarning):
    """The members' values of a shared variable differ; the message says which of them count."""


class BatchWarning(SynkhronosWarning):
    """The batch selects no rows, so that means are nan; or every step takes the same first rows."""


class CheckpointWarning(SynkhronosWarning):
    """A checkpoint holds more than is restored, or a save replaces checkpoints of another run."""


class UnusedWarning(SynkhronosWarning):
    """An input, a parameter or an option that was passed has no effect."""


class VersionWarning(SynkhronosWarning):
    """A library has another version than those that were tried, and a gain is lost with it."""


class DeprecatedWarning(SynkhronosWarning, FutureWarning):
    """An old spelling still works; a later version will refuse it. The message has the new one."""


for _class in list(globals().values()):
    if isinstance(_class, type) and issubclass(_class, SynkhronosError | SynkhronosWarning):
        _class.__module__ = "synkhronos"
