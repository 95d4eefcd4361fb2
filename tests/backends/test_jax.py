"""Mode JAX: any lengths from few compilations, dtypes, random streams, values and memory."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from selection import thorough
from user_scripts import run_script
from worker_commands import Copied, Counts, Listen

import synkhronos as synk
from synkhronos._backends import jax as jax_backend
from synkhronos._compiling.data.aligned import aligned_empty
from synkhronos.extensions import make_train_function, make_train_function_pytensor, updates
from synkhronos.extensions.checkpoints import Checkpoints

pytestmark = [
    pytest.mark.together,
    # not imported here: groups of other tests are forked from this process
    pytest.mark.skipif(find_spec("jax") is None, reason="JAX is not installed"),
    pytest.mark.slow,
    # PyTensor says so of every graph that checks shapes
    pytest.mark.filterwarnings("ignore:Skipping Assert:UserWarning"),
]

LENGTHS = (43, 8, 1, 0, 30, 31, 29, 37, 100, 2, 43, 75)  # more than are compiled for


@pytest.fixture(
    scope="module",
    params=(
        *thorough(1),
        2,
        *thorough(3),
    ),
    ids=lambda n: f"size{n}",
)
def lasting(request: pytest.FixtureRequest) -> Iterator[synk.Group]:
    """A group by exec, as JAX may have run here; a new one would import JAX in each worker."""
    made = synk.Group(request.param, start="exec")
    yield made
    made.close()


@pytest.fixture
def jax_group(lasting: synk.Group) -> Iterator[synk.Group]:
    """A group of each size, the current one."""
    with lasting.active():
        yield lasting


@pytest.fixture
def jax_pair(jax_group: synk.Group) -> synk.Group:
    """Two members, the current group."""
    return jax_group


class Regression:
    """Data, and a graph with outputs and updates of every kind that is proved."""

    def __init__(self, dtype: str = "float32") -> None:
        draw = np.random.default_rng(7)
        self.dtype = dtype
        self.rows = draw.normal(size=(120, 5)).astype(dtype)
        self.targets = draw.normal(size=120).astype(dtype)
        self.start = draw.normal(size=5).astype(dtype)
        self.x, self.y = pt.matrix("x", dtype=dtype), pt.vector("y", dtype=dtype)
        self.w = self.weights()

    def weights(self) -> Any:
        return pytensor.shared(self.start, name="w")

    def outputs(self, w: Any) -> dict[str, Any]:
        error = pt.tanh(self.x @ w) - self.y
        loss = (error**2).mean()
        return {
            "loss": loss,
            "penalised": loss + (w**2).sum(),
            "sum": (error**2).sum(),
            "rows": error,
            "most": error.max(),
            "least": error.min(),
            "above": (error > 0).sum(),
            "masked": (error * (self.x[:, 0] > 0)).sum() / (self.x[:, 0] > 0).sum(),
            "gradient": pytensor.grad(loss, w),
            "products": self.x.T @ self.x,
            "weights": w * 2,
        }

    def new(self, w: Any) -> Any:
        return w - np.asarray(0.05, self.dtype) * pytensor.grad(self.outputs(w)["penalised"], w)


def check(found: dict[str, Any], wanted: list[Any], model: Regression) -> None:
    """Equal up to rounding, and in the declared dtypes."""
    tolerance = 1e-4 if model.dtype == "float32" else 1e-11
    declared = model.outputs(model.w)
    for (name, value), exact in zip(found.items(), wanted, strict=True):
        assert type(value) is np.ndarray, name
        assert value.dtype == declared[name].type.dtype, name
        assert value.shape == np.shape(exact), name
        np.testing.assert_allclose(value, exact, tolerance, tolerance, err_msg=name)


@pytest.mark.parametrize("dtype", ["float32", *thorough("float64")])
def test_any_length_is_exact(jax_group: synk.Group, dtype: str) -> None:
    """Lengths that change with each call, listed rows and Data, slices: what numpy's mode says."""
    compare(jax_group.size, dtype)


def compare(members: int, dtype: str) -> None:
    """Every output and every member's parameters are those of the serial function."""
    model = Regression(dtype)
    serial_w = model.weights()
    options = {"updates": [(serial_w, model.new(serial_w))], "mode": "FAST_COMPILE"}
    serial = pytensor.function(
        [model.x, model.y], list(model.outputs(serial_w).values()), **options
    )
    step = (model.w, model.new(model.w), "avg", "all")
    f = synk.function([model.x, model.y], model.outputs(model.w), updates=[step], mode="JAX")
    data = synk.data(model.rows), synk.data(model.targets)
    draw = np.random.default_rng(3)
    for n, rows in enumerate(LENGTHS):
        if rows < 2:  # a mean of no rows is no number
            continue
        batch = draw.integers(0, 120, rows) if n % 2 else slice(0, rows)
        wanted = serial(model.rows[batch], model.targets[batch])
        found = f(*data, batch=batch, num_slices=1 + n % 3)
        check(found, wanted, model)
        for rank in range(members):
            value = synk.get_value(rank, model.w)
            assert value.dtype == dtype
            np.testing.assert_allclose(value, serial_w.get_value(), 1e-4, 1e-4)


@pytest.mark.thorough  # of all members: test_any_length_is_exact
@pytest.mark.parametrize("lasting", [2], indirect=True)
def test_local_updates_of_any_length(jax_pair: synk.Group) -> None:
    """A new value that is finished of several partial ones, in each member from its own rows."""
    model = Regression("float64")
    change = model.w, local(model, model.w), None, "local"
    f = synk.function([model.x], [], updates=[change], mode="JAX")
    copies = [model.weights() for _ in range(2)]
    steps = [
        pytensor.function([model.x], [], updates=[(w, local(model, w))], mode="FAST_COMPILE")
        for w in copies
    ]
    for rows in (40, 23, 7, 60, 33, 51, 12, 119, 64):
        f(model.rows[:rows])
        half = -(-rows // 2)
        for step, part in zip(steps, (slice(0, half), slice(half, rows)), strict=True):
            step(model.rows[part])
    for rank, w in enumerate(copies):
        np.testing.assert_allclose(synk.get_value(rank, model.w), w.get_value(), 1e-11)


def local(model: Regression, w: Any) -> Any:
    """A step down a mean with a penalty."""
    return w - 0.05 * pytensor.grad(((model.x @ w) ** 2).mean() + (w**2).sum(), w)


@pytest.mark.thorough
def test_training_with_any_lengths(jax_group: synk.Group) -> None:
    """Steps, gradients without a step, and fewer rows than members; the serial twin agrees."""
    ours, serial = Regression("float64"), Regression("float64")
    rule = updates.adam if jax_group.size == 2 else updates.sgd
    how = {"update_rule": rule, "learning_rate": 0.01}
    train = make_train_function(penalised(ours), [ours.w], ours.x, ours.y, mode="JAX", **how)
    twin = make_train_function_pytensor(
        penalised(serial), [serial.w], serial.x, serial.y, mode="FAST_COMPILE", **how
    )
    gradient = pytensor.function(
        [serial.x, serial.y], pytensor.grad(penalised(serial), serial.w), mode="FAST_COMPILE"
    )
    data = synk.data(ours.rows), synk.data(ours.targets)
    for n, rows in enumerate((43, 1, 30, 31, 100, 43)):
        batch = np.arange(rows) * 7 % 120
        some = serial.rows[batch], serial.targets[batch]
        [found] = train.gradients(*data, batch=batch)
        np.testing.assert_allclose(found, gradient(*some), 1e-10, 1e-12)
        np.testing.assert_allclose(
            train(*data, batch=batch, num_slices=1 + n % 2), twin(*some), 1e-10
        )
        np.testing.assert_allclose(ours.w.get_value(), serial.w.get_value(), 1e-9)


def penalised(model: Regression) -> Any:
    return model.outputs(model.w)["penalised"]


@pytest.mark.thorough  # of one function: test_calls_of_any_lengths
def test_compilations_of_an_epoch() -> None:
    """10,007 rows in batches of 128 over 3 members: parts of 43 or 42 rows, and of 8 or 7.

    Hundreds of other lengths after that add a few, and as many again nothing.
    """
    draw = np.random.default_rng(0)
    rows = draw.normal(size=(10_007, 6)).astype("float32")
    x = pt.fmatrix("x")
    w = pytensor.shared(np.ones(6, "float32"), name="w")
    loss = (pt.tanh(x @ w) ** 2).mean()
    with synk.Group(3, start="exec") as group:
        group.run(Listen())
        data = synk.data(rows)
        train = make_train_function(loss, [w], x, None, updates.sgd, 0.01, mode="JAX")
        for f in (synk.function([x], [loss, (x @ w).max()], mode="JAX"), train):
            order = draw.permutation(len(rows))
            for start in range(0, len(rows), 128):
                f(data, batch=order[start : start + 128])
            assert [asked for asked, _, _ in group.run(Counts())] == [2, 2, 2]
            for n in range(1, 600, 5):
                f(data, batch=n)
            # three lengths more, the powers of two up to 128, and what takes no rows
            assert max(asked for asked, _, _ in group.run(Counts())) <= 3 + 7 + 1
            for n in range(1, 600, 5):
                f(data, batch=n)
            assert [asked for asked, _, _ in group.run(Counts())] == [0, 0, 0]


SHARED_CACHE = """
import json, sys, warnings
warnings.simplefilter("ignore", UserWarning)
import numpy as np, pytensor, pytensor.tensor as pt
import synkhronos as synk
from worker_commands import Counts, Listen

x = pt.fmatrix("x")
w = pytensor.shared(np.ones(6, "float32"), name="w")
with synk.Group(int(sys.argv[1]), start="exec") as group:
    group.run(Listen())
    f = synk.function([x], pytensor.grad((pt.tanh(x @ w) ** 2).mean(), w), mode="JAX")
    found = []
    for rows in (20, 6):
        f(np.ones((rows * group.size, 6), "float32"))
        found.append(group.run(Counts()))
    print(json.dumps(found))
"""


@pytest.mark.thorough  # of numba: tests/pymc/test_compiling.py
def test_the_second_member_loads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One compiles each length, the other loads it; in the next run, the first loads it too."""
    flags = os.environ.get("PYTENSOR_FLAGS", "")
    monkeypatch.setenv("PYTENSOR_FLAGS", f"{flags},base_compiledir={tmp_path / 'compiled'}")
    path = [
        str(Path(__file__).parents[1] / "support"),
        *filter(None, [os.environ.get("PYTHONPATH")]),
    ]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path))
    compiled, loaded = [1, 0, 1], [1, 1, 0]
    for members in ([compiled, loaded], [loaded]):
        out = run_script(tmp_path, SHARED_CACHE, str(len(members)), check=True)
        assert json.loads(out.splitlines()[-1]) == [members, members]
    assert len(list((tmp_path / "compiled" / "synkhronos-jax").glob("*-cache"))) == 2


def test_jax_is_configured_as_before(tmp_path: Path) -> None:
    """The cache is the members' while they compile; a user's own is used in its place."""
    import jax
    from jax.experimental.compilation_cache import compilation_cache

    x = pt.fvector("x")
    with synk.Group(1):
        for folder in (None, str(tmp_path)):
            jax.config.update("jax_compilation_cache_dir", folder)
            try:
                compilation_cache.reset_cache()
                f = synk.function([x], (x**3).sum(), mode="JAX")
                assert f(np.full(4, 2, "float32")) == 32
                assert jax.config.jax_compilation_cache_dir == folder
                assert jax.config.jax_persistent_cache_min_compile_time_secs > 0
            finally:
                jax.config.update("jax_compilation_cache_dir", None)
                compilation_cache.reset_cache()


@pytest.mark.parametrize("lasting", [2], indirect=True)
def test_graphs_of_float32_stay_float32(jax_pair: synk.Group) -> None:
    """Outputs, updates and what is between them, in PyTensor's floatX of float64."""
    assert pytensor.config.floatX == "float64"
    x, k = pt.fmatrix("x"), pt.lvector("k")
    w = pytensor.shared(np.ones((4, 3), "float32"), name="w")
    table = pytensor.shared(np.ones((6, 4), "float32"), name="table")
    hidden = (x - x.mean(axis=0)) / pt.sqrt(x.var(axis=0) + np.float32(1)) + table[k]
    scores = pt.special.log_softmax(pt.tanh(hidden) @ w, axis=1)
    loss = -scores[pt.arange(k.shape[0]), k % 3].mean() + pt.eye(3, dtype="float32").sum()
    grads = pytensor.grad(loss, [w, table])
    changes = [(w, w - grads[0], "avg", "all"), (table, table * x.mean(), "avg", "all")]
    outputs = [(v, "avg") for v in (loss, *grads, x.std())]  # of parts: the mean is that of a part
    f = synk.function([x, k], outputs, updates=changes, mode="JAX")
    rows = np.linspace(0, 1, 20, dtype="float32").reshape(5, 4), np.arange(5)
    jax_pair.run(Listen())
    for n in range(3):
        assert all(v.dtype == "float32" for v in f(*rows))
        for rank in range(2):
            assert all(v.dtype == "float32" for v in synk.get_value(rank, [w, table]))
        assert [asked for asked, _, _ in jax_pair.run(Counts())] == ([1, 1] if n == 0 else [0, 0])
    replica = jax_pair.member.replicas[f._function.number]
    [compiled] = replica._compiled.values()
    held = [s.get_value() for s in replica.shareds_of_jax]
    graph = compiled.function.vm.jit_fn.lower(*rows, *held).as_text()
    assert "xf32" in graph
    assert "xf64" not in graph


WIDE = """
import warnings
warnings.filterwarnings("ignore", "Skipping Assert")
import numpy as np, pytensor, pytensor.tensor as pt
import synkhronos as synk

x, d = pt.fmatrix("x"), pt.dvector("d")
w = pytensor.shared(np.ones(4, "float32"), name="w")
n = pytensor.shared(np.int64(2**40), name="n")
with synk.Group(2, start="exec"):
    outputs = [x.argmax(axis=1), (x > 0).sum(), x.mean(), d.sum(), n * 2]
    f = synk.function([x, d], outputs, updates=[(w, w * 2), (n, n + 1)], mode="JAX")
    tiny = np.full(9, 1 + 2.0**-40)
    for rows in (9, 7, 5):
        found = f(np.ones((rows, 4), "float32"), tiny[:rows])
        print(*[v.dtype for v in found], w.get_value().dtype, n.get_value().dtype)
        print(float(found[3]) == rows * tiny[0], int(found[4]) - 2**41, int(n.get_value()) - 2**40)
    found = f.as_pytensor(np.ones((9, 4), "float32"), tiny)
    print(*[v.dtype for v in found], w.get_value().dtype, n.get_value().dtype)
    print(float(found[3]) == 9 * tiny[0], int(found[4]) - 2**41, int(n.get_value()) - 2**40)
"""


@pytest.mark.thorough  # of single precision: the test above
def test_dtypes_where_floatx_is_float32(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTensor then denies JAX 64-bit dtypes; results are as declared, and no number is cut."""
    monkeypatch.setenv("PYTENSOR_FLAGS", f"{os.environ.get('PYTENSOR_FLAGS', '')},floatX=float32")
    lines = run_script(tmp_path, WIDE).splitlines()
    assert lines[::2] == ["int64 int64 float32 float64 int64 float32 int64"] * 4
    assert lines[1::2] == [f"True {2 * n} {n + 1}" for n in range(4)]


@pytest.mark.parametrize("lasting", [2], indirect=True)
def test_calls_of_any_lengths(jax_pair: synk.Group) -> None:
    """Few compilations, however many lengths the parts have."""
    x = pt.fmatrix("x")
    f = synk.function([x], (x**2).sum(), mode="JAX")
    jax_pair.run(Listen())
    rows = np.ones((200, 3), "float32")
    for n in range(2, 200, 3):
        assert f(rows[:n]) == 3 * n
    assert max(asked for asked, _, _ in jax_pair.run(Counts())) <= 4 + 7


def test_streams(jax_group: synk.Group) -> None:
    """They move with every call and from slice to slice, and each member has its own.

    A group of one draws what PyTensor's own function of mode JAX draws. The value is a generator
    of numpy's at all times, so it can be saved, set and used in another mode.
    """
    x = pt.fvector("x")
    rng = pytensor.shared(np.random.default_rng(5), name="rng")
    after, drawn = pt.random.uniform(size=x.shape, rng=rng, return_next_rng=True)
    f = synk.function([x], (drawn, "gather"), updates=[(rng, after)], mode="JAX")
    rows = np.zeros(12, "float32")
    first, second, third = f(rows), f(rows), f(rows, num_slices=2)
    whole = np.concatenate([first, second, third])
    assert len(np.unique(whole)) == len(whole) == 36
    if jax_group.size == 1:
        state = {"jax_state": np.array(start_of(5))}
        np.testing.assert_array_equal(first, serial_draws(state, 12))
    assert isinstance(rng.get_value(borrow=True), np.random.Generator)
    kept = rng.get_value()
    fourth = f(rows)
    rng.set_value(kept)
    again = f(rows)
    own = slice(0, 12 // jax_group.size)  # a set generator gives the others new streams
    np.testing.assert_array_equal(again[own], fourth[own])
    numpy_f = synk.function([x], (drawn, "gather"), updates=[(rng, after)], mode="FAST_COMPILE")
    assert len(np.unique(np.concatenate([numpy_f(rows), f(rows)]))) == 24


def start_of(seed: int) -> Any:
    """What PyTensor makes of a generator for JAX."""
    from pytensor.link.jax.dispatch import jax_typify

    return jax_typify(np.random.default_rng(seed))["jax_state"]


def serial_draws(state: dict[str, Any], n: int) -> np.ndarray:
    """What PyTensor draws in JAX, from its source: split, then draw with the second key."""
    import jax

    _, key = jax.random.split(state["jax_state"], 2)
    return np.asarray(jax.random.uniform(key, (n,), "float64"))


def test_the_masters_own_function_draws_on() -> None:
    """`as_pytensor` in mode JAX draws the same numbers as the group, and goes on."""
    x = pt.fvector("x")
    with synk.Group(1):
        found = []
        for how in ("group", "serial"):
            rng = pytensor.shared(np.random.default_rng(5), name="rng")
            after, drawn = pt.random.uniform(size=x.shape, rng=rng, return_next_rng=True)
            f = synk.function([x], (drawn, "gather"), updates=[(rng, after)], mode="JAX")
            call = f if how == "group" else f.as_pytensor
            found.append(np.concatenate([call(np.zeros(3, "float32")) for _ in range(3)]))
            assert isinstance(rng.get_value(borrow=True), np.random.Generator)
        np.testing.assert_array_equal(*found)


def test_what_is_not_drawn_stays() -> None:
    """An output that needs no draw, of a function that moves a generator."""
    x = pt.fvector("x")
    rng = pytensor.shared(np.random.default_rng(5), name="rng")
    after, drawn = pt.random.uniform(size=x.shape, rng=rng, return_next_rng=True)
    with synk.Group(1):
        f = synk.function([x], [x.sum(), (drawn.sum(), "sum")], updates=[(rng, after)], mode="JAX")
        assert f(np.ones(3, "float32"), output_subset=[0])[0] == 3


def test_other_generators_are_refused() -> None:
    rng = pytensor.shared(np.random.Generator(np.random.Philox(1)), name="rng")
    x = pt.fvector("x")
    after, drawn = pt.random.uniform(size=x.shape, rng=rng, return_next_rng=True)
    with synk.Group(1):
        f = synk.function([x], (drawn, "gather"), updates=[(rng, after)], mode="JAX")
        with pytest.raises(synk.InputTypeError, match=r"PCG64.*default_rng"):
            f(np.zeros(3, "float32"))


def test_nobody_minds_whose_array_a_value_is(jax_group: synk.Group, tmp_path: Path) -> None:
    """Collectives, checkpoints and training on values that JAX has made."""
    last = jax_group.size - 1
    x = pt.fmatrix("x")
    rows = np.ones((6, 4), "float32")
    w = pytensor.shared(np.ones(4, "float32"), name="w")
    count = pytensor.shared(np.int64(0), name="count")
    changes = [(w, w * 2), (count, count + 1)]
    f = synk.function([x], (x @ w).sum(), updates=changes, mode="JAX")

    def jax_made() -> None:
        synk.broadcast(w, np.ones(4, "float32"))
        assert f(rows) == 24
        assert not isinstance(w.get_value(borrow=True), np.ndarray)
        assert w.get_value().dtype == "float32"

    jax_made()
    np.testing.assert_array_equal(synk.get_value(last, w), 2 * np.ones(4))
    np.testing.assert_array_equal(synk.gather(w, nd_up=0), 2 * np.ones(4 * jax_group.size))
    assert synk.get_shapes([w, count]) == [[(4,)] * jax_group.size, [()] * jax_group.size]
    assert synk.reduce(w, "sum", in_place=False)[0] == 2 * jax_group.size
    synk.scatter(w)
    assert sum(synk.get_lengths(w)) == 4
    jax_made()
    synk.set_value(last, w, w.get_value(borrow=True) * 3)
    np.testing.assert_array_equal(synk.get_value(last, w), 6 * np.ones(4))
    jax_made()
    synk.all_gather(w)
    assert synk.get_lengths(w) == [4 * jax_group.size] * jax_group.size
    synk.broadcast(w, np.ones(4, "float32"))
    checkpoints = Checkpoints(tmp_path, [w, count])
    jax_made()
    before = int(count.get_value())
    checkpoints.save(1)
    f(rows)
    checkpoints.restore()
    assert (w.get_value()[0], count.get_value()) == (2, before)
    jax_made()
    train = make_train_function(((x @ w) ** 2).mean(), [w], x, None, updates.sgd, 0.01, mode="JAX")
    assert train(rows) == 64
    np.testing.assert_allclose(synk.get_value(last, w), 2 - 0.01 * 2 * 8 * np.ones(4), 1e-6)
    assert f(rows) == pytest.approx(24 * (2 - 0.16))
    synk.all_reduce(w, "sum")  # its home is the arena from now on
    value = w.get_value(borrow=True)[0]
    f(rows)
    np.testing.assert_allclose(synk.get_value(last, w), 2 * value * np.ones(4), 1e-6)
    w.set_value(np.ones(4, "float32"))
    assert f(rows) == 24


def test_no_result_shares_memory_with_data(jax_group: synk.Group) -> None:
    """Inputs are read in place, during the call only: what is written later changes no result."""
    x = pt.fmatrix("x")
    w = pytensor.shared(np.zeros((64, 32), "float32"), name="w")
    f = synk.function(
        [x],
        [(x, "gather"), (x.reshape((-1, 16)), "gather"), (x[:1], None), (x.T, None)],
        updates=[(w, x[:64])],
        mode="JAX",
    )
    rows = np.arange(64 * 3 * 32, dtype="float32").reshape(-1, 32)
    data = synk.data(rows)
    for batch in (None, np.arange(192), slice(0, 192)):
        found = f(data, batch=batch)
        part = rows[: 192 // jax_group.size]
        data[:] = -1
        np.testing.assert_array_equal(found[0], rows)
        np.testing.assert_array_equal(found[1], rows.reshape(-1, 16))
        np.testing.assert_array_equal(found[2], rows[:1])
        np.testing.assert_array_equal(found[3], part.T)
        for rank in range(jax_group.size):
            start = rank * len(part)
            np.testing.assert_array_equal(synk.get_value(rank, w), rows[start : start + 64])
        data[:] = rows


def test_what_jax_copies() -> None:
    """Of large arrays, those off a 64-byte border; the others it reads where they are."""
    import jax

    memory = aligned_empty((1 << 18,), np.dtype(np.uint8))
    for offset in (0, 4, 16, 32, 60, 64, 128):
        array = memory[offset : offset + (1 << 17)].view(np.float32)
        address = array.__array_interface__["data"][0]
        assert (address % 64 == 0) == (offset % 64 == 0)
        read = jax.device_put(array).unsafe_buffer_pointer()
        assert jax_backend.is_copied(array) == (read != address)
        assert jax_backend.is_far(array) == (read != address)
        kept = jax_backend.brought(array)
        assert jax.device_put(kept).unsafe_buffer_pointer() == kept.__array_interface__["data"][0]
        np.testing.assert_array_equal(kept, array)
    assert jax_backend.is_copied(np.asfortranarray(np.ones((200, 200))))
    assert not jax_backend.is_copied(np.ones(100)[1:])  # too small to be worth it


@pytest.mark.parametrize("lasting", [2], indirect=True)
def test_values_are_kept_where_jax_reads_them(jax_pair: synk.Group) -> None:
    """Large values move once to a 64-byte border, in all members, which is no news to anybody."""
    x = pt.fvector("x")
    rows = np.ones(7, "float32")
    w = pytensor.shared(np.arange(1 << 16, dtype="float32")[3:], name="w")
    f = synk.function([x], x.sum() * w.sum(), mode="JAX")
    for n in range(2):
        assert f(rows) == pytest.approx(7 * float(w.get_value().sum(dtype="float64")), rel=1e-5)
        assert not jax_backend.is_copied(w.get_value(borrow=True)), n
    assert jax_pair.run(Copied(jax_pair.member.variables.of(w).number)) == [False, False]
    assert not jax_pair.member.variables.of(w).is_set
    w.set_value(np.ones(1 << 16, "float32")[1:])
    assert f(rows) == 7 * ((1 << 16) - 1)
    synk.broadcast(w, np.full((1 << 16) - 1, 2, "float32"))
    assert f(rows) == 14 * ((1 << 16) - 1)


@pytest.mark.thorough  # of values: the test above
@pytest.mark.parametrize("lasting", [2], indirect=True)
def test_parts_off_a_border(jax_pair: synk.Group) -> None:
    """Rows of 12 bytes: parts begin anywhere, in Data that changes under the same command."""
    x = pt.fmatrix("x")
    f = synk.function([x], [x.sum(axis=0), (x, "gather")], mode="JAX")
    rows = np.arange(3 * 20_001, dtype="float32").reshape(-1, 3) / 1000
    data = synk.data(rows)
    for factor in (1, 2, 3):
        data[:] = rows * factor
        total, same = f(data)
        np.testing.assert_allclose(total, rows.sum(0, dtype="float64") * factor, 1e-4)
        np.testing.assert_array_equal(same, rows * factor)
    total, _ = f(data, num_slices=3)
    np.testing.assert_allclose(total, rows.sum(0, dtype="float64") * 3, 1e-4)


def test_values_on_another_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where JAX does not compute in the host's memory, values become its arrays; all else holds."""
    monkeypatch.setattr(jax_backend, "on_cpu", lambda: False)
    x = pt.fmatrix("x")
    rows = np.arange(8, dtype="float32").reshape(4, 2)
    with synk.Group(1) as group:
        w = pytensor.shared(np.ones(2, "float32"), name="w")
        f = synk.function([x], (x @ w).sum(), mode="JAX")
        assert f(rows) == 28
        assert not isinstance(w.get_value(borrow=True), np.ndarray)
        assert not group.member.variables.of(w).is_set
        np.testing.assert_array_equal(np.asarray(w.get_value()), np.ones(2))
        w.set_value(np.full(2, 2, "float32"))
        assert f(rows) == 56
        loss = ((x @ w) ** 2).mean()
        train = make_train_function(loss, [w], x, None, updates.sgd, 0.01, mode="JAX")
        wanted = np.full(2, 2.0)
        for _ in range(3):  # the values lie in shared memory, where the update writes them
            assert train(rows) == pytest.approx(((rows @ wanted) ** 2).mean(), rel=1e-4)
            wanted -= 0.01 * 2 * rows.T @ (rows @ wanted) / 4
            assert f(rows) == pytest.approx((rows @ wanted).sum(), rel=1e-4)
