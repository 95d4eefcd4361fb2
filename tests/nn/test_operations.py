"""Convolution and pooling: numpy is the oracle, and all modes agree, gradients included."""

from __future__ import annotations

import importlib
import itertools
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from selection import thorough

import synkhronos as synk
from synkhronos import nn
from synkhronos._proofs import Proof, prove

MODES = ("FAST_COMPILE", "JAX")
[NUMBA] = thorough("NUMBA")
# height, width, channels, new, window, strides, padding, dilation, groups
CASES = {
    "padded unevenly": (7, 6, 2, 3, (3, 2), (1, 1), ((1, 1), (0, 1)), (1, 1)),
    "strides": (7, 8, 2, 3, (3, 3), (2, 2), ((1, 1), (1, 1)), (1, 1)),
    "many channels": (9, 9, 20, 3, (2, 3), (2, 3), ((0, 0), (0, 0)), (1, 1)),
    "one pixel": (5, 5, 3, 4, (1, 1), (2, 2), ((0, 0), (0, 0)), (1, 1)),
    "dilation": (9, 8, 2, 2, (3, 2), (1, 2), ((2, 0), (1, 1)), (2, 3)),
    "left over": (8, 8, 1, 2, (3, 3), (3, 3), ((0, 0), (0, 0)), (1, 1)),
    "two groups": (6, 5, 4, 6, (3, 2), (1, 2), ((1, 1), (0, 1)), (1, 1), 2),
    "channels apart": (6, 5, 3, 3, (2, 3), (2, 1), ((0, 1), (1, 1)), (1, 2), 3),
}


def convolved(x: np.ndarray, w: np.ndarray, strides: Any, padding: Any, gaps: Any) -> np.ndarray:
    """The definition, pixel by pixel."""
    x = np.pad(x, ((0, 0), *padding, (0, 0)))
    (kh, kw), (down, right), (by, along) = w.shape[:2], strides, gaps
    rows = (x.shape[1] - (kh - 1) * by - 1) // down + 1
    columns = (x.shape[2] - (kw - 1) * along - 1) // right + 1
    found = np.zeros((len(x), rows, columns, w.shape[3]))
    for r, c, i, j in itertools.product(range(rows), range(columns), range(kh), range(kw)):
        found[:, r, c] += x[:, r * down + i * by, c * right + j * along] @ w[i, j]
    return found


def in_groups(x: np.ndarray, w: np.ndarray, groups: int, *how: Any) -> np.ndarray:
    """The definition for each group of channels apart."""
    parts = zip(np.split(x, groups, axis=3), np.split(w, groups, axis=3), strict=True)
    return np.concatenate([convolved(*part, *how) for part in parts], axis=3)


def slope(f: Any, at: list[np.ndarray], along: list[np.ndarray]) -> float:
    """How fast f grows in a direction, by differences."""
    step = 1e-5
    up, down = ([a + s * step * d for a, d in zip(at, along, strict=True)] for s in (1, -1))
    return float((f(*up) - f(*down)) / (2 * step))


def check_derivatives(
    mode: str, x: Any, w: Any, y: Any, at: list[np.ndarray], rng: np.random.Generator
) -> np.ndarray:
    """Compare first and second derivatives of y with differences; return the value of y."""
    cost = pt.sin(y).sum()
    first = pytensor.grad(cost, [x, w])
    both = pt.sin(first[0]).sum() + pt.sin(first[1]).sum()
    second = pytensor.grad(both, [x, w])
    f = pytensor.function([x, w], [y, *first, *second], mode=mode)
    found = [np.asarray(v) for v in f(*at)]
    along = [rng.normal(size=a.shape) for a in at]
    for value, gradient in [(cost, found[1:3]), (both, found[3:])]:
        g = pytensor.function([x, w], value, mode="FAST_COMPILE")
        expected = sum((a * d).sum() for a, d in zip(gradient, along, strict=True))
        assert slope(g, at, along) == pytest.approx(expected, rel=1e-5, abs=1e-5)
    return found[0]


SLOW = thorough(*(("NUMBA", case) for case in ("strides", "dilation", "two groups")))
APART = ("JAX", "channels apart")  # as "two groups"
SLOW += thorough(("NUMBA", "channels apart"), APART)
QUICK = [each for each in itertools.product(MODES, CASES) if each != APART]


@pytest.mark.parametrize(("mode", "case"), [*QUICK, *SLOW])
def test_convolution_and_its_gradients(mode: str, case: str, rng: np.random.Generator) -> None:
    """Also the gradient of a gradient."""
    if mode == "JAX":
        pytest.importorskip("jax")
    height, width, channels, new, window, *how = CASES[case]
    groups = how[3] if len(how) > 3 else 1
    kernel = rng.normal(size=(*window, channels // groups, new))
    at = [rng.normal(size=(3, height, width, channels)), kernel]
    x, w = pt.dtensor4("x"), pt.tensor("w", dtype="float64", shape=(*window, None, None))
    y = nn.conv2d(x, w, *how)
    found = check_derivatives(mode, x, w, y, at, rng)
    np.testing.assert_allclose(found, in_groups(*at, groups, *how[:3]), atol=1e-12)
    assert y.type.shape[1:] == (None, None, None)


@pytest.mark.parametrize("window", [(4, 6), (5, 7)])
def test_many_windows_in_mode_jax(window: tuple[int, int], rng: np.random.Generator) -> None:
    """The transposed convolution, and the gradient of images, without zeros between the pixels."""
    pytest.importorskip("jax")
    steps, padding = (2, 3), ((1, 2), (0, 3))
    given, kernel = rng.normal(size=(2, 15, 16, 2)), rng.normal(size=(*window, 5, 2))
    x, w = pt.dtensor4("x"), pt.tensor("w", dtype="float64", shape=(*window, None, None))
    y = nn.conv_transpose2d(x, w.transpose(0, 1, 3, 2), steps, padding, output_padding=(1, 2))
    height, width = (15 - 1) * 2 + window[0] - 3 + 1, (16 - 1) * 3 + window[1] - 3 + 2
    larger = pt.zeros((2, height, width, 5))
    back = pytensor.grad(None, [larger], known_grads={nn.conv2d(larger, w, steps, padding): x})
    found, gradient = pytensor.function([x, w], [y, *back], mode="JAX")(given, kernel)
    assert found.shape == (2, height, width, 5)
    np.testing.assert_allclose(gradient, found, atol=1e-12)
    other = rng.normal(size=found.shape)
    smaller = convolved(other, kernel, steps, padding, (1, 1))
    assert (found * other).sum() == pytest.approx((given * smaller).sum())
    plain = pytensor.function([x, w], y, mode="FAST_COMPILE")(given, kernel)
    np.testing.assert_allclose(found, plain, atol=1e-12)


@pytest.mark.parametrize("mode", [*MODES, NUMBA])
def test_transposed_convolution(mode: str, rng: np.random.Generator) -> None:
    """The transpose of the linear map from images to their convolution; and its gradients."""
    if mode == "JAX":
        pytest.importorskip("jax")
    window, steps, gaps, padding = (3, 2), (2, 3), (1, 2), ((1, 0), (0, 1))
    at = [rng.normal(size=(2, 4, 3, 2)), rng.normal(size=(*window, 2, 3))]
    x, w = pt.dtensor4("x"), pt.tensor("w", dtype="float64", shape=(*window, None, None))
    y = nn.conv_transpose2d(x, w, steps, padding, gaps, output_padding=(1, 2))
    found = check_derivatives(mode, x, w, y, at, rng)
    assert found.shape == (2, 9, 10, 3)
    larger = rng.normal(size=found.shape)
    smaller = convolved(larger, at[1].transpose(0, 1, 3, 2), steps, padding, gaps)
    assert (found * larger).sum() == pytest.approx((at[0] * smaller).sum())


POOLS = {
    "side by side": (2, None, 0),
    "overlapping": (3, 2, 1),
    "uneven": ((3, 2), (2, 1), ((1, 0), (0, 1))),
    "left over": (2, 3, 0),
    "all": ((7, 6), None, 0),
    "large": (5, 1, 2),
}


TOUCHING = [case for case in POOLS if case not in ("overlapping", "all")]
USUAL = ("overlapping", "uneven")
OTHERS = thorough(
    ("NUMBA", "uneven"), *itertools.product(MODES, [case for case in POOLS if case not in USUAL])
)


@pytest.mark.parametrize(("mode", "case"), [*itertools.product(MODES, USUAL), *OTHERS])
def test_pooling_and_its_gradient(mode: str, case: str, rng: np.random.Generator) -> None:
    if mode == "JAX":
        pytest.importorskip("jax")
    check_pooling(mode, case, rng)


@pytest.mark.parametrize("case", ["overlapping", "all", *thorough(*TOUCHING)])
def test_jax_pools_large_windows_in_blocks(
    case: str, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The way of large windows gives the same for any; nothing there grows with the window."""
    jax = pytest.importorskip("jax")
    ours = importlib.import_module("synkhronos.nn._jax")
    monkeypatch.setattr(ours, "_WRITTEN_OUT", 0)
    monkeypatch.setattr(ours, "_WRITTEN_OUT_ASIDE", 0)
    check_pooling("JAX", case, rng)

    def length(window: int) -> int:
        node = nn.max_pool2d(pt.ftensor4("x"), window, 1).owner
        return len(str(jax.make_jaxpr(ours._pooling(node.op, node))(np.ones((1, 40, 40, 1)))))

    assert length(30) < 1.1 * length(2)


def check_pooling(mode: str, case: str, rng: np.random.Generator) -> None:
    """Of images with many equal pixels: the first of the largest takes all."""
    window, strides, padding = POOLS[case]
    size = (window, window) if isinstance(window, int) else window
    steps = size if strides is None else np.broadcast_to(strides, 2)
    around = ((padding, padding),) * 2 if isinstance(padding, int) else padding
    images = rng.integers(-2, 3, (2, 7, 6, 3)).astype(float)
    x = pt.dtensor4("x")
    largest, mean = (f(x, window, strides, padding) for f in (nn.max_pool2d, nn.avg_pool2d))
    weights = rng.normal(size=largest.eval({x: images}, mode="FAST_COMPILE").shape)
    costs = (largest * weights).sum(), (mean * weights).sum()
    wanted = [largest, mean, *(pytensor.grad(c, x) for c in costs)]
    found = [np.asarray(v) for v in pytensor.function([x], wanted, mode=mode)(images)]

    padded = np.pad(images, ((0, 0), *around, (0, 0)), constant_values=np.nan)
    expected = [np.zeros(weights.shape), np.zeros(weights.shape)]
    gradients = [np.zeros(padded.shape), np.zeros(padded.shape)]
    for n, r, c, k in np.ndindex(weights.shape):
        place = (n, slice(r * steps[0], r * steps[0] + size[0]))
        place += (slice(c * steps[1], c * steps[1] + size[1]), k)
        seen = padded[place]
        expected[0][n, r, c, k] = np.nanmax(seen)
        expected[1][n, r, c, k] = np.nansum(seen) / seen.size
        gradients[0][place][np.unravel_index(np.nanargmax(seen), seen.shape)] += weights[n, r, c, k]
        gradients[1][place] += weights[n, r, c, k] / seen.size
    (top, _), (left, _) = around
    inside = [g[:, top : top + 7, left : left + 6] for g in gradients]
    for value, other in zip(found, [*expected, *inside], strict=True):
        np.testing.assert_allclose(value, other, atol=1e-12)


@pytest.mark.parametrize("mode", [*MODES, NUMBA])
def test_nan_is_the_largest(mode: str) -> None:
    """Wherever in a window it lies; the first of several takes the gradient."""
    if mode == "JAX":
        pytest.importorskip("jax")
    x, weights = pt.dtensor4("x"), np.array([[2.0, 3.0], [5.0, 7.0]])[None, :, :, None]
    largest = nn.max_pool2d(x, 2)
    f = pytensor.function([x], [largest, pytensor.grad((largest * weights).sum(), x)], mode=mode)
    nan = np.nan
    image = [[nan, 1, 1, nan], [2, 3, nan, 9], [1, 2, 4, 6], [3, nan, 6, 5]]
    pooled, gradient = (np.asarray(v)[0, :, :, 0] for v in f(np.reshape(image, (1, 4, 4, 1))))
    np.testing.assert_array_equal(pooled, [[nan, nan], [nan, 6]])
    expected = [[2, 0, 0, 3], [0, 0, 0, 0], [0, 0, 0, 7], [0, 5, 0, 0]]
    np.testing.assert_array_equal(gradient, expected)


def test_float32_stays_float32() -> None:
    x, w = pt.ftensor4("x"), pt.tensor("w", dtype="float32", shape=(3, 3, 1, 2))
    y = nn.max_pool2d(nn.conv2d(x, w, padding="same"))
    wanted = [y, *pytensor.grad(y.sum(), [x, w])]
    assert {v.dtype for v in wanted} == {"float32"}
    f = pytensor.function([x, w], wanted, mode="FAST_COMPILE")
    found = f(np.ones((1, 4, 4, 1), "float32"), np.ones((3, 3, 1, 2), "float32"))
    assert {v.dtype.name for v in found} == {"float32"}
    assert found[0].shape == (1, 2, 2, 2)


def test_static_shapes() -> None:
    x = pt.tensor("x", shape=(None, 9, 8, 3), dtype="float32")
    y = nn.conv2d(x, np.zeros((3, 3, 3, 5), "float32"), strides=2, padding=1)
    assert y.type.shape == (None, 5, 4, 5)
    assert nn.avg_pool2d(y, 2, 1).type.shape == (None, 4, 3, 5)
    larger = nn.conv_transpose2d(y, np.zeros((4, 4, 5, 2), "float32"), strides=2, padding=1)
    assert larger.type.shape == (None, 10, 8, 2)


@pytest.mark.parametrize(
    ("given", "rows", "columns"),
    [
        (np.int64(1), 6, 6),
        (np.array([1, 2]), 6, 8),
        ([np.int8(1), 2], 6, 8),
        (np.array([[1, 0], [0, 2]]), 5, 6),
        ((np.array([1, 0]), (0, 2)), 5, 6),
    ],
    ids=str,
)
def test_padding_by_numbers_of_numpy(given: Any, rows: int, columns: int) -> None:
    x = pt.tensor("x", shape=(None, 4, 4, 3), dtype="float64")
    y = nn.max_pool2d(x, np.int64(3), np.int32(1), given)
    assert y.type.shape == (None, rows - 2, columns - 2, 3)
    assert nn.conv2d(x, np.zeros((3, 3, 3, 1)), padding=given).type.shape[1:3] == y.type.shape[1:3]


BAD: dict[str, tuple[Any, type[Exception], str]] = {
    "unknown window": (
        lambda x: nn.conv2d(x, pt.tensor4("w")),
        ValueError,
        "with height and width known",
    ),
    "channels": (
        lambda x: nn.conv2d(x, np.zeros((3, 3, 2, 1))),
        ValueError,
        "the images have 3 channels, but the kernel takes 2",
    ),
    "whole numbers": (lambda x: nn.max_pool2d(x.astype("int32")), TypeError, "floating-point"),
    "a matrix": (lambda x: nn.conv2d(x[0, 0], np.zeros((1, 1, 3, 1))), TypeError, "4 dimensions"),
    "no step": (
        lambda x: nn.max_pool2d(x, 2, 0),
        ValueError,
        "strides=0: give one or two integers of at least 1",
    ),
    "padding": (lambda x: nn.max_pool2d(x, 2, 1, 2), ValueError, "holds whole windows"),
    "a large window": (lambda x: nn.max_pool2d(x, 5), ValueError, "do not fit into images of"),
    "dilation": (
        lambda x: nn.conv2d(x, np.zeros((3, 3, 3, 1)), dilation=2),
        ValueError,
        "do not fit into images of",
    ),
    "groups": (
        lambda x: nn.conv2d(x, np.zeros((1, 1, 3, 2)), groups=3),
        ValueError,
        "the images have 3 channels, but the kernel takes 3 in 3 groups",
    ),
    "groups of new channels": (
        lambda x: nn.conv2d(x, np.zeros((1, 1, 1, 4)), groups=3),
        ValueError,
        "4 new channels cannot be divided into 3 groups",
    ),
    "no group": (
        lambda x: nn.conv2d(x, np.zeros((1, 1, 3, 2)), groups=0),
        ValueError,
        "groups=0: give an integer of at least 1",
    ),
    "other channels": (
        lambda x: nn.conv_transpose2d(x, np.zeros((1, 1, 2, 3))),
        ValueError,
        "the images have 3 channels, but the kernel takes 2",
    ),
    "nothing left": (
        lambda x: nn.conv_transpose2d(x, np.zeros((1, 1, 3, 3)), padding=2),
        ValueError,
        "leaves nothing of the transposed convolution",
    ),
    "too much added": (
        lambda x: nn.conv_transpose2d(x, np.zeros((1, 1, 3, 3)), 2, output_padding=2),
        ValueError,
        "give less than the strides",
    ),
    "transposed, the same": (
        lambda x: nn.conv_transpose2d(x, np.zeros((1, 1, 3, 3)), padding="same"),
        ValueError,
        "give numbers of pixels",
    ),
    "half a pixel": (lambda x: nn.avg_pool2d(x, padding=1.5), ValueError, "integers of at least 0"),
    "three sides": (
        lambda x: nn.max_pool2d(x, 3, 1, ((1, 1), (0, 0), (0, 0))),
        ValueError,
        "padding=.*: give one or two integers",
    ),
    "a word": (lambda x: nn.avg_pool2d(x, padding="full"), ValueError, "'valid', 'same'"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_does_not_fit_is_refused(case: str) -> None:
    call, kind, message = BAD[case]
    with pytest.raises(kind, match=message):
        call(pt.tensor("x", shape=(None, 4, 4, 3), dtype="float64"))


SMALL = [(mode, size) for mode in MODES for size in ((1, 1), (2, 2), (5, 1), (2, 0))]
SLOW = thorough(("NUMBA", (1, 1)))


@pytest.mark.parametrize(("mode", "size"), [*SMALL, *SLOW])
def test_images_that_turn_out_too_small(mode: str, size: tuple[int, int]) -> None:
    """Refused as those are of which it is known; also where only the gradient is computed."""
    if mode == "JAX":
        pytest.importorskip("jax")
    x, w = pt.dtensor4("x"), pt.tensor("w", dtype="float64", shape=(3, 3, None, None))
    g = pt.dtensor4("g")
    images, kernel = np.ones((2, *size, 1)), np.ones((3, 3, 1, 1))
    for y in (nn.conv2d(x, w), nn.max_pool2d(x, 3), nn.avg_pool2d(x, 3)):
        by_images = pytensor.grad(None, x, known_grads={y: g})
        for wanted in (y, by_images):
            f = pytensor.function([x, w, g], wanted, mode=mode, on_unused_input="ignore")
            with pytest.raises(ValueError, match=r"do not fit into images of \(\d, \d\)"):
                f(images, kernel, np.ones((2, 1, 1, 1)))


def call_with(mode: str, wanted: Any, given: dict[Any, tuple[int, ...]]) -> np.ndarray:
    """Call a function of arrays of ones, of shapes that its graph does not know."""
    if mode == "JAX":
        pytest.importorskip("jax")
    f = pytensor.function([*given], wanted, mode=mode, on_unused_input="ignore")
    return np.asarray(f(*map(np.ones, given.values())))


DERIVED = ("images", "kernel")  # what a gradient is by
FEW = [(mode, what, 1) for mode in MODES for what in ("result", *DERIVED)]
FEW += [("FAST_COMPILE", "result", 3)]
MANY = thorough(
    *(e for e in itertools.product((*MODES, "NUMBA"), ("result", *DERIVED), (1, 3)) if e not in FEW)
)


@pytest.mark.parametrize(("mode", "what", "groups"), [*FEW, *MANY])
def test_channels_that_turn_out_wrong(mode: str, what: str, groups: int) -> None:
    """Machine code wrote behind its arrays; others computed with one channel in place of all."""
    x, w = pt.dtensor4("x"), pt.tensor("w", dtype="float64", shape=(3, 3, None, None))
    g = pt.dtensor4("g")
    y: Any = nn.conv2d(x, w, groups=groups)
    if what != "result":
        y = pytensor.grad(None, {"images": x, "kernel": w}[what], known_grads={y: g})
    kernel = (3, 3, 3 // groups, 3)
    assert call_with(mode, y, {x: (2, 5, 5, 3), w: kernel, g: (2, 3, 3, 3)}).ndim == 4
    for channels in (1, 4):
        with pytest.raises(ValueError, match=f"{channels} channels, but the kernel takes"):
            call_with(mode, y, {x: (2, 5, 5, channels), w: kernel, g: (2, 3, 3, 3)})
    if groups > 1:
        with pytest.raises(ValueError, match="4 new channels cannot be divided into 3 groups"):
            call_with(mode, y, {x: (2, 5, 5, 3), w: (3, 3, 1, 4), g: (2, 3, 3, 4)})


@pytest.mark.parametrize("mode", [*MODES, NUMBA])
@pytest.mark.parametrize("what", DERIVED)
def test_gradients_that_turn_out_to_have_another_shape(mode: str, what: str) -> None:
    x, w = pt.dtensor4("x"), pt.tensor("w", dtype="float64", shape=(3, 3, None, None))
    g = pt.dtensor4("g")
    by = {"images": x, "kernel": w}[what]
    found = pytensor.grad(None, by, known_grads={nn.conv2d(x, w): g})
    for shape in [(1, 3, 3, 2), (2, 2, 3, 2), (2, 3, 4, 2), (2, 3, 3, 1)]:
        with pytest.raises(ValueError, match="the gradient has the shape"):
            call_with(mode, found, {x: (2, 5, 5, 3), w: (3, 3, 3, 2), g: shape})


@pytest.mark.parametrize("mode", [*MODES, NUMBA])
@pytest.mark.parametrize("pool", [nn.max_pool2d, nn.avg_pool2d])
def test_gradients_of_pooling_that_turn_out_to_have_another_shape(mode: str, pool: Any) -> None:
    x, g = pt.dtensor4("x"), pt.dtensor4("g")
    found = pytensor.grad(None, x, known_grads={pool(x): g})
    for shape in [(1, 2, 2, 3), (2, 1, 2, 3), (2, 2, 3, 3), (2, 2, 2, 1)]:
        with pytest.raises(ValueError, match="a gradient have the shape"):
            call_with(mode, found, {x: (2, 4, 4, 3), g: shape})


@pytest.mark.parametrize("mode", [*MODES, NUMBA])
def test_channels_of_a_transposed_convolution_that_turn_out_wrong(mode: str) -> None:
    x = pt.dtensor4("x")
    y = nn.conv_transpose2d(x, np.ones((2, 2, 3, 2)))
    with pytest.raises(ValueError, match="4 channels, but the kernel takes 3"):
        call_with(mode, y, {x: (2, 5, 5, 4)})


@pytest.mark.parametrize("mode", [*MODES, NUMBA])
def test_padding_that_turns_out_to_leave_nothing(mode: str) -> None:
    if mode == "JAX":
        pytest.importorskip("jax")
    x = pt.dtensor4("x")
    f = pytensor.function([x], nn.conv_transpose2d(x, np.ones((2, 2, 1, 1)), padding=1), mode=mode)
    assert np.shape(f(np.ones((1, 3, 3, 1)))) == (1, 2, 2, 1)
    with pytest.raises(ValueError, match=r"leaves nothing .* images of \(1, 3\)"):
        f(np.ones((1, 1, 3, 1)))


def test_proofs() -> None:
    """Rows stay apart, kernels' gradients are sums over them; other axes prove nothing."""
    x, w = pt.dtensor4("x"), pt.tensor("w", dtype="float64", shape=(2, 2, 1, 2))
    y = nn.avg_pool2d(nn.max_pool2d(nn.conv2d(x, w), 2, 1), 2, 1)

    def reductions(output: Any) -> list[str | None] | None:
        found = prove(output, [x])
        return [p.reduction for p in found.partials] if isinstance(found, Proof) else None

    by_images, by_kernel = pytensor.grad((y**2).sum(), [x, w])
    assert reductions(y) == ["gather"]
    assert reductions((y**2).mean()) == ["avg"]
    assert reductions(by_images) == ["gather"]
    assert reductions(nn.conv_transpose2d(y, w.dimshuffle(0, 1, 3, 2))) == ["gather"]
    assert reductions(by_kernel) == ["sum"]
    assert reductions(pytensor.grad((y**2).mean(), w)) is not None
    assert reductions(nn.conv2d(x.dimshuffle(1, 0, 2, 3), w)) is None
    assert (
        reductions(nn.conv2d(np.ones((1, 4, 4, 1)), pt.specify_shape(x, (2, 2, None, None))))
        is None
    )
    assert reductions(nn.max_pool2d(x / x.sum(), 2)) is None


@pytest.mark.parametrize("mode", [*MODES, NUMBA])
def test_no_rows(mode: str) -> None:
    """Empty images, and a gradient of zeros for the kernel."""
    if mode == "JAX":
        pytest.importorskip("jax")
    x, w = pt.dtensor4("x"), pt.tensor("w", dtype="float64", shape=(3, 3, None, None))
    y = nn.avg_pool2d(nn.max_pool2d(nn.conv2d(x, w), 2), 2, 1)
    larger = nn.conv_transpose2d(y, np.ones((2, 2, 2, 1)))
    f = pytensor.function([x, w], [y, *pytensor.grad((larger**2).sum(), [x, w]), larger], mode=mode)
    found = [np.asarray(v) for v in f(np.ones((0, 6, 6, 1)), np.ones((3, 3, 1, 2)))]
    assert [v.shape for v in found] == [(0, 1, 1, 2), (0, 6, 6, 1), (3, 3, 1, 2), (0, 2, 2, 1)]
    assert not found[2].any()


def test_members_without_images(group: synk.Group, rng: np.random.Generator) -> None:
    """None at all, and fewer than members."""
    x, w = pt.dtensor4("x"), rng.normal(size=(3, 3, 1, 2))
    y = nn.conv2d(x, w)
    f = synk.function([x], [(y, "gather"), ((y**2).sum(), "sum")], mode="FAST_COMPILE")
    serial = pytensor.function([x], [y, (y**2).sum()], mode="FAST_COMPILE")
    for rows in (0, 1):
        images = rng.normal(size=(rows, 6, 6, 1))
        for a, b in zip(f(images), serial(images), strict=True):
            assert np.shape(a) == np.shape(b)
            np.testing.assert_allclose(a, b)


def test_members_compute_their_images(group: synk.Group, rng: np.random.Generator) -> None:
    """Outputs and gradients of any number of members are the serial function's."""
    x = pt.dtensor4("x")
    w = pytensor.shared(rng.normal(size=(3, 3, 2, 3)), "w", shape=(3, 3, 2, 3))
    y = nn.max_pool2d(nn.conv2d(x, w, padding="same"))
    loss = (y**2).mean()
    outputs = [y, loss, *pytensor.grad(loss, [w, x])]
    f = synk.function([x], outputs, mode="FAST_COMPILE")
    images = rng.normal(size=(7, 6, 4, 2))
    serial = pytensor.function([x], outputs, mode="FAST_COMPILE")(images)
    for found in (f(images), f(images, num_slices=2)):
        for a, b in zip(found, serial, strict=True):
            np.testing.assert_allclose(a, b, atol=1e-12)
