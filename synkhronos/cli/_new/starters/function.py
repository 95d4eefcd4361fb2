"""A function that all members compute together; run it by `python function.py`."""

import numpy as np
import pytensor
import pytensor.tensor as pt

import synkhronos as synk

size = synk.fork()  # one member for each core; synk.fork(2) starts two

# The graph is plain PyTensor. The rows of x are divided over the members; w goes to all of them.
x, w = pt.dmatrix("x"), pt.dvector("w")
error = x @ w - x.sum(axis=1)
f = synk.function([x], [(error**2).mean(), abs(error).max()], bcast_inputs=[w])

rng = np.random.default_rng(0)
rows = synk.data(rng.normal(size=(100_000, 20)))  # in shared memory: members read it in place
weights = np.full(20, 0.9)

mean, largest = f(rows, weights)  # over all rows
few, _ = f(rows, weights, batch=slice(0, 1000))  # over the first 1000

# The same by PyTensor alone: equal up to rounding, for any number of members.
serial = pytensor.function([x, w], (error**2).mean())(rows.data, weights)
print(f"{size} members: mean {mean:.6f}, largest {largest:.3f}, of 1000 rows {few:.6f}")
print(f"serial:    mean {serial:.6f}")
synk.close()
