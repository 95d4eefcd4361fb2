"""Members on GPUs of several nodes: one link of all, news of failures by the leaders.

There is no GPU here: every process finds `tests/support/standin` in the place of nccl4py and
cuda.core.
"""

from __future__ import annotations

import textwrap
from importlib.util import find_spec
from pathlib import Path

import pytest
from launching import Launcher, run
from selection import thorough

pytestmark = [
    # not imported here: groups of other tests are forked from this process
    pytest.mark.skipif(find_spec("jax") is None, reason="JAX is not installed"),
    pytest.mark.slow,
]

SUPPORT = Path(__file__).parents[1] / "support"

# a group of two nodes whose members think that they are on GPUs
GROUP = """
import logging, os, sys, time, warnings
support, each = sys.argv[1], int(sys.argv[2])
sys.path[:0] = [support, support + "/standin"]
import numpy as np
import pytensor, pytensor.tensor as pt
import synkhronos as synk
from gpu_commands import *
from synkhronos._engine.group import current
from synkhronos._engine.group_options import GroupOptions
from synkhronos.testing import conformance

logging.basicConfig(format="%(message)s")
GroupOptions.members_per_gpu = 2
synk.fork(each, devices="cpu", start="exec" if each > 1 else None, timeout=90)
group = current()
size = group.size
assert size == 2 * each

def exchanges():
    found = group.run(Exchange())
    ranks = size * (size + 1) / 2
    assert [v for _, _, v in found] == [[[3 * ranks] * 3, [4 * ranks] * 4]] * size, found
"""


@pytest.fixture(params=(1, *thorough(2)), ids=lambda n: f"each{n}")
def each(request: pytest.FixtureRequest) -> str:
    """How many members a node has."""
    return str(request.param)


@pytest.mark.thorough
def test_conformance(mpi: Launcher, tmp_path: Path, each: str) -> None:
    """All verbs, on arrays of JAX's and of numpy's; one link, made once, of all members."""
    text = """
        conformance.check_communicator(group, ["float32", "complex64"], ((), (5,), (0, 3)))
        exchanges()
        for rank, calls in enumerate(group.run(Calls())):
            [made] = [c[1:4] for c in calls if c[0] == "comm_init_rank_scalable"]
            assert made == (size, rank, 1), made
        print("alike")
    """
    assert "alike" in _run(mpi, tmp_path, text, each)


@pytest.mark.thorough  # on one node: test_jax_resident.py
def test_training_equals_serial(mpi: Launcher, tmp_path: Path, each: str) -> None:
    """Gradients stay on the GPUs and make one exchange; the rule's scalars come from the master.

    Nothing is compressed: NCCL sums gradients as they are. A request for 16 bits gives a warning,
    only in mode JAX.
    """
    text = """
        from synkhronos.extensions import HalfPrecision, make_train_function, updates

        def trained(mode, how):
            draw = np.random.default_rng(1)
            x, y = pt.matrix("x", dtype="float64"), pt.vector("y", dtype="float64")
            w = pytensor.shared(np.zeros(5), name="w")
            rate = pytensor.shared(0.1, name="rate")
            f = how(((x @ w - y) ** 2).mean(), [w], x, y, updates.momentum, rate, mode=mode)
            losses = []
            for n in range(5):
                rate.set_value(0.1 / (1 + n))
                rows = draw.normal(size=(11 + n, 5))
                losses += f(rows, rows.sum(axis=1))
            return [*map(float, losses), *w.get_value()]

        from synkhronos.extensions import make_train_function_pytensor
        found = trained("JAX", make_train_function)
        assert len(group.run(Traffic())[size - 1][0]) == 5
        wanted = trained("FAST_COMPILE", make_train_function_pytensor)
        np.testing.assert_allclose(found, wanted, 1e-9)

        from synkhronos import rules

        def apart(mode, rule):
            draw = np.random.default_rng(2)
            x, y = pt.matrix("x", dtype="float64"), pt.vector("y", dtype="float64")
            w = pytensor.shared(np.zeros(5), name="w")
            mean = pytensor.shared(np.zeros(5), name="mean")
            f = make_train_function(((x @ w - y) ** 2).mean(), [w], x, y, updates.adam, 0.1,
                                    updates=[(mean, 0.9 * mean + 0.1 * x.mean(axis=0))],
                                    rule=rule, mode=mode)
            rows = draw.normal(size=(11, 5))
            data = f.build_inputs(rows, rows.sum(axis=1))
            losses = [f(*data), f(*data), *f.steps(*data, [slice(None)] * 5, 5)]
            f.meet()
            each = [synk.get_value(rank, w).tolist() for rank in range(size)]
            assert each == [w.get_value().tolist()] * size
            return [*map(float, losses), *w.get_value(), *mean.get_value(), *each[-1],
                    *f.state[0].get_value()]

        for rule in RULES.split():
            rule = eval("rules." + rule)
            np.testing.assert_allclose(apart("JAX", rule), apart("FAST_COMPILE", rule), 1e-9)
        print("trained")

        x, w = pt.vector("x"), pytensor.shared(np.array(2.0), name="w")
        made = []
        for mode in ("FAST_COMPILE", "JAX"):
            with warnings.catch_warnings(record=True) as found:
                warnings.simplefilter("always", synk.UnusedWarning)
                make_train_function(((x * w) ** 2).mean(), [w], x, None, updates.sgd, 0.1,
                                    exchange=HalfPrecision("fp16"), mode=mode)
            made += [(mode, str(w.message)) for w in found if w.category is synk.UnusedWarning]
        [(mode, said)] = made
        assert mode == "JAX" and "has no effect here" in said
        print("told")
    """
    # the others on one node: extensions/test_jax_resident_rounds.py
    given = "Average(3,state='average')"
    if each == "2":
        given = "DiLoCo(3) Swap(2) SlowMo(3,state='reset')"
    said = _run(mpi, tmp_path, f"RULES = {given!r}\n" + textwrap.dedent(text), each)
    assert "trained" in said
    assert "told" in said


@pytest.mark.thorough
def test_failures(mpi: Launcher, tmp_path: Path, each: str) -> None:
    """Wherever an exchange fails, all leave it within 5 s, and the next one links all anew."""
    text = """
        exchanges()
        for kind, says in ((Breaks, "NCCL: InternalError"), (CannotPost, "no memory")):
            for rank in range(size):
                began = time.monotonic()
                try:
                    group.run(kind(rank=rank))
                except (RuntimeError, MemoryError) as exc:
                    assert says in str(exc), exc
                    assert rank == 0 or (rank, f"node {rank // each}") == (exc.rank, exc.device[:6])
                else:
                    raise AssertionError("no failure")
                assert time.monotonic() - began < 60  # a hang
                exchanges()
                print("left")
    """
    assert _run(mpi, tmp_path, text, each).count("left") == 4 * int(each)


@pytest.mark.thorough  # of one node in transport/test_jax_gpus.py
@pytest.mark.parametrize("rank", [1, 3])
def test_a_death(mpi: Launcher, tmp_path: Path, rank: int) -> None:
    """Of a member of either node, in the middle: named within 5 s."""
    text = f"""
        exchanges()
        began = time.monotonic()
        try:
            group.run(Dies(rank={rank}))
        except synk.WorkerDied as exc:
            assert time.monotonic() - began < 60  # a hang
            assert "rank {rank}" in str(exc) and "SIGKILL" in str(exc), exc
            print("died")
    """
    assert "died" in _run(mpi, tmp_path, text, "2")


@pytest.mark.thorough  # of one node in transport/test_jax_gpus.py
def test_where_a_member_cannot_be_served(mpi: Launcher, tmp_path: Path, each: str) -> None:
    """All learn it, and go through the host's memory; the master says so once."""
    text = """
        conformance.check_communicator(group, ["float32"], ((), (5,), (0, 3)))
        print("served")
    """
    last = str(2 * int(each) - 1)
    said = _run(mpi, tmp_path, text, each, STANDIN_NCCL_FAILS=last)
    assert "served" in said
    assert said.count("NCCL cannot serve this group: rank " + last) == 1, said


def _run(mpi: Launcher, folder: Path, text: str, each: str, **environ: str) -> str:
    environ["STANDIN_NCCL_PATIENCE"] = "20"
    return run(mpi, 2, folder, GROUP + textwrap.dedent(text), str(SUPPORT), each, **environ)
