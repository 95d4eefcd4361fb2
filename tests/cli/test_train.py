"""`synk train`: what it prints, what it returns, and equal losses for any number of members."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from configs import place as place
from selection import thorough
from user_scripts import LIMIT

import synkhronos._engine.group
from synkhronos._errors import StartFailed
from synkhronos.cli import _command_line as command_line
from synkhronos.extensions import Batches
from synkhronos.training import config as configs
from synkhronos.training import configured, read_metrics

Captured = pytest.CaptureFixture[str]


def said(capsys: Captured, *line: str) -> str:
    """What `synk train` prints, after a good end."""
    assert command_line.main(["train", *line]) == 0
    return capsys.readouterr().out


def losses(text: str) -> list[str]:
    """The lines of epochs, without their seconds."""
    return [t.rpartition(",")[0] for t in text.splitlines() if t.startswith("epoch ")]


def test_the_last_epoch_is_printed(place: Path, capsys: Captured) -> None:
    text = said(capsys, "config.toml", "-n", "2", "epochs=1")
    assert text.startswith("epoch 1, step 4: loss 1")
    assert "val_loss " in text
    assert "val_far " in text


@pytest.mark.parametrize("members", ["1", "2", "3"])
def test_the_losses_are_the_same(place: Path, capsys: Captured, members: str) -> None:
    """Of each epoch on stderr, and of the last one with six digits on stdout."""
    assert command_line.main(["train", "config.toml", "-n", members, "progress=true"]) == 0
    out, err = capsys.readouterr()
    *before, last = by_numpy(place)
    assert out == f"epoch 3, step 12: {last}\n"
    four = [re.sub(r"[\d.]+", lambda found: f"{float(found[0]):.4g}", e) for e in (*before, last)]
    assert losses(err) == [f"epoch {n}/3: {text}" for n, text in enumerate(four, 1)]


def by_numpy(place: Path) -> list[str]:
    """The values of each epoch, by Adam in plain numpy."""
    names: dict[str, Any] = {}
    exec((place / "mine.py").read_text(), names)
    (x, y), others = names["rows"](), names["others"]()
    w, m, v = np.zeros((3, 3))
    batches, made, step = Batches(61, 20, seed=0), [], 0
    for _ in range(3):
        total = 0.0
        for batch in batches:
            step += 1
            error = x[batch] @ w - y[batch]
            total += float((error**2).sum())
            g = 2 * x[batch].T @ error / len(batch)
            m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
            rate = 0.1 * np.sqrt(1 - 0.999**step) / (1 - 0.9**step)
            w = w - rate * m / (np.sqrt(v) + 1e-8)
        far = abs(others[0] @ w - others[1])
        made.append(
            f"loss {total / 61:.6g}, val_loss {(far**2).mean():.6g}, val_far {far.max():.6g}"
        )
    return made


def test_options_and_values_in_any_order(place: Path, capsys: Captured) -> None:
    lines = (
        ["config.toml", "-n", "1", "epochs=1", "--fast-dev-run", "batch=5"],
        ["--fast-dev-run", "config.toml", "epochs=1", "batch=5", "--members", "1"],
    )
    for line in lines:
        assert said(capsys, *line).startswith("epoch 1, step 3: ")


def test_the_config_is_printed(place: Path, capsys: Captured, tmp_path: Path) -> None:
    text = said(capsys, "config.toml", "--print-config", "batch=7")
    (tmp_path / "again").mkdir()
    again = tmp_path / "again" / "b.toml"
    again.write_text(text)
    assert configs.read(again) == configs.read("config.toml", ["batch=7"])
    assert said(capsys, str(again), "--print-config") == text


@pytest.mark.parametrize(
    ("line", "code", "message"),
    [
        (["nothing.toml"], 2, "synk train: nothing.toml: cannot be read"),
        (["config.toml", "epochs=0"], 2, "synk train: config.toml: epochs: found 0, give an"),
        (
            ["config.toml", "--verify", "x"],
            2,
            "argument --verify: 'x': give an integer of at least 0",
        ),
        ([], 2, "the following arguments are required: CONFIG"),
        (
            ["config.toml", "optimizer=nadamm"],
            1,
            "synk train: optimizer.name: there is no 'nadamm'",
        ),
        (["config.toml", "--resume"], 1, "synk train: folder: missing, and a run without one"),
    ],
)
def test_what_is_wrong(
    place: Path, capsys: Captured, line: list[str], code: int, message: str
) -> None:
    assert command_line.main(["train", *line, "-n", "1"]) == code
    out, err = capsys.readouterr()
    assert message in err
    assert not out


@pytest.mark.parametrize(("option", "value"), [("-n", "0"), ("-n", "-1"), ("--verify", "-1")])
def test_wrong_numbers(place: Path, capsys: Captured, option: str, value: str) -> None:
    """No number of members means the default: 0 is a wrong one."""
    assert command_line.main(["train", "config.toml", option, value]) == 2
    assert f"{value}: give an integer of at least" in capsys.readouterr().err


# a function of the user's that the run calls in the master, when the group has started
FAILING = """
import os, signal
import synkhronos as synk
from mine import rows

def of_worker(number):
    os.kill(synk.current_group().channel.pid(1), number)
    return rows()

def death(): return of_worker(signal.SIGKILL)
def stall(): return of_worker(signal.SIGSTOP)
def interrupt(): raise KeyboardInterrupt
def error(): raise synk.SynkhronosError("mine")
"""


@pytest.mark.parametrize(
    ("rows", "code", "message"),
    [
        ("death", 4, "synk train: a worker died during "),
        ("stall", 5, "synk train: "),
        ("interrupt", 130, ""),
        ("error", 1, "synk train: data.train: mine\n"),
    ],
)
def test_exit_codes(
    place: Path,
    capsys: Captured,
    monkeypatch: pytest.MonkeyPatch,
    rows: str,
    code: int,
    message: str,
) -> None:
    (place / "failing.py").write_text(FAILING)
    if rows == "stall":
        monkeypatch.setenv("SYNKHRONOS_TIMEOUT", "0.3")
    line = ["config.toml", "-n", "2", f"data.train=failing:{rows}"]
    assert command_line.main(["train", *line]) == code
    assert capsys.readouterr().err.startswith(message)


def test_a_group_that_cannot_start(
    place: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(synkhronos._engine.group, "trouble", lambda: "no system of this kind")
    assert command_line.main(["train", "config.toml"]) == 3
    assert "no system of this kind" in capsys.readouterr().err


def test_what_synk_run_chose_goes_before_the_config(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A group reads the variable by itself; -n is for it to compare."""
    asked: list[object] = []

    def made(what: str, members: object, devices: object) -> None:
        asked.append(members)
        raise StartFailed("enough")

    monkeypatch.setattr(configured, "current_or_temporary", made)
    for line in ([], ["-n", "3"]):
        assert command_line.main(["train", "config.toml", "members=2", *line]) == 3
    monkeypatch.setenv("SYNKHRONOS_MEMBERS", "4")
    for line in ([], ["-n", "3"]):
        assert command_line.main(["train", "config.toml", "members=2", *line]) == 3
    assert asked == [2, 3, None, 3]


@pytest.mark.thorough  # of fit: tests/training/test_resume.py
@pytest.mark.slow
def test_stopped_and_resumed(place: Path, capsys: Captured) -> None:
    """SIGTERM: the code says run it again; the same line then ends as an unbroken run."""
    line = [
        "config.toml",
        "-n",
        "2",
        "folder=runs/a",
        "epochs=100000",
        "--resume",
        "mode=FAST_COMPILE",
    ]
    with subprocess.Popen(
        [sys.executable, "-P", "-m", "synkhronos", "train", *line],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        lines = place / "runs" / "a" / "metrics.jsonl"
        until = time.monotonic() + LIMIT
        while not lines.exists() or b'"saved"' not in lines.read_bytes():
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < until
            time.sleep(0.01)
        os.kill(process.pid, signal.SIGTERM)
        _, err = process.communicate(timeout=LIMIT)
    assert process.returncode == 75, err
    made = [line["step"] for line in read_metrics(place / "runs" / "a") if "step" in line][-1]
    epochs = f"epochs={made // 4 + 2}"
    resumed = said(capsys, *line, epochs)
    assert resumed == said(capsys, *line, epochs, "folder=runs/b")


FLOWERS = """
import numpy as np, pytensor, pytensor.tensor as pt
from synkhronos.training import Net, metrics

def net(means, scales, classes):
    x, y = pt.matrix("x", dtype="float64"), pt.lvector("y")
    w = pytensor.shared(np.zeros((len(means), classes)), name="w")
    b = pytensor.shared(np.zeros(classes), name="b")
    scores = (x - np.array(means)) / np.array(scales) @ w + b
    loss = -pt.special.log_softmax(scores, axis=1)[pt.arange(y.shape[0]), y].mean()
    return Net(loss=loss, params=[w, b], inputs=[x, y], outputs=scores)
"""


@pytest.mark.thorough  # files: test_configured.py
@pytest.mark.parametrize("name", ["iris", *thorough("wine", "breast_cancer")])
def test_csv_files_that_scikit_learn_ships(name: str, place: Path, capsys: Captured) -> None:
    """A fifth of the lines is held out: accuracy as scikit-learn's own regression has, about."""
    pytest.importorskip("pyarrow")
    datasets = pytest.importorskip("sklearn.datasets")
    from sklearn.linear_model import LogisticRegression

    shipped = {"wine": "wine_data"}.get(name, name)
    lines = (Path(datasets.__file__).parent / "data" / f"{shipped}.csv").read_text().splitlines()
    order = 1 + np.random.default_rng(0).permutation(len(lines) - 1)
    kept = len(order) * 4 // 5
    for part, rows in (("train", order[:kept]), ("held", order[kept:])):
        chosen = [lines[0], *[lines[row] for row in rows]]
        (place / f"{part}.csv").write_text("\n".join(chosen))
    train, held = (
        np.loadtxt(place / f"{part}.csv", delimiter=",", skiprows=1) for part in ("train", "held")
    )
    (x, y), (z, truth) = ((part[:, :-1], part[:, -1]) for part in (train, held))
    means, scales = x.mean(axis=0), x.std(axis=0)
    width, classes = x.shape[1], len(np.unique(y))
    (place / "flowers.py").write_text(FLOWERS)
    (place / "flowers.toml").write_text(
        f"""
        model = "flowers:net"
        model_arguments.classes = {classes}
        model_arguments.means = {means.tolist()}
        model_arguments.scales = {scales.tolist()}
        optimizer = {{ name = "adam", rate = 0.05 }}
        metrics = ["accuracy"]
        epochs = 30
        batch = 32
        progress = false
        [data]
        train = "train.csv"
        validation = "held.csv"
        arrays = ["0:{width - 1}", "{width}"]
        classes = {classes}
        header = false
        skip_lines = 1
        cache = "cache"
        """
    )
    text = said(capsys, "flowers.toml", "-n", "2")
    accuracy = float(re.search(r"val_accuracy ([\d.]+)", text)[1])  # type: ignore[index]
    ours = LogisticRegression(max_iter=1000).fit((x - means) / scales, y)
    assert accuracy >= ours.score((z - means) / scales, truth) - 0.04
    assert accuracy >= 0.85
