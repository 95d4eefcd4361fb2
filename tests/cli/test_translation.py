"""Command lines of mpi_learn, NNLO, Theano-MPI and PyDTNN, as configs that train."""

from __future__ import annotations

import shlex
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from configs import place as place
from selection import thorough

from synkhronos._errors import InputError
from synkhronos.cli import _command_line as command_line
from synkhronos.cli._translation.tmlauncher import settings_of
from synkhronos.training import config as configs

Captured = pytest.CaptureFixture[str]


def translated(capsys: Captured, system: str, line: str) -> tuple[dict[str, Any], str, list[str]]:
    """The table, the text, and what stderr names as not translated; `read` accepts the file."""
    code = command_line.main(["new", "--from", system, "--to", "new.toml", "--", *line.split()])
    err = capsys.readouterr().err
    assert code == 0, err
    configs.read("new.toml")
    text = Path("new.toml").read_text()
    left = [t.removeprefix("synk new: not translated: ") for t in err.splitlines()]
    for each in left:
        assert f"#   {each}\n" in text
    assert f"#     {shlex.join(line.split())}\n" in text
    return tomllib.loads(text), text, left


ADAM = {"name": "adam", "rate": 0.001}
SGD = {"name": "sgd", "rate": 1.0}
H5 = {"format": "hdf5", "arrays": ["features", "labels"]}


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        (
            "mpirun -n 4 python MPIDriver.py m.json t.list v.list --epochs 5 --optimizer rmsprop",
            {
                "members": 3,
                "member_batch": 100,
                "epochs": 5,
                "optimizer": SGD,
                "rule": {
                    "name": "Downpour",
                    "period": 1,
                    "centre": {"name": "rmsprop", "rate": 0.001},
                },
                "folder": "runs/train",
                "data": {"train": "t.list", "validation": "v.list", **H5},
            },
        ),
        (
            "mpiexec -np 3 python3 MPIDriver.py m.json t.txt v.txt --synchronous --batch 50 "
            "--trial-name b --features-name x --labels-name y",
            {
                "members": 2,
                "batch": 100,
                "optimizer": ADAM,
                "folder": "runs/b",
                "data": {
                    "train": "t.list",
                    "validation": "v.list",
                    "format": "hdf5",
                    "arrays": ["x", "y"],
                },
            },
        ),
        (
            "MPIDriver.py m.json t.list v.list --mode easgd --sync-every 10 --elastic-force 0.4 "
            "--worker-optimizer adamtf --worker-optimizer-params {'lr':0.01,'beta_1':0.8}",
            {
                "member_batch": 100,
                "rule": {"name": "EASGD", "period": 10, "alpha": 0.4},
                "optimizer": {"name": "adam", "rate": 0.01, "beta1": 0.8},
            },
        ),
        (
            "mpirun -n 5 python MPIDriver.py m.json t.list v.list --mode easgd --synchronous",
            {"batch": 400, "rule": {"name": "EASGD", "period": 1, "meet": True}},
        ),
        (
            "TrainingDriver.py --model m.py --train_data t.list --val_data v.list "
            "--worker-optimizer sgd --early-stopping acc,~>,5 --target-metric loss,<,1",
            {
                "rule": {"name": "GEM", "period": 1, "momentum": 0.9, "kappa": 2.0},
                "optimizer": {"name": "sgd", "rate": 0.01},
                "stop": ["val_accuracy,~>,5", "val_loss,<,1.0"],
                "metrics": ["accuracy"],
            },
        ),
        (
            "TrainingDriver.py --model m.py --train_data t.list",
            {
                "rule": {"name": "GEM", "period": 1, "momentum": 0.9, "kappa": 2.0, "lr": 0.01},
                "optimizer": ADAM,
                "data": {"train": "t.list", **H5},
            },
        ),
        (
            "mpirun -n 3 python MPIDriver.py m.json t.list v.list --synchronous --sync-every 5",
            {
                "batch": 200,
                "optimizer": SGD,
                "rule": {"name": "DiLoCo", "period": 5, "lr": 1.0, "momentum": 0.0},
            },
        ),
        (
            "MPIGDriver.py m.json t.list v.list --easgd --checkpoint ck --cache-data /tmp/c",
            {"rule": {"name": "EASGD", "period": 1}, "folder": "ck"},
        ),
    ],
)
def test_mpi_learn_and_nnlo(
    place: Path, capsys: Captured, line: str, wanted: dict[str, Any]
) -> None:
    found, text, _ = translated(capsys, "mpidriver", line)
    assert {key: found[key] for key in wanted} == wanted
    assert found["model"] == "mine:net"
    assert ("batch" in found) != ("member_batch" in found)
    assert "was for each worker" in text
    assert "The old model was m." in text


def test_each_option_of_mpi_learn_is_known_or_named(place: Path, capsys: Captured) -> None:
    line = (
        "mpirun -x A -n 9 -H a,b python MPIDriver.py m.json t.list v.list --verbose --profile "
        "--monitor --trace --tf --torch --thread_validation --preload-data 2 --masters 2 "
        "--processes 2 --max-gpus 1 --master-gpu --elastic-lr 0.5 --elastic-momentum 0.5 "
        "--restore old --checkpoint-interval 2 --log-file a --log-level debug "
        "--early-stopping gan:loss,<,3 --hyper-opt genetic"
    )
    found, _, left = translated(capsys, "mpidriver", line)
    assert found["members"] == 3
    assert found["resume"] == "auto"
    assert found["stop"] == ["val_loss,<,3"]
    assert sorted(text.partition(":")[0] for text in left) == sorted(
        [
            *(
                "-x A -H a,b",
                "--masters 2",
                "--processes 2",
                "--preload-data 2",
                "--early-stopping gan",
            ),
            *("--restore old", "--verbose", "--profile", "--monitor", "--trace", "--tf", "--torch"),
            *("--thread-validation", "--log-file", "--log-level", "--elastic-lr"),
            *("--elastic-momentum", "--max-gpus", "--master-gpu", "--checkpoint-interval"),
            "--hyper-opt genetic",
        ]
    )


def test_a_config_is_never_replaced(place: Path, capsys: Captured) -> None:
    line = ["new", "--from", "pydtnn"]
    before = Path("config.toml").read_text()
    assert command_line.main([*line, "--", "pydtnn_benchmark"]) == 1
    assert "config.toml exists: give --force" in capsys.readouterr().err
    assert Path("config.toml").read_text() == before
    assert command_line.main([*line, "--force", "--", "pydtnn_benchmark"]) == 0
    assert Path("config.toml").read_text() != before


CFG = """
# of two nodes
RULE=EASGD
export MODELFILE='models.mine'   # the module
MODELCLASS="AlexNet"
DEVICES=("node0:cuda0"
         "node1:cuda1,cuda2"  # two
)
PRINT_FREQ=40
"""


def test_theano_mpi(place: Path, capsys: Captured) -> None:
    Path("a.cfg").write_text(CFG)
    found, text, left = translated(capsys, "tmlauncher", "tmlauncher -cfg=a.cfg -bind -s=4")
    assert found == {
        "model": "models.mine:AlexNet",
        "optimizer": {"name": "momentum", "rate": 0.01, "momentum": 0.9, "weight_decay": 5e-4},
        "rule": {"name": "EASGD", "period": 10, "alpha": 0.5},
        "member_batch": 128,
        "epochs": 70,
        "members": 1,
        "data": {"train": "models.mine:train_rows", "validation": "models.mine:validation_rows"},
    }
    assert "On 2 nodes" in text
    named = [t.partition(":")[0] for t in left]
    assert named == ["PRINT_FREQ=40", "RULE=EASGD on 2 nodes", "-s=4", "-bind"]


@pytest.mark.parametrize(
    ("rule", "wanted"),
    [
        ("-r=BSP", {"batch": 256}),
        ("-r=BSP -bsp_sync_type=avg", {"batch": 256, "rule": {"name": "Average", "period": 1}}),
        ("-r=BSP -bsp_sync_type=swap", {"batch": 256, "rule": {"name": "Swap", "period": 1}}),
        ("-r=BSP -bsp_exch_strategy=nccl16", {"batch": 256, "compress": "fp16"}),
        (
            "--rule=GOSGD",
            {"member_batch": 128, "rule": {"name": "GoSGD", "probability": 0.01}},
        ),
    ],
)
def test_rules_of_theano_mpi(
    place: Path, capsys: Captured, rule: str, wanted: dict[str, Any]
) -> None:
    Path("a.cfg").write_text("DEVICES=cuda0,cuda1\nMODELCLASS=Other\n")
    line = f"tmlauncher -cfg=a.cfg -file=models.mine -class=Mine {rule}"
    found, _, left = translated(capsys, "tmlauncher", line)
    assert found["model"] == "models.mine:Mine"
    assert left == ["MODELCLASS=Other: the line has another one, Mine"]
    assert found["members"] == 2
    keys = ("batch", "member_batch", "rule", "compress")
    assert {key: found[key] for key in keys if key in found} == wanted


@pytest.mark.parametrize(
    "text",
    [
        "rm -rf here",
        "RULE=$(touch here)",
        "RULE=`touch here`",
        "RULE=BSP; touch here",
        "RULE=BSP touch here",
        "source other",
        "RULE=$HOME",
        "DEVICES=(cuda0",
        "if true; then",
    ],
)
def test_a_config_of_bash_is_parsed_and_never_run(place: Path, text: str) -> None:
    """The old launcher ran it."""
    Path("a.cfg").write_text(f"MODELCLASS=Mine\n{text}\n")
    with pytest.raises(InputError, match=r"a.cfg, line 2: "):
        settings_of("a.cfg")
    assert not Path("here").exists()


def test_values_of_bash() -> None:
    quoted = "A='x # y' # z\nB=\nC=(a 'b c' # d\n)\n\nD=\"e\"\n"
    path = Path("a.cfg")
    try:
        path.write_text(quoted)
        assert settings_of("a.cfg") == {"A": ["x # y"], "B": [""], "C": ["a", "b c"], "D": ["e"]}
    finally:
        path.unlink()


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        (
            "mpirun -np 4 pydtnn_benchmark --model=simplecnn --dataset=mnist --batch_size 32 "
            "--num_epochs 50 --parallel data --history_file h",
            {
                "members": 4,
                "batch": 128,
                "epochs": 50,
                "floatX": "float32",
                "metrics": ["accuracy"],
                "optimizer": {"name": "momentum", "rate": 0.04, "momentum": 0.9},
                "stop": ["val_loss,<,10"],
                "best": {"metric": "val_loss", "restore": True},
                "plateau": {"metric": "val_loss", "factor": 0.1, "patience": 5, "least": 0.0},
                "folder": "runs/pydtnn",
                "data": {"train": "known:mnist", "validation": "known:mnist"},
            },
        ),
        (
            "pydtnn_benchmark --optimizer adam --learning_rate 0.1 --global_batch_size 500 "
            "--lr_schedulers warm_up,reduce_lr_every_nepochs,stop_at_loss --decay 0.01 "
            "--stop_at_loss_threshold 0.9 --test_as_validation True --dtype float64",
            {
                "batch": 500,
                "floatX": "float64",
                "optimizer": {
                    "name": "adam",
                    "rate": 0.1,
                    "beta1": 0.99,
                    "beta2": 0.999,
                    "epsilon": 1e-7,
                    "weight_decay": 0.01,
                    "decoupled": True,
                    "schedule": "step",
                    "decay_every": 500,
                    "decay_factor": 0.1,
                    "min_learning_rate": 0.0,
                    "warmup": 500,
                },
                "stop": ["val_accuracy,>,0.9"],
                "data": {"train": "known:mnist", "validation": "known:mnist/test"},
            },
        ),
        (
            "benchmarks_CNN.py --optimizer sgd --nesterov True --use_synthetic_data True "
            "--lr_schedulers model_checkpoint --metrics regression_mse",
            {
                "batch": 64,
                "metrics": ["mse"],
                "optimizer": {"name": "nesterov_momentum", "rate": 0.01, "momentum": 0.9},
                "best": {"metric": "val_loss"},
            },
        ),
        (
            "pydtnn_benchmark --dataset cifar10 --dataset_train_path d/t.npz --enable_gpu True "
            "--optimizer rmsprop --lr_schedulers=",
            {
                "mode": "JAX",
                "devices": "cuda",
                "optimizer": {"name": "rmsprop", "rate": 0.01, "rho": 0.9, "epsilon": 1e-7},
                "data": {"train": "d/t.npz", "arrays": ["x", "y"]},
            },
        ),
    ],
)
def test_pydtnn(place: Path, capsys: Captured, line: str, wanted: dict[str, Any]) -> None:
    found, text, left = translated(capsys, "pydtnn", line)
    scaled = "--learning_rate 0.01 was multiplied by the 4 processes." in text
    assert scaled == ("mpirun -np 4" in line)
    assert {key: found[key] for key in wanted} == wanted
    assert not left
    assert "with the loss categorical_cross_entropy" in text


def test_each_option_of_pydtnn_is_known_or_named(place: Path, capsys: Captured) -> None:
    line = (
        "pydtnn_benchmark --optimizer oktopk --metrics categorical_hinge --validation_split 0.2 "
        "--lr_schedulers warm_up,reduce_lr_on_plateau,other --flip_images True --nonsense 3 "
        "--enable_best_of True --tracing False --threads_per_process 4 --density 0.1"
    )
    _, _, left = translated(capsys, "pydtnn", line)
    assert [text.partition(":")[0] for text in left] == [
        *("--validation_split 0.2", "--metrics categorical_hinge", "--optimizer oktopk"),
        *("--lr_schedulers warm_up", "--lr_schedulers other", "--enable_best_of", "--flip_images"),
        *("--tracing", "--threads_per_process", "--density", "--nonsense 3"),
    ]


DIGITS = """
import numpy as np, pytensor, pytensor.tensor as pt
from synkhronos.training import Net, sources

def net():
    rng = np.random.default_rng(0)
    x, y = pt.fmatrix("x"), pt.ivector("y")
    w = pytensor.shared((0.01 * rng.normal(size=(64, 10))).astype("float32"), name="w")
    b = pytensor.shared(np.zeros(10, "float32"), name="b")
    scores = x @ w + b
    loss = -pt.special.log_softmax(scores, axis=1)[pt.arange(y.shape[0]), y].mean()
    return Net(loss=loss, params=[w, b], inputs=[x, y], outputs=scores)

class Mine:
    def __init__(self):
        made = net()
        self.loss, self.params, self.inputs = made.loss, made.params, made.inputs
        self.outputs = made.outputs

def train_rows():
    return sources.known("digits").train

def validation_rows():
    return sources.known("digits").validation
"""


def lists(place: Path) -> None:
    """The digits as mpi_learn had its data: HDF5 files, and lists of them."""
    h5py = pytest.importorskip("h5py", reason="h5py is not installed")
    from synkhronos.training import sources

    digits = sources.known("digits")
    for name, (rows, labels) in (("train", digits.train), ("val", digits.validation)):
        with h5py.File(place / f"{name}.h5", "w") as file:
            file["features"], file["labels"] = rows, labels
        (place / f"{name}.list").write_text(f"{name}.h5\n")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("system", "line", "values"),
    [
        (
            "mpidriver",
            "mpirun -n 3 python MPIDriver.py m.json train.list val.list --synchronous --epochs 4 "
            "--batch 25 --optimizer adam --target-metric acc,>,0.9",
            ["optimizer.rate=0.02"],
        ),
        (
            "tmlauncher",
            "tmlauncher -file=digits -class=Mine -cfg=a.cfg",
            ["batch=50", "epochs=4", "metrics=['accuracy']", "optimizer.rate=0.2"],
        ),
        (
            "pydtnn",
            "mpirun -n 2 pydtnn_benchmark --model simplemlp --dataset mnist --num_epochs 4 "
            "--batch_size 25 --parallel data --learning_rate 0.1",
            ["data.train=known:digits", "data.validation=known:digits"],
        ),
        *thorough(
            (
                "mpidriver",
                "mpirun -n 3 python MPIDriver.py m.json train.list val.list --mode easgd "
                "--epochs 8 --batch 25 --worker-optimizer adam",
                ["optimizer.rate=0.02", "metrics=['accuracy']", "data.memory=true"],
            ),
        ),
    ],
)
def test_old_lines_train_on_the_digits(
    place: Path, capsys: Captured, system: str, line: str, values: list[str]
) -> None:
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    (place / "digits.py").write_text(DIGITS)
    (place / "mine.py").write_text("from digits import net")
    (place / "a.cfg").write_text("RULE=BSP\nDEVICES=cuda0,cuda1\n")
    if system == "mpidriver":
        lists(place)
    translated(capsys, system, line)
    more = ["progress=false", *values]
    assert command_line.main(["train", "new.toml", *more]) == 0
    said = capsys.readouterr().out
    assert float(said.partition("val_accuracy ")[2]) > 0.85, said
    assert np.isfinite(float(said.partition("val_loss ")[2].partition(",")[0]))
