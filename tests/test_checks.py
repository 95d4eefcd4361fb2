"""Options that take integers, numbers, flags and words: one behaviour and one wording for all."""

from __future__ import annotations

import functools
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

import synkhronos as synk
from synkhronos import _checks, nn, ops, rules, training, zoo
from synkhronos._checks import check_flag, check_integer, check_number, check_seconds, check_word
from synkhronos.extensions import Batches, Checkpoints, HalfPrecision, Loader, updates
from synkhronos.training import callbacks, metrics, sources
from synkhronos.training.sources._files import Options

SCORES, LABELS, WORDS = pt.matrix("scores"), pt.ivector("labels"), pt.vector("w", dtype="uint64")
IMAGES, KERNEL = pt.tensor4("images", dtype="float64"), np.zeros((1, 1, 1, 1))
RATE = pytensor.shared(1.0, name="rate")

# Name, a call with a value, a value that fits, and those next to it that do not.
ALONE: list[tuple[str, Callable[[Any], Any], int, list[int]]] = [
    ("n", lambda n: Batches(n, 2), 4, [0, -1]),
    ("size", lambda n: Batches(4, n), 2, [0]),
    ("seed", lambda n: Batches(4, 2, n), 0, [-1]),
    ("window", lambda n: Batches(4, 2, window=n), 1, [0]),
    ("period", rules.Average, 1, [0]),
    ("warmup", lambda n: rules.Average(1, warmup=n), 0, [-1]),
    ("quorum", lambda n: rules.Downpour(quorum=n), 1, [0]),
    ("seed", lambda n: HalfPrecision(seed=n), 0, [-1]),
    ("keep", lambda n: Options(keep=n), 1, [0]),
    ("classes", lambda n: Options(classes=n), 1, [0]),
    ("threads", lambda n: Options(threads=n), 1, [0]),
    ("k", lambda n: metrics.top_k(SCORES, LABELS, n), 1, [0]),
    ("classes", lambda n: metrics.confusion(SCORES, LABELS, n), 2, [0]),
    ("classes", lambda n: metrics.f1(SCORES, LABELS, n), 2, [0]),
    ("patience", lambda n: callbacks.EarlyStopping("val_loss", n), 1, [0]),
    ("patience", lambda n: callbacks.Plateau(RATE, patience=n), 1, [0]),
    ("keep", lambda n: callbacks.Best("val_loss", n), 1, [0]),
    ("classes", lambda n: sources.synthetic((2,), n, 4), 2, [0]),
    ("n", lambda n: sources.synthetic((2,), 2, n), 4, [0]),
    ("seed", lambda n: sources.synthetic((2,), 2, 4, n), 0, [-1]),
    ("columns", lambda n: nn.noise(WORDS, n), 3, [0]),
    ("groups", lambda n: nn.conv2d(IMAGES, KERNEL, groups=n), 1, [0]),
    ("strides", lambda n: nn.conv2d(IMAGES, KERNEL, n), 1, [0]),
    ("window", lambda n: nn.max_pool2d(IMAGES, (n, 2)), 2, [0]),
    ("root", lambda n: ops.broadcast(SCORES, n), 1, [-1]),
    ("classes", lambda n: zoo.mlp(3, (4,), classes=n, seed=None), 2, [0]),
    ("hidden", lambda n: zoo.mlp(3, (n,), seed=None), 4, [0]),
    ("seed", lambda n: zoo.mlp(3, (4,), seed=n), 0, [-1]),
    ("members", lambda n: synk.Group(n).close(), 1, [0]),
    ("master_rank", lambda n: synk.Group(1, master_rank=n).close(), 0, [-1, 1]),
    ("max_restarts", lambda n: synk.Group(1, max_restarts=n).close(), 0, [-1]),
]

IN_A_GROUP: list[tuple[str, Callable[[Any], Any], int, list[int]]] = [
    ("n", synk.part_lengths, 5, [-1]),
    ("rank", lambda n: synk.get_value(n, RATE), 1, [-1, 2]),
    ("rank", lambda n: synk.set_value(n, RATE, 1.0), 1, [-1, 2]),
    ("nd_up", lambda n: synk.gather(RATE, n), 1, [-1, 2]),
    ("ndim", lambda n: synk.data(dtype="float32", ndim=n), 1, [-1]),
    ("prefetch", lambda n: Loader(np.zeros(4), Batches(4, 2), prefetch=n).close(), 2, [1]),
]

NOT_INTEGERS = [True, np.True_, 1.5, np.float64(1), "1", [1, 2, 3]]


def check(name: str, call: Callable[[Any], Any], fits: int, others: list[int]) -> None:
    for integer in (fits, np.int64(fits), np.int8(fits)):
        call(integer)
    for wrong in NOT_INTEGERS:
        with pytest.raises(synk.InputError, match=rf"\b{name}\b.*give .*int|n is the number of"):
            call(wrong)
    for out in others:
        with pytest.raises(synk.InputError, match=rf"\b{name}\b.*give .*integers? of at least"):
            call(out)
        with pytest.raises(synk.InputError) as caught:
            call(np.int64(out))
        assert not isinstance(caught.value, synk.InputTypeError)


@pytest.mark.parametrize(("name", "call", "fits", "others"), ALONE)
def test_integers(name: str, call: Callable[[Any], Any], fits: int, others: list[int]) -> None:
    check(name, call, fits, others)


def test_integers_in_a_group(group2: synk.Group) -> None:
    for name, call, fits, others in IN_A_GROUP:
        check(name, call, fits, others)
    x = pt.vector("x", dtype="float64")
    f = synk.function([x], x.sum(), mode="FAST_COMPILE")
    check("num_slices", lambda n: f(np.ones(4), num_slices=n), 2, [0, -1])
    for wrong in (True, 0.5, "1", np.nan):
        with pytest.raises(synk.InputError, match=r"oversize=.*: give a number of at least 1"):
            synk.data(np.ones(4), oversize=wrong)
    assert synk.data(np.ones(4), oversize=np.float32(1.5)).alloc_size == 6


def test_integers_of_a_run(group2: synk.Group, tmp_path: Path) -> None:
    x, w = pt.vector("x", dtype="float64"), pytensor.shared(0.0, name="w")
    fits = {"epochs": 1, "batch": 4, "validate_every": 1, "save_every": 1, "seed": 0}
    more = {"keep": 1, "verify": 0, "trace": 0}

    def fit(**given: Any) -> Any:
        how = {
            "optimizer": functools.partial(updates.sgd, learning_rate=0.1),
            "progress": False,
            "mode": "FAST_COMPILE",
            "epochs": 1,
        }
        given = {"batch": 4, **how, **given}
        return training.fit(((x - w) ** 2).mean(), [w], [x], np.ones(8), **given)

    for name, value in {**fits, **more}.items():
        for wrong in (True, 1.5, "1", value - 1 if value < 2 else 0):
            with pytest.raises(synk.InputError, match=f"{name}=.*: give an integer of at least"):
                fit(**{name: wrong, "folder": tmp_path / f"{name} {wrong}"})
    given = {name: np.int64(value) for name, value in {**fits, **more}.items()}
    assert len(fit(**given, folder=tmp_path / "right").history) == 1


def test_integers_of_checkpoints(tmp_path: Path) -> None:
    check("keep", lambda n: Checkpoints(tmp_path / "a", [RATE], keep=n), 1, [0])
    check("step", Checkpoints(tmp_path / "b", [RATE]).save, 3, [-1])


def test_what_checks_return() -> None:
    """Python's own numbers and bools, whatever they were."""
    assert type(check_integer("n", np.uint8(3), 1, 3)) is int
    assert type(check_number("x", np.float16(0.5), 0, 1)) is float
    assert type(check_number("x", np.longdouble(0.5))) is float
    assert type(check_number("x", np.int32(2))) is int
    assert check_number("x", Fraction(1, 2)) == 0.5
    assert check_flag("f", np.False_) is False
    assert check_seconds("t", None) is None
    assert check_seconds("t", np.inf) == np.inf
    assert check_word("w", None, ("a", None)) is None
    assert _checks.or_none(check_integer, "n", None, 1) is None


@pytest.mark.parametrize(
    ("call", "kind", "said"),
    [
        (
            lambda: check_integer("n", 4, 1, 3),
            0,
            "n=4: give an integer of at least 1 and at most 3",
        ),
        (lambda: check_integer("n", None), 1, "n=None: give an integer"),
        (lambda: check_number("x", np.nan), 0, "x=nan: give a number"),
        (lambda: check_number("x", -np.inf), 0, "x=-inf: give a number"),
        (lambda: check_number("x", 10**400), 0, "give a number"),
        (lambda: check_number("x", 1, 0, below=1), 0, "x=1: give a number of at least 0 and less "),
        (lambda: check_number("x", 0, above=0, most=1), 0, "of more than 0 and at most 1"),
        (lambda: check_number("x", 1j), 1, "x=1j: give a number"),
        (
            lambda: check_seconds("t", 0),
            0,
            "t=0: give a number of more than 0, in seconds, or None",
        ),
        (lambda: check_seconds("t", True), 1, "t=True: give a number of more than 0, in seconds"),
        (lambda: check_flag("f", 1), 1, "f=1: give True or False"),
        (lambda: check_word("w", "c", ("a", "b", None)), 0, 'w=\'c\': use "a", "b" or None'),
        (lambda: check_word("w", np.array(["a", "a"]), ("a", "b")), 0, 'use "a" or "b"'),
        (lambda: check_word("w", None, ("a", "b")), 0, 'w=None: use "a" or "b"'),
    ],
)
def test_wordings(call: Callable[[], Any], kind: int, said: str) -> None:
    with pytest.raises(synk.InputError) as caught:
        call()
    assert type(caught.value) is (synk.InputTypeError if kind else synk.InputError)
    assert said in str(caught.value)
