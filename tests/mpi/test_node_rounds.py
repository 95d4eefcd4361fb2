"""Round rules over nodes: as on one node with as many members; equal centres on all nodes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from launching import Launcher, run, run_here
from selection import thorough

TRAINED = """
import sys
import numpy as np
import pytensor, pytensor.tensor as pt
import synkhronos as synk
from synkhronos import rules
from synkhronos.extensions import make_train_function, updates

pytensor.config.mode = "FAST_COMPILE"
size = synk.fork(int(sys.argv[1]))
RULES = {
    "average": rules.Average(3, state="average"),
    "warm": rules.Average(2, warmup=2),
    "slowmo": rules.SlowMo(3, state="reset"),
    "diloco": rules.DiLoCo(3),
    "easgd": rules.EASGD(3, meet=True),
    "swap": rules.Swap(2, seed=4),
}
draw = np.random.default_rng(11)
rows = draw.normal(size=(61, 20))
target = rows @ draw.normal(size=20) + 0.1 * draw.normal(size=61)
found = {}
for name in sys.argv[3].split():
    x, y = pt.matrix("x", dtype="float64"), pt.vector("y", dtype="float64")
    w = pytensor.shared(np.zeros(20), name="w")
    v = pytensor.shared(np.zeros((20, 300)), name="v")
    mean = pytensor.shared(np.zeros(20), name="mean")
    loss = ((x @ w + (x @ v).mean(axis=1) - y) ** 2).mean()
    train = make_train_function(
        loss, [w, v], x, y, updates.adam, 0.05, rule=RULES[name],
        updates=[(mean, 0.9 * mean + 0.1 * x.mean(axis=0))],
    )
    data = train.build_inputs(rows, target)
    batches = [slice(5 * i, 5 * i + (40, 1, 17)[i % 3]) for i in range(8)]
    curve = [float(train(*data, batch=batch)) for batch in batches[:4]]
    curve += train.steps(*data, batches[4:], 4).tolist()
    train.meet()
    variables = [w, v, mean, *train.state[:-1]]
    for variable in [w, v, mean]:
        values = {synk.get_value(rank, variable).tobytes() for rank in range(size)}
        assert values == {variable.get_value().tobytes()}, (name, variable)
    found[f"{name} curve"] = np.array(curve)
    for variable in variables:
        found[f"{name} {variable.name}"] = variable.get_value()
np.savez(sys.argv[2], **found)
"""


def trained(
    mpi: Launcher, folder: Path, nodes: int, members: int, names: str
) -> dict[str, np.ndarray]:
    """What a group of so many nodes and members has trained."""
    place = folder / f"{nodes}.npz"
    if nodes == 1:
        run_here(folder, TRAINED, str(members), str(place), names)
    else:
        run(mpi, nodes, folder, TRAINED, str(members), str(place), names)
    with np.load(place) as found:
        return {key: found[key] for key in found.files}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("nodes", "members", "names"),
    [
        (2, 2, "average"),
        *thorough(
            (2, 2, "swap"),
            (2, 1, "average warm slowmo diloco easgd swap"),
            (2, 2, "warm slowmo diloco easgd"),
            (3, 1, "average warm slowmo diloco easgd swap"),
        ),
    ],
)
def test_nodes_train_as_members_of_one(
    mpi: Launcher, tmp_path: Path, nodes: int, members: int, names: str
) -> None:
    one = trained(mpi, tmp_path, 1, nodes * members, names)
    many = trained(mpi, tmp_path, nodes, members, names)
    assert one.keys() == many.keys()
    for key, wanted in one.items():
        np.testing.assert_allclose(many[key], wanted, rtol=1e-9, atol=1e-12, err_msg=key)


DEATH = """
import os, signal, sys
import numpy as np
import pytensor, pytensor.tensor as pt
import synkhronos as synk
from synkhronos import rules
from synkhronos.extensions import make_train_function, updates
from synkhronos.extensions._apart.meeting import Meeting

pytensor.config.mode = "FAST_COMPILE"
treat, calls = Meeting.treat, []

def failing(self, *args):
    treat(self, *args)
    calls.append(1)
    if self._comm.rank == 3 and len(calls) == 2:
        raise ZeroDivisionError("in the meeting")

Meeting.treat = failing
synk.fork(2)
x, w = pt.vector("x", dtype="float64"), pytensor.shared(np.ones(9000), name="w")
train = make_train_function(
    (w.sum() * x).mean(), [w], x, None, updates.sgd, 0.1, rule=rules.Average(1)
)
train(np.ones(8))
old = w.get_value()
try:
    train(np.ones(8))
except synk.WorkerError as error:
    print("raised", "in the meeting" in str(error))
try:
    train(np.ones(8))
except synk.StateTorn:
    print("torn")
w.set_value(old)
train(np.ones(8))
print("equal", len({synk.get_value(rank, w).tobytes() for rank in range(4)}))
synk.close()
"""


@pytest.mark.slow
@pytest.mark.thorough
def test_a_failure_on_another_node_tears_the_centre_everywhere(
    mpi: Launcher, tmp_path: Path
) -> None:
    text = run(mpi, 2, tmp_path, DEATH).splitlines()
    assert [line for line in text if line in ("raised True", "torn", "equal 1")] == [
        "raised True",
        "torn",
        "equal 1",
    ]
