"""PyDTNN's pydtnn_benchmark, whose older name is benchmarks_CNN.py."""

# These rules hold here:
#
# * The old program is neither imported nor run. Its options and their defaults are listed here.
# * Each option of the line is a key of the config, or is named with its reason
#   (`Translation.leave`). None that differs from its default is dropped in silence.
# * A difference is said beside the key: numbers that mean something else, another epsilon, another
#   warm-up.
# * `_is_first` decides between the two versions of the program. It is asked once, and what follows
#   reads ``old.first``.
# * The order counts: rows before the network, metrics before what watches them, the optimizer
#   before the plateau and the schedule, which need its divisor and its table.

from __future__ import annotations

import argparse
from typing import Any

from synkhronos.cli._new.translation.pydtnn_data import Rows, set_rows
from synkhronos.cli._new.translation.pydtnn_models import SEEN, STORED, network_of
from synkhronos.cli._new.translation.translation import (
    NET,
    OldParser,
    Translation,
    divided,
    known,
    parsed,
    truth,
)
from synkhronos.cli._numbers import count, numbers
from synkhronos.training._directions import usual_mode

PROGRAMS = ("pydtnn_benchmark", "pydtnn_benchmark.py", "benchmarks_CNN.py")
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
_OTHERS = {
    "ImageNet_converter.py": "it wrote the archives that --dataset=imagenet reads, as they are"
}
_OPTIMIZERS = ("sgd", "sgdmomentum", "rmsprop", "adam", "nadam", "oktopk")
_TRUTHS = {
    "learning_rate_scaling": True,
    "nesterov": False,
    "use_synthetic_data": False,
    "test_as_validation": False,
    "enable_gpu": False,
    "evaluate": False,
    "flip_images": False,
    "non_blocking_mpi": False,
}
_ITSELF = "PyTensor and the group choose by themselves"
_FUSED = "PyTensor fuses by itself"
_NCCL = "NCCL moves arrays between GPUs"
_TRACE = "see `synk trace`, `synk top` and the option trace"
_ADVICE = "`synk.advise` measures and predicts"
_EXACT = "the largest elements are found exactly in each step"
# options without a counterpart: their default, and what serves instead
_NEEDLESS: dict[str, tuple[Any, str]] = {
    "shared_storage": (False, "it had no effect"),
    "tensor_format": (
        "NHWC",
        "networks of synkhronos.zoo take images (rows, height, width, channels), and rows come so",
    ),
    "enable_best_of": (False, _ITSELF),
    "enable_conv_gemm": (False, _ITSELF),
    "enable_conv_winograd": (False, _ITSELF),
    "enable_memory_cache": (True, "memory is reused anyway"),
    "enable_fused_bn_relu": (False, _FUSED),
    "enable_fused_conv_relu": (False, _FUSED),
    "enable_fused_conv_bn": (False, _FUSED),
    "enable_fused_conv_bn_relu": (False, _FUSED),
    "enable_cudnn_auto_conv_alg": (True, "XLA chooses on GPUs"),
    "enable_gpudirect": (False, _NCCL),
    "enable_nccl": (False, _NCCL),
    "crop_images": (False, "synkhronos.nn.augment moves pixels in the network, by its pad"),
    "evaluate_only": (False, "`synk train` trains; use Trainer.evaluate"),
    "weights_and_bias_filename": (
        "None",
        "old weights cannot be read; checkpoints are in the folder",
    ),
    "tracing": (False, _TRACE),
    "tracer_output": ("", _TRACE),
    "profile": (False, _TRACE),
    "threads_per_process": ("1", "members divide the cores; `synk run` sets threads"),
    "gpus_per_node": ("1", "devices names the GPUs"),
    "cpu_speed": ("4e12", _ADVICE),
    "memory_bw": ("50e9", _ADVICE),
    "network_bw": ("1e9", _ADVICE),
    "network_lat": ("0.5e-6", _ADVICE),
    "network_alg": ("vdg", _ADVICE),
    "tau": ("64", _EXACT),
    "tau_prime": ("32", _EXACT),
    "steps_per_epoch": ("0", "an epoch has all rows; name fewer files"),
}


def translate(out: Translation, line: list[str]) -> None:
    """Set what an old line asks for.

    Raises
    ------
    InputError
        The old program would have refused it.
    """
    launcher, program, words = divided(line, PROGRAMS, _OTHERS)
    parser = OldParser(program)
    _arguments(parser)
    old, unknown = parsed(parser, words)
    old.first = _is_first(program, old)
    started = out.launch(launcher) or old.mpi_processes
    members = started if old.parallel == "data" else 1
    if members > 1:
        out.set("members", members)
    batch = _batch(out, old, members)
    out.set("epochs", old.num_epochs)
    out.set("floatX", old.dtype)
    rows = set_rows(out, old)
    own = _model(out, old, rows)
    _metrics(out, old, own)
    _optimizer(out, old, members)
    _schedulers(out, old, batch, rows)
    if old.history_file is not None:
        out.set("folder", "runs/pydtnn", f"{old.history_file}: the history is its metrics.jsonl.")
    if old.enable_gpu:
        out.set("mode", "JAX", "--enable_gpu: it needs the extra cuda12 or cuda13.")
        out.set("devices", "cuda")
    if old.non_blocking_mpi and old.enable_gpu:
        out.leave("--non_blocking_mpi", "NCCL adds up gradients when all are computed")
    elif old.non_blocking_mpi:
        out.set("overlap", True, "--non_blocking_mpi: between nodes only; else it has no effect.")
    _leave(out, old)
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
    add("--loss_func")
    add("--metrics")
    add("--lr_schedulers", default="early_stopping,reduce_lr_on_plateau,model_checkpoint")
    add("--parallel", default="sequential", choices=("sequential", "data"))
    add("--history_file")
    for name, default in (
        *(("batch_size", 64), ("global_batch_size", None), ("num_epochs", 1), ("mpi_processes", 1)),
        *(("reduce_lr_every_nepochs_nepochs", 5), ("model_checkpoint_save_freq", None)),
    ):
        add(f"--{name}", type=count, default=default)
    for name, default in (
        *(("warm_up_epochs", 5), ("warm_up_batches", None), ("early_stopping_patience", 10)),
        ("reduce_lr_on_plateau_patience", 5),
    ):
        add(f"--{name}", type=int, default=default)
    add("--learning_rate", type=numbers(above=0), default=0.01)
    add("--density", type=numbers(above=0, most=1))
    add("--validation_split", type=numbers(least=0, below=1), default=0.0)
    for name, number in (
        *(("momentum", 0.9), ("decay", 0.0), ("epsilon", 1e-7)),
        *(("beta1", 0.99), ("beta2", 0.999), ("rho", 0.9), ("decay_rate", None)),
        *(("reduce_lr_on_plateau_factor", 0.1), ("reduce_lr_on_plateau_min_lr", 0.0)),
        *(("reduce_lr_every_nepochs_factor", 0.1), ("reduce_lr_every_nepochs_min_lr", 0.0)),
        *(("stop_at_loss_threshold", 0.0), ("flip_images_prob", 0.5)),
        *(("crop_images_size", None), ("crop_images_prob", None)),
    ):
        add(f"--{name}", type=float, default=number)
    for name in ("early_stopping", "reduce_lr_on_plateau", "model_checkpoint"):
        add(f"--{name}_metric", default="val_categorical_cross_entropy")
    add("--stop_at_loss_metric", default="val_accuracy")
    for name, flag in _TRUTHS.items():
        add(f"--{name}", nargs="?", const=True, default=flag, type=truth)
    for name, (default, _) in _NEEDLESS.items():
        if isinstance(default, bool):
            add(f"--{name}", nargs="?", const=True, default=default, type=truth)
        else:
            add(f"--{name}")


def _is_first(program: str, old: argparse.Namespace) -> bool:
    """Whether the line is one of version 1.0 of 2020.

    Its loss_func listed the metrics, names of its optimizers began with capitals, and it divided
    rates by the rows of a step.
    """
    listed = "," in (old.loss_func or "")
    capital = not old.optimizer.islower()
    return old.metrics is None and (program == "benchmarks_CNN.py" or listed or capital)


def _batch(out: Translation, old: argparse.Namespace, members: int) -> int:
    """The rows of a step."""
    batch = old.global_batch_size or old.batch_size * members
    text = ""
    if old.global_batch_size is None and members > 1:
        text = f"--batch_size {old.batch_size} was for each process; batch is the rows of all"
        text += " members together."
    out.set("batch", batch, text)
    return int(batch)


def _model(out: Translation, old: argparse.Namespace, rows: Rows) -> bool:
    """Set the network; whether the user has to write it."""
    loss = next((n for n in _loss_names(old) if "cross_entropy" in n), "categorical_cross_entropy")
    found = network_of(old.model, old.dataset, old.first)
    if found is None:
        out.set(
            "model",
            NET,
            f"The old model was {old.model}, with the loss {loss}. Write it as a function net "
            "in mine.py, which returns a synkhronos.training.Net.",
        )
        if old.flip_images:
            out.leave("--flip_images", "synkhronos.nn.augment moves pixels in the network")
        return True
    name, arguments = found
    out.set(
        "model",
        f"synkhronos.zoo:{name}",
        f"{old.model}, with the loss {loss}: a network of synkhronos.zoo, which needs no file. It "
        "needs the extra nn. Its weights are drawn otherwise.",
    )
    if loss != "categorical_cross_entropy":
        out.leave(f"--loss_func {loss}", "networks of the zoo have the categorical one")
    if name in _DIFFERENT:
        out.leave(f"--model {old.model}", f"that of the zoo {_DIFFERENT[name]}")
    arguments |= _pixels(out, old, rows, name)
    if arguments:
        out.set("model_arguments", arguments)
    return False


_LARGE_IMAGES = "begins with filters of 7 x 7 pixels and a pooling, as in the paper"
_DIFFERENT = {
    "alexnet": "has fewer filters",
    "resnet": _LARGE_IMAGES,
    "densenet": _LARGE_IMAGES,
    "cifar_resnet": "has shortcuts without weights, and no layer of 64 units before the scores",
}


def _pixels(out: Translation, old: argparse.Namespace, rows: Rows, name: str) -> dict[str, object]:
    """How pixels are normalised and moved: in the network, or by the scale of the data."""
    images = name != "mlp"
    flips = bool(old.flip_images and images and rows.pixels)
    if old.flip_images and not flips:
        out.leave(
            "--flip_images",
            "networks of images flip rows that are bytes, such as those of --dataset_train_path",
        )
    if flips and old.flip_images_prob != 0.5:
        out.leave(f"--flip_images_prob {old.flip_images_prob}", "one half of the images is flipped")
    if rows.pixels is None:
        return {}
    if flips or (images and "mean" in rows.pixels):
        moved = {**({"flip": True} if flips else {}), **rows.pixels}
        if old.dataset == "imagenet" and name != "alexnet":
            return {"size": STORED, "augment": {"size": SEEN, **moved}}
        return {"augment": moved}
    out.set("data.scale", 255)
    if "mean" in rows.pixels:
        out.leave("the means of the colours", "pixels are from 0 to 1; the old ones had mean 0")
    return {}


def _loss_names(old: argparse.Namespace) -> list[str]:
    """The names in loss_func: in version 1.0 a list, with the metrics."""
    usual = "accuracy,categorical_cross_entropy" if old.first else "categorical_cross_entropy"
    text = usual if old.loss_func is None else old.loss_func
    return [name for name in text.replace(" ", "").split(",") if name]


def _metrics(out: Translation, old: argparse.Namespace, own: bool) -> None:
    option = "--loss_func" if old.first else "--metrics"
    if old.first:
        names = _loss_names(old)
    else:
        given = "categorical_accuracy" if old.metrics is None else old.metrics
        names = [n for n in given.replace(" ", "").split(",") if n]
        for name in _loss_names(old)[1:]:
            out.leave(f"--loss_func {name}", "there is one loss; metrics are in --metrics")
    found = []
    for name in names:
        here = _NAMES.get(name)
        if here in ("mse", "mae") and not own:
            out.leave(
                f"{option} {name}", "the network's outputs are scores, its labels are classes"
            )
        elif here is None:
            out.leave(f"{option} {name}", "give it as a metric of the Net")
        elif here != "loss":
            found.append(here)
    if found:
        out.set("metrics", list(dict.fromkeys(found)))


def _optimizer(out: Translation, old: argparse.Namespace, members: int) -> None:
    name = known("--optimizer", old.optimizer.lower(), _OPTIMIZERS)
    rate, texts = old.learning_rate, []
    old.divisor = 1
    adaptive = name in ("rmsprop", "adam", "nadam")
    if old.first and adaptive:
        old.divisor = old.batch_size * members
        rate /= old.divisor
        texts.append(
            f"--learning_rate {old.learning_rate:g} was divided by the {old.divisor} rows of a "
            "step, as effective_learning_rate in the log of version 1.0."
        )
    elif old.first:
        texts.append(
            "Version 1.0 divided the rate by the rows of a step, and added up their gradients: "
            "here gradients are means, and the rate is as given."
        )
    elif name == "sgd" and old.learning_rate_scaling and members > 1:
        rate *= members
        texts.append(
            f"--learning_rate {old.learning_rate} was multiplied by the {members} processes."
        )
    made: dict[str, object] = {"name": name, "rate": rate}
    plain = old.first and old.optimizer == "SGD"  # SGDMomentum was another one
    if name in ("sgd", "sgdmomentum"):
        made["name"] = "sgd"
        if old.momentum and not plain:
            made["name"] = "nesterov_momentum" if old.nesterov else "momentum"
            made["momentum"] = old.momentum
    elif name == "rmsprop":
        rho = old.rho if old.decay_rate is None else old.decay_rate
        made |= {"rho": rho, "epsilon": old.epsilon / old.divisor**2}
    elif name in ("adam", "nadam"):
        made |= {"beta1": old.beta1, "beta2": old.beta2, "epsilon": old.epsilon}
        texts.append("Its epsilon was inside of the root; here it is added to the root.")
        if name == "nadam":
            texts.append("Its Nadam left out one factor beta1.")
    else:
        made["name"] = "sgd"
        sparse = {"name": "TopK", "density": old.density or 0.01}
        out.set("exchange", sparse, "Between nodes only.")
    if old.decay and old.first:
        out.leave(
            f"--decay {old.decay:g}",
            "version 1.0 divided the rate by 1 + decay * steps: give optimizer.schedule",
        )
    elif old.decay:
        made |= {"weight_decay": old.decay, "decoupled": True}
    out.set("optimizer", made, " ".join(texts))


def _schedulers(out: Translation, old: argparse.Namespace, batch: int, rows: Rows) -> None:
    """Callbacks that watched the loss, and changed the rate."""
    wanted = [name for name in old.lr_schedulers.replace(" ", "").split(",") if name]
    for name in [n for n in wanted if n not in _WATCHING and n not in _TIMED]:
        out.leave(f"--lr_schedulers {name}", "not known")
    watching = []
    for name in [n for n in wanted if n in _WATCHING]:
        blind = getattr(old, f"{name}_metric").startswith("val_") and not rows.validated
        if blind:
            out.leave(
                f"--lr_schedulers {name}",
                "there are no rows for validation, so the old one saw only zeros: give "
                "data.split or data.validation",
            )
        else:
            watching.append(name)
    _watchers(out, old, watching)
    _schedule(out, old, batch, rows.training, [n for n in wanted if n in _TIMED])


_WATCHING = ("early_stopping", "stop_at_loss", "model_checkpoint", "reduce_lr_on_plateau")
_TIMED = ("warm_up", "reduce_lr_every_nepochs")


def _watchers(out: Translation, old: argparse.Namespace, wanted: list[str]) -> None:
    if "early_stopping" in wanted:
        metric = _watched(out, old.early_stopping_metric)
        out.set("stop", metric)
        out.set("patience", max(old.early_stopping_patience, 1))
        out.set("best.metric", metric)
        out.set("best.restore", True, "Early stopping gave the best weights back.")
    if "stop_at_loss" in wanted:
        metric = _watched(out, old.stop_at_loss_metric)
        sign = ">=" if usual_mode(metric) == "max" else "<="
        number, text = old.stop_at_loss_threshold, ""
        if metric.endswith("accuracy") and number > 1:
            number, text = number / 100, f"--stop_at_loss_threshold {number:g}: of 100."
        out.set("target", f"{metric} {sign} {float(number)!r}", text)
    if "model_checkpoint" in wanted:
        metric = _watched(out, old.model_checkpoint_metric)
        if out.table.get("best", {}).get("metric", metric) != metric:
            out.leave(
                f"--model_checkpoint_metric {old.model_checkpoint_metric}",
                "there is one best value, that of early stopping",
            )
        else:
            out.set("best.metric", metric)
        out.set("folder", "runs/pydtnn", "The best checkpoint is in its folder best.")
        if old.model_checkpoint_save_freq is not None:
            out.leave(
                f"--model_checkpoint_save_freq {old.model_checkpoint_save_freq}",
                "the best checkpoint is saved at each better value",
            )
    if "reduce_lr_on_plateau" in wanted:
        _plateau(out, old)


def _plateau(out: Translation, old: argparse.Namespace) -> None:
    factor = old.reduce_lr_on_plateau_factor
    if not 0 < factor < 1:
        out.leave(
            f"--reduce_lr_on_plateau_factor {factor:g}",
            "a plateau lowers the rate: give a factor of more than 0 and less than 1",
        )
        return
    out.set("plateau.metric", _watched(out, old.reduce_lr_on_plateau_metric))
    out.set("plateau.factor", factor)
    out.set("plateau.patience", max(old.reduce_lr_on_plateau_patience, 1))
    out.set("plateau.least", max(old.reduce_lr_on_plateau_min_lr, 0.0) / old.divisor)


def _schedule(
    out: Translation, old: argparse.Namespace, batch: int, rows: int | None, wanted: list[str]
) -> None:
    """A rate that follows the step; the old schedulers counted epochs."""
    if not wanted:
        return
    if "plateau" in out.table or rows is None:
        why = "the rate follows the plateau" if "plateau" in out.table else "steps are not known"
        for name in wanted:
            out.leave(f"--lr_schedulers {name}", f"{why}: give optimizer.schedule, in steps")
        return
    each = -(-rows // batch)
    optimizer = out.table["optimizer"]
    optimizer["schedule"] = "constant"
    texts = [f"Schedules count steps: an epoch has {each}."]
    if "reduce_lr_every_nepochs" in wanted:
        optimizer |= {
            "schedule": "step",
            "decay_every": old.reduce_lr_every_nepochs_nepochs * each,
            "decay_factor": old.reduce_lr_every_nepochs_factor,
            "min_learning_rate": old.reduce_lr_every_nepochs_min_lr / old.divisor,
        }
    if "warm_up" in wanted:
        optimizer["warmup"] = _warm_up(old, each)
        texts.append(
            "The old warm-up began at 0."
            if old.first
            else "The old warm-up began at rate / processes."
        )
        if "reduce_lr_every_nepochs" in wanted:
            texts.append("Here the falls are counted from the end of the warm-up.")
    out.set("optimizer", optimizer, " ".join(texts))


def _warm_up(old: argparse.Namespace, each: int) -> int:
    """The steps of the warm-up."""
    steps = old.warm_up_batches
    if steps is None:
        steps = 500 if old.first else old.warm_up_epochs * each
    return max(int(steps), 0)


def _watched(out: Translation, name: str) -> str:
    """The value that a scheduler watched, by its name here; metrics are evaluated to watch it."""
    prefix = "val_" if name.startswith("val_") else ""
    plain = name.removeprefix("val_")
    here = _NAMES.get(plain)
    metrics = out.table.get("metrics", [])
    if here == "accuracy" or here in metrics:
        if here not in metrics:
            out.set("metrics", [*metrics, here])
        if not prefix:
            out.leave(name, f"of training only the loss is known: val_{here} is watched")
        return f"val_{here}"
    if here != "loss":
        out.leave(name, "the old program watched the loss if it had no such value; so here")
    return f"{prefix}loss"


def _leave(out: Translation, old: argparse.Namespace) -> None:
    """Name the options without a counterpart whose value is not the default."""
    for name, (default, why) in _NEEDLESS.items():
        given = getattr(old, name)
        usual = (None, default, "AUTO") if name == "tensor_format" else (None, default)
        if (given.upper() if name == "tensor_format" and given else given) not in usual:
            out.leave(f"--{name}", why)
    if old.density is not None and old.optimizer.lower() != "oktopk":
        out.leave(f"--density {old.density:g}", "it had no effect without --optimizer=oktopk")
    if old.crop_images:
        return
    for name in ("crop_images_size", "crop_images_prob"):
        if getattr(old, name) is not None:
            out.leave(f"--{name}", "it had no effect without --crop_images")
