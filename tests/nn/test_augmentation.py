"""Augmentation: numpy is the oracle, and all modes make the same bits."""

from __future__ import annotations

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
IMAGES, WORDS = pt.tensor4("images", dtype="uint8"), pt.vector("words", dtype="uint64")
HIGH = np.uint64(7 << 40)  # bits that are not used

# height, width, channels, and arguments
CASES: dict[str, tuple[int, int, int, dict[str, Any]]] = {
    "padded": (5, 4, 3, {"pad": 2, "flip": True}),
    "reflected": (4, 5, 1, {"pad": (3, 2), "flip": True, "border": "reflect"}),
    "reflected, not flipped": (3, 2, 3, {"pad": (2, 1), "border": "reflect"}),
    "smaller": (7, 6, 1, {"size": (4, 5), "flip": True}),
    "larger": (3, 4, 3, {"pad": 3, "size": (8, 7)}),
    "flipped": (1, 3, 3, {"flip": True}),
    "one way": (4, 4, 1, {"pad": (0, 1), "flip": True}),
    "only normalised": (3, 4, 3, {}),
}


def outcomes(case: str) -> list[tuple[int, int, bool]]:
    """All that can happen to an image of this size, by the number that stands for it."""
    height, width, _, how = CASES[case]
    pad = np.broadcast_to(how.get("pad", 0), 2)
    size = how.get("size", (height, width))
    down, right = (n + 2 * p - k + 1 for n, p, k in zip((height, width), pad, size, strict=True))
    flips = (False, True) if how.get("flip") else (False,)
    return list(itertools.product(range(down), range(right), flips))


def moved(image: np.ndarray, place: tuple[int, int, bool], how: dict[str, Any]) -> np.ndarray:
    """The definition, image by image."""
    top, left, flipped = place
    above, aside = np.broadcast_to(how.get("pad", 0), 2)
    height, width = how.get("size", image.shape[:2])
    mode: Any = "reflect" if how.get("border") == "reflect" else "constant"
    whole = np.pad(image, ((above, above), (aside, aside), (0, 0)), mode=mode)
    found = whole[top : top + height, left : left + width]
    return found[:, ::-1] if flipped else found


def numbers(channels: int) -> tuple[list[float], list[float]]:
    return [120.3, 99.0, 7.7][:channels], [61.1, 3.0, 0.7][:channels]


def normalised(images: np.ndarray, channels: int) -> np.ndarray:
    """With one rounding for each operation, as all modes do."""
    mean, scale = numbers(channels)
    factor = (1 / np.asarray(scale)).astype("float32")
    return (images.astype("float32") - np.asarray(mean, "float32")) * factor


@pytest.mark.each_choice
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("case", CASES)
def test_every_outcome(mode: str, case: str, rng: np.random.Generator) -> None:
    """Each offset and flip, bit by bit; and without words the centre."""
    check(mode, case, rng)


@pytest.mark.parametrize("case", thorough(*CASES))
def test_every_outcome_of_numba(case: str, rng: np.random.Generator) -> None:
    check("NUMBA", case, rng)


def check(mode: str, case: str, rng: np.random.Generator) -> None:
    if mode == "JAX":
        pytest.importorskip("jax")
    height, width, channels, how = CASES[case]
    every = outcomes(case)
    images = rng.integers(0, 256, (2 * len(every), height, width, channels)).astype("uint8")
    words = np.arange(2 * len(every), dtype="uint64") | HIGH * (np.arange(2 * len(every)) % 2 == 0)
    mean, scale = numbers(channels)
    made = nn.augment(IMAGES, WORDS, mean=mean, scale=scale, **how)
    plain = nn.augment(IMAGES, mean=mean, scale=scale, **how)
    f = pytensor.function([IMAGES, WORDS], [made, plain], mode=mode)
    found, centre = map(np.asarray, f(images, words))
    expected = np.stack([moved(i, p, how) for i, p in zip(images, every * 2, strict=True)])
    np.testing.assert_array_equal(found, normalised(expected, channels))
    down, right, _ = (max(e) for e in zip(*every, strict=True))
    middle = np.stack([moved(i, (down // 2, right // 2, False), how) for i in images])
    np.testing.assert_array_equal(centre, normalised(middle, channels))
    if "size" not in how:
        np.testing.assert_array_equal(middle, images)
    assert found.dtype == centre.dtype == np.float32


@pytest.mark.parametrize("mode", [*MODES, NUMBA])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_floating_images(mode: str, dtype: str, rng: np.random.Generator) -> None:
    """They keep their dtype; memory in any order."""
    if mode == "JAX":
        pytest.importorskip("jax")
    x = pt.tensor4("x", dtype=dtype)
    images = rng.normal(size=(3, 5, 4, 8)).astype(dtype).transpose(3, 1, 2, 0)
    words = rng.integers(0, 2**64, 8, dtype="uint64")
    f = pytensor.function([x, WORDS], nn.augment(x, WORDS, pad=1, flip=True, mean=1), mode=mode)
    number = words.astype("uint32") % 18
    places = [(int(k) // 2 // 3, int(k) // 2 % 3, bool(k % 2)) for k in number]
    expected = [moved(i, p, {"pad": 1}) for i, p in zip(images, places, strict=True)]
    found = np.asarray(f(images, words))
    np.testing.assert_array_equal(found, np.stack(expected) - 1)
    assert found.dtype == dtype


def test_jax_without_64_bits(rng: np.random.Generator) -> None:
    """It drops the high bits of a word, which no mode uses."""
    jax = pytest.importorskip("jax")
    f = pytensor.function([IMAGES, WORDS], nn.augment(IMAGES, WORDS, pad=2, flip=True), mode="JAX")
    images = rng.integers(0, 256, (9, 4, 4, 1)).astype("uint8")
    words = rng.integers(0, 2**64, 9, dtype="uint64")
    wide = np.asarray(f(images, words))
    before = jax.config.jax_enable_x64
    try:
        jax.config.update("jax_enable_x64", False)
        narrow = np.asarray(f(images, words))
    finally:
        jax.config.update("jax_enable_x64", before)
    np.testing.assert_array_equal(wide, narrow)


def test_types() -> None:
    x = pt.tensor("x", shape=(None, 9, 8, 3), dtype="uint8")
    y = nn.augment(x, WORDS, pad=4, flip=True)
    assert y.type.shape == (None, 9, 8, 3)
    assert y.dtype == "float32"
    assert nn.augment(x, WORDS, size=(4, 5)).type.shape == (None, 4, 5, 3)
    unknown = nn.augment(IMAGES, WORDS, size=6)
    assert unknown.type.shape == (None, 6, 6, None)
    lengths = pytensor.function([IMAGES], nn.augment(IMAGES, size=2).shape, mode="FAST_RUN")
    assert lengths(np.zeros((5, 4, 3, 1), "uint8")).tolist() == [5, 2, 2, 1]


X = pt.tensor("x", shape=(None, 4, 4, 3), dtype="uint8")
LARGE = pt.tensor("x", shape=(None, 99, 99, 3), dtype="uint8")
BAD: dict[str, tuple[Any, type[Exception], str]] = {
    "a matrix": (lambda: nn.augment(X[0, 0], WORDS, pad=1), TypeError, "channels"),
    "other integers": (lambda: nn.augment(X.astype("int32"), WORDS, pad=1), TypeError, "uint8"),
    "other words": (lambda: nn.augment(X, pt.lvector("w"), pad=1), TypeError, "vector of uint64"),
    "words of a matrix": (
        lambda: nn.augment(X, pt.matrix("w", dtype="uint64"), pad=1),
        TypeError,
        "vector of uint64",
    ),
    "nothing to do": (lambda: nn.augment(X, WORDS), ValueError, "nothing to do: give pad="),
    "padding": (lambda: nn.augment(X, WORDS, pad=-1), ValueError, "pad=-1: give"),
    "size": (lambda: nn.augment(X, WORDS, size=5), ValueError, "smaller than"),
    "no size": (lambda: nn.augment(X, WORDS, size=0), ValueError, "size=0: give"),
    "a long reflection": (
        lambda: nn.augment(X, WORDS, pad=4, border="reflect"),
        ValueError,
        "has to be smaller than the images",
    ),
    "border": (
        lambda: nn.augment(X, WORDS, pad=1, border="wrap"),
        ValueError,
        'use "zeros" or "reflect"',
    ),
    "flip": (lambda: nn.augment(X, WORDS, flip=0.5), TypeError, "flip=0.5: give True or False"),
    "channels": (lambda: nn.augment(X, mean=[1, 2]), ValueError, "2 numbers for 3 channels"),
    "scale": (lambda: nn.augment(X, scale=[1, 0, 2]), ValueError, "divides by 0"),
    "infinite": (lambda: nn.augment(X, mean=np.inf), ValueError, "finite"),
    "a variable": (lambda: nn.augment(X, mean=pt.scalar("m")), TypeError, "not a variable"),
    "too many offsets": (lambda: nn.augment(LARGE, WORDS, pad=2**15), ValueError, "more offsets"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_does_not_fit_is_refused(case: str) -> None:
    call, kind, message = BAD[case]
    with pytest.raises(kind, match=message):
        call()


@pytest.mark.parametrize("mode", [*MODES, NUMBA])
def test_images_that_turn_out_not_to_fit(mode: str) -> None:
    """Refused as those are of which it is known."""
    if mode == "JAX":
        pytest.importorskip("jax")
    how: dict[str, Any] = {"pad": 3, "border": "reflect", "size": 4, "mean": [1, 2, 3]}
    f = pytensor.function([IMAGES, WORDS], nn.augment(IMAGES, WORDS, **how), mode=mode)
    for shape, count, message in (
        ((2, 3, 5, 3), 2, "has to be smaller than the images"),
        ((2, 0, 5, 3), 2, "has to be smaller than the images|smaller than"),
        ((2, 5, 5, 3), 1, "1 words for 2 images"),
        ((2, 5, 5, 3), 3, "3 words for 2 images"),
        ((2, 5, 5, 1), 2, "3 numbers for 1 channels"),
    ):
        with pytest.raises(ValueError, match=message):
            f(np.zeros(shape, "uint8"), np.zeros(count, "uint64"))
    assert np.shape(f(np.zeros((0, 5, 5, 3), "uint8"), np.zeros(0, "uint64"))) == (0, 4, 4, 3)


def test_there_is_no_gradient() -> None:
    """Of parameters behind it there is; of images, or by words, there is none."""
    x, w = pt.tensor4("x", dtype="float64"), pytensor.shared(np.ones(()), name="w")
    loss = (w * nn.augment(x, WORDS, pad=1)).sum()
    slope = pytensor.function([x, WORDS], pytensor.grad(loss, w), mode="FAST_COMPILE")
    assert slope(np.ones((1, 2, 2, 1)), np.full(1, 4, "uint64")) == 4
    with pytest.raises(pytensor.gradient.NullTypeGradError, match="augment is for data"):
        pytensor.grad(loss, x)
    with pytest.raises(pytensor.gradient.DisconnectedInputError):
        pytensor.grad(loss, WORDS)


def test_proofs() -> None:
    """Rows stay apart, of words too."""

    def reductions(output: Any) -> list[str | None] | None:
        found = prove(output, [IMAGES, WORDS])
        return [p.reduction for p in found.partials] if isinstance(found, Proof) else None

    y = nn.augment(IMAGES, WORDS, pad=1, flip=True)
    assert reductions(y) == ["gather"]
    assert reductions((y**2).mean()) == ["avg"]
    assert reductions(nn.augment(IMAGES).sum()) == ["sum"]
    assert reductions(nn.augment(IMAGES.dimshuffle(1, 0, 2, 3), WORDS, pad=1)) is None
    assert reductions(nn.augment(IMAGES, WORDS[::-1], pad=1)) is None
    assert reductions(nn.augment(np.ones((4, 3, 3, 1)), WORDS, pad=1)) is None
    floating = IMAGES.astype("float64")
    assert reductions(nn.augment(floating / floating.sum(), WORDS, pad=1)) is None


def test_members_move_their_images(group: synk.Group, rng: np.random.Generator) -> None:
    """The same pixels for any number of members, and any slices."""
    images = rng.integers(0, 256, (7, 6, 5, 3)).astype("uint8")
    words = rng.integers(0, 2**64, 7, dtype="uint64")
    y = nn.augment(IMAGES, WORDS, pad=2, flip=True, mean=[1, 2, 3], scale=9)
    f = synk.function([IMAGES, WORDS], y, mode="FAST_COMPILE")
    serial = pytensor.function([IMAGES, WORDS], y, mode="FAST_COMPILE")
    expected = serial(images, words)
    np.testing.assert_array_equal(f(images, words), expected)
    np.testing.assert_array_equal(f(images, words, num_slices=2), expected)
    np.testing.assert_array_equal(f(images, words, batch=[5, 0]), expected[[5, 0]])


def test_without_augmentation() -> None:
    """Other operations stay, also where one augmented image is augmented again."""
    images = np.arange(18, dtype="uint8").reshape(2, 3, 3, 1)
    y = nn.augment(nn.augment(IMAGES, WORDS, pad=1, mean=1), WORDS, flip=True, scale=0.5)
    outputs = [y, 3 * y.sum(), IMAGES.shape[0]]
    found = nn.without_augmentation(outputs)
    values = pytensor.function([IMAGES], found, mode="FAST_COMPILE")(images)
    np.testing.assert_array_equal(values[0], 2 * (images.astype("float32") - 1))
    assert values[1] == 3 * values[0].sum()
    assert nn.without_augmentation([IMAGES]) == [IMAGES]
