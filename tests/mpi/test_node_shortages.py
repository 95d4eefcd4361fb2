"""What a node has no memory for: the next call is right, or the group has ended; nobody hangs."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from launching import Launcher, job, run
from selection import thorough

SETUP = """
import resource, signal, sys
from dataclasses import dataclass
import numpy as np
import pytensor, pytensor.tensor as pt
import synkhronos as synk
from synkhronos._backends import mpi as _mpi
from synkhronos._host.arena import Arena
from synkhronos._transport.channels import multi_node
from synkhronos._transport.channels.one_node import OneNodeChannel
from synkhronos._engine.commands.base import Command
from synkhronos._engine.group import current

pytensor.config.mode = "FAST_COMPILE"
node = _mpi.launch().rank
x = pt.vector("x", dtype="float64")

def once(owner, name, act):
    '''Replace a function for its next call.'''
    real = getattr(owner, name)
    def replaced(*args):
        setattr(owner, name, real)
        return act(real, *args)
    setattr(owner, name, replaced)

def no_room(*args):
    raise MemoryError("no room")
"""


@pytest.mark.parametrize("nodes", [2, *thorough(3)])
def test_changes_are_sent_again_until_acknowledged(
    mpi: Launcher, tmp_path: Path, nodes: int
) -> None:
    """A node lacks memory for changes; an interrupt or a shortage precedes the message."""
    text = (
        SETUP
        + """
last = int(sys.argv[1]) - 1

def large(real, self, offset, length):
    if length < 100_000:
        once(Arena, "mirrored", large)
        return real(self, offset, length)
    return no_room()

if node == last:
    once(Arena, "mirrored", large)
synk.fork(2)
f = synk.function([x], x.sum())
assert f(np.ones(10)) == 10
d = synk.data(np.ones(100_000))
try:
    f(d)
except MemoryError as exc:
    assert f"node {last} (" in str(exc), exc
    print("told", flush=True)
assert f(d) == 100_000

def interrupted(real, arena):
    told = real(arena)
    signal.raise_signal(signal.SIGINT)
    return told

d[:] = 2.0
once(multi_node, "pack_changes", interrupted)
try:
    f(d)
except KeyboardInterrupt:
    print("interrupted", flush=True)
assert f(d) == 200_000

d[:] = 3.0
largest = synk.function([x], x.max())  # a command that is new
once(OneNodeChannel, "_write", no_room)
try:
    largest(d)
except MemoryError:
    print("not posted", flush=True)
assert largest(d) == 3.0
assert f(d) == 300_000
print("good end")
"""
    )
    said = run(mpi, nodes, tmp_path, text, str(nodes))
    wanted = ("told", "interrupted", "not posted", "good end")
    assert [word for word in wanted if word not in said] == [], said


@pytest.mark.thorough  # failing transfers: the test below
@pytest.mark.parametrize("short", [1, *thorough(0)])
def test_memory_for_a_transfer_is_taken_before_it(
    mpi: Launcher, tmp_path: Path, short: int
) -> None:
    """The one without it raises, the others leave; the group goes on."""
    text = (
        SETUP
        + """
@dataclass(frozen=True)
class Short(Command):
    '''A limit in one node, with so many bytes to spare; None: no limit any more.'''

    where: int
    spare: int | None
    pure = True

    def run(self, member):
        if member.rank == self.where:
            used = 4096 * int(open("/proc/self/statm").read().split()[0])
            room = resource.RLIM_INFINITY if self.spare is None else used + self.spare
            resource.setrlimit(resource.RLIMIT_AS, (room, resource.RLIM_INFINITY))

short = int(sys.argv[1])
synk.fork(1)
small, large = (pytensor.shared(np.arange(n), name="s") for n in (5000, 8_000_000))
for s in (small, large):
    synk.broadcast(s)
current().run(Short(short, 150_000_000))
try:
    synk.all_gather(large)
except MemoryError as exc:
    print("no memory:", exc, flush=True)
current().run(Short(short, None))
for _ in range(3):
    assert np.array_equal(synk.gather(small), np.tile(np.arange(5000), (2, 1)))
print("good end")
"""
    )
    said = run(mpi, 2, tmp_path, text, str(short))
    assert "no memory" in said
    assert "good end" in said


@pytest.mark.parametrize(("nodes", "failing"), [(2, 0), *thorough((3, 2), (2, 1))])
def test_a_failure_in_a_transfer_ends_the_group(
    mpi: Launcher, tmp_path: Path, nodes: int, failing: int
) -> None:
    """The others are in it already, or have left it: nothing tells it from the next one."""
    text = (
        SETUP
        + """
if node == int(sys.argv[1]):
    once(_mpi.World, "gather", no_room)
synk.fork(1)
s = pytensor.shared(np.arange(50_000), name="s")
synk.broadcast(s)
group = current()
print("ready", flush=True)
try:
    synk.gather(s)
except MemoryError as exc:
    print("failed, alive:", group.alive, exc.__notes__, flush=True)
try:
    synk.fork(1)
except synk.GroupError as exc:
    print("refused:", exc, flush=True)
"""
    )
    with job(mpi, nodes, tmp_path, text, str(failing)) as made:
        made.await_line("ready")
        since = time.monotonic()
        assert made.wait(10.0) != 0
        assert "failed, alive: False" in made.text
        assert "was closed, since a transfer between nodes did not end" in made.text
        assert "refused: a transfer between nodes" in made.text
        made.check_gone(max(1.0, since + 10.0 - time.monotonic()))
