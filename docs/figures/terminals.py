"""Draw top.svg and progress.svg: what `synk top` and `fit` show at a terminal.

    python docs/figures/terminals.py [FOLDER]

Needs tmux and rich. A demo trains in one terminal of 110 columns, and `synk top` watches it in
another. What the terminals hold after some seconds is drawn as it is.
"""

from __future__ import annotations

import argparse
import io
import re
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.text import Text

HERE = Path(__file__).parent
COLUMNS, ROWS = 110, 16
PROGRAM = """
import functools, numpy as np, pytensor, pytensor.tensor as pt, synkhronos as synk
from synkhronos.extensions import updates
from synkhronos.training import Net, fit

synk.fork(2)
rng = np.random.default_rng(0)
x, y = pt.matrix("x", dtype="float32"), pt.ivector("y")
rows = rng.normal(size=(60_000, 100)).astype("f4")
labels = rows[:, :10].argmax(1).astype("i4")
weights = [
    pytensor.shared((0.1 * rng.normal(size=s)).astype("f4")) for s in ((100, 400), (400, 10))
]
logits = pt.tanh(x @ weights[0]) @ weights[1]
loss = -pt.special.log_softmax(logits, axis=1)[pt.arange(y.shape[0]), y].mean()
accuracy = pt.eq(logits.argmax(1), y).mean()
net = Net(loss=loss, params=weights, inputs=[x, y], metrics={"accuracy": accuracy})
fit(
    net, (rows, labels), batch=500, epochs=40,
    optimizer=functools.partial(updates.adam, learning_rate=np.float32(1e-3)),
    validation=(rows[:5000], labels[:5000]),
)
"""


def tmux(*words: str) -> str:
    done = subprocess.run(["tmux", "-L", "synk-docs", *words], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"tmux {shlex.join(words)}: {done.stderr.strip()}")
    return done.stdout


def draw(session: str, title: str, path: Path) -> None:
    """Write what a terminal shows, without the empty lines at its end."""
    text = Text.from_ansi(tmux("capture-pane", "-e", "-p", "-t", session).rstrip())
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True)
    console.print(text)
    drawn = console.export_svg(title=title)
    path.write_text(re.sub(r"@font-face \{.*?\}\s*", "", drawn, flags=re.DOTALL))  # of a host


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=HERE)
    folder = parser.parse_args().folder
    size = ["-x", str(COLUMNS), "-y", str(ROWS)]
    with tempfile.TemporaryDirectory() as temporary:
        (Path(temporary) / "train.py").write_text(PROGRAM)
        run = shlex.join([sys.executable, "train.py"])
        try:
            tmux("new-session", "-d", "-s", "fit", "-c", temporary, *size, f"{run}; sleep 60")
            tmux("new-session", "-d", "-s", "top", *size, f"{sys.executable} -m synkhronos top")
            time.sleep(14)
            draw("top", "synk top", folder / "top.svg")
            draw("fit", "python train.py", folder / "progress.svg")
        finally:
            tmux("kill-server")


if __name__ == "__main__":
    main()
