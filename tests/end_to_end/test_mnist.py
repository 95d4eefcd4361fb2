"""The MNIST demos: every way of training has the serial curve, and says what it is trained on."""

from __future__ import annotations

import gzip
import os
import re
import socket
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import pytensor
import pytest
from mnist_files import FILES, shared_data
from pytensor.graph.traversal import ancestors
from selection import thorough
from user_scripts import LIMIT, run_script

import synkhronos as synk
from synkhronos.training.sources import _known

pytestmark = pytest.mark.together
DEMOS = Path(__file__).parents[2] / "demos" / "mnist"
PLAIN, DROPOUT = "custom_mlp:2,64,0,0 777 2", "custom_mlp:2,16,0.2,0.5 1000 1"
CURVES = {
    "serial": f"train_serial {PLAIN}",
    **{f"cpu {n}": f"train_cpu_data {PLAIN} --members {n}" for n in (1, 2)},
    **{f"gpu {n}": f"train_gpu_data {PLAIN} --members {n}" for n in (2, 3)},
    "cpu dropout": f"train_cpu_data {DROPOUT} --members 2",
    "cpu dropout again": f"train_cpu_data {DROPOUT} --members 2",
    "gpu dropout": f"train_gpu_data {DROPOUT} --members 2 --even",
    "gpu dropout again": f"train_gpu_data {DROPOUT} --members 2 --even",
    "digits": "train_serial custom_mlp:1,16,0,0 50 4",
}
PLAIN_CNN, DROPOUT_CNN = "custom_cnn:2,16,0 300 1", "custom_cnn:1,8,0.5 600 1"
if find_spec("pytensor_ml"):
    CURVES |= {
        "cnn serial": f"train_serial {PLAIN_CNN}",
        **{f"cnn cpu {n}": f"train_cpu_data {PLAIN_CNN} --members {n}" for n in (1, 2)},
        "cnn gpu 2": f"train_gpu_data {PLAIN_CNN} --members 2",
        "cnn dropout": f"train_cpu_data {DROPOUT_CNN} --members 2",
        "cnn dropout again": f"train_cpu_data {DROPOUT_CNN} --members 2",
    }
TYPICAL = ("serial", "cpu 2", "digits")
# one process after another would take most of its time to import
RUN_ALL = """
import os, runpy, sys
os.environ["PYTENSOR_FLAGS"] = os.environ.get("PYTENSOR_FLAGS", "") + ",cxx="
sys.path[:0] = [{demos!r}, {stubs!r}]
for label, command in {curves!r}.items():
    print("run", label)
    data = "" if label == "digits" else {few!r} if label.startswith("cnn") else {data!r}
    os.environ["SYNKHRONOS_DATA"] = data
    demo, *args = command.split()
    sys.argv = [demo, *args, "--mode", "FAST_COMPILE"]
    runpy.run_path(os.path.join({demos!r}, demo + ".py"), run_name="__main__")
"""
EPOCH = re.compile(
    r"epoch +\d+/\d+: loss (\d+\.\d{6}), validation (\d+\.\d\d) %, \d+\.\d\d s, \d+ rows/s"
)
TEST = re.compile(r"test accuracy: (\d+\.\d\d) %")


class Curve(NamedTuple):
    losses: np.ndarray
    accuracies: np.ndarray  # of validation after each epoch, then of the test
    said: str


@pytest.fixture(scope="module")
def stubs(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder that hides pooch: no test asks the network."""
    folder = tmp_path_factory.mktemp("stubs")
    (folder / "pooch.py").write_text("raise ImportError")
    return str(folder)


@pytest.fixture(scope="module")
def curves(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, stubs: str
) -> dict[str, Curve]:
    """Those of the tests that were selected."""
    mine = [item for item in request.session.items if item.path == request.path]
    every = any(item.get_closest_marker("thorough") for item in mine)
    chosen = {label: CURVES[label] for label in CURVES if every or label in TYPICAL}
    few = first_images(shared_data(), tmp_path_factory.mktemp("few"))
    folders = {"data": shared_data(), "few": few, "demos": str(DEMOS), "stubs": stubs}
    text = RUN_ALL.format(**folders, curves=chosen)
    printed = run_script(tmp_path_factory.mktemp("runs"), text)
    found = {}
    for said in printed.split("run ")[1:]:
        epochs = [tuple(map(float, groups)) for groups in EPOCH.findall(said)]
        losses, accuracies = np.array(epochs).T
        last = TEST.fullmatch(said.splitlines()[-1])
        assert last, said
        found[said.splitlines()[0]] = Curve(losses, np.append(accuracies, float(last[1])), said)
    assert list(found) == list(chosen)
    return found


def first_images(data: str, folder: Path) -> str:
    """A folder with a fifth of the test set, since convolutions in Python take long."""
    if not data:
        return ""
    for name, size in zip(FILES[2:], (28 * 28, 1), strict=True):
        [path] = Path(data).rglob(name)
        raw = gzip.decompress(path.read_bytes())
        head = 4 * (1 + raw[3])  # the magic number and the lengths of all axes
        few = raw[:4] + (2000).to_bytes(4) + raw[8 : head + 2000 * size]
        with gzip.open(folder / name, "wb", compresslevel=1) as file:
            file.write(few)
    return str(folder)


@pytest.mark.parametrize("which", ["cpu 2", *thorough("gpu 2", "cpu 1", "gpu 3")])
def test_curves_are_the_serial_one(curves: dict[str, Curve], which: str) -> None:
    """The last batch is a shorter one; members' shares of a batch differ in length."""
    found, serial = curves[which], curves["serial"]
    assert len(found.losses) == 2
    np.testing.assert_allclose(found.losses, serial.losses, rtol=2e-5)
    np.testing.assert_allclose(found.accuracies, serial.accuracies, atol=0.41)  # a row or two
    assert f"{which[-1]} member" in found.said


@pytest.mark.skipif("cnn serial" not in CURVES, reason="pytensor-ml is missing (synkhronos[nn])")
@pytest.mark.parametrize("which", thorough("cnn cpu 2", "cnn cpu 1", "cnn gpu 2"))
def test_curves_of_a_cnn_are_the_serial_one(curves: dict[str, Curve], which: str) -> None:
    found, serial = curves[which], curves["cnn serial"]
    np.testing.assert_allclose(found.losses, serial.losses, rtol=2e-5)
    np.testing.assert_allclose(found.accuracies, serial.accuracies, atol=0.41)


@pytest.mark.thorough
@pytest.mark.skipif("cnn serial" not in CURVES, reason="pytensor-ml is missing (synkhronos[nn])")
def test_dropout_of_a_cnn_is_reproducible(curves: dict[str, Curve]) -> None:
    once, again = curves["cnn dropout"], curves["cnn dropout again"]
    assert once.losses.tolist() == again.losses.tolist()


def test_a_short_run_learns(curves: dict[str, Curve]) -> None:
    assert curves["serial"].losses[1] < curves["serial"].losses[0] - 0.1
    if shared_data():
        assert curves["serial"].accuracies[-1] > 80


@pytest.mark.parametrize("which", thorough("cpu dropout", "gpu dropout"))
def test_dropout_is_reproducible(curves: dict[str, Curve], which: str) -> None:
    once, again = curves[which], curves[f"{which} again"]
    assert once.losses.tolist() == again.losses.tolist()
    assert once.accuracies.tolist() == again.accuracies.tolist()


def test_digits_where_there_is_no_mnist(curves: dict[str, Curve]) -> None:
    assert curves["digits"].said.splitlines()[1] == (
        "no MNIST (pooch is not installed), scikit-learn's digits of 8x8 pixels instead: "
        "1,297 images to train, 250 to validate, 250 to test"
    )
    assert curves["digits"].accuracies[-1] > 80


# both programs with a small network, on a few rows
BOTH = """
import os, runpy, sys
os.environ["PYTENSOR_FLAGS"] = os.environ.get("PYTENSOR_FLAGS", "") + ",cxx=,mode=FAST_COMPILE"
os.environ["SYNKHRONOS_DATA"] = {data!r}
sys.path[:0] = [{demos!r}, {stubs!r}]
import models, mnist, numpy as np, synkhronos as synk
models.CNN = models.Cnn(1, 8, 0.5)
from synkhronos.training.sources import Split
few = Split(*[(x[:n], y[:n]) for (x, y), n in zip(mnist.load(), (130, 31, 31))], "a few rows")
mnist.load = lambda: few
values = []
for demo in ("train_fit", "train_loop"):
    made = runpy.run_path(os.path.join({demos!r}, demo + ".py"))
    synk.close()
    values.append([p.get_value() for p in made["net"].params])
assert all(np.array_equal(a, b) for a, b in zip(*values, strict=True))
start = models.build(models.CNN, few.train[0].shape[1], 0).params[0].get_value()
assert not np.array_equal(values[0][0], start)
"""


@pytest.mark.skipif("cnn serial" not in CURVES, reason="pytensor-ml is missing (synkhronos[nn])")
@pytest.mark.thorough
def test_fit_and_a_loop_end_with_the_same_bits(tmp_path: Path, stubs: str) -> None:
    """With dropout, a schedule, averages, and a shorter last batch."""
    text = BOTH.format(data=shared_data(), demos=str(DEMOS), stubs=stubs)
    tests = TEST.findall(run_script(tmp_path, text))
    assert len(tests) == 2
    assert tests[0] == tests[1]


def test_the_program_with_fit_has_twelve_lines() -> None:
    _, _, program = (DEMOS / "train_fit.py").read_text().split('"""')
    assert len([line for line in program.splitlines() if line.strip()]) == 12


@pytest.mark.parametrize("demo", ["train_serial", *thorough("train_gpu_data")])
def test_a_bad_model_ends_before_it_begins(demo: str) -> None:
    """As a user runs it."""
    done = subprocess.run(
        [sys.executable, "-W", "error", str(DEMOS / f"{demo}.py"), "custom_cnn:16"],
        env=os.environ | {"PYTENSOR_FLAGS": f"{os.environ.get('PYTENSOR_FLAGS', '')},cxx="},
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert done.returncode == 2
    assert "'custom_cnn:16'" in done.stderr
    assert done.stdout == ""


# The rest runs in this process.


@pytest.fixture
def mnist(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The demos' module, its own for each test, and no folder of data."""
    monkeypatch.syspath_prepend(DEMOS)
    monkeypatch.delenv("SYNKHRONOS_DATA", raising=False)
    monkeypatch.setitem(sys.modules, "pooch", None)
    for name in ("mnist", "models", "cnn"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    import mnist

    yield mnist
    for name in ("mnist", "models"):
        del sys.modules[name]


def write_idx(path: Path, values: np.ndarray) -> None:
    shape = np.array(values.shape, ">u4").tobytes()
    with gzip.open(path, "wb") as file:
        file.write(bytes([0, 0, 8, values.ndim]) + shape + values.tobytes())


def write_mnist(folder: Path, test_only: bool = False) -> None:
    """Row r has pixels r and label r modulo 10; the test set begins at 100."""
    folder.mkdir(exist_ok=True)
    for files, first, n in [(FILES[2:], 100, 20), (FILES[:2], 0, 60)][: 2 - test_only]:
        numbers = np.arange(first, first + n).astype("uint8")
        write_idx(folder / files[0], np.broadcast_to(numbers[:, None, None], (n, 28, 28)).copy())
        write_idx(folder / files[1], numbers % 10)


def numbers(pair: tuple[np.ndarray, np.ndarray]) -> list[int]:
    """Which rows these are, by their pixels; labels must be of the same rows."""
    images, labels = pair
    assert (images.dtype, labels.dtype, images.shape[1]) == ("float32", "int32", 784)
    found = np.rint(images[:, 0] * 255).astype(int)
    assert np.array_equal(found % 10, labels)
    return found.tolist()


def test_the_full_set_from_a_folder(
    mnist: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_mnist(tmp_path / "a", test_only=True)
    write_mnist(tmp_path / "b")
    monkeypatch.setenv("SYNKHRONOS_DATA", str(tmp_path))
    data = mnist.load()
    assert numbers(data.train) == list(range(50))
    assert numbers(data.validation) == list(range(50, 60))
    assert numbers(data.test) == list(range(100, 120))
    said = capsys.readouterr().out
    counts = "50 images to train, 10 to validate, 20 to test"
    assert said == f"MNIST in {tmp_path / 'b'}: {counts}\n"


def test_the_test_set_alone_from_a_folder(
    mnist: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_mnist(tmp_path, test_only=True)
    monkeypatch.setenv("SYNKHRONOS_DATA", str(tmp_path))
    data = mnist.load()
    assert numbers(data.train) == list(range(100, 116))
    assert numbers(data.validation) == [116, 118]
    assert numbers(data.test) == [117, 119]
    assert capsys.readouterr().out.startswith(f"the test set of MNIST in {tmp_path}: 16 images")


@pytest.mark.parametrize("damage", [lambda raw: raw[:-1], lambda raw: b"\x00\x00\x09" + raw[3:]])
def test_damaged_files_are_refused(
    mnist: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: Any
) -> None:
    write_mnist(tmp_path)
    raw = gzip.decompress((tmp_path / FILES[0]).read_bytes())
    (tmp_path / FILES[0]).write_bytes(gzip.compress(damage(raw)))
    monkeypatch.setenv("SYNKHRONOS_DATA", str(tmp_path))
    with pytest.raises(synk.SourceError, match=re.escape(f"{FILES[0]} is not a whole IDX file")):
        mnist.load()


class Pooch(ModuleType):
    """In the place of pooch: mirrors that have the files, or fail."""

    def __init__(self, **mirrors: Exception | None) -> None:
        super().__init__("pooch")
        self.mirrors = mirrors
        self.asked: list[str] = []

    def get_logger(self) -> Any:
        import logging

        return logging.getLogger("a test")

    def HTTPDownloader(self, timeout: float) -> float:
        return timeout

    def retrieve(self, url: str, known: str, name: str, path: Path, downloader: float) -> str:
        host = url.split("/")[2]
        self.asked.append(f"{host}/{name}")
        assert re.fullmatch("sha256:[0-9a-f]{64}", known)
        assert downloader
        failure = self.mirrors[host]
        if failure is not None:
            raise failure
        if not path.exists():
            path.parent.mkdir(exist_ok=True)
            write_mnist(path)
        return str(path / name)


def test_downloads_come_from_the_first_mirror_that_has_them(
    mnist: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    pooch = Pooch(one=ConnectionError(), two=None)
    monkeypatch.setitem(sys.modules, "pooch", pooch)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(_known, "MIRRORS", ["http://one/", "http://two/"])
    monkeypatch.setattr(_known, "answers", lambda url: True)
    assert numbers(mnist.load().test) == list(range(100, 120))
    assert pooch.asked == [f"one/{FILES[0]}", *(f"two/{name}" for name in FILES)]
    assert "downloading MNIST from http://two/" in caplog.text
    capsys.readouterr()

    # kept for the next time, when no mirror needs to answer
    monkeypatch.setattr(_known, "MIRRORS", ["http://two/"])
    monkeypatch.setattr(_known, "answers", lambda url: False)
    mnist.load()
    assert capsys.readouterr().out.startswith(f"MNIST in {tmp_path}")


def test_digits_where_downloads_fail(
    mnist: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A wrong checksum, and a mirror that takes the connection and never says a word."""
    pooch = Pooch(one=ValueError("hash"))
    with socket.create_server(("127.0.0.1", 0)) as silent:
        host = f"127.0.0.1:{silent.getsockname()[1]}"
        answers = _known.answers
        monkeypatch.setenv("SYNKHRONOS_DATA", str(tmp_path))
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        monkeypatch.setitem(sys.modules, "pooch", pooch)
        monkeypatch.setattr(_known, "MIRRORS", ["http://one/", f"http://{host}/"])
        monkeypatch.setattr(_known, "PATIENCE", 0.5)
        monkeypatch.setattr(_known, "answers", lambda url: "one" in url or answers(url))
        begin = time.perf_counter()
        data = mnist.load()
        assert time.perf_counter() - begin < 60  # a hang limit
    assert data.train[0].shape == (1297, 64)
    said = capsys.readouterr().out.splitlines()[-1]
    assert said.startswith(
        f"no MNIST (SYNKHRONOS_DATA={tmp_path} holds no files of MNIST; one: ValueError; "
        f"{host} does not answer), scikit-learn's digits of 8x8 pixels instead: 1,297 images"
    )


def test_models(mnist: Any) -> None:
    models = mnist.models
    assert models.parse("mlp") == models.parse("custom_mlp:2,800,0.2,0.5") == (2, 800, 0.2, 0.5)
    assert models.Net(models.parse("mlp"), 784, 0).size() == 1_276_810
    assert models.Net(models.parse("custom_mlp:0,5,0,0"), 4, 0).size() == 50


BAD = {
    "": "not one of mlp, custom_mlp:DEPTH,WIDTH,DROP_IN,DROP_HID, cnn and custom_cnn",
    "mlp:2": "not one of mlp",
    "resnet": "'resnet' is not one of mlp",
    "cnn:2": "'cnn:2' is not one of mlp",
    "custom_mlp": "takes two integers and two rates",
    "custom_mlp:": "takes two integers and two rates",
    "custom_mlp:2,800,0.2": "takes two integers and two rates",
    "custom_mlp:2,800,0.2,0.5,1": "takes two integers and two rates",
    "custom_mlp:2.5,800,0,0": "takes two integers and two rates",
    "custom_mlp:two,800,0,0": "such as custom_mlp:2,800,0.2,0.5",
    "custom_mlp:-1,800,0,0": "DEPTH is at least 0",
    "custom_mlp:2,0,0,0": "WIDTH at least 1",
    "custom_mlp:2,800,1,0": "DROP_IN and DROP_HID are from 0",
    "custom_mlp:2,800,0,-0.1": "DROP_IN and DROP_HID are from 0",
    "custom_mlp:2,800,nan,0": "DROP_IN and DROP_HID are from 0",
}


BAD_CNN = {
    "custom_cnn": "takes two integers and a rate",
    "custom_cnn:16,128": "such as custom_cnn:16,128,0.5",
    "custom_cnn:16,128,half": "takes two integers and a rate",
    "custom_cnn:0,128,0.5": "FILTERS and WIDTH are at least 1",
    "custom_cnn:16,128,1": "DROP is from 0",
}


@pytest.mark.parametrize("text", BAD_CNN)
def test_bad_convolutional_models_are_refused(mnist: Any, text: str) -> None:
    pytest.importorskip("pytensor_ml", reason="pytensor-ml is not installed (synkhronos[nn])")
    with pytest.raises(ValueError, match=re.escape(BAD_CNN[text])):
        mnist.models.parse(text)


def test_a_convolutional_model_without_pytensor_ml(
    mnist: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mnist.models, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=re.escape("synkhronos[nn]")):
        mnist.models.parse("cnn")


@pytest.mark.parametrize("text", BAD)
def test_bad_models_are_refused(mnist: Any, text: str) -> None:
    with pytest.raises(ValueError, match=re.escape(BAD[text])):
        mnist.models.parse(text)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("mlp 0", "argument BATCH: invalid positive int value: '0'"),
        ("mlp 500 many", "argument EPOCHS: invalid positive int value: 'many'"),
        ("mlp --members 0", "argument --members: invalid positive int value: '0'"),
        ("mlp --learning-rate nan", "argument --learning-rate: invalid positive float value"),
        ("mlp --seed -1", "--seed is -1"),
        ("mlp --mode SLOW", "SLOW"),
        ("perceptron", "'perceptron' is not one of mlp, custom_mlp"),
    ],
)
def test_bad_commands_are_refused(
    mnist: Any,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    given: str,
    message: str,
) -> None:
    monkeypatch.setattr(sys, "argv", ["demo", *given.split()])
    with pytest.raises(SystemExit, match="2"):
        mnist.parse(mnist.arguments("A demo."))
    assert message in capsys.readouterr().err


def test_the_command_line_of_2017(mnist: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["demo"])
    args = mnist.parse(mnist.arguments("A demo."))
    assert (args.sizes, args.batch, args.members) == (mnist.models.MLP, 500, None)
    monkeypatch.setattr(sys, "argv", ["demo", "custom_mlp:1,2,0,0", "7", "9"])
    args = mnist.parse(mnist.arguments("A demo."))
    assert (args.sizes.width, args.batch, args.epochs) == (2, 7, 9)


def test_dropout(mnist: Any) -> None:
    """float32 throughout; units are left out row by row, and only where the loss is taken."""
    models = mnist.models
    net = models.Net(models.Model(2, 7, 0.25, 0.5), 5, 0)
    wanted = [net.loss, net.accuracy, *pytensor.grad(net.loss, net.params)]
    assert {v.type.dtype for v in wanted} == {"float32"}
    assert "float64" not in {getattr(v.type, "dtype", "") for v in ancestors(wanted)}
    ((stream, _),) = net.updates
    assert stream in ancestors([net.loss])
    assert stream not in ancestors([net.accuracy])
    assert models.Net(models.Model(2, 7, 0, 0), 5, 0).updates == []

    # one pixel, no layers: a row's loss has one value if the pixel is left out and another if not,
    # and the share of the first is the rate
    net = models.Net(models.Model(0, 1, 0.25, 0), 1, 0)
    net.params[0].set_value(np.eye(1, 10, dtype="float32"))
    f = pytensor.function([net.x, net.y], net.loss, updates=net.updates, mode="FAST_COMPILE")
    rows = np.ones((4000, 1), "float32"), np.zeros(4000, "int32")
    once, again = f(*rows), f(*rows)
    out, kept = np.log(10), np.log(np.exp(1 / 0.75) + 9) - 1 / 0.75
    shares = (np.array([once, again]) - kept) / (out - kept)
    np.testing.assert_allclose(shares, 0.25, atol=0.03)
    assert once != again
