"""Members of a run that send their parameters to one another: GoSGD."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from synkhronos._engine.member import Member
from synkhronos.extensions._free.centre import Version
from synkhronos.extensions._free.pages import (
    ENDED,
    EXCHANGES,
    PRESENT,
    PUT_OFF,
    REQUEST,
    SENT,
    SENT_WEIGHT,
    SHOWN,
    SHOWN_WEIGHT,
    STEPS,
    TO,
    WEIGHT,
)
from synkhronos.extensions._free.participant import BLOCK, Assignment, Participant, Shared
from synkhronos.extensions._rounds.local import Local
from synkhronos.rules import GoSGD


class Gossiper(Participant):
    """A member that sends its parameters, and merges those that it gets.

    A message lies in the sender's slot until the receiver has merged it.
    """

    rule: GoSGD

    def __init__(
        self, member: Member, local: Local, rule: GoSGD, shared: Shared, assignment: Assignment
    ) -> None:
        super().__init__(member, local, rule, shared, assignment)
        self._choose = rule.chooser(self.peers.rank)
        self._reals = self._page.reals

    def serve(self) -> None:
        self._merge()
        self._show()

    def _after_step(self, rows: int, stopped: Callable[[], bool]) -> None:
        self.take_numbers()
        choice = self._choose([r for r in self.present() if r != self.peers.rank])
        self.used = []
        if choice is None:
            return
        if self._under_way():
            self._words[PUT_OFF] += 1
            return
        slot = self.shared.slots[self.peers.rank]
        for sent, now in zip(slot.sent, slot.now, strict=True):
            sent[...] = now
        half = self._reals[WEIGHT] / 2
        self._reals[WEIGHT] = self._reals[SENT_WEIGHT] = half
        self._words[TO] = choice
        self._words[SENT] += 1
        self._words[EXCHANGES] += 1
        if self._assignment.record:
            self.log.append((self._words[SENT], self._words[STEPS], choice))

    def _under_way(self) -> bool:
        """Whether the latest message has not been merged; one to a dead member comes back."""
        to, number = self._words[TO], self._words[SENT]
        if not number or self.shared.pages[to].merged[self.peers.rank] >= number:
            return False
        if to in self.peers.dead:
            self._take_back()
            return False
        return True

    def _take_back(self) -> None:
        self._merge_from(self.shared.slots[self.peers.rank].sent, self._reals[SENT_WEIGHT])
        self._words[SENT] += 1  # of a message that nobody gets
        self._words[TO] = self.peers.rank
        self._page.merged[self.peers.rank] = self._words[SENT]

    def _merge(self) -> None:
        """Merge all messages that have arrived."""
        rank = self.peers.rank
        for sender, page in enumerate(self.shared.pages):
            number = page.words[SENT]
            if number > self._page.merged[sender] and page.words[TO] == rank != sender:
                self._merge_from(self.shared.slots[sender].sent, page.reals[SENT_WEIGHT])
                self._page.merged[sender] = number

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

    def _last(self) -> None:
        """Merge what has arrived; take back what nobody will merge."""
        self._words[PRESENT] = 0
        self._merge()
        self._words[ENDED] = 1
        self.peers.ring()
        pages, rank = self.shared.pages, self.peers.rank
        to, number = self._words[TO], self._words[SENT]

        def settled() -> bool:
            merged = pages[to].merged[rank] >= number
            return merged or to in self.peers.dead or bool(pages[to].words[ENDED])

        if number:
            self.peers.wait(settled)
            if pages[to].merged[rank] < number:
                self._take_back()

    def read(self) -> tuple[int, Version]:
        """In the master: the mean of all members by their weights, each between two steps."""
        pages, slots = self.shared.pages, self.shared.slots
        self._words[REQUEST] += 1
        asked = self._words[REQUEST]
        self._show()
        self.peers.ring()

        def come() -> bool:
            return all(
                pages[r].words[SHOWN] >= asked or pages[r].words[ENDED] for r in self.peers.others()
            )

        self.peers.wait(come)
        weights, values = [], []
        for rank, (page, slot) in enumerate(zip(pages, slots, strict=True)):
            if rank in self.peers.dead:
                continue
            shown = page.words[SHOWN] >= asked
            weights.append(page.reals[SHOWN_WEIGHT if shown else WEIGHT])
            values.append(slot.shown if shown else slot.now)
        return asked, self._mean(weights, values)

    def _mean(self, weights: Sequence[float], values: Sequence[Sequence[np.ndarray]]) -> Version:
        total = sum(weights)
        found = []
        for column in zip(*values, strict=True):
            mean = column[0] * (weights[0] / total)
            for vector, weight in zip(column[1:], weights[1:], strict=True):
                mean += vector * (weight / total)
            found.append(mean)
        n = len(self.shared.w)
        return Version([[v] for v in found[:n]], found[n:], np.zeros(0))
