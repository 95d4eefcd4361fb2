"""PyDTNN's pydtnn_benchmark, whose older name is benchmarks_CNN.py."""

from __future__ import annotations

import argparse
from typing import Any

from synkhronos.cli._translation.translation import (
    NET,
    OldParser,
    Translation,
    divided,
    parsed,
    truth,
)

PROGRAMS = ("pydtnn_benchmark", "pydtnn_benchmark.py", "benchmarks_CNN.py")
_ROWS = {"mnist": 50_000}  # for training, of known data
_NAMES = {
    "categorical_cross_entropy": "loss",
    "binary_cross_entropy": "loss",
    "categorical_accuracy": "accuracy",
    "categorical_mse": "mse",
    "categorical_mae": "mae",
    "regression_mse": "mse",
    "regression_mae": "mae",
    "loss": "loss",
    "accuracy": "accuracy",
}
_NEEDLESS = {
    "shared_storage": "it had no effect",
    "tensor_format": "the network says it; PyTensor's convolutions take (rows, channels, ...)",
    "enable_best_of": "PyTensor and the group choose by themselves",
    "enable_conv_gemm": "PyTensor and the group choose by themselves",
    "enable_conv_winograd": "PyTensor and the group choose by themselves",
    "enable_memory_cache": "memory is reused anyway",
    "enable_fused_bn_relu": "PyTensor fuses by itself",
    "enable_fused_conv_relu": "PyTensor fuses by itself",
    "enable_fused_conv_bn": "PyTensor fuses by itself",
    "enable_fused_conv_bn_relu": "PyTensor fuses by itself",
    "enable_cudnn_auto_conv_alg": "XLA chooses on GPUs",
    "enable_gpudirect": "NCCL moves arrays between GPUs",
    "enable_nccl": "NCCL moves arrays between GPUs",
    "non_blocking_mpi": "a step is one round of the members",
    "flip_images": "synkhronos.nn.augment moves pixels in the network",
    "flip_images_prob": "synkhronos.nn.augment moves pixels in the network",
    "crop_images": "synkhronos.nn.augment moves pixels in the network",
    "crop_images_size": "synkhronos.nn.augment moves pixels in the network",
    "crop_images_prob": "synkhronos.nn.augment moves pixels in the network",
    "evaluate": "validation is evaluated after each epoch",
    "evaluate_only": "`synk train` trains; use Trainer.evaluate",
    "weights_and_bias_filename": "old weights cannot be read; checkpoints are in the folder",
    "tracing": "`synk trace` shows where time goes",
    "tracer_output": "`synk trace` shows where time goes",
    "profile": "`synk trace` shows where time goes",
    "gpus_per_node": "members are on all GPUs that are visible",
    "threads_per_process": "members share the cores; `synk run` and OMP_NUM_THREADS set others",
    "cpu_speed": "`synk.advise` measures and predicts",
    "memory_bw": "`synk.advise` measures and predicts",
    "network_bw": "`synk.advise` measures and predicts",
    "network_lat": "`synk.advise` measures and predicts",
    "network_alg": "`synk.advise` measures and predicts",
    "tau": "gradients are not made sparse",
    "tau_prime": "gradients are not made sparse",
    "density": "gradients are not made sparse",
    "steps_per_epoch": "an epoch has all rows; name fewer files",
}


def translate(out: Translation, line: list[str]) -> None:
    """Set what an old line asks for.

    Raises
    ------
    InputError
        The old program would have refused it.
    """
    launcher, program, words = divided(line, PROGRAMS)
    parser = OldParser(program)
    _arguments(parser)
    old, unknown = parsed(parser, words)
    count = out.launch(launcher) or old.mpi_processes
    members = count if old.parallel == "data" else 1
    if members > 1:
        out.set("members", members)
    out.set(
        "model",
        NET,
        f"The old model was {old.model}, with the loss {old.loss_func}. Write it as a function net "
        "in mine.py, which returns a synkhronos.training.Net.",
    )
    batch = _batch(out, old, members)
    out.set("epochs", old.num_epochs)
    out.set("floatX", old.dtype)
    _data(out, old)
    _metrics(out, old)
    _optimizer(out, old, members)
    _schedulers(out, old, batch)
    if old.history_file is not None:
        out.set("folder", "runs/pydtnn", f"{old.history_file}: the history is its metrics.jsonl.")
    if old.enable_gpu:
        out.set("mode", "JAX", "--enable_gpu: it needs the extra cuda12 or cuda13.")
        out.set("devices", "cuda")
    for name, why in _NEEDLESS.items():
        if getattr(old, name) is not None:
            out.leave(f"--{name}", why)
    for word in unknown:
        out.leave(word, "not known")


def _arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--model", default="simplecnn")
    add("--dataset", default="mnist")
    add("--dataset_train_path")
    add("--dataset_test_path")
    add("--dtype", default="float32", choices=("float32", "float64"))
    add("--optimizer", default="sgd")
    add("--loss_func", default="categorical_cross_entropy")
    add("--metrics", default="categorical_accuracy")
    add("--lr_schedulers", default="early_stopping,reduce_lr_on_plateau,model_checkpoint")
    add("--parallel", default="sequential", choices=("sequential", "data"))
    add("--history_file")
    for name, default in (
        *(("batch_size", 64), ("global_batch_size", None), ("num_epochs", 1), ("mpi_processes", 1)),
        *(("warm_up_epochs", 5), ("warm_up_batches", None), ("early_stopping_patience", 10)),
        *(("reduce_lr_on_plateau_patience", 5), ("reduce_lr_every_nepochs_nepochs", 5)),
        ("model_checkpoint_save_freq", 2),
    ):
        add(f"--{name}", type=int, default=default)
    for name, number in (
        *(("learning_rate", 0.01), ("momentum", 0.9), ("decay", 0.0), ("epsilon", 1e-7)),
        *(("beta1", 0.99), ("beta2", 0.999), ("rho", 0.9), ("validation_split", 0.0)),
        *(("reduce_lr_on_plateau_factor", 0.1), ("reduce_lr_on_plateau_min_lr", 0.0)),
        *(("reduce_lr_every_nepochs_factor", 0.1), ("reduce_lr_every_nepochs_min_lr", 0.0)),
        ("stop_at_loss_threshold", 0.0),
    ):
        add(f"--{name}", type=float, default=number)
    for name in ("early_stopping", "reduce_lr_on_plateau", "model_checkpoint"):
        add(f"--{name}_metric", default="val_categorical_cross_entropy")
    add("--stop_at_loss_metric", default="val_accuracy")
    for name, flag in (
        *(("learning_rate_scaling", True), ("nesterov", False), ("use_synthetic_data", False)),
        *(("test_as_validation", False), ("enable_gpu", False)),
    ):
        add(f"--{name}", type=truth, default=flag)
    for name in _NEEDLESS:
        add(f"--{name}")


def _batch(out: Translation, old: argparse.Namespace, members: int) -> int:
    """The rows of a step."""
    batch = old.global_batch_size or old.batch_size * members
    text = ""
    if old.global_batch_size is None and members > 1:
        text = f"--batch_size {old.batch_size} was for each process; batch is the rows of all"
        text += " members together."
    out.set("batch", batch, text)
    return int(batch)


def _data(out: Translation, old: argparse.Namespace) -> None:
    if old.use_synthetic_data:
        out.set(
            "data.train",
            "synthetic:784,classes=10,n=60000",
            "Of the shape of MNIST: change it to that of the network's rows.",
        )
        out.set("data.validation", "synthetic:784,classes=10,n=10000,seed=1")
        return
    if old.dataset == "mnist" and old.dataset_train_path is None:
        out.set("data.train", "known:mnist", "50,000 rows; 10,000 others are for validation.")
        part = "known:mnist/test" if old.test_as_validation else "known:mnist"
        out.set("data.validation", part)
    else:
        train = out.path(old.dataset_train_path or f"{old.dataset}_train.npz")
        out.set(
            "data.train", train, "Files with the rows: .npz, .h5, .npy, ..., or a .list of them."
        )
        if old.dataset_test_path is not None:
            out.set("data.validation", out.path(old.dataset_test_path))
        out.set("data.arrays", ["x", "y"], "The names in the files, one for each input.")
    if old.validation_split:
        out.leave(f"--validation_split {old.validation_split}", "name data.validation")


def _metrics(out: Translation, old: argparse.Namespace) -> None:
    found = []
    for name in filter(None, (n.strip() for n in old.metrics.split(","))):
        if name in _NAMES and _NAMES[name] != "loss":
            found.append(_NAMES[name])
        elif name not in _NAMES:
            out.leave(f"--metrics {name}", "give it as a metric of the Net")
    if found:
        out.set("metrics", list(dict.fromkeys(found)))


def _optimizer(out: Translation, old: argparse.Namespace, members: int) -> None:
    rate, text = old.learning_rate, ""
    if old.optimizer == "sgd" and old.learning_rate_scaling and members > 1:
        rate *= members
        text = f"--learning_rate {old.learning_rate} was multiplied by the {members} processes."
    made: dict[str, Any] = {"name": old.optimizer, "rate": rate}
    if old.optimizer == "sgd" and old.momentum:
        made["name"] = "nesterov_momentum" if old.nesterov else "momentum"
        made["momentum"] = old.momentum
    elif old.optimizer == "rmsprop":
        made |= {"rho": old.rho, "epsilon": old.epsilon}
    elif old.optimizer in ("adam", "nadam"):
        made |= {"beta1": old.beta1, "beta2": old.beta2, "epsilon": old.epsilon}
    elif old.optimizer != "sgd":
        out.leave(f"--optimizer {old.optimizer}", "not known; momentum is in its place")
        made |= {"name": "momentum", "momentum": old.momentum}
    if old.decay:
        made |= {"weight_decay": old.decay, "decoupled": True}
    out.set("optimizer", made, text)


def _schedulers(out: Translation, old: argparse.Namespace, batch: int) -> None:
    """What watched the loss, and changed the rate."""
    wanted = [name.strip() for name in old.lr_schedulers.split(",") if name.strip()]
    stops = []
    if "early_stopping" in wanted:
        metric = _watched(out, old.early_stopping_metric)
        sign = "<" if metric == "val_loss" else ">"
        stops.append(f"{metric},{sign},{old.early_stopping_patience}")
        out.set("best.metric", metric)
        out.set("best.restore", True, "Early stopping gave the best weights back.")
    if "stop_at_loss" in wanted:
        metric = _watched(out, old.stop_at_loss_metric)
        sign = "<" if metric.endswith("loss") else ">"
        stops.append(f"{metric},{sign},{float(old.stop_at_loss_threshold)!r}")
    if stops:
        out.set("stop", stops)
    if "model_checkpoint" in wanted:
        out.set("best.metric", _watched(out, old.model_checkpoint_metric))
        out.set("folder", "runs/pydtnn", "The best checkpoint is in its folder best.")
    plateau = "reduce_lr_on_plateau" in wanted
    if plateau:
        out.set("plateau.metric", _watched(out, old.reduce_lr_on_plateau_metric))
        out.set("plateau.factor", old.reduce_lr_on_plateau_factor)
        out.set("plateau.patience", old.reduce_lr_on_plateau_patience)
        out.set("plateau.least", old.reduce_lr_on_plateau_min_lr)
    _schedule(out, old, batch, [w for w in wanted if w in ("warm_up", "reduce_lr_every_nepochs")])
    known = ("early_stopping", "stop_at_loss", "model_checkpoint", "reduce_lr_on_plateau")
    for name in wanted:
        if name not in (*known, "warm_up", "reduce_lr_every_nepochs"):
            out.leave(f"--lr_schedulers {name}", "not known")


def _schedule(out: Translation, old: argparse.Namespace, batch: int, wanted: list[str]) -> None:
    """A rate that follows the step; the old schedulers counted epochs."""
    if not wanted:
        return
    rows = _ROWS.get(old.dataset)
    if "plateau" in out.table or rows is None or old.optimizer not in _NAMES_OF_RULES:
        why = "the rate follows the plateau" if "plateau" in out.table else "steps are not known"
        for name in wanted:
            out.leave(f"--lr_schedulers {name}", f"{why}: give optimizer.schedule, in steps")
        return
    each = -(-rows // batch)
    optimizer = out.table["optimizer"]
    optimizer["schedule"] = "constant"
    if "reduce_lr_every_nepochs" in wanted:
        optimizer |= {
            "schedule": "step",
            "decay_every": old.reduce_lr_every_nepochs_nepochs * each,
            "decay_factor": old.reduce_lr_every_nepochs_factor,
            "min_learning_rate": old.reduce_lr_every_nepochs_min_lr,
        }
    if "warm_up" in wanted:
        optimizer["warmup"] = old.warm_up_batches or old.warm_up_epochs * each
    text = f"Schedules count steps: an epoch has {each}. The old warm-up began at rate / processes."
    out.set("optimizer", optimizer, text)


_NAMES_OF_RULES = ("sgd", "rmsprop", "adam", "nadam")


def _watched(out: Translation, name: str) -> str:
    """The value that a scheduler watched, by its name here."""
    prefix = "val_" if name.startswith("val_") else ""
    plain = name.removeprefix("val_")
    if plain not in _NAMES:
        out.leave(name, "give it as a metric of the Net")
    return prefix + _NAMES.get(plain, plain)
