"""Command lines of mpi_learn, NNLO, Theano-MPI and PyDTNN, as configs that train."""

from __future__ import annotations

import json
import shlex
import sys
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from configs import place as place
from digits_files import cifar_files, hdf5_lists, imagenet_archives, mnist_files
from modes import FAST
from selection import thorough
from user_scripts import ended

import synkhronos as synk
from synkhronos import rules, zoo
from synkhronos._errors import InputError
from synkhronos.cli import _command_line as command_line
from synkhronos.cli._new.translation.tmlauncher import settings_of
from synkhronos.extensions import Batches, make_train_function, updates
from synkhronos.rules import FreeRule
from synkhronos.training import Net, sources
from synkhronos.training import config as configs
from synkhronos.training._from_config.metrics import metrics_of
from synkhronos.training._from_config.optimizer import ConfiguredOptimizer
from synkhronos.training._from_config.rules import training_rule_of
from synkhronos.training.configured import _stops

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


MNIST = {"train": "known:mnist", "shape": [28, 28, 1]}


def runs(table: dict[str, Any]) -> None:
    """Raise if `synk train` would refuse a value, apart from the network and the rows."""
    found = configs.config_of(table)
    rule = training_rule_of(found.rule, "rule", ".")
    apart = isinstance(rule, FreeRule) and not rule.meets
    assert (found.batch is None, found.member_batch is None) == (apart, not apart)
    assert found.data.memory or not apart or ":" in str(found.data.train)
    rate = 0.1 if found.plateau is not None else None
    ConfiguredOptimizer(configs.optimizer_of(found.optimizer, "optimizer"), "optimizer", ".").made(
        1000, rate
    )
    assert found.plateau is None or "schedule" not in found.optimizer
    scores, labels = pt.matrix("scores"), pt.ivector("labels")
    net = Net(loss=scores.sum(), params=[], inputs=[labels], outputs=scores)
    metrics = found.metrics if found.model != "mine:net" else []
    known = {f"val_{name}" for name in ("loss", *(metrics or ()), *(found.metrics or ()))}
    if metrics:
        metrics_of(found, net)
    stops, targets = _stops(found)
    watched = [each.metric for each in (*stops, *targets)]
    watched += [each.metric for each in (found.best, found.plateau) if each is not None]
    assert set(watched) <= known | {"loss"}
    if any(name.startswith("val_") for name in watched):
        assert found.data.validation is not None or found.data.split
    if found.model.startswith("synkhronos.zoo:"):
        made = getattr(zoo, found.model.partition(":")[2])(**found.model_arguments, seed=None)
        assert made.inputs[0].type.ndim in (2, 4)


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
                "data": {"train": "t.list", "validation": "v.list", **H5, "memory": True},
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
                "stop": {"metric": "val_accuracy", "patience": 5, "smooth": True},
                "target": "val_loss <= 1.0",
                "metrics": ["accuracy"],
            },
        ),
        (
            "TrainingDriver.py --model m.py --train_data t.list",
            {
                "rule": {"name": "GEM", "period": 1, "momentum": 0.9, "kappa": 2.0, "lr": 0.01},
                "optimizer": ADAM,
                "data": {"train": "t.list", **H5, "memory": True},
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
    runs(found)
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
    assert (found["stop"], found["patience"]) == ("val_loss", 3)
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


def test_a_target_that_is_no_number(place: Path, capsys: Captured) -> None:
    line = "new --force --from mpidriver -- MPIDriver.py m.json t.list v.list"
    assert command_line.main([*line.split(), "--target-metric", "acc,>,high"]) == 2
    assert "'acc,>,high': the target was a number" in capsys.readouterr().err


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
        "members": 2,
        "data": {"train": "models.mine:train_rows", "validation": "models.mine:validation_rows"},
    }
    assert "On 2 nodes" in text.replace("\n# ", " ")
    runs(found)
    named = [t.partition(":")[0] for t in left]
    assert named == ["PRINT_FREQ=40", "RULE=EASGD on 2 nodes", "-s=4", "-bind"]


@pytest.mark.parametrize(
    ("rule", "wanted"),
    [
        ("-r=BSP", {"batch": 256}),
        ("-r=BSP -bsp_sync_type=avg", {"batch": 256, "rule": {"name": "Average", "period": 1}}),
        ("-r=BSP -bsp_sync_type=swap", {"batch": 256, "rule": {"name": "Swap", "period": 1}}),
        (
            "-r=BSP -bsp_exch_strategy=nccl16",
            {"batch": 256, "exchange": {"name": "HalfPrecision", "format": "fp16"}},
        ),
        (
            "--rule=GOSGD",
            {"member_batch": 128, "rule": {"name": "GoSGD", "probability": 0.01}},
        ),
    ],
)
def test_rules_of_theano_mpi(
    place: Path, capsys: Captured, rule: str, wanted: dict[str, Any]
) -> None:
    Path("a.cfg").write_text("DEVICES=cuda0,cuda1\nMODELCLASS=Mine\n")
    line = f"tmlauncher -cfg=a.cfg -file=models.mine -class=Other {rule}"
    found, _, left = translated(capsys, "tmlauncher", line)
    assert found["model"] == "models.mine:Mine"
    assert left == ["MODELCLASS=Other: the config file goes before it: Mine"]  # it was sourced
    assert found["members"] == 2
    runs(found)
    keys = ("batch", "member_batch", "rule", "exchange")
    assert {key: found[key] for key in keys if key in found} == wanted


MODEL = """
n_epochs = 12
batch_size = 64
learning_rate = 0.05
momentum = 0.8

class Other(object):
    pass

class Mine(object):
    def __init__(self, config): pass
    def train_iter(self): pass
    def adjust_hyperp(self, epoch): pass
    def scale_lr(self, size): pass
"""


def test_a_model_class_says_what_is_left_out(place: Path, capsys: Captured) -> None:
    """Its file is parsed: its numbers are taken, and each method's content has a place."""
    (place / "models").mkdir()
    (place / "models" / "mine.py").write_text(MODEL)
    (place / "a.cfg").write_text("RULE=EASGD\nDEVICES=cuda0,cuda1\n")
    line = "tmlauncher -cfg=a.cfg -file=models.mine -class=Mine"
    found, text, left = translated(capsys, "tmlauncher", line)
    runs(found)
    assert (found["members"], found["member_batch"], found["epochs"]) == (2, 64, 12)
    assert found["optimizer"]["rate"] == 0.05
    assert found["optimizer"]["momentum"] == 0.8
    assert left == []
    said = [t.removeprefix("# - ").partition(":")[0] for t in text.splitlines() if "# - " in t]
    assert said == ["train_iter", "adjust_hyperp", "scale_lr", "data"]
    assert "# - adjust_hyperp: optimizer.rate" in text
    (place / "models" / "mine.py").write_text("print 'of Python 2'")
    Path("new.toml").unlink()
    found, text, _ = translated(capsys, "tmlauncher", line)
    assert found["epochs"] == 70
    assert "# - compile_iter_fns: left out" in text


def test_the_models_of_theano_mpi_are_in_the_zoo(place: Path, capsys: Captured) -> None:
    line = "tmlauncher -file=theanompi.models.alex_net -class=AlexNet -r=BSP"
    found, _, left = translated(capsys, "tmlauncher", line)
    runs(found)
    assert found["model"] == "synkhronos.zoo:alexnet"
    assert (found["data"]["train"], left) == ("mine:train_rows", [])


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
        "RULE='BSP",
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
                "stop": "val_loss",
                "patience": 10,
                "best": {"metric": "val_loss", "restore": True},
                "plateau": {"metric": "val_loss", "factor": 0.1, "patience": 5, "least": 0.0},
                "folder": "runs/pydtnn",
                "model": "synkhronos.zoo:cnn",
                "data": MNIST | {"validation": "known:mnist"},
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
                "target": "val_accuracy >= 0.9",
                "data": MNIST | {"validation": "known:mnist/test"},
            },
        ),
        (
            "benchmarks_CNN.py --optimizer sgd --nesterov True --use_synthetic_data True "
            "--lr_schedulers model_checkpoint --metrics categorical_accuracy --non_blocking_mpi 1",
            {
                "batch": 64,
                "overlap": True,
                "metrics": ["accuracy"],
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
    runs(found)
    assert not left
    assert "with the loss categorical_cross_entropy" in text


def test_each_option_of_pydtnn_is_known_or_named(place: Path, capsys: Captured) -> None:
    line = (
        "pydtnn_benchmark --optimizer oktopk --metrics categorical_hinge --validation_split 0.2 "
        "--lr_schedulers warm_up,reduce_lr_on_plateau,other --flip_images True --nonsense 3 "
        "--enable_best_of True --tracing True --evaluate=False --profile False "
        "--threads_per_process 4 --density 0.1 --tau 8"
    )
    found, _, left = translated(capsys, "pydtnn", line)
    assert [text.partition(":")[0] for text in left] == [
        *("--validation_split 0.2", "--flip_images", "--metrics categorical_hinge"),
        *("--lr_schedulers other", "--lr_schedulers warm_up", "--enable_best_of", "--tracing"),
        *("--threads_per_process", "--tau", "--nonsense 3"),
    ]
    assert found["exchange"] == {"name": "TopK", "density": 0.1}


def part_of(table: dict[str, Any], key: str) -> Any:
    """The value at a dotted key; None if it is not there."""
    found: Any = table
    for name in key.split("."):
        found = found.get(name) if isinstance(found, dict) else None
    return found


FILES = "--dataset_train_path d --dataset_test_path d"
IDX = [f"d/{part}-ubyte" for part in ("train-images-idx3", "train-labels-idx1")]
TESTED = [f"d/{part}-ubyte" for part in ("t10k-images-idx3", "t10k-labels-idx1")]


@pytest.mark.parametrize(
    ("line", "wanted", "named"),
    [
        # version 1.0 divided the rate by the rows of a step; its optimizers have capitals
        (
            f"mpirun -np 4 python3 -u benchmarks_CNN.py {FILES} --validation_split=0.2 "
            "--optimizer=Adam --learning_rate=0.1 --parallel=data --evaluate=True "
            "--loss_func=categorical_accuracy,categorical_cross_entropy "
            "--test_as_validation=False",
            {
                "optimizer.name": "adam",
                "optimizer.rate": 0.1 / (64 * 4),
                "data.train": IDX,
                "data.validation": None,
                "data.split": 0.2,
                "data.test": TESTED,
                "data.shape": [28, 28, 1],
                "data.scale": 255,
                "metrics": ["accuracy"],
            },
            [],
        ),
        (
            "pydtnn_benchmark --optimizer=SGDMomentum --learning_rate=0.1",
            {"optimizer": {"name": "momentum", "rate": 0.1, "momentum": 0.9}},
            [],
        ),
        (
            "benchmarks_CNN.py --optimizer=SGD --decay 0.1 --lr_schedulers warm_up",
            {
                "optimizer": {"name": "sgd", "rate": 0.01, "schedule": "constant", "warmup": 500},
                "metrics": ["accuracy"],
            },
            ["--decay 0.1"],
        ),
        (
            "benchmarks_CNN.py --optimizer=RMSProp --decay_rate 0.8 --batch_size 8 "
            "--loss_func=categorical_cross_entropy,categorical_hinge,categorical_mse",
            {
                "optimizer": {"name": "rmsprop", "rate": 0.00125, "rho": 0.8, "epsilon": 1e-7 / 64},
                "metrics": None,
            },
            ["--loss_func categorical_hinge", "--loss_func categorical_mse"],
        ),
        # flags without a value; defaults are not lost
        (
            f"pydtnn_benchmark {FILES} --test_as_validation --nesterov --tracing --profile=no",
            {
                "data.validation": TESTED,
                "data.split": None,
                "optimizer.name": "nesterov_momentum",
            },
            ["--tracing"],
        ),
        (
            f"pydtnn_benchmark {FILES} --test_as_validation False --validation_split 0.1 "
            "--evaluate=False --enable_memory_cache=True --tensor_format nhwc --history h",
            {"data.split": 0.1, "folder": "runs/pydtnn"},
            [],
        ),
        # without rows for validation the old schedulers saw zeros
        (
            f"pydtnn_benchmark {FILES} --lr_schedulers early_stopping,stop_at_loss "
            "--stop_at_loss_metric categorical_cross_entropy --stop_at_loss_threshold 0.1",
            {"data.validation": None, "target": "loss <= 0.1", "best": None},
            ["--lr_schedulers early_stopping"],
        ),
        (
            f"pydtnn_benchmark {FILES} --evaluate --lr_schedulers=",
            {"data.test": TESTED, "data.validation": None, "stop": None},
            [],
        ),
        # what is watched is evaluated; of training there is the loss only
        (
            "pydtnn_benchmark --early_stopping_metric=categorical_accuracy --metrics= "
            "--lr_schedulers early_stopping,model_checkpoint --model_checkpoint_save_freq 5",
            {
                "stop": "val_accuracy",
                "patience": 10,
                "metrics": ["accuracy"],
                "best.metric": "val_accuracy",
            },
            [
                "categorical_accuracy",
                "--model_checkpoint_metric val_categorical_cross_entropy",
                "--model_checkpoint_save_freq 5",
            ],
        ),
        (
            "pydtnn_benchmark --reduce_lr_on_plateau_factor 1 --early_stopping_patience 0 "
            "--lr_schedulers early_stopping,reduce_lr_on_plateau",
            {"plateau": None, "stop": "val_loss", "patience": 1},
            ["--reduce_lr_on_plateau_factor 1"],
        ),
        # the models
        (
            f"pydtnn_benchmark {FILES} --model simplecnn --flip_images=True --tensor_format NCHW",
            {
                "model": "synkhronos.zoo:cnn",
                "model_arguments": {"augment": {"flip": True, "scale": 255}},
                "data.scale": None,
            },
            [
                "--lr_schedulers early_stopping",
                "--lr_schedulers reduce_lr_on_plateau",
                "--lr_schedulers model_checkpoint",
                "--tensor_format",
            ],
        ),
        (
            f"pydtnn_benchmark {FILES} --model vgg16_cifar10 --dataset cifar10 "
            "--test_as_validation True --flip_images True --flip_images_prob 0.3",
            {
                "model": "synkhronos.zoo:vgg",
                "model_arguments.depth": 16,
                "model_arguments.size": 32,
                "model_arguments.augment.flip": True,
                "data.train": [f"d/data_batch_{i}.bin" for i in range(1, 6)],
                "data.validation": ["d/test_batch.bin"],
                "data.format": "cifar10",
            },
            ["--flip_images_prob 0.3"],
        ),
        (
            "pydtnn_benchmark --model resnet1202x --metrics regression_mse --flip_images 1",
            {"model": "mine:net", "metrics": ["mse"]},
            ["--flip_images"],
        ),
        (
            "pydtnn_benchmark --enable_gpu True --non_blocking_mpi True --lr_schedulers=",
            {"mode": "JAX", "overlap": None},
            ["--non_blocking_mpi"],
        ),
        (
            "pydtnn_benchmark --model simplemlp --metrics regression_mse "
            "--loss_func binary_cross_entropy",
            {"model": "synkhronos.zoo:mlp", "metrics": None},
            ["--loss_func binary_cross_entropy", "--metrics regression_mse"],
        ),
        (
            "pydtnn_benchmark --model resnet34_imagenet --dataset imagenet --dataset_train_path i "
            "--dataset_test_path j --test_as_validation=True --flip_images=True "
            "--lr_schedulers stop_at_loss --stop_at_loss_metric=val_categorical_accuracy "
            "--stop_at_loss_threshold=70.0",
            {
                "model": "synkhronos.zoo:resnet",
                "model_arguments": {
                    "depth": 34,
                    "size": 227,
                    "augment": {"size": 224, "flip": True, "mean": [123.68, 116.779, 103.939]},
                },
                "data": {
                    "train": "i",
                    "validation": "j",
                    "format": "npz",
                    "arrays": ["x", "y"],
                    "axes": "NCHW",
                    "first_label": 1,
                },
                "target": "val_accuracy >= 0.7",
            },
            ["--model resnet34_imagenet"],
        ),
        (
            "pydtnn_benchmark --model alexnet_imagenet --dataset imagenet --dataset_train_path i "
            "--validation_split 0.2 --lr_schedulers=reduce_lr_on_plateau",
            {
                "model_arguments.size": 227,
                "model_arguments.augment": {"mean": [123.68, 116.779, 103.939]},
                "data.split": 0.2,
                "plateau.metric": "val_loss",
            },
            ["--model alexnet_imagenet"],
        ),
        (
            "pydtnn_benchmark --model vgg11_imagenet --dataset imagenet --use_synthetic_data=True "
            "--lr_schedulers=",
            {"data.train": "synthetic:224x224x3,classes=10,n=60000"},
            [],
        ),
        (
            f"pydtnn_benchmark {FILES} --dataset cifar10 --model alexnet_cifar10 "
            "--test_as_validation=True --lr_schedulers=",
            {"model": "synkhronos.zoo:cnn", "model_arguments.augment.mean": [125.3, 123.0, 113.9]},
            [],
        ),
        (
            "benchmarks_CNN.py --model=simplecnn",
            {"model_arguments": {"padded": False, "dropout": 0.0}},
            [],
        ),
    ],
)
def test_values_of_pydtnn(
    place: Path, capsys: Captured, line: str, wanted: dict[str, Any], named: list[str]
) -> None:
    """As the program took them: each is translated, or named with a reason."""
    found, _, left = translated(capsys, "pydtnn", line)
    assert {key: part_of(found, key) for key in wanted} == wanted
    assert [text.partition(":")[0] for text in left] == named
    runs(found)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--batch_size=0", "argument --batch_size: 0: give an integer of at least 1"),
        ("--num_epochs 0", "argument --num_epochs: 0: give an integer of at least 1"),
        ("--learning_rate 0", "argument --learning_rate: 0.0: give a number of more than 0"),
        (
            "--validation_split 1",
            "argument --validation_split: 1.0: give a number of at least 0 and less than 1",
        ),
        ("--nesterov maybe", "argument --nesterov: found 'maybe', give True or False"),
        ("--dtype float16", "argument --dtype: invalid choice: 'float16'"),
    ],
)
def test_what_pydtnn_could_not_train_with(
    place: Path, capsys: Captured, line: str, message: str
) -> None:
    line = f"new --force --from pydtnn -- pydtnn_benchmark {line}"
    assert command_line.main(line.split()) == 2
    assert message in capsys.readouterr().err


DIGITS = """
import numpy as np, pytensor, pytensor.tensor as pt
from synkhronos.training import Net, sources

def made(x, scores_of, one_hot):
    rng = np.random.default_rng(0)
    y = pt.fmatrix("y") if one_hot else pt.ivector("y")
    w = pytensor.shared((0.01 * rng.normal(size=(64, 10))).astype("float32"), name="w")
    b = pytensor.shared(np.zeros(10, "float32"), name="b")
    scores = scores_of(w) + b
    log_p = pt.special.log_softmax(scores, axis=1)
    each = (log_p * y).sum(axis=1) if one_hot else log_p[pt.arange(y.shape[0]), y]
    return Net(loss=-each.mean(), params=[w, b], inputs=[x, y], outputs=scores)

def net():
    x = pt.tensor("x", dtype="float32", shape=(None, 8, 8, 1))
    return made(x, lambda w: x.reshape((x.shape[0], 64)) @ w, one_hot=True)

class Mine:
    def __init__(self):
        x = pt.fmatrix("x")
        net = made(x, lambda w: x @ w, one_hot=False)
        self.loss, self.params, self.inputs = net.loss, net.params, net.inputs
        self.outputs = net.outputs

def train_rows():
    return sources.known("digits").train

def validation_rows():
    return sources.known("digits").validation
"""
CIFAR = (
    "--dataset=cifar10 --dataset_train_path=cifar-10-batches-bin --test_as_validation=True "
    "--dataset_test_path=cifar-10-batches-bin"
)
OLD_FILES = "--dataset=mnist --dataset_train_path=datasets/mnist --dataset_test_path=datasets/mnist"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("system", "line", "values", "least"),
    [
        # the line of PyDTNN 1.0's README, with fewer epochs and rows of a step
        (
            "pydtnn",
            f"mpirun -np 2 python3 -u benchmarks_CNN.py --model=simplemlp {OLD_FILES} "
            "--test_as_validation=False --batch_size=16 --validation_split=0.2 --num_epochs=3 "
            "--evaluate=True --optimizer=Adam --learning_rate=0.1 "
            "--loss_func=categorical_accuracy,categorical_cross_entropy "
            "--lr_schedulers=early_stopping,reduce_lr_on_plateau "
            "--early_stopping_metric=val_categorical_cross_entropy --early_stopping_patience=10 "
            "--reduce_lr_on_plateau_metric=val_categorical_cross_entropy --parallel=data "
            "--dtype=float32",
            ["model_arguments.hidden=[64]"],
            0.9,
        ),
        # Theano-MPI's, whose class has the data
        (
            "tmlauncher",
            "tmlauncher -cfg=launch_session.cfg",
            ["metrics=['accuracy']", "epochs=25"],
            0.85,
        ),
        *thorough(
            # mpi_learn's
            (
                "mpidriver",
                "mpirun -np 3 ./MPIDriver.py mnist_arch.json train_mnist.list test_mnist.list "
                "--loss categorical_crossentropy --epochs 8 --batch 10",
                ["metrics=['accuracy']"],
                0.85,
            ),
            # as PyDTNN 1.1 documents it, without the 50 epochs
            (
                "pydtnn",
                f"mpirun -np 2 python3 -Ou pydtnn_benchmark.py --model=simplecnn {OLD_FILES} "
                "--test_as_validation=False --flip_images=True --batch_size=16 "
                "--validation_split=0.2 --num_epochs=8 --evaluate=True --optimizer=adam "
                "--learning_rate=0.01 --loss_func=categorical_cross_entropy "
                "--lr_schedulers=warm_up,reduce_lr_every_nepochs --warm_up_epochs=2 "
                "--reduce_lr_every_nepochs_factor=0.5 --reduce_lr_every_nepochs_nepochs=30 "
                "--reduce_lr_every_nepochs_min_lr=0.001 --parallel=data --tracing=False "
                "--profile=False --enable_gpu=False --dtype=float32",
                [],
                0.8,
            ),
            (
                "pydtnn",
                f"benchmarks_CNN.py --model=simplecnn {OLD_FILES} --batch_size=32 --num_epochs=4 "
                "--validation_split=0.2 --optimizer=Adam --learning_rate=0.1",
                [],
                0.88,
            ),
            # that of version 1.0's README, on 2 processes
            (
                "pydtnn",
                f"mpirun -np 2 python3 -u benchmarks_CNN.py --model=simplecnn {OLD_FILES} "
                "--batch_size=16 --validation_split=0.2 --num_epochs=10 --optimizer=Adam "
                "--learning_rate=0.01 --loss_func=categorical_accuracy,categorical_cross_entropy "
                "--parallel=data --dtype=float32 --evaluate",
                [],
                0.8,
            ),
            # its scripts for MNIST, CIFAR-10 and ImageNet
            (
                "pydtnn",
                f"pydtnn_benchmark --model=simplemlp {OLD_FILES} --test_as_validation=True "
                "--batch_size=64 --validation_split=0.2 --steps_per_epoch=0 --num_epochs=8 "
                "--optimizer=sgd --learning_rate=0.1 --momentum=0.0 --lr_schedulers= "
                "--metrics=categorical_accuracy --parallel=sequential --dtype=float32",
                ["model_arguments.hidden=[64]"],
                0.85,
            ),
            (
                "pydtnn",
                f"pydtnn_benchmark --model=alexnet_cifar10 {CIFAR} --batch_size=32 --num_epochs=8 "
                "--evaluate=True --optimizer=sgd --learning_rate=0.01 --momentum=0.9 "
                "--metrics=categorical_accuracy --dtype=float32 "
                "--lr_schedulers=early_stopping,reduce_lr_on_plateau "
                "--early_stopping_metric=val_categorical_cross_entropy",
                ["model_arguments.blocks=[[16], [32], [32]]", "model_arguments.units=[128]"],
                0.8,
            ),
            (
                "pydtnn",
                f"pydtnn_benchmark --model=simplecnn --dtype=float32 {CIFAR} --optimizer=adam "
                "--learning_rate=0.002 --num_epochs=3",
                [],
                0.85,
            ),
            (
                "pydtnn",
                f"pydtnn_benchmark --model=vgg1 {CIFAR} --flip_images=False --crop_images=False "
                "--batch_size=64 --num_epochs=4 --optimizer=sgd --nesterov=False "
                "--learning_rate=0.01 --decay=1e-4 --momentum=0.9 "
                "--lr_schedulers=warm_up,reduce_lr_on_plateau --warm_up_epochs=2 "
                "--reduce_lr_on_plateau_patience=15 --stop_at_loss_threshold=70.0",
                ["model_arguments.blocks=[[8, 8]]"],
                0.85,
            ),
            (
                "pydtnn",
                "mpirun -np 2 pydtnn_benchmark --model=resnet18_imagenet --dataset=imagenet "
                "--dataset_train_path=imagenet/train --dataset_test_path=imagenet/validation "
                "--test_as_validation=True --flip_images=False --batch_size=25 --num_epochs=4 "
                "--optimizer=sgd --learning_rate=0.02 --momentum=0.9 --parallel=data "
                "--lr_schedulers=warm_up,stop_at_loss --warm_up_epochs=1 "
                "--stop_at_loss_metric=val_categorical_accuracy --stop_at_loss_threshold=97.0",
                [
                    *("model_arguments.blocks=[1, 1]", "model_arguments.width=16"),
                    *("model_arguments.size=19", "model_arguments.augment.size=16"),
                    "model_arguments.classes=10",
                ],
                0.85,
            ),
            (
                "mpidriver",
                "mpirun -n 3 python MPIDriver.py m.json train_mnist.list test_mnist.list "
                "--mode easgd --epochs 8 --batch 25 --worker-optimizer adam",
                ["optimizer.rate=0.02", "metrics=['accuracy']"],
                0.85,
            ),
            (
                "mpidriver",
                "mpirun -n 3 python MPIDriver.py m.json train_mnist.list test_mnist.list "
                "--synchronous --epochs 4 --batch 25 --optimizer adam --target-metric acc,>,0.9",
                ["optimizer.rate=0.02"],
                0.85,
            ),
            (
                "mpidriver",
                "mpirun -n 3 TrainingDriver.py --model m.py --train_data train_mnist.list "
                "--val_data test_mnist.list --epochs 8 --batch 20 --worker-optimizer sgd",
                ["metrics=['accuracy']", "optimizer.rate=0.1"],
                0.8,
            ),
            (
                "tmlauncher",
                "tmlauncher -cfg=easgd.cfg",
                ["metrics=['accuracy']", "member_batch=20", "epochs=10"],
                0.85,
            ),
            *(
                (
                    "tmlauncher",
                    f"tmlauncher -file=digits -class=Mine -cfg=devices.cfg {rule}",
                    ["metrics=['accuracy']", f"{rows}=20", "epochs=10"],
                    0.85,
                )
                for rule, rows in (
                    ("-r=GOSGD", "member_batch"),
                    ("-r=BSP -bsp_sync_type=avg", "batch"),
                    ("-r=BSP -bsp_sync_type=swap", "batch"),
                    ("-r=BSP -bsp_exch_strategy=nccl16", "batch"),
                )
            ),
        ),
    ],
)
def test_documented_lines_train_on_the_digits(
    place: Path, capsys: Captured, system: str, line: str, values: list[str], least: float
) -> None:
    """In the layout that the old program read; only sizes and epochs are others."""
    (place / "digits.py").write_text(DIGITS)
    (place / "mine.py").write_text("from digits import net")
    cfg = "MODELFILE=digits\nMODELCLASS=Mine\nDEVICES=cuda0,cuda1\n"
    (place / "launch_session.cfg").write_text(f"RULE=BSP\n{cfg}")
    (place / "easgd.cfg").write_text(f"RULE=EASGD\n{cfg}")
    (place / "devices.cfg").write_text("DEVICES=cuda0,cuda1\n")
    if system == "pydtnn":
        mnist_files(place / "datasets" / "mnist")
        cifar_files(place / "cifar-10-batches-bin")
        imagenet_archives(place / "imagenet")
    elif system == "mpidriver":
        hdf5_lists(place)
    translated(capsys, system, line)
    assert trained(capsys, values) > least


def trained(capsys: Captured, values: list[str]) -> float:
    """The accuracy at the end of what new.toml says."""
    with pytensor.config.change_flags(cxx=""):  # layers have graphs of their own
        assert command_line.main(["train", "new.toml", "progress=false", *values]) == 0
    said = capsys.readouterr().out
    last, *tests = said.rstrip().splitlines()[-3:] if "test after" in said else [said]
    if tests:
        before, after = (float(text.partition("accuracy ")[2]) for text in tests)
        assert before < 0.4 < after
    assert np.isfinite(float(last.partition("val_loss ")[2].partition(",")[0]))
    return float(last.partition("val_accuracy ")[2])


@pytest.mark.thorough
@pytest.mark.slow
def test_the_line_of_mpi_learn_with_its_model(
    place: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the JSON of Keras 1; nobody writes a line of Python."""
    monkeypatch.setenv("KERAS_BACKEND", "jax")
    pytest.importorskip("keras", reason="Keras is not installed")
    hdf5_lists(place)
    first = {"batch_input_shape": [None, 8, 8, 1], "name": "flat"}
    dense = {"output_dim": 10, "init": "glorot_uniform", "activation": "softmax", "name": "last"}
    layers = [
        {"class_name": "Flatten", "config": first},
        {"class_name": "Dense", "config": dense},
    ]
    table = {"class_name": "Sequential", "config": layers, "keras_version": "1.2.2"}
    (place / "mnist_arch.json").write_text(json.dumps(table))
    line = (
        "mpirun -np 3 ./MPIDriver.py mnist_arch.json train_mnist.list test_mnist.list "
        "--loss categorical_crossentropy --epochs 12 --batch 10"
    )
    found, _, left = translated(capsys, "mpidriver", line)
    assert (found["model"], found["mode"], left) == ("synkhronos.interop:from_keras", "JAX", [])
    assert found["model_arguments"] == {
        "model": str(place / "mnist_arch.json"),
        "loss": "categorical_crossentropy",
    }
    # in a process of its own: with floatX float32, JAX has no float64 in all later tests
    words = [sys.executable, "-P", "-m", "synkhronos", "train", "new.toml", "progress=false"]
    done = ended(place, words)
    assert done.returncode == 0, done.stdout
    assert float(done.stdout.partition("val_accuracy ")[2].split()[0].rstrip(",")) > 0.85


@pytest.mark.thorough  # of others: the test above
def test_lines_of_a_platoon_worker_train_on_the_digits() -> None:
    """The lines of the how-to in place of worker and controller: EASGD(0.5), every 10 batches."""
    split = sources.known("digits")
    x, y = pt.fmatrix("x"), pt.ivector("y")
    w = pytensor.shared(np.zeros((64, 10), "float32"), name="w")
    scores = x @ w
    loss = -pt.special.log_softmax(scores, axis=1)[pt.arange(y.shape[0]), y].mean()
    wrong = pytensor.function([x, y], pt.neq(scores.argmax(axis=1), y).mean(), mode=FAST)
    best, waited, patience = np.inf, 0, 10
    with synk.Group(2):
        rule = rules.EASGD(period=10, alpha=0.5)
        train = make_train_function(
            loss, [w], x, y, updates.sgd, np.float32(0.1), rule=rule, mode=FAST
        )
        rows = train.build_inputs(*split.train)
        with train.start(*rows, Batches(1297, 20), epochs=8) as run:
            for point in run.every(rows=100 * 20):
                with point.applied():
                    error = float(wrong(*split.validation))
                best, waited = (error, 0) if error < best else (best, waited + 1)
                if waited == patience:
                    run.stop()
    assert best < 0.12
    assert float(wrong(*split.validation)) < 0.15
