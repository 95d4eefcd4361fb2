"""Data on several nodes: what is written reaches all, only what changed travels, rows divided."""

from __future__ import annotations

from pathlib import Path

import pytest
from launching import Launcher, run
from selection import thorough

SHAPES = pytest.mark.parametrize(("ranks", "members"), [(2, "2"), *thorough((2, "1"), (3, "1"))])

HEAD = """
import sys
import numpy as np
import pytensor, pytensor.tensor as pt
import synkhronos as synk
from synkhronos._engine.group import current
from synkhronos._engine.commands.base import Command

pytensor.config.mode = "FAST_COMPILE"
rng = np.random.default_rng(7)
x = pt.matrix("x", dtype="float64")
rows = rng.normal(size=(101, 4))
synk.fork(int(sys.argv[1]))
f = synk.function([x], [x.sum(), (x * 2, "gather"), x.mean(0)])

def check(found, wanted):
    np.testing.assert_allclose(found[0], wanted.sum())
    np.testing.assert_array_equal(found[1], wanted * 2)
    np.testing.assert_allclose(found[2], wanted.mean(0))
"""

WRITES = """
d = synk.data(rows)
check(f(d), rows)
for write in (
    lambda a: a.__setitem__(3, -1.0),
    lambda a: a.__setitem__((slice(None), 2), 5.0),
    lambda a: a.__setitem__(np.array([100, 7, 7]), 0.5),
    lambda a: a.__setitem__(slice(50, 60), np.ones((10, 4))),
    lambda a: a.__setitem__((5, -1), 3.0),
    lambda a: a.__setitem__([90, 2], 4.0),
    lambda a: a.__setitem__(np.arange(101) % 40 == 39, 6.0),
):
    write(d)
    write(rows)
    check(f(d), rows)
    check(f(d, batch=slice(5, 80)), rows[5:80])
    check(f(d, batch=[100, 3, 3, 50]), rows[[100, 3, 3, 50]])
try:
    d.data[0] = 1.0
except synk.InputError as exc:
    print("refused:", exc)
try:
    np.add(d.data, 1.0, out=d.data)
except ValueError:
    print("read-only")
d.set_value(rows[:50])
check(f(d), rows[:50])
d.set_length(60)
check(f(d), np.concatenate([rows[:50], np.zeros((10, 4))]))
for n in range(50):  # freed, and allocated anew in the same place
    e = synk.data(np.full((40, 4), float(n)))
    assert f(e)[0] == n * 160
    del e
"""


REPEATED = """
d = synk.data(rows)
for k in range(6):  # from the second on, the call before is posted again
    check(f(rows + k), rows + k)
    check(f(rows[:7] * k), rows[:7] * k)
for k in range(6):
    picked = rng.permutation(101)[:30]
    check(f(d, batch=picked), rows[picked])
for k in range(6):
    check(f(rows + k), rows + k)
"""


COUNTED = """
from synkhronos._host.arena import Arena

told = []  # bytes that the master tells the others
take = Arena.changes

def counted(arena):
    written, freed = take(arena)
    told.append(sum(n for _, n in written))
    return written, freed

Arena.changes = counted
d = synk.data(np.zeros((1000, 100)))
g = synk.function([x], x.sum())
g(d)
told.clear()
g(d)
assert sum(told) == 0, told
d[10] = 1.0
d[500:502] = 2.0
assert g(d) == 500.0
assert 0 < sum(told) <= 3 * 800, told
print("counted")
"""

FILES = """
path = sys.argv[2]
if current().rank == 0:
    np.save(path, rows)
mapped = np.load(path, mmap_mode="r")
d = synk.data(mapped)
check(f(d), rows)
check(f(d, batch=[3, 1, 2]), rows[[3, 1, 2]])
assert not current().arena.changes()[0], "a file does not travel"
written = np.load(path, mmap_mode="r+")
d = synk.data(written)
try:
    d[3] = 1.0
except synk.InputError as exc:
    print("refused:", exc)
check(f(d), rows)
print("mapped")
"""


SCATTERED = """
from dataclasses import dataclass

@dataclass(frozen=True)
class Held(Command):
    '''Rows of scattered Data that each member's node has.'''

    def run(self, member):
        return sorted(len(rows) for rows, _ in member.on_node.scattered_rows.values())

    def answer(self, member, own, reports):
        return [own, *(reports.get(r, []) for r in range(1, member.size))]

def load(start, stop):
    return np.arange(start * 4.0, stop * 4.0).reshape(-1, 4)

whole = load(0, 101)
group = current()
size = group.size
y = pt.vector("y", dtype="float64")
both = synk.function([x, y], [(x.sum(1) * y).sum(), (x * 2, "gather")])
for made, wanted in (
    (synk.data(rows, scatter=True), rows),
    (synk.data(load, x, shape=(101, 4), scatter=True), whole),
):
    assert made.shape == (101, 4) and len(made) == 101
    check(f(made), wanted)
    check(f(made), wanted)
    check(f(made, num_slices=3), wanted)
    for batch in (slice(20, 90), 30, np.array([0, 3, 3, 55, 100]), slice(0, 3), slice(99, 101)):
        picked = wanted[:30] if isinstance(batch, int) else wanted[batch]
        check(f(made, batch=batch), picked)
    other = np.arange(101.0)
    found = both(made, other, batch=slice(7, 60))
    np.testing.assert_allclose(found[0], (wanted.sum(1) * other)[7:60].sum())
    np.testing.assert_array_equal(found[1], wanted[7:60] * 2)
    for wrong in (lambda: f(made, batch=[5, 3]), lambda: made.set_value(rows), lambda: made[0],
                  lambda: f.as_pytensor(made)):
        try:
            wrong()
        except synk.InputError:
            print("refused")
held = group.run(Held())
assert held[0] and all(h == held[0] or len(h) == 2 for h in held), held
nodes = size // int(sys.argv[1])
assert max(max(h) for h in held) <= 101 // nodes + 1, held
try:
    synk.data(lambda a, b: np.ones((b - a, 3)), x, shape=(101, 4), scatter=True)
except synk.InputError as exc:
    print("wrong rows:", exc)
check(f(made), whole)
del made
synk.function([x], x.sum())(rows)
print("good end")
"""


@SHAPES
def test_data_on_each_node(mpi: Launcher, tmp_path: Path, ranks: int, members: str) -> None:
    """One job for all parts: its start takes longer than any of them.

    What is written reaches every node, and so do arrays and lists of rows that are copied over
    those of the call before. Only changed ranges travel. Each node opens files for itself. Rows
    are divided among nodes; parts, batches and mixed inputs are computed where rows are.
    """
    parts = HEAD + WRITES + REPEATED + COUNTED + FILES + SCATTERED
    said = run(mpi, ranks, tmp_path, parts, members, str(tmp_path / "rows.npy"))
    assert "refused: d.data is read-only in a group of several nodes" in said
    assert "read-only" in said.splitlines()
    assert "counted" in said
    assert "mapped" in said
    assert "is a file that each node opens for itself" in said
    assert said.splitlines().count("refused") == 8
    assert "wrong rows:" in said
    assert "good end" in said
