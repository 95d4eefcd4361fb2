"""fit with augmentation: each row has the same pixels for any members, batches and restarts."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from modes import FAST

import synkhronos as synk
from synkhronos import nn, rules
from synkhronos.extensions import Batches, Loader, make_train_function, updates
from synkhronos.training import Event, Metric, Trainer, augmentation_words, fit

pytestmark = pytest.mark.usefixtures("lasting_groups")

N, SIDE = 23, 4
IMAGES = np.random.default_rng(0).integers(0, 256, (N, SIDE, SIDE, 1)).astype("uint8")
NUMBERS = np.arange(N, dtype="int32")
SGD = functools.partial(updates.sgd, learning_rate=1e-6)
MEAN, SCALE = 100.0, 2.0


@pytest.fixture(autouse=True)
def _no_compiler() -> Iterator[None]:
    with pytensor.config.change_flags(mode=FAST):
        yield


def expected(epoch: int, seed: int = 0) -> np.ndarray:
    """The pixels of all rows in an epoch, by the definition."""
    bits = np.random.PCG64(np.random.SeedSequence(seed, spawn_key=(epoch, 1)))
    found = []
    for image, word in zip(IMAGES, bits.random_raw(N).tolist(), strict=True):
        number = word % 2**32 % (2 * 5 * 5)
        top, left = divmod(number // 2, 5)
        whole = np.pad(image, ((2, 2), (2, 2), (0, 0)))
        cut = whole[top : top + SIDE, left : left + SIDE]
        found.append(cut[:, ::-1] if number % 2 else cut)
    return (np.stack(found) - MEAN) / SCALE


class Net:
    """A linear function of the pixels; `seen` holds those of a step, at the numbers of its rows."""

    def __init__(self, dtype: str = "uint8") -> None:
        self.x, self.y = pt.tensor4("x", dtype=dtype), pt.ivector("y")
        self.words = pt.vector("words", dtype="uint64")
        moved = nn.augment(self.x, self.words, pad=2, flip=True, mean=MEAN, scale=SCALE)
        self.pixels = moved.flatten(2).astype("float64")
        self.w = pytensor.shared(np.full(SIDE**2, 0.5), name="w")
        self.errors = (self.pixels @ self.w - self.y) ** 2
        self.loss = self.errors.mean()
        at = pt.eq(pt.arange(N)[:, None], self.y[None, :]).astype("float64")
        self.seen = pytensor.shared(np.zeros((N, SIDE**2)), name="seen")
        self.updates = [(self.seen, at @ self.pixels, "sum", "all")]

    def train(self, given: Any = (IMAGES, NUMBERS), **options: Any) -> dict[int, np.ndarray]:
        """The pixels of all rows, by epoch; of rows that were not used, NaN."""
        found: dict[int, np.ndarray] = defaultdict(lambda: np.full((N, SIDE**2), np.nan))

        def note(event: Event) -> None:
            if event.kind == "step":
                pixels = self.seen.get_value()
                used = pixels.any(axis=1)
                assert np.isnan(found[event.epoch][used]).all()
                found[event.epoch][used] = pixels[used]
                assert used.sum() == event.values["rows"]

        options = {"epochs": 2, "callbacks": [], **options}
        options["callbacks"] = [note, *options["callbacks"]]
        self.run = fit(
            self.loss,
            [self.w],
            [self.x, self.y],
            given,
            optimizer=SGD,
            augment=self.words,
            updates=self.updates,
            progress=False,
            **options,
        )
        return found


def check(found: dict[int, np.ndarray], epochs: int = 2, seed: int = 0) -> None:
    assert sorted(found) == list(range(epochs))
    for epoch, pixels in found.items():
        np.testing.assert_array_equal(pixels, expected(epoch, seed).reshape(N, -1))


@pytest.mark.parametrize("batch", [5, N])
def test_any_members_and_batches(group: synk.Group, batch: int) -> None:
    """The same pixels of each row; another epoch and another seed have others."""
    check(Net().train(batch=batch, seed=3), seed=3)
    assert (expected(0) != expected(1)).any()
    assert (expected(0) != expected(0, 3)).any()


def test_slices(group2: synk.Group) -> None:
    check(Net().train(batch=11, slices=3))


def test_words() -> None:
    """Of each row the same for any number of rows; not those that give the order."""
    words = augmentation_words(9, 5, 2)
    np.testing.assert_array_equal(augmentation_words(4, 5, 2), words[:4])
    order = np.random.PCG64(np.random.SeedSequence(5, spawn_key=(2,))).random_raw(9)
    assert not np.isin(words, order).any()
    # fixed: a run that is resumed by a later version goes on with these
    assert augmentation_words(2, 0, 0).tolist() == [6729429447121830309, 17345221333414382550]


def test_from_sources(group2: synk.Group) -> None:
    """Read by a loader that fit makes, or by one of the user's, sorted or not."""
    check(Net().train((Source(), NUMBERS), batch=5))
    for sort in (False, True):
        given = [lambda rows: IMAGES[rows], NUMBERS]
        with Loader(given, Batches(N, 6, seed=4), sort=sort, prefetch=3) as loader:
            check(Net().train(loader), seed=4)


class Source:
    """Rows that are not in memory."""

    def __init__(self, images: np.ndarray = IMAGES) -> None:
        self.images = images

    def __len__(self) -> int:
        return N

    def __getitem__(self, rows: Any) -> np.ndarray:
        return self.images[rows]


def test_rows_that_a_source_leaves_out(group2: synk.Group) -> None:
    """The others have their own words."""

    class Damaged(Source):
        def __getitem__(self, rows: Any) -> np.ndarray:
            if lost := sorted({3, 17} & set(np.asarray(rows).tolist())):
                error = synk.SourceError("damaged")
                error.lost = tuple(lost)
                raise error
            return super().__getitem__(rows)

    found = Net().train((Damaged(), NUMBERS), batch=5, epochs=1)[0]
    kept = ~np.isin(NUMBERS, [3, 17])
    np.testing.assert_array_equal(found[kept], expected(0).reshape(N, -1)[kept])
    assert np.isnan(found[~kept]).all()


@pytest.mark.parametrize("source", [False, True])
def test_resumed_inside_an_epoch(group2: synk.Group, tmp_path: Path, source: bool) -> None:
    """The same bits as without a break, also for other batches and a second call of fit."""
    given: Any = (Source() if source else IMAGES, NUMBERS)
    unbroken = Net()
    check(unbroken.train(given, batch=5))

    def breaks(event: Event) -> None:
        if event.kind == "step" and event.step == 7:
            raise OSError("broken off")

    broken, resumed = Net(), Net()
    folder = tmp_path / "run"
    with pytest.raises(OSError, match="broken off"):
        broken.train(given, batch=5, callbacks=[breaks], folder=folder, save_every=1)
    found = resumed.train(given, batch=5, folder=folder, resume="auto")
    rest = ~np.isnan(found[1]).any(axis=1)
    assert 5 < rest.sum() < N
    np.testing.assert_array_equal(found[1][rest], expected(1).reshape(N, -1)[rest])
    np.testing.assert_array_equal(resumed.w.get_value(), unbroken.w.get_value())
    again = Net()
    again.train(given, batch=5, epochs=1)
    again.run.fit(given, batch=5, epochs=2)
    np.testing.assert_array_equal(again.w.get_value(), unbroken.w.get_value())


def test_validation_has_no_augmentation(group2: synk.Group) -> None:
    """Of the loss, of expressions and of Metrics, in memory and from sources."""
    net = Net()
    total = Metric([net.pixels.sum(), net.y.shape[0]], lambda s, n: s / n)
    given = {"mean": net.pixels.mean(), "total": total, "named": (net.pixels.sum(), "sum")}
    net.train(batch=N, epochs=1, validation=(IMAGES, NUMBERS), metrics=given)
    plain = (IMAGES.astype("float32") - MEAN) / SCALE
    errors = (plain.reshape(N, -1) @ net.w.get_value() - NUMBERS) ** 2
    values = net.run.history[-1]
    assert values["val_loss"] == pytest.approx(errors.mean(), rel=1e-12)
    assert values["val_mean"] == pytest.approx(plain.mean(dtype=float), rel=1e-12)
    assert values["val_total"] == pytest.approx(plain.sum(dtype=float) / N, rel=1e-12)
    found = net.run.evaluate((Source(), NUMBERS), batch=6)
    assert found["named"] == pytest.approx(plain.sum(dtype=float), rel=1e-12)


def test_verified(group2: synk.Group) -> None:
    """verify= makes the same steps serially, of the same pixels."""
    check(Net().train(batch=6, verify=2))
    check(Net().train((Source(), NUMBERS), batch=6, verify=2))


@pytest.mark.parametrize("source", [False, True])
def test_rows_that_are_not_finite(group2: synk.Group, tmp_path: Path, source: bool) -> None:
    """They are found as moved by their words, which the file holds too."""
    net = Net("float64")
    images = IMAGES.astype(float)
    images[17] = np.nan
    given: Any = Source(images) if source else images
    with pytest.raises(synk.NonFinite, match=r"row \d+ of the (data|batch)") as caught:
        net.train((given, NUMBERS), batch=6, epochs=1, folder=tmp_path / "run")
    with np.load(tmp_path / "run" / f"nonfinite-{caught.value.step}.npz") as kept:
        assert kept["input1"].tolist() == [17]
        assert kept["input2"].tolist() == augmentation_words(N, 0, 0)[[17]].tolist()


def test_a_free_rule() -> None:
    """Members that train apart use the words of the epoch; here one member, whose sum is known."""
    net = Net()
    w = pytensor.shared(np.zeros(SIDE**2), name="w")
    loss = (net.pixels @ w).mean()
    with synk.Group(1):
        fit(
            loss,
            [w],
            net.x,
            IMAGES,
            optimizer=functools.partial(updates.sgd, learning_rate=1.0),
            augment=net.words,
            rule=rules.GoSGD(probability=0.5),
            member_batch=N,
            epochs=3,
            progress=False,
        )
    total = sum(expected(epoch).mean(axis=0).ravel() for epoch in range(3))
    np.testing.assert_allclose(w.get_value(), -total, rtol=1e-12)


def test_what_is_refused(group2: synk.Group) -> None:
    net = Net()
    given: dict[str, Any] = {"optimizer": SGD, "batch": 5, "epochs": 1, "progress": False}
    both = IMAGES, NUMBERS
    inputs = [net.x, net.y]
    with pytest.raises(synk.InputTypeError, match="give the variable of words"):
        fit(net.loss, [net.w], inputs, both, augment=pt.lvector("words"), **given)
    with pytest.raises(synk.InputTypeError, match="augment=True"):
        fit(net.loss, [net.w], inputs, both, augment=True, **given)
    with pytest.raises(synk.InputError, match="leave it out there"):
        fit(net.loss, [net.w], [*inputs, net.words], both, augment=net.words, **given)
    with pytest.raises(synk.InputError, match="one for each"):
        fit(net.loss, [net.w], inputs, (*both, NUMBERS), augment=net.words, **given)
    odd = {"metrics": {"odd": (net.words % 2).mean()}, "validation": both}
    with pytest.raises(synk.InputError, match="the metric 'odd' depends on words"):
        fit(net.loss, [net.w], inputs, both, augment=net.words, **odd, **given)
    train = make_train_function(net.loss, [net.w], [net.words, *inputs], None, SGD)
    with pytest.raises(synk.InputError, match="has to be the last input"):
        Trainer(train, augment=net.words)
    apart = {**given, "rule": rules.GoSGD(), "batch": None, "member_batch": 5}
    sources = Source(), NUMBERS
    with pytest.raises(synk.InputError, match="each member takes batches by itself"):
        fit(net.loss, [net.w], inputs, sources, augment=net.words, **apart)
    np.testing.assert_array_equal(net.w.get_value(), np.full(SIDE**2, 0.5))
