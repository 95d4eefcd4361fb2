"""Reports on exceptions: a member describes its own, and the master raises an error for them."""

from __future__ import annotations

import contextlib
import traceback
from typing import Any

from synkhronos import _errors
from synkhronos._errors import GroupError, InputError, SynkhronosError, WorkerDied, WorkerError
from synkhronos._host.devices import Device
from synkhronos._transport.channels.channel import Channel, Failure, Left
from synkhronos._transport.processes.folded_stacks import folded, place_of
from synkhronos._transport.shared_state.waiting import GroupEnded, PeerDied, PeerFailed

_TEXT_LIMIT = 1 << 15  # characters of a message or traceback that travel


def check_reports(reports: dict[int, object], what: str, channel: Channel) -> None:
    """Raise the error of a member that has raised, or has left the command."""
    failed = {r: o for r, o in reports.items() if isinstance(o, Failure)}
    if failed:
        raise _error(failed, what, channel)
    if any(isinstance(o, Left) for o in reports.values()):
        raise parted(what)


def parted(what: str) -> InputError:
    """The error for members that wait at an exchange to which others do not come."""
    return InputError(
        f"{what}: the members did not combine the same values: some have come to an exchange, "
        "others have not, and none has raised. The parts' values must have equal shapes: reduce "
        'over rows in the graph, or name the reduction "gather"'
    )


def note_master(exc: BaseException, rank: int, device: Device, what: str) -> None:
    """Note the master's rank on an exception of user code; those of the package name it already."""
    kind = type(exc)  # isinstance would call methods of the exception, which may raise
    ours = WorkerError | WorkerDied | InputError | GroupError
    if issubclass(kind, Exception) and not issubclass(kind, ours):
        on = "" if device.kind == "cpu" else f" on {device}"
        with contextlib.suppress(Exception):  # if its notes are not a list
            exc.add_note(f"synkhronos: raised in rank {rank}{on}, the master, in {what}")


def _error(failed: dict[int, Failure], what: str, channel: Channel) -> Exception:
    rank, failure = min(failed.items())
    kind = getattr(_errors, failure.kind.rpartition(":")[2], None)
    if failure.ours and isinstance(kind, type) and issubclass(kind, InputError):
        return kind(f"{what}: {failure.summary.partition(': ')[2]} (found by rank {rank})")
    ranks = tuple(sorted(failed))
    return WorkerError.of(
        rank,
        channel.pid(rank),
        channel.device(rank),
        ranks,
        what,
        failure.summary,
        folded(failure.traceback),
        failure.kind,
        place_of(failure.traceback),
    )


def outcome_of(exc: BaseException) -> Left | Failure:
    """The report of a member in which a command has raised.

    Raises
    ------
    GroupEnded
        If `exc` is one: the master does not wait for a report.
    """
    kind = type(exc)  # isinstance would call methods of the exception, which may raise
    if issubclass(kind, GroupEnded):
        raise exc
    return Left() if issubclass(kind, PeerFailed | PeerDied) else _failure_of(exc)


def _failure_of(exc: BaseException) -> Failure:
    """Describe an exception as text; its own methods, and those of its class, may raise."""
    kind = type(exc)
    name = _of(type, kind, "__name__")
    try:
        text = "".join(traceback.format_exception(exc))
    except BaseException:  # its own methods may raise anything
        text = "".join(traceback.format_tb(_of(BaseException, exc, "__traceback__"))) + name
    try:
        message = str(exc)
    except BaseException:
        message = "<its __str__ raised>"
    return Failure(
        f"{_of(type, kind, '__module__')}:{_of(type, kind, '__qualname__')}",
        _shortened(f"{name}: {message}"),
        _shortened(text),
        issubclass(kind, SynkhronosError),
    )


def _of(base: type, thing: object, name: str) -> Any:
    """An attribute as `base` defines it, also if `thing` overrides it."""
    return vars(base)[name].__get__(thing)


def _shortened(text: str) -> str:
    if len(text) <= _TEXT_LIMIT:
        return text
    half = _TEXT_LIMIT // 2
    return f"{text[:half]}\n... {len(text) - 2 * half} characters left out ...\n{text[-half:]}"
