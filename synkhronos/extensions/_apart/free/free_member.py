"""One member of a run: its steps, and its exchanges with the centre."""

# These rules hold here:
#
# * A member writes only words of its own page, and reads those of others; it waits only for members
#   that take part. So a death keeps nobody waiting.
# * A batch counts as used only once its step has been made, in one piece with the words that count
#   it. `broken` is set meanwhile: after a failure there, the values are undefined.
# * Figures are not sent: the master reads the pages.

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from synkhronos._engine.commands.call import Argument, Call
from synkhronos._engine.member import Member
from synkhronos._host.arena import ArrayRef
from synkhronos._plan.rows import Picks
from synkhronos._transport.shared_state.peers import Peers
from synkhronos.extensions._apart.centre_optimizer import ElementwiseUpdate
from synkhronos.extensions._apart.free.centre import Centre, Version
from synkhronos.extensions._apart.free.claims import BatchOrder, Claims, RowsOfBatches
from synkhronos.extensions._apart.free.pages import (
    CLOCK,
    ENDED,
    FINAL,
    LATEST,
    LOSS,
    LOSS_ROWS,
    PRESENT,
    ROWS,
    STEPS,
    Page,
)
from synkhronos.extensions._apart.member_values import MemberValues
from synkhronos.rules._base import FreeRule

Watch = Callable[[Callable[[], bool]], object]
"""Waits until the given function returns True."""

MOST_NOT_FINITE = 3  # steps or exchanges in a row
BLOCK = 1 << 16  # elements; what an exchange reads and writes of them stays in a core's cache


@dataclass(frozen=True)
class Assignment:
    """The work of all members of a run."""

    call: Call  # of the loss and the gradients, with the Data; the rows are replaced
    average: bool
    partials: tuple[tuple[int, bool], ...]  # as for a `Step`
    order: BatchOrder
    fixed: bool = False  # each member uses its own batches, whatever the speeds are
    record: bool = False  # members keep a log of their exchanges
    # the first batch, and how many follow it; default: all
    begin: int = 0
    count: int | None = None

    @property
    def batches(self) -> int:
        """How many batches there are."""
        return self.order.total if self.count is None else self.count


@dataclass
class Slot:
    """The page of one member for the others: its parameters, then statistics."""

    now: list[np.ndarray]  # as they are
    sent: list[np.ndarray]  # in its latest message
    shown: list[np.ndarray]  # when the master has last asked for them


@dataclass
class Shared:
    """The vectors in common with the others, and those of a member."""

    pages: list[Page]
    centre: Centre
    w: list[np.ndarray]  # this member's parameters
    statistics: list[np.ndarray]
    numbers: memoryview  # how often the master has set the rule's numbers, and the numbers
    # of each member, if members send their parameters to one another
    slots: list[Slot] = field(default_factory=list)
    optimizer: ElementwiseUpdate | None = None  # at the centre


class FreeMember:
    """The base: a member that claims rows and steps; rules differ in what follows a step."""

    # the members' parameters and statistics are the centre's own, which they change in place
    at_centre: ClassVar[bool] = False
    sends: ClassVar[bool] = False  # members send their parameters to one another

    def __init__(
        self,
        member: Member,
        local: MemberValues,
        rule: FreeRule,
        shared: Shared,
        assignment: Assignment,
    ) -> None:
        self.rule = rule
        self.shared = shared
        self.peers: Peers = member.peers()
        self.log: list[tuple[object, ...]] = []
        self._member = member
        self._local = local
        self._assignment = assignment
        self._claims = Claims(shared.pages, self.peers, assignment.batches, assignment.fixed)
        self._rows = RowsOfBatches(assignment.order)
        self._calls: dict[int, tuple[Call, np.ndarray | None]] = {}
        self._page = shared.pages[self.peers.rank]
        self._words = self._page.words
        self._numbers_seen = 0.0
        self.used: list[int] = []  # batches since the last exchange
        self.broken = False  # a failure has left its values undefined

    @staticmethod
    def compile_exchange(rule: Any, dtype: np.dtype) -> None:
        """Compile what an exchange of the rule calls for vectors of this dtype."""

    def arrive(self) -> None:
        """Take part."""
        others = [self.shared.pages[r].words[CLOCK] for r in self.present()]
        words = self._words
        words[CLOCK] = max(words[CLOCK], min(others, default=0))  # nobody waits for an absent one
        words[LATEST] = time.monotonic_ns()
        words[PRESENT] = 1

    def withdraw(self) -> None:
        """Take no part until `arrive`."""
        self._words[PRESENT] = 0
        self.peers.ring()

    def rest(self) -> None:
        """Take no part, as long as there are no rows."""
        self._flush()
        self.withdraw()

    def present(self) -> list[int]:
        """The members that take part."""
        dead = self.peers.dead
        pages = self.shared.pages
        return [r for r, p in enumerate(pages) if r not in dead and p.words[PRESENT]]

    def step(self, stopped: Callable[[], bool], leaves: Callable[[], bool] | None = None) -> bool:
        """Make a step; False if there are no more rows, or the member shall stop.

        `leaves` says whether the member shall wait for others no longer; default: `stopped`.
        """
        leaves = leaves or stopped
        if stopped() or not self._may_step(leaves):
            return False
        number = self._claims.next(stopped)
        # which may be refused, so that the rows are used again
        if number is None and not stopped() and self._flush():
            number = self._claims.next(stopped)
        if number is None:
            return False
        rows = self._rows[self._assignment.begin + number]
        self.serve()
        part, outputs = self._local.computed(self._call(rows), self._member)
        given = self._assignment
        make = self._local.step(part, outputs[1:], given.partials, given.average)
        loss = float(np.asarray(outputs[0]))
        if self._refuses(loss):
            return True
        with self._member.uninterrupted():
            self.broken = True
            make()
            self.used.append(number)
            words = self._words
            words[STEPS] += 1
            words[CLOCK] += 1
            words[ROWS] += len(rows)
            words[LATEST] = time.monotonic_ns()
            if math.isfinite(loss):
                self._page.reals[LOSS] += loss * len(rows)
                self._page.reals[LOSS_ROWS] += len(rows)
            self.broken = False
            self._after_step(len(rows), stopped, leaves)
        return True

    def read(self, watch: Watch) -> tuple[int, Version]:
        """In the master: a copy of the centre, and its number; `watch` waits for others."""
        raise NotImplementedError

    def finish(self, watch: Watch | None = None) -> None:
        """Exchange for the last time, and take no further part; `watch` waits for others."""
        self._flush()
        self._words[PRESENT] = 0
        self._last(watch or self.peers.wait)
        self.leave()

    def leave(self) -> None:
        """Take no further part, whatever has happened; others stop waiting for this member."""
        self._words[PRESENT] = 0
        self._words[ENDED] = FINAL
        self.peers.ring()

    def conclude(self) -> None:
        """In the master, when all others have ended: finish what they have left."""

    def state(self) -> dict[str, Any]:
        """The state of the Batches after what members have claimed so far."""
        return self._assignment.order.after(self._claims.reached())

    def take_numbers(self) -> None:
        """Take the rule's numbers that the master has set."""
        numbers = self.shared.numbers
        if numbers[0] != self._numbers_seen:
            self._numbers_seen = numbers[0]
            values = dict(zip(self.rule.numbers, numbers[1:].tolist(), strict=False))
            self.rule = self.rule.with_numbers(values)

    def _finite(self) -> bool:
        return all(is_finite(v) for v in (*self.shared.w, *self.shared.statistics))

    def _may_step(self, leaves: Callable[[], bool]) -> bool:
        """Wait until the rule allows another step; returns whether it does."""
        del leaves
        return True

    def _refuses(self, loss: float) -> bool:
        """Whether a step with this loss is dropped."""
        del loss
        return False

    def serve(self) -> None:
        """Take in what others have sent, and answer requests; before a step, and while it waits."""

    def _after_step(
        self, rows: int, stopped: Callable[[], bool], leaves: Callable[[], bool]
    ) -> None:
        """The work after a step."""

    def _flush(self) -> bool:
        """Exchange what has not been exchanged yet; returns whether a step may follow."""
        return True

    def _last(self, watch: Watch) -> None:
        """The work after the last step of the run."""

    def _call(self, rows: np.ndarray) -> Call:
        """The call for rows of this member only; for as many rows as before, the same object."""
        count = len(rows)
        found = self._calls.get(count)
        if found is None:
            found = self._calls[count] = self._new_call(rows)
        call, place = found
        if place is None:
            return self._new_call(rows)[0]
        place[...] = rows
        return call

    def _new_call(self, rows: np.ndarray) -> tuple[Call, np.ndarray | None]:
        member, call = self._member, self._assignment.call
        n, rank = len(rows), member.rank
        place, listed = None, Picks(rows)
        source: Any = listed
        if member.size > 1 and member.communicator.nodes == 1:  # a reference is the master's arena
            place = member.communicator.empty((n,), np.dtype(np.int64))
            [at] = member.places([place])
            source = ArrayRef(at, (n,), place.dtype.str, 0)
        arguments = tuple(
            a if a.rows is None else Argument(a.source, source) for a in call.arguments
        )
        edges = tuple([0] * (rank + 1) + [n] * (member.size - rank))
        return replace(call, arguments=arguments, edges=edges, first=False, new=None), place


def is_finite(w: np.ndarray) -> bool:
    """Whether all elements are finite; the sum of finite ones may overflow."""
    with np.errstate(all="ignore"):
        return bool(np.isfinite(w.sum())) or bool(np.isfinite(w).all())


def not_finite(rank: int, what: str) -> FloatingPointError:
    """The error of a member that has started anew, or dropped steps, too often."""
    return FloatingPointError(
        f"rank {rank}: {what} {MOST_NOT_FINITE} times in a row: use a smaller learning rate or "
        "gradient clipping"
    )


def total(pages: Sequence[Page], word: int) -> int:
    """The sum of a word over all members."""
    return int(sum(page.words[word] for page in pages))
