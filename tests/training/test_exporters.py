"""What other programs get of a run: read back by themselves, also while the run goes on."""

from __future__ import annotations

import csv
import functools
import importlib.machinery
import itertools
import math
import os
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from user_scripts import alive, start_script

import synkhronos as synk
from synkhronos._transport.processes import interpreter
from synkhronos.extensions import updates
from synkhronos.training import Recorder, fit
from synkhronos.training._record import recorder
from synkhronos.training._record.exporters import export, exported, exporter, process
from synkhronos.training._record.exporters._csv import Table
from synkhronos.training._record.run_folder import LineReader

LIMIT = 60.0  # seconds; a hang fails


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Recorders that do not look at the machine; followers that look often."""
    monkeypatch.setattr(recorder, "environment", dict)
    monkeypatch.setattr(exporter, "_PAUSE", 0.001)


@pytest.fixture
def run(tmp_path: Path, quick: None) -> Path:
    """A run that has gone back to step 2, with what a record may hold."""
    with Recorder(tmp_path / "run", {"rate": 0.5, "rule": "<script>`"}) as made:
        for step in (1, 2, 3):
            made.write("step", step=step, epoch=0, loss=1.0 / step)
        made.resumed(2)
        os.write(made._metrics, b'{"kind": "step", "step": 3, "lo\n')  # torn
        made.write("step", step=3, epoch=0, loss=math.nan)
        made.write("epoch", step=3, epoch=0, loss=0.25, phases={"compute": [1.5, 2.5]}, ok=True)
        made.write("validated", step=3, val_acc=0.5, table=np.ones((65, 1)), text="<b>, $x$ \ud800")
        made.write("mine", loss=7)  # of the user's, without a step
        made.write("end", step=3, reason="epochs")
    return tmp_path / "run"


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """What TensorBoard shows."""
    found = EventAccumulator(str(folder), purge_orphaned_data=True)
    found.Reload()
    return {
        tag: [(event.step, event.value) for event in found.Scalars(tag)]
        for tag in found.Tags()["scalars"]
    }


def test_tensorboard(run: Path) -> None:
    """Read back by TensorBoard: the later steps of before the return are gone, and nothing else."""
    assert export(run, "tensorboard") == (str(run / "tensorboard"), 9)
    for again in (False, True):  # a second export takes the place of the first one
        found = scalars(run / "tensorboard")
        steps, values = zip(*found.pop("step/loss"), strict=True)
        assert steps == (1, 2, 3)
        assert values[:2] == (1.0, 0.5)
        assert math.isnan(values[2])
        assert found == {
            "epoch/loss": [(3, 0.25)],
            "epoch/phases/compute/0": [(3, 1.5)],
            "epoch/phases/compute/1": [(3, 2.5)],
            "epoch/ok": [(3, 1.0)],
            "validated/val_acc": [(3, 0.5)],
            "mine/loss": [(3, 7.0)],
        }
        if again:
            break
        [file] = (run / "tensorboard").iterdir()
        file.rename(file.with_name("events.out.tfevents.0000000001.before"))
        export(run, "tensorboard")
        assert len(list((run / "tensorboard").iterdir())) == 2
    events = EventAccumulator(str(run / "tensorboard"), purge_orphaned_data=True)
    events.Reload()
    [tag] = [tag for tag in events.Tags()["tensors"] if "config" in tag]
    event = events.Tensors(tag)[-1]
    assert '"rate": 0.5' in event.tensor_proto.string_val[0].decode()
    with LineReader(run) as reader:
        first = next(line for line in reader.new() if line["kind"] == "step")
    assert events.Scalars("step/loss")[0].wall_time == pytest.approx(first["time"], abs=1e-5)


def test_csv(run: Path, tmp_path: Path) -> None:
    assert export(run, "csv") == (str(run / "metrics.csv"), 9)
    with open(run / "metrics.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0])[:4] == ["kind", "time", "step", "epoch"]
    kinds = ["step", "step", "resumed", "step", "epoch", "validated", "mine", "end"]
    assert [row["kind"] for row in rows] == kinds
    assert [row["loss"] for row in rows] == ["1.0", "0.5", "", "nan", "0.25", "", "7", ""]
    assert rows[4]["phases/compute/1"] == "2.5"
    assert rows[4]["step"] == "3"
    assert rows[5]["text"] == "<b>, $x$ \\ud800"
    assert not any(name.startswith("table") for name in rows[0])
    place, _ = export(run, "csv", tmp_path / "new" / "tables")
    assert Path(place).read_bytes() == (run / "metrics.csv").read_bytes()


def test_csv_is_appended_to_where_it_can(tmp_path: Path) -> None:
    """The same file as in one piece."""
    lines: list[dict[str, Any]] = [
        *({"kind": "step", "step": i, "loss": i / 2} for i in range(4)),
        {"kind": "epoch", "step": 3, "acc": 1.0},
        {"kind": "resumed", "step": 2},
        {"kind": "step", "step": 3, "loss": 9.0},
    ]
    (tmp_path / "whole").mkdir()
    Table(tmp_path / "whole", None).take(lines)
    made = Table(tmp_path, None)
    same = []
    for line in lines:
        before = made._path.stat().st_ino if made._path.exists() else None
        made.take([line])
        same.append(made._path.stat().st_ino == before)
    # anew: the first line, the new column, the return
    assert same == [False, True, True, True, False, False, True]
    assert made._path.read_text() == (tmp_path / "whole" / "metrics.csv").read_text()
    assert sorted(os.listdir(tmp_path)) == ["metrics.csv", "whole"]


class Client:
    """In place of MLflow's: keeps what it is told."""

    def __init__(self, tracking_uri: str | None) -> None:
        self.said: list[Any] = [tracking_uri]
        clients.append(self)

    def get_experiment_by_name(self, name: str) -> Any:
        return SimpleNamespace(experiment_id="7") if name == "known" else None

    def create_experiment(self, name: str) -> str:
        return f"new {name}"

    def create_run(self, experiment: str, tags: dict[str, str], run_name: str) -> Any:
        self.said.append((experiment, tags, run_name))
        return SimpleNamespace(info=SimpleNamespace(run_id="abc"))

    def log_batch(self, run: str, metrics: Any = (), params: Any = ()) -> None:
        assert len(metrics) <= 1000
        assert len(params) <= 100
        self.said += [*metrics, *params]

    def set_terminated(self, run: str, status: str) -> None:
        self.said.append(status)


clients: list[Client] = []


@pytest.fixture
def mlflow(monkeypatch: pytest.MonkeyPatch) -> list[Client]:
    """MLflow, as far as it is used."""
    clients.clear()
    parts = {
        "mlflow": {},
        "mlflow.tracking": {"MlflowClient": Client},
        "mlflow.entities": {"Metric": lambda *given: given, "Param": lambda *given: given},
    }
    for name, has in parts.items():
        module = ModuleType(name)
        module.__spec__ = importlib.machinery.ModuleSpec(name, None)
        vars(module).update(has)
        monkeypatch.setitem(sys.modules, name, module)
    return clients


def test_mlflow(
    run: Path, mlflow: list[Client], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_EXPERIMENT_NAME", raising=False)
    assert export(run, "mlflow") == ("run abc of MLflow", 9)
    uri, made, *values, status = mlflow[0].said
    assert (uri, status) == (None, "FINISHED")
    assert made == ("new synkhronos", {"synkhronos.folder": str(run)}, "run")
    assert values[:2] == [("rate", "0.5"), ("rule", "<script>`")]
    assert [(name, value, step) for name, value, _, step in values[2:5]] == [
        ("step/loss", 1.0, 1),
        ("step/loss", 0.5, 2),
        ("step/loss", 1 / 3, 3),  # MLflow forgets nothing
    ]
    assert abs(values[2][2] / 1000 - time.time()) < 1000  # milliseconds
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "known")
    with Recorder(run, resume=True) as again:
        again.write("step", **{"step": 4, "a[0]=$": 1})
    export(run, "mlflow", tmp_path / "kept")
    uri, made, *values, status = mlflow[1].said
    assert (uri, made[0], status) == (f"sqlite:///{tmp_path}/kept/mlflow.db", "7", "FAILED")
    assert values[-1][0] == "step/a_0___"


def test_what_cannot_be_exported(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(synk.InputError, match="there is no run to export"):
        export(tmp_path / "other", "csv")
    with pytest.raises(synk.InputError, match=r'export=.excel.: use "tensorboard", "csv"'):
        export(run, "excel")
    with pytest.raises(synk.InputError, match="give folder="):
        process.checked_targets("csv", None)
    assert process.checked_targets(["csv", "tensorboard"], run) == ("csv", "tensorboard")
    assert process.checked_targets((), None) == ()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(synk.BackendMissing, match=r'"synkhronos\[tensorboard\]"'):
        process.checked_targets("tensorboard", run)
    with pytest.raises(synk.BackendMissing, match="pip install mlflow"):
        export(run, "mlflow")


def kinds(lines: list[dict[str, Any]]) -> list[str]:
    return [line["kind"] for line in lines]


def following(run: Path, lifeline: int | None = None) -> Iterator[list[dict[str, Any]]]:
    """The lines that a follower gets, as they come."""
    with LineReader(run) as reader:
        yield from exporter._batches(reader, run, True, lifeline)


@pytest.mark.usefixtures("quick")
def test_a_follower_gets_each_line_once(tmp_path: Path) -> None:
    """Until the end that nothing follows; half a line waits for its other half."""
    with Recorder(tmp_path) as made:
        made.write("start")
        found = following(tmp_path)
        assert kinds(next(found)) == ["start"]
        made.write("end", reason="SIGTERM")
        made.resumed(0)
        assert kinds(next(found)) == ["end", "resumed"]
        os.write(made._metrics, b'{"kind": "st')
        looks = itertools.count()

        def read(self: LineReader, usual: Any = LineReader.new) -> Any:
            if next(looks) == 3:
                os.write(made._metrics, b'ep", "loss": "NaN"}\n')
            return usual(self)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(LineReader, "new", read)
            [line] = next(found)
        assert line["kind"] == "step"
        assert math.isnan(line["loss"])
        made.write("end", reason="epochs")
        os.write(made._metrics, b'{"kind": "end"}')  # whole, but for the end of the line
        assert kinds(next(found)) == ["end"]
        assert kinds(next(found)) == ["end"]
        assert list(found) == []


@pytest.mark.usefixtures("quick")
def test_a_follower_ends_with_the_writer(tmp_path: Path) -> None:
    """A process that has gone; not one of another machine, nor this one."""
    with Recorder(tmp_path) as made:
        made.write("step", step=1)
    gone = subprocess.Popen(["true"])
    gone.wait()
    lock = tmp_path / ".lock"
    lock.write_text(f"{gone.pid} {os.uname().nodename}\n")
    assert [kinds(lines) for lines in following(tmp_path)] == [["step"]]
    living = subprocess.Popen(["sleep", "100"])
    for holder in (f"{gone.pid} elsewhere", f"{living.pid} {os.uname().nodename}", "damaged"):
        lock.write_text(holder)
        found = following(tmp_path)
        assert kinds(next(found)) == ["step"]
        if str(living.pid) in holder:
            living.kill()
            assert list(found) == []
        else:
            with open(tmp_path / "metrics.jsonl", "a") as file:
                file.write('{"kind": "end"}\n')
            assert kinds(next(found)) == ["end"]
            assert list(found) == []
            (tmp_path / "metrics.jsonl").write_text('{"kind": "step"}\n')
    living.wait()


@pytest.mark.usefixtures("quick")
def test_a_lifeline_outlives_an_end(tmp_path: Path) -> None:
    ours, theirs = os.pipe()
    with Recorder(tmp_path) as made:
        made.write("end", reason="epochs")
        found = following(tmp_path, ours)
        assert kinds(next(found)) == ["end"]
        made.resumed(0)
        assert kinds(next(found)) == ["resumed"]
        made.write("step", step=1)
        os.close(theirs)
        assert [kinds(lines) for lines in found] == [["step"]]
    os.close(ours)


@pytest.mark.usefixtures("quick")
def test_a_lifeline_that_a_fork_holds_ends_with_the_writer(tmp_path: Path) -> None:
    """As a process of multiprocessing does that outlives the run."""
    ours, theirs = os.pipe()
    with Recorder(tmp_path) as made:
        made.write("step", step=1)
        living = subprocess.Popen(["sleep", "100"])
        (tmp_path / ".lock").write_text(f"{living.pid} {os.uname().nodename}\n")
        found = following(tmp_path, ours)
        assert kinds(next(found)) == ["step"]
        living.kill()
        assert list(found) == []
    living.wait()
    os.close(ours)
    os.close(theirs)


@pytest.mark.slow
def test_beside_fit(group2: synk.Group, tmp_path: Path) -> None:
    """What TensorBoard reads is what the run has recorded, when `fit` returns."""
    x, w = pt.dmatrix("x"), pytensor.shared(np.zeros(3), name="w")
    trainer = fit(
        ((x - w) ** 2).mean(),
        [w],
        [x],
        np.arange(30.0).reshape(10, 3),
        optimizer=functools.partial(updates.sgd, learning_rate=0.1),
        batch=5,
        epochs=3,
        mode="FAST_COMPILE",
        folder=tmp_path / "run",
        export="tensorboard",
        progress=False,
    )
    found = scalars(tmp_path / "run" / "tensorboard")
    losses = list(zip([2, 4, 6], trainer.history["loss"], strict=True))
    assert found["epoch/loss"] == [(step, pytest.approx(loss)) for step, loss in losses]
    assert len(found["epoch/phases/compute/1"]) == 3
    assert not (tmp_path / "run" / "log").exists()  # it had nothing to say


SCRIPT = """
import sys, time
from synkhronos.training import Recorder
from synkhronos.training._record import recorder
from synkhronos.training._record.exporters import exported
recorder.environment = dict
with Recorder(sys.argv[1]) as made, exported(made.folder, "csv"):
    made.write("step", step=1, loss=0.5)
    print("ready", flush=True)
    time.sleep(100)
"""


@pytest.mark.slow
def test_it_ends_after_the_death_of_the_run(tmp_path: Path) -> None:
    """Within its own time: the last line is exported."""
    script = start_script(tmp_path, SCRIPT, str(tmp_path / "run"))
    children = Path(f"/proc/{script.pid}/task/{script.pid}/children").read_text()
    [exporter] = map(int, children.split())
    script.send_signal(signal.SIGKILL)
    script.communicate()
    until = time.monotonic() + LIMIT
    while alive([exporter]):
        assert time.monotonic() < until
        time.sleep(0.05)
    assert "0.5" in (tmp_path / "run" / "metrics.csv").read_text()


@pytest.mark.usefixtures("quick")
def test_it_ends_though_a_fork_holds_its_pipe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As a worker does that was started anew during the run."""
    monkeypatch.setattr(interpreter, "_BOOTSTRAP", "import sys; sys.stdin.buffer.read(1)")
    monkeypatch.setattr(process, "_LIMIT", 20.0)
    with exported(tmp_path, "csv"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of JAX, if another test has imported it
        pid = os.fork()
        if not pid:
            time.sleep(LIMIT)
            os._exit(0)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    assert not caplog.records


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("import sys; sys.exit('the disk is full')", "has failed (exit code 1): see"),
        ("import time; time.sleep(100)", "has not ended within 0 s: it is stopped"),
    ],
)
def test_a_failure_fails_no_run(
    code: str,
    text: str,
    run: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(interpreter, "_BOOTSTRAP", code)
    if "sleep" in code:
        monkeypatch.setattr(process, "_LIMIT", 0.2)
    with exported(run, "csv"):
        pass
    assert f"the export to csv {text}" in caplog.text
    said = (run / "log" / "export-csv.log").read_text()
    assert said == ("the disk is full\n" if "disk" in code else "")
