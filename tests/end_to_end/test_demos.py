"""The demos run as their users run them; so does a script in the manner of 2017."""

import os
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from selection import thorough
from user_scripts import without_progress

ROOT = Path(__file__).parents[2]
DEMOS = ROOT / "demos"


def run(*command, **flags):
    """Run a script, warnings as errors; without cxx, PyTensor waits for no compiler."""
    given = [os.environ.get("PYTENSOR_FLAGS", ""), "cxx="]
    given += [f"{k}={v}" for k, v in flags.items()]
    env = os.environ | {"PYTENSOR_FLAGS": ",".join(f for f in given if f)}
    safe = ["-P"] if command[0] == "-m" else []  # a script has its folder's modules
    return subprocess.run(
        [sys.executable, *safe, "-W", "error", *map(str, command)],
        env=env,
        capture_output=True,
        text=True,
        timeout=270,
    )


@pytest.mark.each_choice
@pytest.mark.parametrize("size", [*thorough(1, 2), 3])  # of two members: the test below
@pytest.mark.parametrize("number", [*thorough(1, 2, 3), 4, *thorough(5)])
def test_demo(number, size):
    done = run(DEMOS / f"demo_{number}.py", size)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == f"demo {number}: all values as numpy has them"
    assert without_progress(done.stderr) == ""


def test_demo_starts_two_members_unless_told():
    done = run(DEMOS / "demo_1.py")
    assert done.returncode == 0, done.stderr
    assert "4 of 7 rows were the master's" in done.stdout
    assert done.stdout.splitlines()[-1] == "demo 1: all values as numpy has them"
    assert without_progress(done.stderr) == ""


SMALL_TOUR = ["--rows", "200", "--draws", "5", "--hidden", "8", "--batch", "100", "--epochs", "2"]


@pytest.mark.parametrize("scripts", thorough(0, 1))  # its parts: tests/pymc, tests/training
def test_tour_small(scripts):
    pytest.importorskip("pymc", reason="PyMC is not installed (synkhronos[pymc])")
    asked = [*SMALL_TOUR, "--scripts", scripts, "--ahead", scripts]
    done = run(DEMOS / "tour" / "tour.py", *asked, mode="FAST_COMPILE")
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"held-out accuracy: (\d+\.\d%) plain, \1 by fit", done.stdout)
    assert "epoch 2/2: loss" in done.stderr
    equal = re.findall(r"^(.*?) differ by .*: equal$", done.stdout, re.MULTILINE)
    means = "posterior means, in their standard errors,"
    assert equal == ["gradients", means, "weights after 10 steps", "weights after 2 epochs"]
    for row in ("synk.pymc.fast on 1 core", "2 chains, with", "a training step", "an epoch of fit"):
        assert re.search(f"{row}.* ms |{row}.* s ", done.stdout), row
    assert ("the same script again" in done.stdout) == bool(scripts)
    assert done.stdout.splitlines()[-1].endswith("docs/howto/no_speedup.rst.")


@pytest.mark.thorough
def test_tour_ends_where_results_differ(tmp_path):
    pytest.importorskip("pymc", reason="PyMC is not installed (synkhronos[pymc])")
    shutil.copytree(DEMOS / "tour", tmp_path, dirs_exist_ok=True)
    wrong = (
        (tmp_path / "comparing.py").read_text().replace("(found - expected)", "(found + expected)")
    )
    (tmp_path / "comparing.py").write_text(wrong)
    done = run(tmp_path / "tour.py", *SMALL_TOUR, mode="FAST_COMPILE")
    assert done.returncode == 1
    assert re.search("^gradients differ by 2e.00", done.stderr, re.MULTILINE)


SMALL_RULES = ["--members", "2", "--epochs", "1", "--hidden", "4", "--pause", "0"]


@pytest.mark.thorough
def test_rules_small():
    chosen = ["synchronous", "SlowMo()", "GoSGD()"]  # a step, a round rule, a free rule
    done = run(DEMOS / "rules" / "rules.py", *SMALL_RULES, "--rules", *chosen, "--plot", "")
    assert done.returncode == 0, done.stdout + done.stderr
    for row in chosen:
        assert re.search(re.escape(row) + " .*%", done.stdout)


@pytest.mark.thorough
def test_rules_all_with_a_plot(tmp_path):
    pytest.importorskip("matplotlib")
    picture = tmp_path / "rules.svg"
    done = run(DEMOS / "rules" / "rules.py", *SMALL_RULES, "--rules", "all", "--plot", picture)
    assert done.returncode == 0, done.stdout + done.stderr
    assert picture.read_text().count("<path") > 20


@pytest.mark.thorough
@pytest.mark.parametrize("more", [["--swap", "2"], []])
def test_gan_small(tmp_path, more):
    pytest.importorskip("pytensor_ml")
    picture = tmp_path / "ring.png"
    small = "--rows 200 --batch 50 --epochs 3 --hidden 4 --picture"
    done = run(DEMOS / "gan" / "train_gan.py", *small.split(), picture, *more, mode="FAST_COMPILE")
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"\d of 8 clouds found", done.stdout)
    assert "epoch 3/3: loss" in done.stderr
    assert "loss_critic" in done.stderr
    pixels = pytest.importorskip("PIL.Image").open(picture)
    colours = {colour for _, colour in pixels.convert("RGB").getcolors()}
    assert {(255, 255, 255), (120, 120, 120), (200, 30, 30)} == colours


# Written as scripts for Synkhronos 1.0 were; only `theano` is `pytensor` in the imports.
SCRIPT_OF_2017 = """
import synkhronos as synk
N_GPU = synk.fork(2, use_gpu=False, max_n_var=100, max_dim=8, profile_workers=False)

import numpy as np
import pytensor as theano
import pytensor.tensor as T
from collections import OrderedDict

floatX = theano.config.floatX
x = T.matrix('x')
y = T.vector('y')
W = theano.shared(np.arange(4, dtype=floatX), name='W')
S = theano.shared(np.zeros(4, dtype=floatX), name='S')
x_dat = np.random.RandomState(0).rand(100, 4).astype(floatX)
y_dat = np.random.RandomState(1).rand(100).astype(floatX)

err = T.dot(x, W) - y
loss = T.mean(err ** 2)
grad = theano.grad(loss, W)

f_grad = synk.function(
    inputs=[x, y],
    outputs=[(loss, "avg"), (T.max(err), "max"), (T.sum(err), "sum"), (err, "gather")],
    updates=[(S, grad)],
    name="f_grad",
)
f_update = synk.function([], updates=OrderedDict([(W, W - 0.1 * S)]))
f_theano = f_grad.as_theano
lonely = synk.function([x], (T.sum(x), None), bcast_inputs=[y], on_unused_input='ignore')
c_modes = synk.function([x], [(T.sum(x, axis=1), "c_gather"), (T.mean(x), "c_avg")])

x_data, y_data = f_grad.build_inputs(x_dat, y_dat, oversize=1.2)
synk.distribute()
print(f_grad.name, f_grad.output_modes, list(f_grad.update_modes.values()))

serial = f_theano(x_dat, y_dat)
found = f_grad(x_data, y_data)
for a, b in zip(found, serial):
    assert np.allclose(a, b)
assert np.allclose(f_grad(x_data, y_data, output_subset=[2])[0], serial[2])
assert np.allclose(f_grad(x_data, y_data, num_slices=4)[0], serial[0])
picked = np.random.RandomState(2).permutation(100)[:40]
assert np.allclose(f_grad(x_data, y=y_data, batch=picked)[0],
                   f_theano(x_dat[picked], y_dat[picked])[0])
assert lonely(x_data, y_data) < x_dat.sum()
assert np.allclose(c_modes(x_data, batch=slice(10, 50))[0], x_dat[10:50].sum(axis=1))

W.set_value(np.arange(4, dtype=floatX))
f_grad(x_data, y_data, batch=50)
synk.all_reduce(S, op="avg", nccl=False)
f_update()
assert np.allclose(synk.get_value(1, W), W.get_value())
expected = np.arange(4) - 0.1 * 2 * x_dat[:50].T.dot(
    x_dat[:50].dot(np.arange(4)) - y_dat[:50]) / 50
assert np.allclose(W.get_value(), expected)

synk.broadcast(W, np.ones(4, dtype=floatX), nccl=True)
synk.set_value(1, W, np.zeros(4, dtype=floatX))
assert np.allclose(synk.gather(W, nd_up=1, nccl=False), [[1] * 4, [0] * 4])
assert np.allclose(synk.reduce(W, op="sum", in_place=False, nccl=True), 1)
synk.all_gather(W, nccl=False)
assert synk.get_lengths(W) == [8, 8]

X = theano.shared(np.zeros((1, 4), dtype=floatX), name='X')
f_s = synk.function([], (T.sum(X), "sum"), sliceable_shareds=[X])
synk.scatter(X, x_data, batch=slice(0, 90))
assert synk.get_shapes(X) == [(45, 4), (45, 4)]
both = np.concatenate([x_dat[:10], x_dat[45:55]])
assert np.allclose(f_s(batch_s=slice(0, 10)), both.sum())
assert np.allclose(f_s(batch_s=[slice(0, 5), [0, 1, 2]], num_slices=2),
                   x_dat[:5].sum() + x_dat[45:48].sum())

d = synk.data(var=x, shape=(10, 4), minibatch=False, name="d")
d.set_value(x_dat[:20], oversize=1.5)
d.set_length(5)
d[:] = x_dat[:5]
assert np.allclose(lonely.as_theano(d, y_data), x_dat[:5].sum())
d.free_memory()

synk.close()
print(N_GPU, "members, as in 2017")
"""


@pytest.mark.thorough
def test_resnet_small():
    """The example of 2017."""
    pytest.importorskip("pytensor_ml")
    small = "--members 2 --depth 14 --size 32 --batch 2 --rows 8 --classes 3 --steps 8"
    more = "--dtype float64 --mode FAST_COMPILE"
    done = run(DEMOS / "resnet" / "train_resnet.py", *small.split(), *more.split())
    assert done.returncode == 0, done.stderr
    losses = [float(text) for text in re.findall(r"loss ([\d.]+)", done.stdout)]
    assert len(losses) == 8
    assert losses[-1] < 0.2 * losses[0]


@pytest.mark.thorough
def test_lstm_small():
    """A recurrent network, as Platoon's example has one."""
    pytest.importorskip("pytensor_ml")
    small = "--members 2 --rows 1500 --epochs 8 --steps 6 --hidden 12 --batch 50"
    done = run(DEMOS / "lstm" / "train_lstm.py", *small.split(), "--mode", "FAST_COMPILE")
    assert done.returncode == 0, done.stderr
    assert float(done.stdout.partition("test accuracy: ")[2].split()[0]) > 88


def test_a_script_of_2017_runs_unchanged(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT_OF_2017)
    done = run(script, mode="FAST_COMPILE")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "f_grad ['avg', 'max', 'sum', 'gather'] ['avg']",
        "2 members, as in 2017",
    ]


@pytest.mark.thorough  # what they show: the tests of each function
def test_examples_of_the_readme(tmp_path):
    """All of them, with fewer draws and steps, after which the printed digits are the same."""
    pytest.importorskip("pymc", reason="PyMC is not installed (synkhronos[pymc])")
    text = (ROOT / "README.rst").read_text()
    for many, few in (
        ("sample(100, tune=100,", "sample(10, tune=10,"),
        (".mean().round(1).item())\n2.0\n", ".shape[1])\n10\n"),
        ("range(1000)", "range(150)"),
        ("epochs=50", "epochs=30"),
        ("epoch < 50", "epoch < 30"),
    ):
        assert many in text
        text = text.replace(many, few)
    (tmp_path / "README.rst").write_text(text)
    done = run("-m", "doctest", tmp_path / "README.rst", mode="FAST_COMPILE")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout == ""


# scripts/docs runs those of docs/ as well
@pytest.mark.parametrize(
    "text",
    [
        *thorough(
            "README.rst",
            "docs/tutorials/function.rst",
            "docs/tutorials/fit.rst",
            "docs/tutorials/training_loop.rst",
            "docs/tutorials/pymc_model.rst",
            "docs/explanation/training_step.rst",
            "docs/howto/networks.rst",
        ),
    ],
)
def test_examples(text):
    if text.endswith(("networks.rst", "fit.rst")):
        pytest.importorskip("pytensor_ml", reason="pytensor-ml is not installed (synkhronos[nn])")
    if text in ("README.rst", "docs/tutorials/pymc_model.rst"):
        pytest.importorskip("pymc", reason="PyMC is not installed (synkhronos[pymc])")
    done = run("-m", "doctest", ROOT / text, mode="FAST_COMPILE")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout == ""


@pytest.mark.thorough
@pytest.mark.skipif(find_spec("keras") is None, reason="Keras is not installed")
def test_keras_digits():
    done = run(DEMOS / "keras" / "digits.py", "--epochs", 1)
    assert done.returncode == 0, done.stderr
    for name in ("Keras, one process", "EASGD(), 2 members", "Average(5), 2 m", "DiLoCo(20), 2 m"):
        assert name in done.stdout
