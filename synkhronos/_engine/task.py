"""A command that the workers run while the master goes on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from synkhronos._engine.commands import Command
    from synkhronos._engine.group import Group


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
