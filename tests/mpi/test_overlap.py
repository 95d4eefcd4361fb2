"""`overlap=True`: sums between nodes while members compute; the same bits, and faults."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from launching import Launcher, job, run
from selection import thorough
from test_node_faults import check_over, pids_of

SUPPORT = str(Path(__file__).parents[1] / "support")

EQUAL = """
import os, sys
from pathlib import Path
import numpy as np
import synkhronos as synk
from synkhronos.extensions import HalfPrecision, updates
from overlap_cases import Layers, data, summing_processes

members, dtype, mode = int(sys.argv[1]), sys.argv[2], sys.argv[3]
synk.fork(members, timeout=100)
more = {} if mode == "FAST" else {"mode": mode}
rows = data(5, dtype)

def trained(slices=1, **options):
    net = Layers(dtype, **more, **options)
    return [*net.steps(rows, num_slices=slices), *net.values()], net

def check(what, **options):
    slices = options.pop("slices", 1)
    dense, _ = trained(slices, **options)
    found, net = trained(slices, overlap=True, **options)
    for a, b in zip(dense, found, strict=True):
        np.testing.assert_array_equal(a, b)
    print("equal", what, flush=True)
    return net

net = check("dense")
x, y = rows[0]
whole = Layers(dtype, **more)
for p, q in zip(net.params, whole.params):
    q.set_value(p.get_value())
for a, b in zip(net.train.gradients(x, y), whole.train.gradients(x, y), strict=True):
    np.testing.assert_array_equal(a, b)
net = whole = None
check("in slices", slices=3)
check("bf16", exchange=HalfPrecision())
if len(sys.argv) > 4:
    check("by a norm", update_rule=lambda loss, params, rate: updates.momentum(loss, params, rate))
    found = []
    for _ in range(2):
        how = HalfPrecision("fp16", stochastic=True, seed=3)
        found.append(trained(exchange=how, overlap=True)[0])
    for a, b in zip(*found, strict=True):
        np.testing.assert_array_equal(a, b)
    check("with collectives", together=True)
    [(x, y)] = data(1, dtype)
    for together in (False, True):  # most members have no rows
        found = []
        for overlap in (False, True):
            net = Layers(dtype, together, overlap=overlap, **more)
            net.train(x[:1], y[:1])
            found.append(net.values())
        for a, b in zip(*found, strict=True):
            np.testing.assert_array_equal(a, b)
    net = None
here = os.getpid()
assert 1 <= len(summing_processes()[here]) <= 2  # those of functions that are dropped have ended
synk.close()
assert here not in summing_processes()
names = [os.readlink(path) for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]
assert not [name for name in names if "memfd:synkhronos" in name], names
net = None
synk.fork(members)
check("in another group")
print("good end")
"""


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("nodes", "members", "dtype", "mode"),
    [
        (2, 2, "float64", "FAST"),
        *thorough((2, 1, "float32", "NUMBA"), (2, 2, "float32", "CVM"), (3, 1, "float64", "FAST")),
    ],
)
def test_the_same_bits(
    mpi: Launcher, tmp_path: Path, nodes: int, members: int, dtype: str, mode: str
) -> None:
    """Losses, parameters and states are those of sums after the computation."""
    more = ["more"] if (nodes, members) != (2, 2) or mode != "FAST" else []
    given = str(members), dtype, mode, *more
    said = run(mpi, nodes, tmp_path, EQUAL, *given, limit=360, PYTHONPATH=_path())
    assert said.count("equal") == 4 + 2 * len(more)
    assert "good end" in said


FAULTS = """
import os, signal, sys, time
from pathlib import Path
import numpy as np
import synkhronos as synk
from synkhronos._engine.group import current
from overlap_cases import Layers, data, obey, summing_processes

order = Path(sys.argv[1])
obey(order)
synk.fork(2, timeout=float(sys.argv[2]))
group = current()
rows = data(30)
net, dense = Layers(overlap=True), Layers()
made = iter(rows)

def step():
    x, y = next(made)
    assert net.train(x, y) == dense.train(x, y)
    for a, b in zip(net.values(), dense.values(), strict=True):
        np.testing.assert_array_equal(a, b)

def fails(what):
    before = net.values()
    try:
        net.train(*rows[0])
    except BaseException as exc:
        said = f"{type(exc).__name__}: {exc} {exc.__cause__}"
    else:
        said = "nothing"
    for a, b in zip(net.values(), before, strict=True):
        np.testing.assert_array_equal(a, b)
    print("fails", what, said.replace(chr(10), " "), flush=True)

step()
"""

RECOVERS = (
    FAULTS
    + """
for rank in map(int, sys.argv[3].split()):
    for word in sys.argv[4].split():
        order.write_text(f"{rank} {word}")
        fails(f"{rank} {word}")
        assert not order.exists()
        step()
order.write_text("0 interrupt")
fails("0 interrupt")
step()
for leader in (0, 2) if "kill" in sys.argv[4] else ():
    [pid] = summing_processes()[group.channel.pid(leader)]
    os.kill(pid, signal.SIGKILL)
    fails(f"{leader} idle")
    step()
step()
print("good end")
"""
)


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("ranks", "words"),
    [("2", "raise"), *thorough(("2", "raise kill"), ("1", "raise kill"), ("0 3", "raise kill"))],
)
def test_a_step_that_fails_is_undone_and_the_next_one_works(
    mpi: Launcher, tmp_path: Path, ranks: str, words: str
) -> None:
    """A member raises, a process of either node dies, Ctrl-C; each names what it should."""
    given = str(tmp_path / "order"), "60", ranks, words
    said = run(mpi, 2, tmp_path, RECOVERS, *given, limit=360, PYTHONPATH=_path())
    lines = {tuple(x.split()[1:3]): x for x in said.splitlines() if x.startswith("fails ")}
    for rank in map(int, ranks.split()):
        assert f"by member {rank}" in lines[str(rank), "raise"]
        assert "LookupError" in lines[str(rank), "raise"]
    killed = [(int(rank), text) for (rank, what), text in lines.items() if what in ("kill", "idle")]
    for rank, text in killed:
        assert "GroupError" in text, text
        assert f"the summing process of node {rank // 2} (" in text, text
        assert f"of rank {2 * (rank // 2)}," in text, text
        assert "SIGKILL" in text, text
    assert "KeyboardInterrupt" in lines["0", "interrupt"]
    tried = len(ranks.split())
    if "kill" in words:
        assert (len(killed), len(lines)) == (tried + 2, 2 * tried + 3)
    else:
        assert (len(killed), len(lines)) == (0, tried + 1)
    assert "good end" in said


ENDS = (
    FAULTS
    + """
print("pids", *[group.channel.pid(rank) for rank in range(4)])
print("ready", flush=True)
order.write_text(sys.argv[3])
net.train(*rows[0])
"""
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("order", "says"),
    [
        ("3 die", ["WorkerDied", "rank 3 (pid", "node 1 ("]),
        *thorough(
            ("1 die", ["WorkerDied", "rank 1 (pid"]),
            ("2 die", []),
            ("0 die", []),
            ("2 stop", ["GroupTimeout"]),
            ("1 stop", ["GroupTimeout"]),
        ),
    ],
)
def test_a_step_that_cannot_go_on_ends_the_job(
    mpi: Launcher, tmp_path: Path, order: str, says: list[str]
) -> None:
    """A member dies or a process stands still, in the middle of a gradient: nothing is left."""
    given = str(tmp_path / "order"), "2" if "stop" in order else "60", order
    with job(mpi, 2, tmp_path, ENDS, *given, PYTHONPATH=_path()) as made:
        pids_of(made)
        check_over(made, time.monotonic())
        for text in says:
            assert text in made.text, made.text


FORKED = """
import contextlib, os, signal, socket, threading, time
import synkhronos as synk
from synkhronos._transport.communicators.links import Listener
from overlap_cases import Layers, data, summing_processes
"""

STRANGERS = """
place = Listener.place

def met(listener):  # strangers come as soon as there is a port
    found = place(listener)
    threading.Thread(target=meet, args=(found.port,), daemon=True).start()
    return found

def meet(port):
    calls = [socket.create_connection(("127.0.0.1", port)) for _ in range(100)]
    with contextlib.suppress(OSError):
        calls[0].sendall(b"GET / HTTP/1.1")
        calls[1].sendall(bytes(72))
        calls[2].close()
        while True:
            calls[3].sendall(bytes(1))
            time.sleep(0.1)
    threading.Event().wait()  # the others stay, and are silent

Listener.place = met
"""

SLOW = """
def hold():
    while not (pids := summing_processes().get(os.getpid())):
        time.sleep(0.005)
    os.kill(pids[0], signal.SIGSTOP)
    time.sleep(12)
    print("held", flush=True)
    os.kill(pids[0], signal.SIGCONT)
"""

LINKED = """
synk.fork(1, timeout=100)
if "hold" in globals():
    threading.Thread(target=hold, daemon=True).start()
net, dense = Layers(overlap=True), Layers()
for x, y in data(3):
    assert net.train(x, y) == dense.train(x, y)
print("good end")
"""


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.parametrize("what", ["strangers", "slow"])
def test_links_come_about(mpi: Launcher, tmp_path: Path, what: str) -> None:
    """T15: with strangers at the port of each node; and while a summing process starts slowly."""
    program = FORKED + {"strangers": STRANGERS, "slow": SLOW}[what] + LINKED
    said = run(mpi, 2, tmp_path, program, PYTHONPATH=_path())
    assert ("held" in said) == (what == "slow")
    assert "good end" in said


def _path() -> str:
    return os.pathsep.join(filter(None, [SUPPORT, os.environ.get("PYTHONPATH", "")]))
