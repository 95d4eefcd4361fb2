"""Two nodes of two members against one of four: the same numbers; the same launch twice, too."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from launching import Launcher, run, run_here
from selection import thorough

NUMBERS = """
import hashlib, sys
import numpy as np
import pytensor, pytensor.tensor as pt
import synkhronos as synk
from synkhronos.extensions import make_train_function
from synkhronos.extensions import updates as rules

pytensor.config.mode = "FAST_COMPILE"
size = synk.fork(int(sys.argv[1]))
rng = np.random.default_rng(11)
found = {}
for dtype in sys.argv[4].split():
    for op in ("min", "max", "sum", "prod", "avg"):
        if (dtype, op) == ("bool", "sum"):
            continue  # refused: no bool holds it
        for length in map(int, sys.argv[3].split()):
            s = pytensor.shared(np.zeros(length, dtype), name="s")
            synk.broadcast(s)
            for rank in range(size):
                synk.set_value(rank, s, rng.integers(0, 3, length).astype(dtype)
                               if dtype[0] in "ib" else rng.normal(size=length).astype(dtype))
            found[f"{dtype} {op} {length}"] = np.asarray(synk.reduce(s, op, in_place=False))
            synk.all_reduce(s, op)
            assert len({synk.get_value(r, s).tobytes() for r in range(size)}) == 1
            del s
for dtype in ("float32", "float64"):
    for op in ("min", "max"):
        for length in (7, 70_001):  # NaN of all ranks but one, each at other places
            s = pytensor.shared(np.zeros(length, dtype), name="s")
            synk.broadcast(s)
            for rank in range(size):
                value = rng.normal(size=length).astype(dtype)
                if rank != 1:
                    value[rank::5] = np.nan
                synk.set_value(rank, s, value)
            least = np.asarray(synk.reduce(s, op, in_place=False))
            places = {r + 5 * n for r in range(size) if r != 1 for n in (0, 1)}
            assert set(np.flatnonzero(np.isnan(least[:7]))) == places & set(range(7))
            found[f"{dtype} {op} nan {length}"] = least
            del s

x, y = pt.matrix("x", dtype="float64"), pt.vector("y", dtype="float64")
rows = rng.normal(size=(200, 20))
target = rows @ rng.normal(size=20) + 0.1 * rng.normal(size=200)
w = pytensor.shared(np.zeros(20), name="w")
b = pytensor.shared(0.0, name="b")
loss = ((x @ w + b - y) ** 2).mean()
train = make_train_function(loss, [w, b], x, y, rules.adam, learning_rate=0.05)
data = synk.data(rows), synk.data(target)
curve = [float(train(*data, batch=slice(10 * i, 10 * i + 60))) for i in range(12)]
found["curve"], found["w"], found["b"] = np.array(curve), w.get_value(), b.get_value()
np.savez(sys.argv[2], **found)
"""


def numbers(
    mpi: Launcher, folder: Path, nodes: int, members: int, name: str, *lengths_and_dtypes: str
) -> dict[str, object]:
    """What a group of so many nodes and members computes."""
    given = str(members), str(folder / name), *lengths_and_dtypes
    if nodes == 1:
        run_here(folder, NUMBERS, *given)
    else:
        run(mpi, nodes, folder, NUMBERS, *given)
    with np.load(folder / f"{name}.npz") as found:
        return {key: found[key] for key in found.files}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("members", "lengths", "dtypes"),
    [
        (1, "3000", "float32"),
        *thorough((2, "3000", "int8"), (2, "7 3000 70001", "float32 float64 int64 int8 bool")),
    ],
)
def test_two_nodes_are_one_of_twice_the_members(
    mpi: Launcher, tmp_path: Path, members: int, lengths: str, dtypes: str
) -> None:
    one = numbers(mpi, tmp_path, 1, 2 * members, "one", lengths, dtypes)
    two = numbers(mpi, tmp_path, 2, members, "two", lengths, dtypes)
    # two members have one sum only, in whatever order they are added
    again = numbers(mpi, tmp_path, 2, members, "again", lengths, dtypes) if members > 1 else two
    assert one.keys() == two.keys()
    pairs = 5 * len(dtypes.split()) - ("bool" in dtypes)  # without the sum of bools
    assert len(one) == pairs * len(lengths.split()) + 2 * 2 * 2 + 3
    for key, wanted in one.items():
        exact = key.split()[1:2] in (["min"], ["max"]) or key.split()[0] in (
            "int64",
            "int8",
            "bool",
        )
        loose = 2e-6 if "float32" in key else 1e-13
        rtol = 0.0 if exact and "avg" not in key else loose
        np.testing.assert_allclose(two[key], wanted, rtol=rtol, atol=rtol, err_msg=key)
        np.testing.assert_array_equal(again[key], two[key], err_msg=f"{key}, twice")
