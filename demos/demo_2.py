"""Data: inputs in shared memory. Run: python demos/demo_2.py [members]."""

import argparse

import numpy as np
import pytensor
import pytensor.tensor as pt

import synkhronos as synk

pytensor.config.mode = "FAST_COMPILE"
parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("members", type=int, nargs="?", default=2)
synk.fork(parser.parse_args().members)

x = pt.matrix("x", dtype="float32")
w = pt.vector("w", dtype="float32")
f = synk.function([x], (x @ w).sum(), bcast_inputs=[w])  # every member gets the whole of w

rng = np.random.default_rng(0)
images, weights = rng.random((10, 4), "float32"), rng.random(4, "float32")

# one Data for each input, so that calls copy nothing
x_data, w_data = f.build_inputs(images, weights)
print(x_data, w_data)
assert np.allclose(f(x_data, w_data), (images @ weights).sum())

# numpy arrays also work, by position or by name, and are copied
assert np.allclose(f(images, w=weights), (images @ weights).sum())

# members see what the master writes into Data
x_data[0] = 1
images[0] = 1
x_data.data[1:3] *= 2  # writes to the array itself
images[1:3] *= 2
assert np.allclose(f(x_data, w_data), (images @ weights).sum())

# another length; oversize reserves room, so that growing again allocates nothing
x_data.set_value(np.tile(images, (2, 1)), oversize=2)
assert x_data.shape == (20, 4)
assert x_data.alloc_size == 160
assert np.allclose(f(x_data, w_data), 2 * (images @ weights).sum())
x_data.set_length(25)  # the first 20 rows are kept, new ones are 0
assert np.allclose(f(x_data, w_data), 2 * (images @ weights).sum())

# the dtype and the number of dimensions cannot change
try:
    x_data.set_value(rng.random((5, 4)))
except TypeError as exc:
    print("refused:", exc)
else:
    raise AssertionError("float64 was taken for float32")
x_data.set_value(rng.random((5, 4)), force_cast=True)
assert x_data.dtype == np.float32
assert len(x_data) == 5

# made for a variable, from a dtype and a shape, or from a value
assert synk.data(var=x).shape == (0, 0)
assert synk.data(shape=(3, 2), dtype="int64").data.sum() == 0
d = synk.data([[1, 2, 3]], dtype="float32", name="d")
d.free_memory()
assert d.size == 0

synk.close()
assert x_data.shape == (5, 4)  # Data can be read after the group has ended
print("demo 2: all values as numpy has them")
