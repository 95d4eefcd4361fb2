"""The picture of ``synk report``: two runs on the handwritten digits, and their page in a browser.

    python docs/figures/report.py [FOLDER]        # extras: demo, train, report; Chromium, Pillow

It writes report.png. Pictures at all widths and in both colours are left in FOLDER, to look at.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import tempfile
from pathlib import Path

import numpy as np
import pytensor
import pytensor.tensor as pt
from browser import look
from PIL import Image
from sklearn.datasets import load_digits

import synkhronos as synk
from synkhronos.cli._command_line import main as command
from synkhronos.extensions import updates
from synkhronos.training import Net, fit, metrics

HERE = Path(__file__).resolve().parent
HIGH = 925  # pixels of the picture for the docs: down to the curves
# width of the page, and the reader's choice of colours
LOOKS = {"wide": (1400, 1), "narrow": (400, 0), "dark": (1400, 0)}


def run(folder: Path, rate: float) -> None:
    """Train a small network for 20 epochs."""
    images, labels = load_digits(return_X_y=True)
    images, labels = (images / 16).astype("float32"), labels.astype("int32")
    rng = np.random.default_rng(0)
    x, y = pt.fmatrix("x"), pt.ivector("y")
    w, v = (
        pytensor.shared((0.1 * rng.normal(size=shape)).astype("float32"), name=name)
        for name, shape in (("w", (64, 100)), ("v", (100, 10)))
    )
    scores = pt.maximum(x @ w, 0) @ v
    net = Net(
        loss=-pt.special.log_softmax(scores, axis=1)[pt.arange(y.shape[0]), y].mean(),
        params=[w, v],
        inputs=[x, y],
        metrics={"accuracy": metrics.accuracy(scores, y)},
    )
    fit(
        net,
        (images[:1500], labels[:1500]),
        optimizer=functools.partial(updates.adam, learning_rate=rate),
        batch=100,
        epochs=20,
        validation=(images[1500:], labels[1500:]),
        folder=folder,
        progress=False,
    )


def without_this_machine(folder: Path, rate: float) -> None:
    """Let the record tell of no path and host of the machine that makes the picture."""
    path = folder / "run.json"
    run = json.loads(path.read_text())
    where = {"host": "node1", "pid": 4711, "cwd": "/home/me/digits"}
    run["starts"][0] |= {**where, "argv": ["python", "train.py", "--rate", str(rate)]}
    path.write_text(json.dumps(run))


def main(place: Path) -> None:
    os.chdir(place)
    page = place / "page.html"
    runs = {rate: Path("runs", f"adam-{rate}") for rate in (0.003, 0.001)}
    synk.fork(2)
    for rate, folder in runs.items():
        run(folder, rate)
        without_this_machine(folder, rate)
    synk.close()
    assert command(["report", *map(str, runs.values()), "--out", str(page)]) == 0
    for name, how in LOOKS.items():
        look(page, place / f"{name}.png", *how)
    picture = Image.open(place / "wide.png").crop((0, 0, 1400, HIGH))
    picture.quantize(256).save(HERE / "report.png", optimize=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path)
    if folder := parser.parse_args().folder:
        folder.mkdir(parents=True, exist_ok=True)
        main(folder.resolve())
    else:
        with tempfile.TemporaryDirectory() as made:
            main(Path(made))
