"""Members of a run that send their parameters to one another: GoSGD."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import override

import numpy as np

from synkhronos._engine.member import Member
from synkhronos.extensions._apart.free.centre import Version
from synkhronos.extensions._apart.free.free_member import (
    BLOCK,
    Assignment,
    FreeMember,
    Shared,
    Watch,
    is_finite,
    total,
)
from synkhronos.extensions._apart.free.pages import (
    ENDED,
    EXCHANGES,
    FINAL,
    PRESENT,
    PUT_OFF,
    REQUEST,
    SENT,
    SENT_WEIGHT,
    SHOWN,
    SHOWN_WEIGHT,
    STEPS,
    WEIGHT,
)
from synkhronos.extensions._apart.member_values import MemberValues
from synkhronos.rules import GoSGD


class Gossiper(FreeMember):
    """A member that sends its parameters, and merges those that it gets.

    A message lies in the sender's slot until the receiver has merged it.
    """

    rule: GoSGD
    sends = True

    def __init__(
        self,
        member: Member,
        local: MemberValues,
        rule: GoSGD,
        shared: Shared,
        assignment: Assignment,
    ) -> None:
        super().__init__(member, local, rule, shared, assignment)
        self._choose = rule.chooser(self.peers.rank)
        self._reals = self._page.reals

    @staticmethod
    @override
    def compile_exchange(rule: GoSGD, dtype: np.dtype) -> None:
        rule.merge(np.ones(1, dtype), 0.5, np.ones(1, dtype), 0.5)

    def serve(self) -> None:
        if not self._words[ENDED]:  # else the sender takes the message back
            self._merge()
        self._show()

    def _after_step(
        self, rows: int, stopped: Callable[[], bool], leaves: Callable[[], bool]
    ) -> None:
        self.take_numbers()
        others = [r for r in self.present() if r != self.peers.rank]
        choice = self._choose(others, self.rule.probability)
        self.used = []
        if choice is None:
            return
        if self._under_way():
            self._words[PUT_OFF] += 1
            return
        self._flush()
        slot = self.shared.slots[self.peers.rank]
        for sent, now in zip(slot.sent, slot.now, strict=True):
            sent[...] = now
        half = self._reals[WEIGHT] / 2
        self._reals[WEIGHT] = self._reals[SENT_WEIGHT] = half
        number = self._number() + 1
        self._words[SENT] = number * self.peers.size + choice  # a message begins to exist
        self._words[EXCHANGES] += 1
        self._record("send", choice, number)

    def _flush(self) -> bool:
        """Raise unless this member's values are finite, before others or the result get them."""
        if not self._finite():
            raise FloatingPointError(
                f"rank {self.peers.rank}: the parameters are not finite, and {self.rule} has no "
                "centre to go back to: use a smaller learning rate or gradient clipping"
            )
        return True

    def _record(self, does: str, other: int, number: int) -> None:
        if self._assignment.record:
            self.log.append((does, other, number, self._words[STEPS]))

    def _number(self) -> int:
        """The number of this member's latest message."""
        return int(self._words[SENT] // self.peers.size)

    def _under_way(self) -> bool:
        """Whether the latest message has not been merged; one that nobody will merge comes back."""
        to, sent = self._words[SENT] % self.peers.size, self._words[SENT]
        page = self.shared.pages[to]
        over = to in self.peers.dead or page.words[ENDED]  # before the next look, not after it
        if not sent or page.merged[self.peers.rank] >= sent:
            return False
        if over:
            self._take_back()
        return not over

    def _take_back(self) -> None:
        self._merge_from(self.shared.slots[self.peers.rank].sent, self._reals[SENT_WEIGHT])
        rank = self.peers.rank
        self._record("take back", rank, self._number())
        nobody_gets = (self._number() + 1) * self.peers.size + rank
        self._words[SENT] = self._page.merged[rank] = nobody_gets

    def _merge(self) -> None:
        """Merge all messages that have arrived."""
        rank, size = self.peers.rank, self.peers.size
        for sender, page in enumerate(self.shared.pages):
            sent = page.words[SENT]
            if sent > self._page.merged[sender] and sent % size == rank != sender:
                self._merge_from(self.shared.slots[sender].sent, page.reals[SENT_WEIGHT])
                self._page.merged[sender] = sent  # after the merge: the slot is free from here on
                self._record("merge", sender, sent // size)

    def _merge_from(self, sent: Sequence[np.ndarray], weight: float) -> None:
        mine = self._reals[WEIGHT]
        for now, other in zip(self.shared.slots[self.peers.rank].now, sent, strict=True):
            for lo in range(0, now.size, BLOCK):
                self.rule.merge(now[lo : lo + BLOCK], mine, other[lo : lo + BLOCK], weight)
        self._reals[WEIGHT] = mine + weight

    def _show(self) -> None:
        """Show the present values if the master has asked for them."""
        asked = self.shared.pages[self._member.master].words[REQUEST]
        if asked > self._words[SHOWN]:
            slot = self.shared.slots[self.peers.rank]
            for shown, now in zip(slot.shown, slot.now, strict=True):
                shown[...] = now
            self._reals[SHOWN_WEIGHT] = self._reals[WEIGHT]
            self._words[SHOWN] = asked
            self.peers.ring([self._member.master])

    def _last(self, watch: Watch) -> None:
        """Merge messages that have arrived; take back a message that its receiver did not merge."""
        self._words[PRESENT] = 0
        self._merge()
        self._words[ENDED] = 1
        self.peers.ring()

        def settled() -> bool:
            self._show()
            return not self._under_way()

        watch(settled)

    def read(self, watch: Watch) -> tuple[int, Version]:
        """In the master: the mean of all members by their weights, each between two steps.

        Its number counts the messages that were sent by then.
        """
        pages, slots = self.shared.pages, self.shared.slots
        self._words[REQUEST] += 1
        asked = self._words[REQUEST]
        self._show()
        self.peers.ring()

        def come() -> bool:
            return all(
                pages[r].words[SHOWN] >= asked or pages[r].words[ENDED] == FINAL
                for r in self.peers.others()
            )

        watch(come)
        found = []
        for rank, (page, slot) in enumerate(zip(pages, slots, strict=True)):
            if rank not in self.peers.dead:
                shown = page.words[SHOWN] >= asked
                weight = page.reals[SHOWN_WEIGHT if shown else WEIGHT]
                found.append((weight, slot.shown if shown else slot.now))
        found = [(a, w) for a, w in found if all(map(is_finite, w))] or found
        weights, values = zip(*found, strict=True)
        return total(pages, EXCHANGES), self._mean(weights, values)

    def _mean(self, weights: Sequence[float], values: Sequence[Sequence[np.ndarray]]) -> Version:
        whole = sum(weights)
        found = []
        for column in zip(*values, strict=True):
            mean = column[0] * (weights[0] / whole)
            for vector, weight in zip(column[1:], weights[1:], strict=True):
                mean += vector * (weight / whole)
            found.append(mean)
        n = len(self.shared.w)
        return Version([[v] for v in found[:n]], found[n:], np.zeros(0))
