"""Known networks: numbers of weights, the steps of one process, what they refuse."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from learning_cases import learned
from modes import FAST
from selection import thorough

import synkhronos as synk
from synkhronos import zoo
from synkhronos.extensions import make_train_function, make_train_function_pytensor, updates
from synkhronos.training import Net, config, configured

pytest.importorskip("pytensor_ml", reason="pytensor-ml is not installed (synkhronos[nn])")
MODE = "FAST_COMPILE"


@pytest.fixture(autouse=True)
def _double_without_compiler() -> Iterator[None]:
    """Layers have graphs of their own inside, for which FAST_COMPILE would wait for gcc."""
    with pytensor.config.change_flags(floatX="float64", cxx=""):
        yield


def weights(net: Net) -> int:
    return sum(p.get_value(borrow=True).size for p in net.params)


# the examples of the docstrings count one network of each kind
COUNTS: list[tuple[str, tuple[Any, ...], dict[str, Any], int]] = [
    ("alexnet", (), {"towers": 2}, 60_965_224),
    ("googlenet", (), {"auxiliary": True}, 13_378_280),
    ("inception_v3", (), {"auxiliary": True}, 27_161_264),
    (
        *("cnn", ([[64], [192], [384, 256, 256]], [4096, 4096])),
        *({"size": 32, "channels": 3, "stride": 2}, 23_272_266),
    ),
    ("cnn", (), {"padded": False, "dropout": 0.0}, 149_210),
    ("vgg", (11,), {}, 132_863_336),
    ("vgg", (13,), {}, 133_047_848),
    ("vgg", (19,), {}, 143_667_240),
    ("resnet", (18,), {}, 11_689_512),
    ("resnet", (34,), {}, 21_797_672),
    ("resnet", (101,), {}, 44_549_160),
    ("resnet", (152,), {}, 60_192_808),
    ("cifar_resnet", (56,), {}, 853_018),
    ("cifar_resnet", (110,), {}, 1_727_962),
    ("wide_resnet", (16, 4), {}, 2_748_890),
    ("wide_resnet", (28, 4), {}, 5_849_050),
    ("densenet", (161,), {}, 28_681_000),
    ("densenet", (169,), {}, 14_149_480),
    ("densenet", (201,), {}, 20_013_928),
    ("lstm", (5, 7), {"classes": 3, "layers": 2}, 4 * 7 * (5 + 7 + 1) + 4 * 7 * 15 + 8 * 3),
    ("transformer", (), {}, 124_439_808),
    ("lstm", (5, 7), {"vocabulary": 11}, 11 * 5 + 4 * 7 * (5 + 7 + 1) + 8 * 2),
]
QUICK = ("alexnet", "cnn", "lstm")


# the docstring of dcgan counts its weights; each halving of the size has a layer less
@pytest.mark.parametrize("name", ["wgan", *thorough("dcgan", "lsgan")])
def test_weights_of_pairs(name: str) -> None:
    """Of generator and critic."""
    counts = {64: (3_576_704, 2_765_568), 32: (1_068_928, 663_296)}
    for size, expected in counts.items():
        pair = getattr(zoo, name)(size, seed=None)
        assert (weights(pair.generator), weights(pair.critic)) == expected
        assert pair.samples.type.shape == (None, size, size, 3)
        names = [p.name for p in pair.params]
        assert len(set(names)) == len(names)
    with pytest.raises(synk.InputError, match=f"{name}: size=48: give 8, 16, 32"):
        getattr(zoo, name)(48)
    with pytest.raises(synk.InputError, match="latent=0: give an integer of at least 1"):
        getattr(zoo, name)(8, latent=0)


def test_a_pair_begins_small_and_has_its_papers_optimizers() -> None:
    pairs = {name: getattr(zoo, name)(16, 1, width=8) for name in ("dcgan", "wgan", "lsgan")}
    for pair in pairs.values():
        for p in pair.params:
            value = p.get_value()
            if p.name.endswith("_W"):
                assert value.std() == pytest.approx(0.02, rel=0.15), p.name
    assert {name: pair.critic_steps for name, pair in pairs.items()} == {
        "dcgan": 1,
        "wgan": 5,
        "lsgan": 1,
    }
    rates = {n: pair.generator_optimizer.keywords["learning_rate"] for n, pair in pairs.items()}
    assert rates == {"dcgan": 2e-4, "wgan": 5e-5, "lsgan": 1e-4}
    w = pytensor.shared(np.full(3, 0.5), name="w")
    new = pairs["wgan"].critic_optimizer((w**2).sum(), [w])[w]
    np.testing.assert_array_equal(new.eval(), 0.01)


def test_losses_of_pairs() -> None:
    """Against the formulas of the papers, on given scores."""
    real, made = np.array([0.3, -0.2, 1.5]), np.array([-0.7, 0.4, 0.1])
    x, a, b = pt.dvector("x"), pytensor.shared(np.zeros(()), name="a"), pytensor.shared(0.0)
    words = np.arange(3, dtype="uint64")

    def found(loss: str) -> list[float]:
        pair = zoo.adversarial(
            x, lambda z: pt.constant(made) + 0 * (b + z[:, 0]), lambda rows: rows + a,
            loss=loss, latent=1, params=([a], [b]),
        )  # fmt: skip
        nets = pair.critic, pair.generator
        given = {x: real, pair.words: words}
        return [float(n.loss.eval(given, mode=FAST, on_unused_input="ignore")) for n in nets]

    d, g = 1 / (1 + np.exp(-real)), 1 / (1 + np.exp(-made))
    expected = {
        "log": (-np.log(d).mean() - np.log(1 - g).mean(), -np.log(g).mean()),
        "wasserstein": (made.mean() - real.mean(), -made.mean()),
        "squared": (((real - 1) ** 2 + made**2).mean() / 2, ((made - 1) ** 2).mean() / 2),
    }
    for loss, value in expected.items():
        np.testing.assert_allclose(found(loss), value, rtol=1e-12)
    for bad, message in (("hinge", "loss='hinge': use \"log\", "), ("log", "critic has no param")):
        with pytest.raises(synk.InputError, match=message):
            zoo.adversarial(x, lambda z: z[:, 0] + b, lambda rows: rows, loss=bad, params=([], [b]))


@pytest.mark.parametrize(
    ("name", "sizes", "more", "expected"),
    [case for case in COUNTS if case[0] in QUICK]
    + thorough(*(case for case in COUNTS if case[0] not in QUICK)),
)
def test_weights(name: str, sizes: tuple[Any, ...], more: dict[str, Any], expected: int) -> None:
    net = getattr(zoo, name)(*sizes, **more, seed=None)
    assert weights(net) == expected
    names = [p.name for p in net.params]
    assert len(set(names)) == len(names)


# small networks, without dropout, whose random numbers differ by member
SMALL: dict[str, Callable[[], Net]] = {
    "mlp": lambda: zoo.mlp((3, 2), (5, 4), classes=3, dropout=0.0, input_dropout=0.0),
    "resnet": lambda: zoo.resnet(18, blocks=(1, 1), width=3, size=12, classes=3),
    "resnet with a narrow middle": lambda: zoo.resnet(
        50, blocks=(1, 1), width=2, size=8, classes=3
    ),
    "cifar_resnet": lambda: zoo.cifar_resnet(8, width=2, size=8, classes=3),
    "wide_resnet": lambda: zoo.wide_resnet(10, 1, size=8, classes=3),
    "densenet": lambda: zoo.densenet(blocks=(2, 1), growth=3, size=16, classes=3),
    "mobilenet": lambda: zoo.mobilenet(0.1, size=32, classes=3),
    "vgg": lambda: zoo.vgg(11, width=2, units=5, size=32, classes=3, dropout=0.0),
    "alexnet": lambda: zoo.alexnet(size=64, units=4, classes=3, towers=2, dropout=0.0),
    "googlenet": lambda: zoo.googlenet(size=32, classes=3, auxiliary=True, dropout=0.0),
    "lstm": lambda: zoo.lstm(2, 4, classes=3, layers=2),
    "lstm of words": lambda: zoo.lstm(2, 4, classes=3, vocabulary=5, summary="mean"),
    "transformer": lambda: zoo.transformer(5, length=6, width=4, heads=2, layers=2, dropout=0.0),
}
SMALL["cnn"] = lambda: zoo.cnn([[2, 3], [2]], (4,), size=9, channels=2, classes=3, dropout=0.0)
DEFAULT = ("mlp", "resnet")


def rows_of(net: Net, n: int) -> list[np.ndarray]:
    """Random rows for each input of a network."""
    rng = np.random.default_rng(n)
    found = []
    for variable in net.inputs:
        shape = [n, *(k or 6 for k in variable.type.shape[1:])]
        if variable.dtype.startswith("int"):
            found.append(rng.integers(0, 3, shape).astype(variable.dtype))
        else:
            found.append(rng.normal(size=shape))
    return found


@pytest.mark.parametrize("name", [*DEFAULT, *thorough(*(n for n in SMALL if n not in DEFAULT))])
def test_members_make_the_steps_of_one_process(name: str) -> None:
    """Three, with 1 and 2 members, of unequal parts; also what is validated."""

    def trained(make: Any, function: Any) -> list[Any]:
        net = SMALL[name]()
        rows = rows_of(net, 7)
        train = make(
            net.loss,
            net.params,
            net.inputs,
            None,
            updates.sgd,
            0.01,
            updates=net.updates,
            mode=FAST,
        )
        losses = [float(train(*rows)) for _ in range(3)]
        evaluate = function(list(net.inputs), net.metrics["loss"], mode=FAST)
        return [losses, float(evaluate(*rows)), *(p.get_value() for p in net.params)]

    serial = trained(make_train_function_pytensor, pytensor.function)
    assert np.ptp(serial[0]) > 1e-4
    for size in (1, 2):
        with synk.Group(size):
            ours = trained(make_train_function, synk.function)
        for a, b in zip(ours, serial, strict=True):
            # of the first step's rounding errors, each further step of mobilenet makes 50 to 200
            # times larger ones
            np.testing.assert_allclose(a, b, rtol=0, atol=1e-8 * np.max(np.abs(b)))


def test_a_seed_makes_weights_and_masks() -> None:
    def made(seed: int | None) -> Net:
        return zoo.mlp(40, (300,), classes=3, seed=seed)

    def values(net: Net) -> dict[str, np.ndarray]:
        return {p.name: p.get_value() for p in net.params}

    once, again, other, none = (values(made(seed)) for seed in (1, 1, 2, None))
    for name, value in once.items():
        np.testing.assert_array_equal(value, again[name])
        assert not none[name].any()
        assert value.dtype == np.float64
    assert not np.array_equal(once["dense0_W"], other["dense0_W"])
    assert once["dense0_W"].std() == pytest.approx(np.sqrt(2 / 40), rel=0.05)
    assert not once["dense0_b"].any()
    masks = [[u[0].get_value().bit_generator.state for u in made(s).updates] for s in (1, 1, 2)]
    assert masks[0] == masks[1]
    assert len({str(state) for state in masks[0] + masks[2]}) == 4


def test_what_is_predicted_draws_nothing() -> None:
    """Neither dropout's masks nor the statistics of a batch."""
    net = zoo.wide_resnet(10, 1, size=8, classes=3, dropout=0.5)
    predict = pytensor.function([net.inputs[0]], net.outputs, mode=FAST)
    images, _ = rows_of(net, 5)
    np.testing.assert_allclose(predict(images)[:2], predict(images[:2]), rtol=1e-9)
    assert net.outputs.type.shape == (None, 3)
    assert len(net.updates) > 2


@pytest.mark.thorough  # as in tests/nn/test_augmentation.py
def test_images_move_in_training() -> None:
    """Words are an input of the loss, and of nothing that is validated."""
    moves = {"pad": 1, "flip": True, "mean": 120, "scale": 64}
    net = zoo.cifar_resnet(8, size=8, width=2, classes=3, augment=moves)
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (20, 8, 8, 3)).astype("uint8")
    y = rng.integers(0, 3, 20).astype("int32")
    assert net.inputs[0].dtype == "uint8"
    predict = pytensor.function([net.inputs[0]], net.outputs, mode=FAST)
    assert predict(x).shape == (20, 3)
    accuracy = learned(net, (x, y), (x, y), 0.01, 1, mode=FAST)
    assert 0 <= accuracy <= 1


def test_a_config_names_a_network(tmp_path: Path) -> None:
    text = """
    model = "synkhronos.zoo:mlp"
    model_arguments = { shape = [3, 2], hidden = [8], classes = 3 }
    optimizer = { name = "adam", rate = 0.01 }
    batch = 20
    epochs = 2
    progress = false
    [data]
    train = "synthetic:3x2,classes=3,n=60"
    validation = "synthetic:3x2,classes=3,n=30,seed=1"
    """
    (tmp_path / "config.toml").write_text(text)

    def trained(*values: str) -> Any:
        with pytensor.config.change_flags(mode=FAST):
            return configured.train(config.read(tmp_path / "config.toml", values), members=1)

    run = trained()
    assert run.step == 6
    assert {"val_loss", "val_accuracy"} <= set(run.history.columns)
    with pytest.raises(synk.InputError, match=r"no function 'vg'; did you mean vgg\?"):
        trained("model=synkhronos.zoo:vg")


BAD: dict[str, tuple[Callable[[], Net], type[Exception], str]] = {
    "depth": (lambda: zoo.vgg(12), synk.InputError, "vgg: depth=12: there are 11, 13, 16, 19"),
    "depth of blocks": (lambda: zoo.cifar_resnet(21), synk.InputError, r"give 6 n \+ 2, such as"),
    "towers": (lambda: zoo.alexnet(towers=3), synk.InputError, "towers=3: give 1 or 2"),
    "small images": (lambda: zoo.vgg(16, size=16), synk.InputError, "vgg: .* do not fit into"),
    "a size": (lambda: zoo.vgg(16, size=(1, 2, 3)), synk.InputError, "size="),
    "no classes": (
        lambda: zoo.resnet(18, classes=0),
        synk.InputError,
        "resnet: classes=0: give an integer of at least 1",
    ),
    "units": (lambda: zoo.mlp(3, (4, 2.5)), synk.InputError, "hidden="),  # type: ignore[arg-type]
    "one layer": (lambda: zoo.mlp(3, 4), synk.InputError, "hidden=4: give integers"),  # type: ignore[arg-type]
    "rate": (lambda: zoo.mlp(3, (4,), dropout=1.0), synk.InputError, "dropout=1.0: give a number"),
    "seed": (lambda: zoo.mlp(3, (4,), seed=-1), synk.InputError, "seed=-1"),
    "argument": (lambda: zoo.mlp(clases=3), synk.InputTypeError, "mlp: .*clases"),  # type: ignore[call-arg]
    "augment": (
        lambda: zoo.resnet(18, augment={"turn": True}),
        synk.InputTypeError,
        "augment=.*turn",
    ),
    "augment itself": (lambda: zoo.resnet(18, augment=3), synk.InputTypeError, "give a dict"),  # type: ignore[arg-type]
    "heads": (lambda: zoo.transformer(5, width=6, heads=4), synk.InputError, "a multiple of heads"),
    "summary": (lambda: zoo.lstm(summary="first"), synk.InputError, '"last" or "mean"'),
    "width": (
        lambda: zoo.mobilenet(0.0),
        synk.InputError,
        "width=0.0: give a number of more than 0",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_arguments_are_refused(case: str) -> None:
    call, kind, message = BAD[case]
    with pytest.raises(kind, match=message):
        call()
