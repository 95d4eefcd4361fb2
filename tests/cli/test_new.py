"""`synk new`: starters are written once, and run as they are; old lines are translated."""

from __future__ import annotations

import os
import runpy
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from configs import place as place
from selection import thorough
from user_scripts import LIMIT, ended

import synkhronos as synk
from synkhronos.cli import _command_line as command_line
from synkhronos.cli import new

Captured = pytest.CaptureFixture[str]


@pytest.fixture
def empty(place: Path) -> Path:
    """The working folder, without files."""
    for file in place.iterdir():
        file.unlink()
    return place


def synk_new(*line: str) -> int:
    return command_line.main(["new", *line])


def test_each_file_belongs_to_a_starter() -> None:
    stored = {
        str(path.relative_to(new.STARTERS))
        for path in new.STARTERS.rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }
    assert stored == {name for names in new.KINDS.values() for name in names}
    assert list(new.NEXT) == list(new.KINDS)


@pytest.mark.parametrize("kind", new.KINDS)
def test_files_are_written_and_never_replaced(empty: Path, kind: str, capsys: Captured) -> None:
    assert synk_new(kind) == 0
    names = list(new.KINDS[kind].values())
    assert sorted(p.name for p in empty.iterdir()) == sorted(names)
    assert f"run it: {new.NEXT[kind].format(names[0])}\n" in capsys.readouterr().out
    (empty / names[-1]).write_text("mine")
    assert synk_new(kind) == 1
    assert f"{names[-1]} exists: give --force" in capsys.readouterr().err
    assert (empty / names[-1]).read_text() == "mine"
    assert synk_new(kind, "--force") == 0
    for source, name in new.KINDS[kind].items():
        text = (empty / name).read_text()
        assert text == (new.STARTERS / source).read_text()
        if "run it by" in text:
            assert f"run it by `{new.NEXT[kind].format(name)}`" in text


def test_where_files_go(empty: Path, capsys: Captured) -> None:
    assert synk_new("train", "--to", "runs/") == 0
    assert synk_new("gan", "--to", "runs") == 0
    assert synk_new("function", "--to", "runs/first.py") == 0
    found = sorted(p.name for p in (empty / "runs").iterdir())
    assert found == ["config.toml", "first.py", "gan.py", "mine.py"]
    assert synk_new("train", "--to", "other") == 0
    assert sorted(p.name for p in (empty / "other").iterdir()) == ["config.toml", "mine.py"]
    assert synk_new("train", "--to", "config.toml") == 2
    said = capsys.readouterr().err
    assert "config.toml: it is a file, and train has several: give a folder" in said


def test_a_folder_as_second_word(empty: Path, capsys: Captured) -> None:
    """As with --to; a new name without a suffix is a folder for one file, too."""
    assert synk_new("train", "mine") == 0
    assert sorted(p.name for p in (empty / "mine").iterdir()) == ["config.toml", "mine.py"]
    assert "run it: synk train mine/config.toml\n" in capsys.readouterr().out
    for where in ("one", "mine", "two/", "three/"):
        assert synk_new("gan", where) == 0
        assert (empty / where / "gan.py").is_file()
    assert synk_new("gan", "four/first.py") == 0
    assert (empty / "four" / "first.py").is_file()
    assert synk_new("gan", "one") == 1
    assert synk_new("gan", "one", "--force") == 0
    assert synk_new("train", "config.toml") == 2
    assert synk_new("gan", "five", "--to", "six") == 2
    assert "five and --to six: give one place" in capsys.readouterr().err
    assert synk_new("gan", "five", "six") == 2
    assert "asked for gan five six" in capsys.readouterr().err
    assert not (empty / "five").exists()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ([], "asked for nothing: give one of function, train, gan, pymc, slurm, or --from"),
        (["nurse"], "asked for nurse: give one of"),
        (["gan", "train"], "asked for gan train: give one of"),
        (["--from", "keras", "--", "x"], "argument --from: keras: choose from mpidriver, tml"),
        (
            ["--from", "mpi_learn", "--", "x"],
            "mpi_learn: choose from mpidriver, tmlauncher, pydtnn;",
        ),
        (["--from", "NNLO", "--", "x"], "; NNLO is mpidriver"),
        (["--from", "theano-mpi", "--", "x"], "; theano-mpi is tmlauncher"),
        (["--from", "platoon", "--", "x"], "platoon: its programs have no options to translate"),
        (
            ["--from", "mpidriver", "--", "python", "BuildModel.py", "mnist"],
            "BuildModel.py is not MPIDriver.py or TrainingDriver.py or MPIGDriver.py, of which",
        ),
        (
            ["--from", "mpidriver", "--", "./OptimizationDriver.py", "--example", "mnist"],
            "it searched for hyperparameters, as `synk search` does",
        ),
        (
            ["--from", "mpidriver", "--", "mpirun", "-np", "2", "-x", "A", "other.py", "t", "v"],
            "other.py is not MPIDriver.py",
        ),
        (
            ["--from", "pydtnn", "--", "python", "datasets/ImageNet_converter.py"],
            "it wrote the archives that --dataset=imagenet reads",
        ),
        (["--from", "pydtnn", "--", "python3", "-m", "other"], "python3 is not pydtnn_benchmark"),
        (["--from", "tmlauncher", "--", "sh", "session.sh"], "session.sh is not tmlauncher"),
        (["--from", "pydtnn", "--", "synk", "train"], "synk is not pydtnn_benchmark"),
        (
            ["--from", "pydtnn", "--", "--optimizer=Adm"],
            "--optimizer adm: not known; there were sgd, sgdmomentum, rmsprop, adam, nadam, "
            "oktopk; did you mean adam?",
        ),
        (
            ["--from", "mpidriver", "--", "m", "t", "v", "--worker-optimizer", "rmsprp"],
            "--worker-optimizer rmsprp: not known; there were sgd, rmsprop",
        ),
        (["--from", "mpidriver"], "--from mpidriver: give the old line after --"),
        (["--from", "mpidriver", "--", "a"], "the old line of MPIDriver.py: the following argum"),
        (
            ["--from", "mpidriver", "--", "--hyper-opt", "genetic", "m.json", "t.list", "v.list"],
            "--hyper-opt is not known, so genetic may be its value, or an argument: leave",
        ),
        (
            ["--from", "mpidriver", "--", "m", "t", "v", "--early-stopping", "acc,=,3"],
            "--early-stopping: 'acc,=,3': it was metric,op,number",
        ),
        (
            ["--from", "mpidriver", "--", "m", "t", "v", "--early-stopping", "acc,<,0.5"],
            "--early-stopping: 'acc,<,0.5': the patience was an integer",
        ),
        (
            ["--from", "mpidriver", "--", "m", "t", "v", "--worker-optimizer-params", "lr=3"],
            "--worker-optimizer-params: 'lr=3' is not a JSON object",
        ),
        (["--from", "tmlauncher", "--", "-r=BSP"], "names no model file and no model class"),
        (
            ["--from", "tmlauncher", "--", "-file=a", "-class=B", "-r=SGD"],
            "RULE=SGD: it was one of",
        ),
        (
            ["--from", "tmlauncher", "--", "-file=a", "-class=B", "-bsp_sync_type=x"],
            "BSP_SYNC_TYPE=x: it was one of cdd, avg, swap",
        ),
        (["--from", "pydtnn", "--", "--nesterov", "maybe"], "found 'maybe', give True or False"),
        (["--from", "tmlauncher", "--", "-cfg=no.cfg"], "no.cfg: the config file cannot be read"),
        (
            ["--from", "pydtnn", "--", "--batch_size=x"],
            "argument --batch_size: 'x': give an integer of at least 1",
        ),
    ],
)
def test_what_is_wrong(empty: Path, capsys: Captured, line: list[str], message: str) -> None:
    assert synk_new(*line) == 2
    assert message in capsys.readouterr().err
    assert not list(empty.iterdir())


def run_file(path: Path, text: str) -> None:
    """Run a starter as a script, in this process."""
    path.write_text(text)
    runpy.run_path(str(path))
    assert synk.current_group() is None


def test_the_function_runs(empty: Path, capsys: Captured) -> None:
    synk_new("function")
    run_file(empty / "function.py", (empty / "function.py").read_text())
    members, serial = capsys.readouterr().out.splitlines()[-2:]
    assert members.partition("mean ")[2].partition(",")[0] == serial.partition("mean ")[2]


@pytest.mark.parametrize("turns", [5, *thorough(300)])
def test_the_gan_runs(empty: Path, capsys: Captured, turns: int) -> None:
    synk_new("gan")
    text = (empty / "gan.py").read_text()
    assert "TURNS, CENTRE = 256, 300," in text
    run_file(empty / "gan.py", text.replace("= 256, 300,", f"= 256, {turns},"))
    said = capsys.readouterr().out.splitlines()
    assert said[-1].endswith("the mean should be near [ 2. -1.]")
    if turns == 300:
        found = [float(v) for v in said[-2].partition("[")[2].partition("]")[0].split()]
        assert found == pytest.approx([2, -1], abs=0.3)


@pytest.mark.thorough
def test_the_model_of_pymc_runs(empty: Path) -> None:
    pytest.importorskip("pymc", reason="PyMC is not installed (the extra: synkhronos[pymc])")
    synk_new("pymc")
    done = ended(empty, [sys.executable, "glm.py"])
    assert done.returncode == 0, done.stdout
    found = done.stdout.rpartition("slopes [")[2].partition("]")[0].split()
    assert [float(v) for v in found] == pytest.approx([1, -2, 0.5], abs=0.2)


def test_the_training_runs(empty: Path, capsys: Captured) -> None:
    pytest.importorskip("pytensor_ml", reason="pytensor-ml is not installed")
    synk_new("train")
    rows = "data.train=synthetic:64,classes=10,n=900"
    assert command_line.main(["train", "config.toml", "-n", "2", "epochs=1", rows, "batch=30"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("epoch 1, step 30: ")
    assert (empty / "runs" / "a" / "best").exists()


def sleeps(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "S"


FAKE = """#!/bin/bash
trap 'exit 75' TERM
echo "${{0##*/}} $@" >> {log}
{rest}
"""


@pytest.mark.parametrize(
    ("ending", "code", "again"),
    [("exit 75", 75, True), ("exit 0", 0, False), ("exit 4", 4, False), ("warned", 75, True)],
)
def test_the_job_starts_again(empty: Path, ending: str, code: int, again: bool) -> None:
    """Also if the run ends after Slurm's warning, which only the job's script gets."""
    synk_new("slurm")
    log = empty / "log"
    if ending == "warned":
        ending = "while :; do sleep 0.05; done"
    for name, rest in (("synk", ending), ("scontrol", "exit 0")):
        (empty / name).write_text(FAKE.format(log=log, rest=rest))
        (empty / name).chmod(0o755)
    environ = {**os.environ, "PATH": f"{empty}:{os.environ['PATH']}", "SLURM_JOB_ID": "17"}
    with subprocess.Popen(["bash", "slurm.sh"], env=environ) as job:
        if "while" in ending:
            until = time.monotonic() + LIMIT
            while not log.exists() or not sleeps(job.pid):  # the job's script waits for the run
                assert time.monotonic() < until
                time.sleep(0.01)
            job.send_signal(signal.SIGTERM)
        assert job.wait(LIMIT) == code
    lines = log.read_text().splitlines()
    wanted = ["synk run -m synkhronos train config.toml --resume"]
    assert lines == wanted + ["scontrol requeue 17"] * again
