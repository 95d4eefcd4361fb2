"""batch selects rows; num_slices saves memory. Run: python demos/demo_4.py [members]."""

import argparse

import numpy as np
import pytensor
import pytensor.tensor as pt

import synkhronos as synk

pytensor.config.mode = "FAST_COMPILE"
parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("members", type=int, nargs="?", default=2)
n = synk.fork(parser.parse_args().members)

x = pt.matrix("x", dtype="float64")
s = pytensor.shared(np.zeros(()), name="s")
f = synk.function(
    [x],
    [x.mean(), (x.sum(axis=1), "gather"), x.max()],
    updates=[(s, x.sum(), "sum", "all")],
)
rng = np.random.default_rng(0)
rows = rng.random((23, 5))
data = synk.data(rows)


def check(found, wanted):
    assert np.allclose(found[0], wanted.mean())
    assert np.allclose(found[1], wanted.sum(axis=1))
    assert np.allclose(found[2], wanted.max())
    assert np.allclose(s.get_value(), wanted.sum())


# rows are selected from all rows, as in numpy, and then divided over the members
check(f(data), rows)
check(f(data, batch=8), rows[:8])
check(f(data, batch=slice(4, 20)), rows[4:20])
check(f(data, batch=slice(None, None, -3)), rows[::-3])
check(f(data, batch=[3, 1, 1, -1]), rows[[3, 1, 1, -1]])
picks = rng.permutation(23)[:10]
check(f(data, batch=picks), rows[picks])
mask = rows[:, 0] > 0.5
check(f(data, batch=mask), rows[mask])
check(f(data, batch=[5]), rows[5:6])  # members without rows compute nothing

# an epoch of batches in another order
for start in range(0, 23, 6):
    batch = slice(start, start + 6)
    check(f(data, batch=batch), rows[batch])

# each part in slices, one after the other: less memory, the same values
for num_slices in (2, 3, 100, "auto"):
    check(f(data, num_slices=num_slices), rows)
    check(f(data, batch=picks, num_slices=num_slices), rows[picks])

# Data that holds only the batch: its row 0 is the lowest row of the batch
y = pt.matrix("y", dtype="float64")
g = synk.function([x, y], (x * y).sum())
few = synk.data(rows[8:14], minibatch=True)
assert np.allclose(g(data, few, batch=slice(8, 14)), (rows[8:14] ** 2).sum())

# rows that do not exist raise an error before anything is sent
before = s.get_value()
try:
    f(data, batch=[0, 23])
except IndexError as exc:
    print("refused:", exc)
else:
    raise AssertionError("row 23 of 23 was taken")
assert s.get_value() == before

synk.close()
print("demo 4: all values as numpy has them")
