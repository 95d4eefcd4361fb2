"""Members of a run that exchange with a centre, in turns."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import override

import numpy as np

from synkhronos._engine.member import Member
from synkhronos._proofs.reductions import rounded
from synkhronos.extensions._apart.free.centre import Version
from synkhronos.extensions._apart.free.free_member import (
    BLOCK,
    MOST_NOT_FINITE,
    Assignment,
    FreeMember,
    Shared,
    Watch,
    not_finite,
)
from synkhronos.extensions._apart.free.pages import (
    CLOCK,
    EXCHANGES,
    PUT_OFF,
    REFUSED,
    ROWS,
    STALENESS,
    STALEST,
    STEPS,
    WAITED,
)
from synkhronos.extensions._apart.free.turns import Turns
from synkhronos.extensions._apart.member_values import MemberValues
from synkhronos.rules._base import STARTS_AS_CENTRE, Turn, TurnRule

_LAST_TRIES = 5  # for a turn, at the end


class TurnTaker(FreeMember):
    """A member whose rule has a centre."""

    rule: TurnRule

    def __init__(
        self,
        member: Member,
        local: MemberValues,
        rule: TurnRule,
        shared: Shared,
        assignment: Assignment,
    ) -> None:
        super().__init__(member, local, rule, shared, assignment)
        self._turns = Turns(shared.pages, self.peers)
        self._centre = shared.centre
        self._own = [
            [np.array(w) if name in STARTS_AS_CENTRE else np.zeros_like(w) for name in rule.own]
            for w in shared.w
        ]
        self._turn = Turn(0, 0.0, self.peers.size, [0.0 for _ in rule.counts])
        self._seen = 0  # version that this member has read
        self._steps = 0  # since the last exchange
        self._not_finite = 0  # contributions in a row
        self._bound = rule.bound

    @staticmethod
    @override
    def compile_exchange(rule: TurnRule, dtype: np.dtype) -> None:
        turn = Turn(0, 1.0, 1, [0.0 for _ in rule.counts])
        rule.plan(turn)
        centre = [np.ones(1, dtype) for _ in ("", *rule.beside)]
        new = [np.ones(1, dtype) for _ in centre]
        own = [np.ones(1, dtype) for _ in rule.own]
        rule.exchange(turn, np.ones(1, dtype), own, centre, new)

    def read(self, watch: Watch) -> tuple[int, Version]:
        return self._copy()

    def _copy(self) -> tuple[int, Version]:
        return self._centre.read(lambda: self._turns.take(lambda: False), self._turns.give)

    def _may_step(self, leaves: Callable[[], bool]) -> bool:
        self._await_others(leaves)  # a step before the answer would be lost with the answer
        bound = self._bound
        if self._turn.waiting:
            return False
        if bound is None:
            return True

        def free() -> bool:
            pages = self.shared.pages
            slowest = min((pages[r].words[CLOCK] for r in self.present()), default=0)
            return leaves() or self._words[CLOCK] <= bound + slowest

        self._waiting(free)
        return not leaves()

    def _waiting(self, ready: Callable[[], bool]) -> None:
        began = time.monotonic_ns()
        self.peers.wait(ready)
        self._words[WAITED] += time.monotonic_ns() - began

    def _after_step(
        self, rows: int, stopped: Callable[[], bool], leaves: Callable[[], bool]
    ) -> None:
        self._steps += 1
        self._turn.rows += rows
        if self._bound is not None:
            self.peers.ring()
        if self._steps >= self.rule.period:
            self._exchange(stopped, leaves)

    def conclude(self) -> None:
        """Apply contributions that have waited for others, which make none any more."""
        counts = self._centre.counts()
        if not counts:
            return
        self._turn = replace(self._turn, rows=0.0, read=counts[0], waiting=True)
        if self.rule.ready(replace(self._turn, counts=counts, present=1)):
            self._turns.take(lambda: False)
            try:
                self._in_turn()
            finally:
                self._turns.give()

    def _flush(self) -> bool:
        for _ in range(_LAST_TRIES):
            if not self._steps or self._exchange(lambda: False, lambda: True):
                break
        return not self._turn.waiting

    def _exchange(self, stopped: Callable[[], bool], leaves: Callable[[], bool]) -> bool:
        """Exchange with the centre; returns whether this member's steps have been used or refused.

        If the rule wants it, go on only when others have contributed, or `leaves()`.
        """
        if not self._finite():
            self._start_anew()
            return True
        began = time.monotonic_ns()
        got = self._turns.take(stopped)
        self._words[WAITED] += time.monotonic_ns() - began
        if not got:
            self._words[PUT_OFF] += not stopped()
            return False
        try:
            self._in_turn()
        finally:
            self._turns.give()
        self._steps, self.used = 0, []
        if self.rule.counts:
            self.peers.ring()
        self._await_others(leaves)
        return True

    def _await_others(self, leaves: Callable[[], bool]) -> None:
        """After a contribution: wait for those of others, if the rule wants it."""

        def ready() -> bool:
            present = len(self.present())
            turn = replace(self._turn, counts=self._centre.counts(), present=present)
            return leaves() or self.rule.ready(turn)

        while self._turn.waiting and not leaves():
            self._waiting(ready)
            if not leaves() and self._turns.take(leaves):
                try:
                    self._in_turn()
                finally:
                    self._turns.give()
                self.peers.ring()

    def _in_turn(self) -> None:
        self.take_numbers()
        number = self._centre.number
        old = self._centre.version(number)
        turn = replace(
            self._turn,
            staleness=number - self._seen,
            present=max(1, len(self.present())),
            counts=old.counts.tolist(),
            does="exchange",
            refused=False,
            waits=False,
            closes=0.0,
            optimizer=None,
        )
        self.rule.plan(turn)
        optimizer = self.shared.optimizer
        if optimizer is not None and turn.moves:
            turn.optimizer = optimizer.step(old.scalars)
        changes = turn.does not in ("read", "wait")
        if turn.does != "wait":
            new = self._centre.version(number + 1) if changes else old
            self._pass_over(turn, old, new)
            if changes:
                new.counts[...] = turn.counts
                new.scalars[...] = old.scalars
                if optimizer is not None and turn.moves:
                    new.scalars[...] = optimizer.counted(old.scalars)
                number += 1
                self._centre.commit(number)
        self._note(turn, number)

    def _pass_over(self, turn: Turn, old: Version, new: Version) -> None:
        """Exchange all vectors, in blocks."""
        parts = zip(self.shared.w, self._own, old.vectors, new.vectors, strict=True)
        for w, own, centre, changed in parts:
            for lo in range(0, w.size, BLOCK):
                piece = slice(lo, lo + BLOCK)
                self.rule.exchange(
                    turn,
                    w[piece],
                    [v[piece] for v in own],
                    [v[piece] for v in centre],
                    [v[piece] for v in changed],
                )
        for mine, held, made in zip(
            self.shared.statistics, old.statistics, new.statistics, strict=True
        ):
            if new is not old:
                made[...] = rounded(held + (mine - held) / turn.present, made.dtype)
            mine[...] = made

    def _note(self, turn: Turn, number: int) -> None:
        words = self._words
        self._record(number, turn, turn.does)
        if turn.refused:
            words[REFUSED] += 1
            words[ROWS] -= int(turn.rows)  # they are used again
            self._claims.again(self.used)
        elif turn.does not in ("read", "wait"):
            words[EXCHANGES] += 1
            words[STALENESS] += turn.staleness
            words[STALEST] = max(words[STALEST], turn.staleness)
            self._seen += 1  # staleness counts what others commit
        if not turn.waits:
            self._seen = number
            turn.rows, turn.read = 0.0, (turn.counts or [0.0])[0]
        turn.waiting = turn.waits
        self._turn = turn
        self._not_finite = 0

    def _record(self, number: int, turn: Turn, does: str) -> None:
        if self._assignment.record:
            entry = number, self._words[STEPS], turn.staleness, turn.present, does
            self.log.append((*entry, tuple(self.used)))

    def _start_anew(self) -> None:
        """Go on from the centre, since this member's parameters are not finite."""
        self._not_finite += 1
        self._words[REFUSED] += 1
        if self._not_finite >= MOST_NOT_FINITE:
            raise not_finite(self.peers.rank, "the parameters were not finite at an exchange")
        number, centre = self._copy()
        self._record(number, self._turn, "start anew")
        for w, own, vectors in zip(self.shared.w, self._own, centre.vectors, strict=True):
            w[...] = vectors[0]
            for name, vector in zip(self.rule.own, own, strict=True):
                vector[...] = w if name in STARTS_AS_CENTRE else 0
        for mine, held in zip(self.shared.statistics, centre.statistics, strict=True):
            mine[...] = held
        self._local.begin_states()
        self._seen, self._steps, self.used = number, 0, []
        self._turn = replace(self._turn, rows=0.0, read=(centre.counts.tolist() or [0.0])[0])
