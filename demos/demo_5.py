"""batch_s selects rows of data that stay in the members. Run: python demos/demo_5.py [members]."""

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

# the data set is scattered once, and each member keeps its part
rng = np.random.default_rng(0)
images, labels = rng.random((6 * n + 1, 4)), rng.random(6 * n + 1)
x = pytensor.shared(np.zeros((1, 4)), name="x")
y = pytensor.shared(np.zeros(1), name="y")
synk.scatter([x, y], [images, labels])
xs, ys = np.array_split(images, n), np.array_split(labels, n)
assert synk.get_lengths(x) == [len(part) for part in xs]

scale = pt.scalar("scale", dtype="float64")
f = synk.function(
    [],
    [(scale * (x.sum(axis=1) * y)).mean(), (y, "gather")],
    bcast_inputs=[scale],
    sliceable_shareds=[x, y],
)


def check(found, rows):
    """Compare with numpy; rows[r] are the rows of member r."""
    a = np.concatenate([xs[r][rows[r]] for r in ranks])
    b = np.concatenate([ys[r][rows[r]] for r in ranks])
    assert np.allclose(found[0], 2 * (a.sum(axis=1) * b).mean())
    assert np.array_equal(found[1], b)


everything = slice(None)
check(f(2.0), [everything] * n)

# the same rows in each member
check(f(2.0, batch_s=slice(1, 5)), [slice(1, 5)] * n)
check(f(2.0, batch_s=3), [slice(3)] * n)
check(f(2.0, batch_s=[4, 0, 0]), [[4, 0, 0]] * n)

# other rows in each member
own = [rng.permutation(len(part))[: 3 + r % 2] for r, part in enumerate(xs)]
check(f(2.0, batch_s=own), own)
spans = [slice(r % 3, r % 3 + 2) for r in ranks]
check(f(2.0, batch_s=spans), spans)

# the same in slices
check(f(2.0, batch_s=own, num_slices=2), own)
check(f(2.0, num_slices="auto"), [everything] * n)

synk.close()
print("demo 5: all values as numpy has them")
