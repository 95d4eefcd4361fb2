"""Shared variables and collectives. Run: python demos/demo_3.py [members]."""

import argparse

import numpy as np
import pytensor
import pytensor.tensor as pt

import synkhronos as synk

pytensor.config.mode = "FAST_COMPILE"
parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("members", type=int, nargs="?", default=2)
n = synk.fork(parser.parse_args().members)
ranks = range(n)

x = pt.matrix("x", dtype="float64")
s = pytensor.shared(np.zeros(3), name="s")

# "local": each member sums its own part of the rows
f = synk.function([x], updates=[(s, s + x.sum(axis=0), "sum", "local")])
rows = np.random.default_rng(0).random((7, 3))
parts = [part.sum(axis=0) for part in np.array_split(rows, n)]
f(rows)
assert np.allclose(s.get_value(), parts[0])  # the master's value
assert all(np.allclose(synk.get_value(r, s), parts[r]) for r in ranks)
assert np.allclose(synk.gather(s), parts)  # stacked: n by 3
assert np.allclose(synk.gather(s, nd_up=0), np.concatenate(parts))
assert synk.get_shapes(s) == [(3,)] * n

# reduced to one value: in the master, or in all members
assert np.allclose(synk.reduce(s, "max", in_place=False), np.max(parts, axis=0))
synk.all_reduce(s, "sum")
assert all(np.allclose(synk.get_value(r, s), rows.sum(axis=0)) for r in ranks)

# or in the update itself: with "all" the new value is reduced over the members
t = pytensor.shared(np.zeros(3), name="t")
g = synk.function([x], updates=[(t, x.mean(axis=0), "avg", "all")])
g(rows)
assert all(np.allclose(synk.get_value(r, t), rows.mean(axis=0)) for r in ranks)

# all members use a value that the master sets, from the next call or collective on
t.set_value(np.ones(3))
h = synk.function([], [t + 0])
assert np.array_equal(h()[0], np.ones(3))
assert np.array_equal(synk.get_value(n - 1, t), np.ones(3))
synk.broadcast(t, np.arange(3.0))
assert np.array_equal(synk.get_value(n - 1, t), np.arange(3.0))

# other values for each member: divide rows, set one member's value
v = pytensor.shared(np.zeros(1), name="v")
synk.scatter(v, np.arange(7.0))
assert synk.get_lengths(v) == [len(part) for part in np.array_split(rows, n)]
synk.all_gather(v)
assert all(np.array_equal(synk.get_value(r, v), np.arange(7.0)) for r in ranks)
synk.set_value(n - 1, "v", np.zeros(2))  # a name also works
assert len(synk.get_value(n - 1, v)) == 2

# several variables with one command; an exact mean over unequal parts
a, b = (pytensor.shared(np.zeros((2, 2)), name=name) for name in "ab")
for r in ranks:
    synk.set_value(r, [a, b], [np.full((2, 2), r), np.full((2, 2), -r)])
weights = [r + 1 for r in ranks]
synk.all_reduce([a, b], "avg", weights=weights)
mean = np.average(np.arange(n), weights=weights)
assert np.allclose(a.get_value(), mean)
assert np.allclose(b.get_value(), -mean)

synk.close()
assert np.allclose(a.get_value(), mean)  # the master's values are kept
print("demo 3: all values as numpy has them")
