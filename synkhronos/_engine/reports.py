"""What the members' reports mean to the master: nothing, or the error to raise."""

from __future__ import annotations

import contextlib
from typing import Any

from synkhronos import _errors
from synkhronos._errors import GroupError, InputError, WorkerDied, WorkerError
from synkhronos._host.devices import Device
from synkhronos._transport.channels.channel import Channel, Failure, Left


def check_reports(reports: dict[int, Any], what: str, channel: Channel) -> None:
    """Raise if a member has raised, or has left the command."""
    for outcome in reports.values():
        if type(outcome) is Failure or type(outcome) is Left:
            break
    else:
        return
    failed = {r: o for r, o in reports.items() if isinstance(o, Failure)}
    if failed:
        raise _error(failed, what, channel)
    left = [r for r, o in reports.items() if isinstance(o, Left)]
    raise GroupError(f"{what}: ranks {left} took another way through the command")


def note_master(exc: BaseException, rank: int, device: Device, what: str) -> None:
    """Add to the user's own exception that it was raised in the master; ours say it already."""
    kind = type(exc)  # isinstance would ask the exception, which may be anyone's
    ours = WorkerError | WorkerDied | InputError | GroupError
    if issubclass(kind, Exception) and not issubclass(kind, ours):
        on = "" if device.kind == "cpu" else f" on {device}"
        with contextlib.suppress(Exception):  # where its notes are no list
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
        failure.traceback,
        failure.kind,
    )
