"""Outputs and their reductions; output_subset. Run: python demos/demo_1.py [members]."""

import argparse

import numpy as np
import pytensor
import pytensor.tensor as pt

import synkhronos as synk

pytensor.config.mode = "FAST_COMPILE"  # avoids waiting for a compiler; omit this if speed matters
parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("members", type=int, nargs="?", default=2)
n = synk.fork(parser.parse_args().members)

x = pt.matrix("x", dtype="float64")
y = pt.vector("y", dtype="float64")
product = x.T @ y

f = synk.function(
    [x, y],
    [
        product,  # no reduction named: a sum over rows, as the graph shows
        (product, "sum"),
        (x.mean(), "avg"),  # weighted by each member's number of rows
        (x.max(axis=0), "max"),
        (x.min(axis=0), "min"),
        (2 * x, "gather"),  # the members' rows one after the other
        (x.shape[0], None),  # the master's own value
    ],
)
synk.distribute()  # optional: the first call does it otherwise
print("reductions:", f.output_modes)

rng = np.random.default_rng(0)
rows, weights = rng.random((7, 3)), rng.random(7)  # 7 rows need not divide evenly
inferred, summed, mean, high, low, doubled, own = f(rows, weights)

assert np.allclose(inferred, rows.T @ weights)
assert np.allclose(summed, inferred)
assert np.allclose(mean, rows.mean())
assert np.array_equal(high, rows.max(axis=0))
assert np.array_equal(low, rows.min(axis=0))
assert np.array_equal(doubled, 2 * rows)
assert own == len(np.array_split(rows, n)[0])
print(f"{own} of {len(rows)} rows were the master's")

low, mean = f(rows, weights, output_subset=[4, 2])  # only these are computed, in this order
assert np.array_equal(low, rows.min(axis=0))
assert np.allclose(mean, rows.mean())

# the same function, only in the master
serial = f.as_pytensor(rows, weights)
assert np.allclose(serial[0], summed)
assert serial[6] == len(rows)

# a dict of outputs; a single output is returned without a list
g = synk.function([x], {"norm": (x**2).sum(), "rows": x.shape[0]})
assert np.allclose(g(rows)["norm"], (rows**2).sum())
assert g(rows)["rows"] == 7
h = synk.function([x], x.mean(axis=0))
assert np.allclose(h(rows), rows.mean(axis=0))

synk.close()
print("demo 1: all values as numpy has them")
