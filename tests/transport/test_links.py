"""T14: connections between nodes, for those only that have the key of the job."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from synkhronos._host.polling import readable
from synkhronos._transport.communicators.links import (
    KEY_BYTES,
    PART,
    SUM,
    Link,
    LinkFailed,
    Listener,
    Place,
    connect_all,
    connecting,
)
from synkhronos._transport.communicators.links.handshake import (
    Stranger,
    answering,
    calling,
)
from synkhronos._transport.communicators.links.listener import addresses

KEY = bytes(range(KEY_BYTES))


def place(listener: Listener, *addresses: str) -> Place:
    return Place("host", addresses or ("127.0.0.1",), listener.place().port)


def test_both_ends_prove_that_they_have_the_key() -> None:
    """For these two nodes, this address and this conversation only."""
    caller = calling(KEY, 1, 0, "10.0.0.1")
    assert next(caller)[0] == b""
    listener = answering(KEY, 0, "10.0.0.1")
    challenge, _ = next(listener)
    hello, _ = caller.send(challenge)
    code, _ = listener.send(hello)
    linked, wanted = caller.send(code)
    assert (len(linked), wanted) == (1, 0)
    for end, last, node in ((caller, b"", 0), (listener, linked, 1)):
        with pytest.raises(StopIteration) as over:
            end.send(last)
        assert over.value.value == node

    once_more = answering(KEY, 0, "10.0.0.1")
    another_node = answering(KEY, 2, "10.0.0.1")
    another_key = answering(bytes(KEY_BYTES), 0, "10.0.0.1")
    for other in (once_more, another_node, another_key):
        next(other)
        with pytest.raises(Stranger):
            other.send(hello)


def test_a_stranger_cannot_pass_on_what_is_meant_for_another_address() -> None:
    """He listens at an address that node 1 tries, too, and calls node 0 at its own."""
    listener = answering(KEY, 0, "10.0.0.1")
    caller = calling(KEY, 1, 0, "127.0.0.1")
    next(caller)
    hello, _ = caller.send(next(listener)[0])
    with pytest.raises(Stranger):
        listener.send(hello)


def test_a_code_is_not_its_own_answer() -> None:
    """A stranger who sends back what he hears proves nothing."""
    caller = calling(KEY, 1, 0, "10.0.0.1")
    next(caller)
    hello, _ = caller.send(bytes(32))
    with pytest.raises(Stranger):
        caller.send(hello[-32:])


@contextlib.contextmanager
def listeners(count: int) -> Iterator[list[Listener]]:
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(Listener()) for _ in range(count)]


def check_linked(made: list[dict[int, socket.socket]]) -> None:
    """Each pair of nodes has one connection; closes them."""
    assert [set(m) for m in made] == [set(range(len(made))) - {n} for n in range(len(made))]
    for a, ends in enumerate(made):
        for b in range(a + 1, len(made)):
            ends[b].sendall(bytes([a, b]))
            made[b][a].setblocking(True)
            assert made[b][a].recv(9) == bytes([a, b])
    for end in (s for ends in made for s in ends.values()):
        end.close()


def call(where: Place) -> socket.socket:
    return socket.create_connection(("127.0.0.1", where.port))


def test_three_nodes_and_strangers(monkeypatch: pytest.MonkeyPatch) -> None:
    """T15: noise, half a word and silence of many delay nobody, and get no answer."""
    monkeypatch.setattr(connecting, "_TALK_SECONDS", 1e9)  # so nobody waits for its end
    monkeypatch.setattr(connecting, "_CALLERS", 9)
    with listeners(3) as own:
        # the first address is of nobody: the next one is tried
        places = [place(each, "127.0.0.2", "127.0.0.1") for each in own]
        places[0] = place(own[0], "::2", "127.0.0.2", "127.0.0.1")
        strangers = [call(places[n]) for n in (0, 1, 2) for _ in range(20)]
        strangers[0].sendall(b"GET / HTTP/1.1\r\nHost: somebody\r\n\r\n" + bytes(99))
        strangers[1].sendall(b"\1")
        with ThreadPoolExecutor(3) as pool:
            made = list(pool.map(lambda n: connect_all(own[n], n, places, KEY), range(3)))
        check_linked(made)
    for stranger in strangers:
        stranger.settimeout(5)
        with stranger, contextlib.suppress(ConnectionError):
            assert len(stranger.recv(999)) in (0, 32)  # the challenge
            assert stranger.recv(999) == b""


def test_who_says_one_byte_after_the_other_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit is for all that a caller says, and not for each byte."""
    monkeypatch.setattr(connecting, "_TALK_SECONDS", 0.0)
    with listeners(1) as [own]:
        answers = connecting._Answers(own, 0, KEY)
        with call(place(own)) as slow:
            slow.settimeout(5)
            until = time.monotonic() + 60
            with contextlib.suppress(ConnectionError):
                while time.monotonic() < until:
                    slow.sendall(b"\1")
                    assert not list(answers.turn())
                pytest.fail("still heard")


def test_a_slow_start_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel takes calls for a process that has not started."""
    monkeypatch.setattr(connecting, "_REACH_SECONDS", 0.02)
    monkeypatch.setattr(connecting, "_TALK_SECONDS", 0.02)
    with listeners(2) as own, ThreadPoolExecutor(1) as pool:
        places = [place(each) for each in own]
        early = pool.submit(connect_all, own[1], 1, places, KEY)
        assert readable(own[0].fileno(), seconds=60)  # the call has come
        time.sleep(0.2)
        assert not early.done()
        monkeypatch.setattr(connecting, "_TALK_SECONDS", 60.0)
        check_linked([connect_all(own[0], 0, places, KEY), early.result(60)])


def test_a_node_that_has_called_again_is_the_later_one() -> None:
    """It has given up the first connection, before it could know that it was linked."""
    with listeners(2) as own, ThreadPoolExecutor(1) as pool:
        places = [*map(place, own), Place("late", (), 1)]
        waits = pool.submit(connect_all, own[0], 0, places, KEY)
        first = connect_all(own[1], 1, places[:2], KEY)
        second = connect_all(own[1], 1, places[:2], KEY)
        first[0].setblocking(True)
        assert first[0].recv(1) == b""
        third = connecting._Calls(2, 0, places[0], KEY)
        until = time.monotonic() + 60
        while (last := third.turn()) is None:
            assert time.monotonic() < until
        found = waits.result(60)
        check_linked([{1: found.pop(1)}, second])
        for end in (last, *found.values(), *first.values()):
            end.close()


def test_a_node_that_does_not_answer_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """With each address that was tried, and why it failed; and one that never calls."""
    monkeypatch.setattr(connecting, "_REACH_SECONDS", 0.1)
    monkeypatch.setattr(connecting, "SECONDS", 0.2)
    nobody = socket.create_server(("127.0.0.1", 0))
    port = nobody.getsockname()[1]
    nobody.close()
    with listeners(2) as [own, silent]:
        for found, why in (
            (port, rf"cannot be reached by TCP, port {port}, at 127.0.0.1 \(.*refused\)"),
            (
                silent.place().port,
                r"has not answered.*its machine has taken the call at 127.0.0.1.* not started",
            ),
        ):
            places = [Place("far", ("127.0.0.1",), found), place(own)]
            with pytest.raises(LinkFailed, match=rf"node 0 \(far\) {why}") as e:
                connect_all(own, 1, places, KEY)
            assert e.value.node == 0
        stranger = call(place(own))
        stranger.close()
        with pytest.raises(
            LinkFailed, match=r"node 1 \(late\) has not connected.*; 1 other calls had no key"
        ):
            connect_all(own, 0, [place(own), Place("late", (), 1)], KEY)


def test_a_program_that_is_another_one() -> None:
    """It listens at the same address and port, as on a machine with the same private network."""
    with listeners(1) as [other]:
        answers = connecting._Answers(other, 0, b"its own")
        calls = connecting._Calls(1, 0, place(other), KEY)
        until = time.monotonic() + 60
        while not calls._tried and time.monotonic() < until:
            assert calls.turn() is None
            assert not list(answers.turn())
        said = calls.complaint(0, place(other))
        assert "cannot be reached" in said
        assert "127.0.0.1 (closed by another program)" in said
        calls.close()


def test_the_addresses_of_this_machine() -> None:
    """The loopback is the last one: other machines have it, too."""
    found = addresses()
    assert found
    assert "127.0.0.1" in found
    assert all(a.startswith("127.") for a in found[found.index("127.0.0.1") :])


def test_long_messages_in_pieces_and_an_end() -> None:
    """What the kernel does not take at once is sent later, in order."""
    ours, theirs = socket.socketpair()
    for end in (ours, theirs):
        end.setblocking(False)
    content = {SUM: bytes(range(256)) * 20_000, PART: b"x"}
    memory = {what: bytearray(len(c)) for what, c in content.items()}
    sender = Link(1, Place("there", (), 0), ours, lambda *_: memoryview(b""))
    receiver = Link(0, Place("here", (), 0), theirs, lambda what, chunk: memoryview(memory[what]))
    sender.send(SUM, 5, memoryview(content[SUM]))
    sender.send(PART, 6, memoryview(content[PART]))
    assert not sender.idle
    found: list[tuple[int, int]] = []
    while len(found) < 2:
        found += receiver.receive()
        sender.flush()
    assert found == [(SUM, 5), (PART, 6)]
    assert memory == content
    assert sender.idle
    ours.close()
    with pytest.raises(LinkFailed, match=r"node 0 \(here\) is lost: the process there has ended"):
        list(receiver.receive())
    theirs.close()
