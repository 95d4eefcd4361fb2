"""The tree of leaders: all pass a meeting or nobody, outcomes arrive, nobody waits for ever."""

from __future__ import annotations

import queue
import random
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from synkhronos._transport.channels.leader_tree import DIFFERENT, Leaders
from synkhronos._transport.shared_state.waiting import GroupEnded, PeerFailed

LIMIT = 20.0  # seconds; a wait is milliseconds


class Line:
    """Messages between threads, in order between any two, delayed at random."""

    def __init__(self, rank: int, boxes: list[queue.SimpleQueue[Any]], seed: int) -> None:
        self.rank, self.size = rank, len(boxes)
        self._boxes = boxes
        self._draw = random.Random(seed * 1000 + rank)

    def listen(self, sources: Sequence[int]) -> None:
        pass

    def send(self, to: int, message: bytes) -> None:
        if self._draw.random() < 0.1:
            time.sleep(0.0005)
        self._boxes[to].put((self.rank, message))

    offer = send

    def receive(self) -> tuple[int, bytes] | None:
        try:
            return self._boxes[self.rank].get_nowait()
        except queue.Empty:
            return None


def wait(ready: Callable[[], bool]) -> None:
    until = time.monotonic() + LIMIT
    while not ready():
        assert time.monotonic() < until, "a hang"
        time.sleep(0)


def together(size: int, life: Callable[[Leaders], Any], seed: int = 0) -> list[Any]:
    """What each leader's life returns."""
    boxes: list[queue.SimpleQueue[Any]] = [queue.SimpleQueue() for _ in range(size)]
    found: list[Any] = [None] * size

    def live(rank: int) -> None:
        try:
            found[rank] = life(Leaders(Line(rank, boxes, seed), wait))
        except BaseException as exc:
            found[rank] = exc

    threads = [threading.Thread(target=live, args=(r,)) for r in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for one in found:
        if isinstance(one, BaseException):
            raise one
    return found


SIZES = (1, 2, 3, 6, 22)


@pytest.mark.parametrize("size", SIZES)
def test_commands_arrive_in_order_and_outcomes_come_back(size: int) -> None:
    def life(leaders: Leaders) -> Any:
        if leaders.rank:
            seen = []
            while (found := leaders.next()) is not None:
                seen.append(found)
                leaders.report(b"%d of %d" % (leaders.rank, found[0]))
            return seen
        reports = []
        for number in range(1, 30):
            leaders.post(number, b"do" * number)
            reports.append(leaders.collect())
        leaders.quit()
        return reports

    reports, *seen = together(size, life)
    for number, report in enumerate(reports, 1):
        assert report == {r: b"%d of %d" % (r, number) for r in range(1, size)}
    assert all(s == [(n, b"do" * n) for n in range(1, 30)] for s in seen)


@pytest.mark.parametrize("size", SIZES)
def test_what_is_said_and_whether_the_words_are_one(size: int) -> None:
    def life(leaders: Leaders) -> Any:
        leaders.begin(1)
        first = leaders.agree(7, b"%d" % leaders.rank)
        second = leaders.agree(leaders.rank)
        third = leaders.agree(3, b"one" if leaders.rank == size - 1 else b"")
        return first, second, third

    for first, second, third in together(size, life):
        assert first == (7, {r: b"%d" % r for r in range(size)})
        assert second == (0 if size == 1 else DIFFERENT, {})
        assert third == (3, {size - 1: b"one"})


@pytest.mark.parametrize("size", SIZES[1:])
def test_the_root_learns_that_a_leader_compiles(size: int) -> None:
    """Also one below another leader, which tells it when it looks; of the present command only."""
    seen, over = threading.Event(), threading.Event()

    def until(leaders: Leaders, compiling: bool) -> None:
        wait(lambda: leaders.compiling(False) == compiling)

    def passed_on(leaders: Leaders) -> bool:
        leaders.compiling(False)
        return over.is_set()

    def life(leaders: Leaders) -> None:
        leaders.begin(1)
        if leaders.rank == 0:
            until(leaders, True)
            seen.set()
            until(leaders, False)
            over.set()
        elif leaders.rank == size - 1:
            assert leaders.compiling(True)
            wait(seen.is_set)
            assert not leaders.compiling(False)
        else:
            wait(lambda: passed_on(leaders))
        leaders.begin(2)
        leaders.compiling(leaders.rank == 1)
        leaders.agree()
        leaders.begin(3)
        assert not leaders.compiling(False)

    together(size, life)


@pytest.mark.parametrize("seed", range(40))
def test_all_pass_a_meeting_or_nobody(seed: int) -> None:
    """Leaders fail, or go another way, at random; every command ends everywhere."""
    draw = random.Random(seed)
    size = draw.choice((2, 3, 5, 6, 9))
    commands = 12
    meetings = [draw.randrange(4) for _ in range(commands)]
    troubles: list[dict[int, tuple[str, int]]] = []
    for number in range(commands):
        troubles.append({})
        if draw.random() < 0.6:
            for _ in range(draw.choice((1, 1, 2))):
                at = draw.randrange(meetings[number] + 1)
                trouble = draw.choice(("raise", "return", "slow"))
                troubles[number][draw.randrange(size)] = trouble, at

    def run(leaders: Leaders, number: int) -> tuple[str, int]:
        """One leader's part of a command: how it ended, and the meetings it has passed."""
        trouble, at = troubles[number - 1].get(leaders.rank, ("none", 0))
        for meeting in range(meetings[number - 1]):
            if meeting == at and trouble == "slow":
                time.sleep(0.003)
            if meeting == at and trouble == "raise":
                leaders.leave()
                return "raised", meeting
            if meeting == at and trouble == "return":
                return "returned", meeting
            try:
                leaders.agree(meeting)
            except PeerFailed:
                return "left", meeting
        return "returned", meetings[number - 1]

    def life(leaders: Leaders) -> Any:
        found = []
        if leaders.rank:
            while (order := leaders.next()) is not None:
                ended = run(leaders, order[0])
                leaders.report(ended[0].encode())
                found.append((*ended, leaders.verdict()))
            return found
        for number in range(1, commands + 1):
            leaders.post(number, b"")
            ended = run(leaders, number)
            reports = leaders.collect()
            assert sorted(reports) == list(range(1, size))
            good = ended[0] == "returned" and set(reports.values()) == {b"returned"}
            leaders.send_verdict(good)
            found.append((*ended, good))
        leaders.quit()
        return found

    for number, column in enumerate(zip(*together(size, life, seed), strict=True)):
        kinds = {t for t, at in troubles[number].values() if at < meetings[number]}
        passed = {p for _, p, _ in column}
        assert len({good for _, _, good in column}) == 1
        if kinds <= {"slow"}:
            assert {e for e, _, _ in column} == {"returned"}
            assert passed == {meetings[number]}
        else:  # those in trouble stop first, and all the others with the first of them
            first = min(at for t, at in troubles[number].values() if t != "slow")
            assert min(passed) == first
            for rank, (ended, meeting, _) in enumerate(column):
                kind, at = troubles[number].get(rank, ("none", 0))
                if kind in ("none", "slow"):
                    assert (ended, meeting) == ("left", first)
                else:
                    assert meeting == first


@pytest.mark.parametrize("stands", [True, False])
def test_a_verdict_is_not_that_of_the_next_command(stands: bool) -> None:
    """The root may judge the next command, too, before a leader looks for the first verdict."""
    judged = threading.Event()

    def life(leaders: Leaders) -> bool | None:
        if leaders.rank == 0:
            leaders.post(1, b"")
            leaders.collect()
            leaders.send_verdict(stands)
            leaders.post(2, b"")
            leaders.send_verdict(not stands)
            judged.set()
            return None
        leaders.next()
        leaders.report(b"")
        assert judged.wait(LIMIT)
        leaders.receive_all()  # as while it naps
        return leaders.verdict()

    assert together(3, life)[1:] == [stands, stands]


def test_the_end_frees_all_who_wait() -> None:
    came: list[int] = []

    def life(leaders: Leaders) -> Any:
        if leaders.rank == 0:
            leaders.post(1, b"")
            wait(lambda: len(came) == 5)
            leaders.quit()
            return "quit"
        assert leaders.next() == (1, b"")
        came.append(leaders.rank)
        wait_for = leaders.agree if leaders.rank % 2 else leaders.verdict
        with pytest.raises(GroupEnded):
            wait_for()
        return "freed"

    assert together(6, life) == ["quit"] + ["freed"] * 5


def test_progress_and_the_end_of_a_long_command() -> None:
    def life(leaders: Leaders) -> Any:
        if leaders.rank == 0:
            leaders.post(1, b"")
            wait(lambda: len(leaders.counted()) == 5)
            leaders.stop()
            return leaders.collect()
        leaders.next()
        leaders.begin(1)
        while not leaders.stopping:
            leaders.count(b"x")
            time.sleep(0.001)
        leaders.report(b"done")
        return None

    assert together(6, life)[0] == {r: b"done" for r in range(1, 6)}


def test_a_group_follows_another_at_once() -> None:
    """The order of the next group may come with the end of the last, and is not taken for its."""

    def life(leaders: Leaders) -> Any:
        if leaders.rank == 0:
            leaders.post(1, b"never run")
            leaders.quit()
            leaders.post(2, b"another group's")
            return leaders.collect()
        time.sleep(0.05)
        assert leaders.next() is None
        assert leaders.overtaken == [b"never run"]
        leaders.reset()
        assert leaders.next() == (2, b"another group's")
        leaders.report(b"done")
        return None

    assert together(2, life)[0] == {1: b"done"}


def test_missing_names_whole_branches() -> None:
    """Who has come to the meeting, or has reported, is not awaited."""
    go = threading.Event()

    def root(leaders: Leaders) -> list[list[int]]:
        found = []
        leaders.post(1, b"a command")
        wait(lambda: leaders.receive_all() or leaders.missing() == [1, 5])
        found.append(leaders.missing())
        go.set()
        leaders.agree()
        # nobody is late to the next meeting
        wait(lambda: leaders.receive_all() or leaders.missing() == [])
        found.append(leaders.missing())
        leaders.collect()
        found.append(leaders.missing())
        return found

    def life(leaders: Leaders) -> Any:
        if leaders.rank == 0:
            return root(leaders)
        leaders.next()
        if leaders.rank == 1:
            while not go.is_set():
                leaders.receive_all()
        leaders.agree()
        leaders.report(b"done")
        return None

    assert together(6, life)[0] == [[1, 5], [], []]


@pytest.mark.parametrize("size", [2, 3, 6, 22])
@pytest.mark.parametrize("failing", [0, 1, -1])
def test_news_of_a_failed_exchange_reach_all(size: int, failing: int) -> None:
    """From wherever it is, to all others, of this command alone; meetings go on."""

    def life(leaders: Leaders) -> list[str]:
        seen = []
        for number in (1, 2, 3):
            leaders.begin(number)
            leaders.agree()
            if number == 2 and leaders.rank == failing % size:
                leaders.fail_exchange()
                seen.append("failed")
            elif number == 2:
                with pytest.raises(PeerFailed):
                    wait(lambda: leaders.check() is not None)
                seen.append("told")
            else:
                leaders.check()
            leaders.agree()
        return seen

    found = together(size, life)
    assert found.pop(failing % size) == ["failed"]
    assert found == [["told"]] * (size - 1)


@pytest.mark.parametrize("size", [2, 3, 6, 22])
@pytest.mark.parametrize("failing", [0, 1, -1])
@pytest.mark.parametrize("exchange_failed", [False, True])
def test_a_torn_transfer_is_known_to_all(size: int, failing: int, exchange_failed: bool) -> None:
    """For good, and also where an exchange of the same command has failed before."""

    def life(leaders: Leaders) -> bool:
        leaders.begin(1)
        leaders.agree()
        if exchange_failed and leaders.rank == 0:
            leaders.fail_exchange()
        if leaders.rank == failing % size:
            leaders.fail_transfer()
        else:
            with pytest.raises(PeerFailed):
                wait(lambda: leaders.check_transfer() is not None)
        leaders.begin(2)
        return leaders.transfer_failed

    assert together(size, life) == [True] * size


def test_a_transfer_ends_for_nothing_else() -> None:
    """Whoever leaves the command, or ends the group, has come to it before."""

    def life(leaders: Leaders) -> None:
        def over() -> bool:
            leaders.receive_all()
            return leaders._from_root.quit

        leaders.begin(1)
        leaders.agree()
        if leaders.rank == 0:
            leaders.leave()
            leaders.quit()
        else:
            wait(over)
            assert leaders._from_root.left == 1
            leaders.check_transfer()

    together(3, life)


def test_who_is_awaited_in_an_exchange() -> None:
    """All others that have gone no further than to the meeting before it."""
    looked = threading.Event()

    def life(leaders: Leaders) -> list[list[int]]:
        leaders.begin(1)
        leaders.agree()
        found = []
        if leaders.rank == 0:
            found.append(leaders.missing())
            leaders.check()
            found.append(leaders.missing())
            looked.set()
        else:
            assert looked.wait(LIMIT)
        leaders.agree()
        return [*found, leaders.missing()] if leaders.rank == 0 else []

    assert together(3, life)[0] == [[], [1, 2], []]
