"""How the items of a call have ended: in its folder, in the log, and on a bar."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Hashable

from synkhronos._errors import SynkhronosError
from synkhronos._warnings import log
from synkhronos.pymc._map.bar import Bar
from synkhronos.pymc._map.parent import Ends, Item
from synkhronos.pymc._map.results import Folder

_FIRST = 10  # failed items, without any success: then `fit` is wrong
_REST = 10.0  # times as long as a note of all failed items took, until the next one


class Record(Ends):
    """How the items of a call have ended: in its folder, in the log, and on a bar.

    A context, at whose end the folder names all failed items. Meanwhile it names those of a while
    ago, since each note has all of them. `succeeded` says whether an earlier call has fitted items
    of this one: then some may fail, however many.
    """

    def __init__(self, folder: Folder, bar: Bar, succeeded: bool = False) -> None:
        self._folder = folder
        self._bar = bar
        self._done = 0
        self._succeeded = succeeded
        self._next_note = 0.0
        self.failed: dict[Hashable, str] = {}  # why an item has failed, by name

    def __enter__(self) -> Record:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # of two errors the first one counts
        with contextlib.suppress(*([] if kind is None else [Exception])):
            self._folder.note_failed(self.failed)

    def done(self, item: Item) -> None:
        """See `Ends`."""
        self._folder.came(item.name)
        self._succeeded = True
        self._count()

    def _count(self) -> None:
        self._done += 1
        self._bar.show(self._done)

    def fail(self, item: Item, why: str, text: str = "") -> None:
        """See `Ends`.

        Raises
        ------
        SynkhronosError
            The first ten items have all failed.
        """
        self.failed[item.name] = f"{why}\n{text}" if text else why
        self._note()
        log.warning("item %s failed: %s", item.name, why)
        self._count()
        if not self._succeeded and len(self.failed) >= _FIRST:
            last = f"\n{text}" if text else ""
            raise SynkhronosError(
                f"map: the first {_FIRST} items have failed, the last of them, {item.name}: "
                f"{why}. Mend fit{last}"
            )

    def _note(self) -> None:
        began = time.monotonic()
        if began >= self._next_note:
            self._folder.note_failed(self.failed)
            now = time.monotonic()
            self._next_note = now + _REST * (now - began)
