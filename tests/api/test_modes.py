"""The same table over PyTensor's modes: the serial function of the same mode is the oracle."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from selection import thorough

import synkhronos as synk

# PyTensor says so of every graph that checks shapes, in the serial function too.
pytestmark = pytest.mark.filterwarnings("ignore:Skipping Assert:UserWarning")

# By default C is tested with `test_training`, which has outputs and updates, and JAX in
# tests/backends/test_jax.py.
NUMBA = [("NUMBA", 1), ("NUMBA", 2)]  # takes a minute to compile; the demos train in it
COMPILED = [("CVM", 2), ("JAX", 2)]
CASES = [
    ("FAST_COMPILE", 1),
    ("FAST_COMPILE", 2),
    ("FAST_COMPILE", 3),
    *([*thorough(*((case,) for case in [*NUMBA, *COMPILED]))]),
]


@dataclass
class Model:
    """A small regression: its inputs, parameters, loss and steps, and the serial functions."""

    mode: str
    size: int

    def __post_init__(self) -> None:
        draw = np.random.default_rng(11)
        self.x, self.y = pt.matrix("x", dtype="float32"), pt.vector("y", dtype="float32")
        self.rows = draw.normal(size=(9, 4)).astype("float32")
        self.targets = draw.normal(size=9).astype("float32")
        self.start = draw.normal(size=4).astype("float32")
        self.w, self.serial_w = (pytensor.shared(self.start, name="w") for _ in range(2))

    def outputs(self, w: Any) -> dict[str, Any]:
        """A loss, what is gathered, a maximum, a count, and what does not depend on rows."""
        error = pt.tanh(self.x @ w) - self.y
        return {
            "loss": (error**2).mean(),
            "penalised": (error**2).sum() + (w**2).sum(),
            "errors": error,
            "most": error.max(),
            "positive": (error > 0).sum(),
            "gradient": pytensor.grad((error**2).mean(), w),
            "weights": w * 2,
        }

    def step(self, w: Any) -> tuple[Any, Any]:
        """One step down the gradient of the loss."""
        return w, w - np.float32(0.1) * self.outputs(w)["gradient"]

    def serial(self, update: bool = False) -> Any:
        """The serial function of all outputs, of its own copy of the parameters."""
        updates = [self.step(self.serial_w)] if update else None
        outputs = list(self.outputs(self.serial_w).values())
        return pytensor.function([self.x, self.y], outputs, updates=updates, mode=self.mode)

    def parallel(self, **options: Any) -> synk.Function:
        """The same function in all members."""
        return synk.function([self.x, self.y], self.outputs(self.w), mode=self.mode, **options)


def name_of(case: tuple[str, int]) -> str:
    return "-".join(map(str, case))


@pytest.fixture(params=CASES, ids=name_of)
def model(request: pytest.FixtureRequest) -> Iterator[Model]:
    """A model in a group; JAX's group starts by exec, as JAX may have run before."""
    mode, size = request.param
    compiler = pytensor.config.cxx
    if mode == "CVM":
        compiler = compiler or shutil.which("g++")  # tests/run.py may hide it
        if not compiler:
            pytest.skip("there is no C++ compiler")
    if mode == "JAX":
        pytest.importorskip("jax")
    found = pytensor.config.change_flags(cxx=compiler)
    with found, synk.Group(size, start="exec" if mode == "JAX" else None):
        yield Model(mode, size)


def same(model: Model, found: dict[str, Any], wanted: list[Any]) -> None:
    """Equal up to the rounding of float32, in the declared dtypes in every mode."""
    declared = model.outputs(model.w)
    for (name, value), exact in zip(found.items(), wanted, strict=True):
        assert value.dtype == declared[name].type.dtype, name  # JAX's serial results are wider
        assert value.shape == np.shape(exact), name
        np.testing.assert_allclose(value, exact, rtol=2e-5, atol=2e-6, err_msg=name)


def test_outputs(model: Model) -> None:
    """Means, sums with a penalty, gathers, maxima: any batch, Data or numpy, sliced or whole."""
    f, serial = model.parallel(), model.serial()
    assert f.output_modes["loss"] == "avg"
    data = synk.data(model.rows), synk.data(model.targets)
    batches: list[Any] = [None, slice(1, 8), [8, 0, 0, 3, 5, 2], np.arange(9) % 2 == 0, 1]
    for batch in batches:
        some = slice(None) if batch is None else slice(0, 1) if isinstance(batch, int) else batch
        wanted = serial(model.rows[some], model.targets[some])
        same(model, f(model.rows, model.targets, batch=batch), wanted)
        same(model, f(*data, batch=batch, num_slices=3), wanted)
    same(model, f(*data), serial(model.rows, model.targets))
    same(model, f(*data), serial(model.rows, model.targets))


def test_results_are_numpy_arrays(model: Model) -> None:
    """S65: every output is an array of numpy's in every mode, also what is not reduced."""
    for name, value in model.parallel()(model.rows, model.targets).items():
        assert type(value) is np.ndarray, name


@pytest.mark.parametrize(
    "model",
    [
        *CASES[:5],
        pytest.param(COMPILED[0], marks=pytest.mark.slow),
        *thorough((COMPILED[1],)),
    ],
    ids=name_of,
    indirect=True,
)
def test_training(model: Model) -> None:
    """Gradient steps reduced over members: each member ends with the serial parameters."""
    f, serial = model.parallel(updates=[(*model.step(model.w), "avg", "all")]), model.serial(True)
    data = synk.data(model.rows), synk.data(model.targets)
    for n in range(6):
        batch = [None, [2, 1, 7], slice(0, 8)][n % 3]
        some = slice(None) if batch is None else batch
        found = f(*data, batch=batch, num_slices=1 + n // 3)
        same(model, found, serial(model.rows[some], model.targets[some]))
        wanted = np.asarray(model.serial_w.get_value())
        for rank in range(model.size):
            value = synk.get_value(rank, model.w)
            assert value.dtype == np.float32
            np.testing.assert_allclose(value, wanted, rtol=2e-5, atol=2e-6)


def test_values_set_and_collectives(model: Model) -> None:
    """The master's values travel, in the arrays of every mode; collectives work between calls."""
    f, serial = model.parallel(), model.serial()
    model.w.set_value(model.start * 2)
    model.serial_w.set_value(model.start * 2)
    same(model, f(model.rows, model.targets), serial(model.rows, model.targets))
    synk.all_reduce(model.w, "sum")
    model.serial_w.set_value(model.start * np.float32(2 * model.size))
    same(model, f(model.rows, model.targets), serial(model.rows, model.targets))
    found = f.as_pytensor(model.rows, model.targets).values()
    for value, exact in zip(found, serial(model.rows, model.targets), strict=True):
        np.testing.assert_allclose(value, exact, rtol=2e-5, atol=2e-6)


def test_random_numbers(model: Model) -> None:
    """Streams of their own in each member, going on from slice to slice and call to call."""
    generator = pytensor.shared(np.random.default_rng(5), name="generator")
    noise_args = {"size": model.x.shape, "rng": generator, "return_next_rng": True}
    after, noise = pt.random.normal(0, 1, **noise_args)
    f = synk.function([model.x], (noise, "gather"), updates={generator: after}, mode=model.mode)
    drawn = np.concatenate([f(model.rows, num_slices=n) for n in (1, 1, 3)])
    assert drawn.shape == (27, 4)
    assert len(np.unique(drawn)) == drawn.size


def test_sliceables(model: Model) -> None:
    """Rows that live in the members, in every mode."""
    s = pytensor.shared(model.rows, name="s")
    f = synk.function([], [s.sum(0), s * 2], sliceable_shareds=[s], mode=model.mode)
    synk.scatter(s, model.rows)
    for num_slices in (1, 2):
        total, doubled = f(num_slices=num_slices)
        np.testing.assert_allclose(total, model.rows.sum(0), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(doubled, model.rows * 2)
    _, doubled = f(batch_s=[0])
    assert doubled.shape == (model.size, 4)


FORKED = """
import numpy as np, pytensor, pytensor.tensor as pt, synkhronos as synk
x, w = pt.matrix("x", dtype="float32"), pytensor.shared(np.ones(3, "float32"), name="w")
loss = pt.mean((x @ w) ** 2)
rows = np.arange(21, dtype="float32").reshape(7, 3) / 10
for n in range(2):
    with synk.Group(2, start="fork" if n == 0 else None) as group:
        step = (w, w - np.float32(0.01) * pytensor.grad(loss, w), "avg", "all")
        f = synk.function([x], loss, updates=[step], mode="JAX")
        print(repr(group).split(", ")[2], float(f(rows)), float(f(rows, num_slices=2)))
        print(float(abs(synk.get_value(1, w) - w.get_value()).max()))
"""


@pytest.mark.thorough  # as engine/test_groups.py::test_jax_ran_then_fork_close_fork
@pytest.mark.slow
def test_forked_before_jax_runs() -> None:
    """Forked while JAX has not run; the next group, after it has, starts by exec on its own."""
    pytest.importorskip("jax")
    command = [sys.executable, "-c", FORKED]
    done = subprocess.run(command, capture_output=True, text=True, timeout=270, check=False)
    assert done.returncode == 0, done.stderr
    first, equal, second, also_equal = done.stdout.splitlines()
    assert first.split()[0] == "fork"
    assert second.split()[0] == "exec"
    assert float(equal) == float(also_equal) == 0.0
    losses = [float(v) for line in (first, second) for v in line.split()[1:]]
    rows = np.arange(21).reshape(7, 3) / 10
    w = np.ones(3)
    for loss in losses:
        np.testing.assert_allclose(loss, np.mean((rows @ w) ** 2), rtol=1e-4)
        w = w - 0.01 * 2 * rows.T @ (rows @ w) / 7


@pytest.mark.slow
def test_float32_stays_float32_in_mode_jax() -> None:
    """PyTensor's own JAX mode computes this gradient in float64, at twice the cost."""
    x, y = pt.matrix("x", dtype="float32"), pt.matrix("y", dtype="float32")
    v = pytensor.shared(np.ones((4, 5), "float32"))
    w = pytensor.shared(np.ones((5, 3), "float32"))
    loss = -(pt.special.log_softmax(pt.tanh(x @ v) @ w, axis=1) * y).sum(axis=1).mean()
    rows = np.ones((6, 4), "float32"), np.ones((6, 3), "float32")
    with synk.Group(1) as group:
        f = synk.function([x, y], [loss, *pytensor.grad(loss, [v, w])], mode="JAX")
        found = f(*rows)
        replica = group.member.replicas[f._function.number]
        [compiled] = replica._compiled.values()
        held = [s.get_value() for s in replica.shareds_of_jax]
        graph = compiled.function.vm.jit_fn.lower(*rows, *held)
    assert "f32" in graph.as_text()
    assert "xf64" not in graph.as_text()  # matrices; the number of rows is a scalar
    serial = pytensor.function([x, y], [loss, *pytensor.grad(loss, [v, w])], mode="FAST_COMPILE")
    for a, b in zip(found, serial(*rows), strict=True):
        assert a.dtype == "float32"
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7)
