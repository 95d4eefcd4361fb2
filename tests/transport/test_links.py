"""T14: connections between nodes, for those only that have the key of the job."""

from __future__ import annotations

import contextlib
import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from synkhronos._transport.communicators import links
from synkhronos._transport.communicators.links import PART, SUM, Link, LinkFailed, Listener, Place

KEY = bytes(range(links.KEY_BYTES))


def place(listener: Listener, *addresses: str) -> Place:
    return Place("host", addresses or ("127.0.0.1",), listener.place().port)


def test_three_nodes_and_strangers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong key, silence, and noise are passed over; each pair is connected once."""
    monkeypatch.setattr(links, "_PATIENCE", 0.2)
    listeners = [links.Listener() for _ in range(3)]
    # the first address is of nobody: the next one is tried
    places = [place(each, "127.0.0.2", "127.0.0.1") for each in listeners]
    strangers = [socket.create_connection(("127.0.0.1", places[0].port)) for _ in range(3)]
    strangers[0].sendall(b"GET / HTTP/1.1\r\nHost: somebody\r\n\r\n" + bytes(99))
    strangers[1].sendall(links._HELLO.pack(2, links._code(b"another key", 2, 0)))
    with ThreadPoolExecutor(3) as pool:
        made = list(pool.map(lambda n: links.connect_all(listeners[n], n, places, KEY), range(3)))
    assert [set(m) for m in made] == [{1, 2}, {0, 2}, {0, 1}]
    for a, b in ((0, 1), (0, 2), (1, 2)):
        made[a][b].sendall(bytes([a, b]))
        made[b][a].setblocking(True)
        assert made[b][a].recv(9) == bytes([a, b])
    for stranger in strangers:
        stranger.settimeout(5)
        with stranger, contextlib.suppress(ConnectionError):
            assert stranger.recv(99) == b""
    for each in [*listeners, *(s for m in made for s in m.values())]:
        each.__exit__()


def test_a_node_that_does_not_answer_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """With each address that was tried, and why it failed; and one that never calls."""
    monkeypatch.setattr(links, "_PATIENCE", 0.2)
    monkeypatch.setattr(links, "SECONDS", 0.4)
    with links.Listener() as listener, socket.create_server(("127.0.0.1", 0)) as silent:
        nobody = socket.create_server(("127.0.0.1", 0))
        port = nobody.getsockname()[1]
        nobody.close()
        for found, why in ((port, "refused"), (silent.getsockname()[1], "timed out")):
            places = [Place("far", ("127.0.0.1",), found), place(listener)]
            said = rf"node 0 \(far\).*{found}.*127.0.0.1.*{why}"
            with pytest.raises(LinkFailed, match=said) as e:
                links.connect_all(listener, 1, places, KEY)
            assert e.value.node == 0
        with pytest.raises(LinkFailed, match=r"node 1 \(late\) has not connected"):
            links.connect_all(listener, 0, [place(listener), Place("late", (), 1)], KEY)


def test_a_program_that_is_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """It listens at the same address and port, as on a machine with the same private network."""
    with links.Listener() as listener, links.Listener() as other:

        def serve() -> None:
            made = other.next(9)
            assert made is not None
            with made:
                assert links._greeted(made, 0, b"its own") == -1

        server = threading.Thread(target=serve)
        server.start()
        with pytest.raises(LinkFailed, match=r"127\.0\.0\.1"):
            links.connect_all(listener, 1, [place(other), place(listener)], KEY)
        server.join()


def test_the_addresses_of_this_machine() -> None:
    """The loopback is the last one: other machines have it, too."""
    found = links.addresses()
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
