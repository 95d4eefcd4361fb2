"""Loader(read="node"): each node reads its own rows; errors of one node; what moves."""

from __future__ import annotations

from pathlib import Path

import pytest
from launching import Launcher, run
from selection import thorough

SHAPES = pytest.mark.parametrize(("ranks", "members"), [(2, "2"), *thorough((2, "1"), (3, "1"))])

HEAD = """
import os, sys, threading, time
import numpy as np
import pytensor, pytensor.tensor as pt
import synkhronos as synk
from synkhronos.extensions import Batches, Loader, make_train_function, updates
from synkhronos.training import sources
from synkhronos._engine.group import current
from synkhronos._engine.commands.base import Command

pytensor.config.mode = "FAST_COMPILE"
rng = np.random.default_rng(7)
rows, labels = rng.normal(size=(101, 4)), rng.integers(0, 9, 101)
synk.fork(int(sys.argv[1]))
x, y = pt.matrix("x", dtype="float64"), pt.lvector("y")
f = synk.function([x, y], [(x * 2, "gather"), (y, "gather"), (x.sum(1) * y).sum()])
path = os.path.join(os.getcwd(), "rows")
for name, array in (("x", rows), ("y", labels)):
    np.save(f"{path}_{name}.npy", array)
for i in range(5):
    part = slice(21 * i, 21 * (i + 1))
    np.savez_compressed(f"{path}{i}.npz", x=rows[part], y=labels[part])
npz = [f"{path}{i}.npz" for i in range(5)]

def check(found, picked):
    np.testing.assert_array_equal(found[0], rows[picked] * 2)
    np.testing.assert_array_equal(found[1], labels[picked])
    np.testing.assert_allclose(found[2], (rows[picked].sum(1) * labels[picked]).sum())
"""

ROWS = """
for source in ((sources.npy(f"{path}_x.npy"), sources.npy(f"{path}_y.npy")),
               (sources.npz(npz, "x"), sources.npz(npz, "y"))):
    for size, prefetch, sort in ((16, 2, False), (30, 4, True), (3, 2, False), (101, 2, False)):
        batches = Batches(101, size, seed=2, blocks=source[0].blocks, window=2)
        loader = Loader(source, batches, prefetch=prefetch, sort=sort, read="node")
        for epoch in range(2):
            order, seen = batches.order(epoch), 0
            for a, b in loader:
                picked = order[seen : seen + size]
                assert (loader.rows == picked).all()
                assert len(a) == len(b) == len(picked) and a.shape[1:] == (4,)
                check(f(a, b), picked)
                check(f(a, b), picked)  # posted again
                check(f(a, b, batch=slice(1, None)), picked[1:])
                seen += len(picked)
            assert seen == 101 and batches.epoch == epoch + 1
        for a, b in loader:
            break
        state = batches.state()
        assert state["row"] == min(size, 101) % 101
        for a, b in loader:  # the next epoch
            check(f(a, b), batches.order(batches.epoch)[:size])
            batches.restore(state)
        loader.close()
class Slow:  # rows that take their time, while those that a left loop has asked for are ready
    shape, dtype = rows.shape, rows.dtype
    def __len__(self):
        return 101
    def __getitem__(self, picked):
        time.sleep(0.05)
        return rows[picked]
batches = Batches(101, 30, seed=2)
loader = Loader((Slow(), sources.npy(f"{path}_y.npy")), batches, prefetch=2, read="node")
for a, b in loader:
    break
time.sleep(0.5)
for a, b in loader:
    check(f(a, b), batches.order(batches.epoch)[:30])
    break
loader.close()
only = Loader(sources.npy(f"{path}_x.npy"), Batches(101, 50, shuffle=False), read="node")
g = synk.function([x], x.sum())
np.testing.assert_allclose([g(a) for a in only], [rows[i:i + 50].sum() for i in (0, 50, 100)])
try:
    a[0]
except synk.InputError as exc:
    print("divided:", exc)
print("rows are right")
"""


TRAINING = """
z = pt.dvector("z")
w = pytensor.shared(np.zeros(4), "w")
loss = ((x @ w - z) ** 2).mean()

def trained(read):
    w.set_value(np.zeros(4))
    train = make_train_function(loss, [w], x, z, updates.momentum, learning_rate=0.05)
    source = [sources.npy(f"{path}_x.npy"), labels.astype(float)]
    with Loader(source, Batches(101, 16, seed=1), read=read) as loader:
        losses = [float(train(a, b)) for _ in range(3) for a, b in loader]
    return losses, w.get_value()

one, other = trained("master"), trained("node")
assert one[0] == other[0] and one[1].tobytes() == other[1].tobytes()
print("the same bits")
"""


AUGMENTED = """
import functools
from synkhronos import nn
from synkhronos.training import augmentation_words, fit

images = rng.integers(0, 256, (100, 4, 4, 1)).astype("uint8")
np.save(f"{path}_images.npy", images)
v, words = pt.tensor4("v", dtype="uint8"), pt.vector("words", dtype="uint64")
pixels = nn.augment(v, words, pad=2, flip=True).flatten(2).astype("float64")
serial = pytensor.function([v, words], pixels)
expected = sum(serial(images, augmentation_words(100, 3, epoch)).sum(0) / 25 for epoch in (0, 1))
for given in (images, sources.npy(f"{path}_images.npy")):
    for read in ("master", "node"):
        w = pytensor.shared(np.zeros(16), "w")
        sgd = functools.partial(updates.sgd, learning_rate=1.0)
        fit((pixels @ w).mean(), [w], v, given, optimizer=sgd, augment=words, batch=25, epochs=2,
            seed=3, read=read, progress=False)
        np.testing.assert_allclose(-w.get_value(), expected, rtol=1e-12)
print("the same pixels")
"""


BYTES = """
from dataclasses import dataclass
from synkhronos._host.arena import Arena
from synkhronos.training.sources import FileSource

told = []
take = Arena.changes

def counted(arena):
    written, freed = take(arena)
    told.append(sum(n for _, n in written))
    return written, freed

Arena.changes = counted

@dataclass(frozen=True)
class CountReads(Command):
    'Count the rows that each process reads.'

    def run(self, member):
        from synkhronos.training.sources import FileSource
        counts = member.installed.find(list, -1)
        if counts is None:
            counts = []
            member.installed.keep(-1, counts)
        if not counts:
            real = FileSource.read_into
            def counting(source, rows, out):
                counts.append(len(rows))
                real(source, rows, out)
            FileSource.read_into = counting
            counts.append(0)
        return sum(counts)

    def answer(self, member, own, reports):
        return [own, *(reports.get(r, 0) for r in range(1, member.size))]

group = current()
group.run(CountReads())
moved = {}
for read in ("master", "node"):
    loader = Loader(sources.npy(f"{path}_x.npy"), Batches(101, 20), read=read)
    g = synk.function([x], x.sum())
    total = [g(a) for a in loader]  # functions, and the Data, are sent here
    before, _ = group.run(CountReads()), told.clear()
    np.testing.assert_allclose(sum(g(a) for a in loader), rows.sum())
    after = group.run(CountReads())
    moved[read] = sum(told), [b - a for a, b in zip(before, after)]
print(moved)
nodes = group.size // int(sys.argv[1])
assert moved["master"][0] >= rows.nbytes, moved
assert moved["node"][0] == 0, moved
reads = moved["node"][1]
leaders = reads[:: int(sys.argv[1])]
assert sum(leaders) == sum(reads) == 101 and max(leaders) <= 101 / nodes + 6, moved
print("counted")
"""


FAULTS = """
class Broken:
    'Raises in one process, for one row.'

    shape, dtype = rows.shape, rows.dtype

    def __init__(self, master):
        self.master, self.pid = master, os.getpid()

    def __len__(self):
        return 101

    def __getitem__(self, numbers):
        mine = os.getpid() == self.pid
        if mine == self.master and numbers[0] < 101 <= numbers[0] + 41:
            raise LookupError("a row is gone")
        return np.load(f"{path}_x.npy")[numbers]

for master in (False, True):
    loader = Loader(Broken(master), Batches(101, 20, shuffle=False), read="node")
    seen = []
    try:
        for a in loader:
            seen.append(len(a))
    except synk.WorkerError as exc:
        assert not master and isinstance(exc, LookupError), exc
        assert "batch 4 of epoch 1" in str(exc) and "a row is gone" in str(exc), exc
        assert "node" in str(exc) or "rank 2" in str(exc), exc
        print("of a node:", exc)
    except LookupError as exc:
        assert master, exc
        assert any("batch 4 of epoch 1" in note for note in exc.__notes__), exc.__notes__
        print("of the master:", exc)
    assert seen == [20, 20, 20], seen
    assert loader.batches.state()["row"] == 60
    check(f(rows, labels), slice(None))
whole = open(npz[4], "rb").read()
pair = [sources.npz(npz, "x"), sources.npz(npz, "y")]
loader = Loader(pair, Batches(101, 20, seed=3), read="node")
open(npz[4], "wb").write(whole[:40])
try:
    list(loader)
except synk.SynkhronosError as exc:
    assert isinstance(exc, synk.SourceError), type(exc)
    assert npz[4] in str(exc), exc
    print("damaged")
open(npz[4], "wb").write(whole)
anew = Loader([sources.npz(npz, "x"), sources.npz(npz, "y")], Batches(101, 20, seed=3), read="node")
assert sum(len(a) for a, _ in anew) == 101
time.sleep(1.2)
assert threading.active_count() == 1, threading.enumerate()
for source, said in ((lambda rows: rows, "no shape and dtype"),
                     (np.load(f"{path}_x.npy", mmap_mode="r"), "sources.npy"),
                     (sources.npy(f"{path}_x.npy", skip=True), "skip=True")):
    try:
        Loader(source, Batches(101, 20), read="node")
    except synk.InputError as exc:
        assert said in str(exc), exc
        print("refused")
check(f(rows, labels), slice(None))
print("the group goes on")
"""


@SHAPES
def test_each_batch_is_exactly_its_rows(
    mpi: Launcher, tmp_path: Path, ranks: int, members: str
) -> None:
    """Of whole and of shorter batches, over epochs, after a loop left early and after `restore`.

    One job for all parts: its start takes longer than any of them. Training gives the bits that it
    gives with a loader of the master. Augmented rows have the pixels of one process: the gradient
    of this loss is a mean of pixels, so the steps add up those of all rows. No row travels, and
    each node reads its share. A source that raises on one node only: the error names the member,
    the batch and the epoch; the group and the loader go on.
    """
    said = run(mpi, ranks, tmp_path, HEAD + ROWS + TRAINING + AUGMENTED + BYTES + FAULTS, members)
    assert "rows are right" in said
    assert "the same bits" in said
    assert "divided:" in said
    assert "the same pixels" in said
    assert "counted" in said
    assert "of a node:" in said
    assert "of the master:" in said
    assert "damaged" in said
    assert said.count("refused") == 3
    assert "the group goes on" in said
