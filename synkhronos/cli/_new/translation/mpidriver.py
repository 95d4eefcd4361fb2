"""mpi_learn's MPIDriver.py and MPIGDriver.py, and NNLO's TrainingDriver.py."""

from __future__ import annotations

import argparse
import json
import math
import os

from synkhronos._checks import shown
from synkhronos._errors import InputError
from synkhronos.cli._new.translation.translation import (
    NET,
    OldParser,
    Translation,
    divided,
    known,
    parsed,
)
from synkhronos.cli._numbers import count
from synkhronos.training._directions import usual_mode

PROGRAMS = ("MPIDriver.py", "TrainingDriver.py", "MPIGDriver.py")
_OTHERS = {
    "BuildModel.py": "it wrote the old models; synkhronos.zoo has networks, and from_keras reads "
    "a model.json",
    "OptimizationDriver.py": "it searched for hyperparameters, as `synk search` does",
    "mpiLAPI.py": "translate the MPIDriver.py line that it ran",
}
_RATES = {  # theirs, if none is given
    **{"sgd": 0.01, "rmsprop": 0.001, "adam": 0.001, "adadelta": 1.0},
    **{"adagrad": 0.01, "adamax": 0.002, "nadam": 0.002},
}
_NAMES = {"lr": "rate", "beta_1": "beta1", "beta_2": "beta2"}
_METRICS = {"acc": "accuracy", "categorical_accuracy": "accuracy", "binary_accuracy": "accuracy"}
# options without a counterpart: what serves instead
_NEEDLESS = {
    "verbose": "progress is shown anyway",
    "profile": "`synk trace` shows where time goes",
    "monitor": "`synk top` shows a run",
    "trace": "`synk trace` shows where time goes",
    "timeline": "`synk trace` shows where time goes",
    "tf": "networks are PyTensor's",
    "torch": "networks are PyTensor's",
    "backend": "networks are PyTensor's",
    "thread_validation": "all members validate",
    "copy_command": "data.cache copies remote files by fsspec",
    "log_file": "the run's folder has log/",
    "log_level": "logging is Python's: the logger synkhronos",
    "elastic_lr": "it had no effect",
    "elastic_momentum": "it had no effect",
    "validate_every": "it counted updates; validate_every counts epochs: each is validated",
    "max_gpus": 'members are on GPUs with mode = "JAX" and devices = "cuda"',
    "master_gpu": "the master is a member as all others",
    "checkpoint_interval": "a checkpoint is saved after each epoch",
}


def translate(out: Translation, line: list[str]) -> None:
    """Set what an old line asks for.

    Raises
    ------
    InputError
        The old program would have refused it.
    """
    launcher, program, words = divided(line, PROGRAMS, _OTHERS, takes_words=True)
    parser = OldParser(program)
    newer = program == "TrainingDriver.py"
    _arguments(parser, newer)
    old, unknown = parsed(parser, words)
    if old.easgd:
        old.mode = "easgd"
    workers = _members(out, out.launch(launcher), old)
    _model(out, old)
    _data(out, old)
    _rule(out, old, workers)
    if "member_batch" in out.table:
        out.set(
            "data.memory", True, f"{old.mode}: each member takes batches by itself, from memory."
        )
    out.set("epochs", old.epochs)
    _ends(out, old)
    _folder(out, old)
    for name, why in _NEEDLESS.items():
        if getattr(old, name) not in (None, False, parser.get_default(name)):
            out.leave(f"--{name.replace('_', '-')}", why)
    for word in unknown:
        out.leave(word, "not known")


def _arguments(parser: argparse.ArgumentParser, newer: bool) -> None:
    add = parser.add_argument
    if newer:
        add("--model", required=True)
        add("--train_data", required=True)
        add("--val_data")
    else:
        add("model")
        add("train_data")
        add("val_data")
    for flag in ("verbose", "profile", "monitor", "trace", "tf", "torch", "master-gpu", "easgd"):
        add(f"--{flag}", action="store_true")
    add("--thread_validation", "--thread-validation", action="store_true")
    add("--synchronous", action="store_true")
    add("--timeline", nargs="?", const=True)
    add("--backend")
    add("--copy-command")
    add("--trial-name", default="train")
    add("--features-name", default="features")
    add("--labels-name", default="labels")
    add("--batch", type=count, default=100)
    add("--validate-every", type=int)
    add("--preload-data", type=int, default=0)
    add("--cache-data", default="")
    add("--masters", "--n-masters", type=count, default=1)
    add("--processes", "--n-processes", type=count, default=1)
    add("--max-gpus", type=int)
    add("--epochs", type=count, default=1)
    add("--optimizer", default="adam")
    add("--loss", default="binary_crossentropy")
    add("--early-stopping")
    add("--target-metric")
    add("--worker-optimizer", default="adam" if newer else "sgd")
    add("--worker-optimizer-params", default="{}")
    add("--sync-every", type=count, default=1)
    default = "gem" if newer else "sgd"
    add("--mode", choices=("sgd", "downpour", "easgd", "gem"), default=default)
    add("--elastic-force", type=float, default=0.9)
    add("--elastic-lr", type=float)
    add("--elastic-momentum", type=float)
    add("--gem-lr", type=float, default=0.01)
    add("--gem-momentum", type=float, default=0.9)
    add("--gem-kappa", type=float, default=2.0)
    add("--restore")
    add("--checkpoint")
    add("--checkpoint-interval", type=int)
    add("--log-file")
    add("--log-level")


def _members(out: Translation, started: int | None, old: argparse.Namespace) -> int | None:
    """The number of workers, each of which is a member."""
    if old.masters > 1:
        out.leave(f"--masters {old.masters}", "on several nodes use the rule Nodes")
    if old.processes > 1:
        out.leave(
            f"--processes {old.processes}", "a member computes by itself; its BLAS has threads"
        )
    if started is None:
        return None
    workers = max((started - old.masters) // old.processes, 1) if started > 1 else 1
    out.set(
        "members",
        workers,
        f"{started} processes were {workers} workers, and others that did not train",
    )
    return workers


def _model(out: Translation, old: argparse.Namespace) -> None:
    out.set("floatX", "float32")
    if old.model.endswith(".json") and os.path.exists(old.model):
        out.set(
            "model",
            "synkhronos.interop:from_keras",
            f"The old model was {old.model}: Keras reads it, with JAX. It needs the extra keras. "
            "Its metrics are loss and accuracy.",
        )
        arguments = {"model": os.path.abspath(old.model), "loss": old.loss}
        out.set("model_arguments", arguments)
        out.set("mode", "JAX")
        return
    out.set(
        "model",
        NET,
        f"The old model was {old.model}, with the loss {old.loss}. Write it as a function net in "
        "mine.py, which returns a synkhronos.training.Net. A .json of Keras that is there when the "
        "line is translated is read by synkhronos.interop:from_keras.",
    )


def _data(out: Translation, old: argparse.Namespace) -> None:
    for key, given in (("data.train", old.train_data), ("data.validation", old.val_data)):
        if given is None:
            continue
        path, stem = out.path(given), os.path.splitext(given)[0]
        if given.endswith(".list"):
            out.set(key, path, "In a list, relative paths begin at the folder of the list.")
        else:
            out.set(
                key,
                out.path(f"{stem}.list"),
                f"Rename {given} to {stem}.list: a list of files ends so. In a list, relative "
                "paths begin at the folder of the list.",
            )
    out.set("data.format", "hdf5")
    out.set("data.arrays", [old.features_name, old.labels_name])
    if old.cache_data:
        out.set("data.cache", out.path(old.cache_data))
    if old.preload_data:
        out.leave(
            f"--preload-data {old.preload_data}", "prefetch counts batches, not files; 2 by default"
        )


def _rule(out: Translation, old: argparse.Namespace, workers: int | None) -> None:
    given = _parameters(old.worker_optimizer_params)
    inner = _optimizer(out, "--worker-optimizer", old.worker_optimizer, given)
    rows = f"--batch {old.batch} was for each worker; so is member_batch."
    out.set("member_batch", old.batch, rows)
    if old.mode == "easgd":
        rule: dict[str, object] = {"name": "EASGD", "period": old.sync_every}
        text = "Members and centre attract each other by 0.9 / members."
        if old.elastic_force != 0.9:
            rule["alpha"] = old.elastic_force / (workers or 1)
            text = "alpha is --elastic-force / members"
            text += "." if workers else ": divide it by their number."
        if old.synchronous:
            rule["meet"] = True
            text += " The old program added up weights of synchronous workers, which was wrong."
            del out.table["member_batch"]
            _batch(out, old.batch, workers)
        out.set("rule", rule, text)
        out.set("optimizer", inner)
    elif old.mode == "gem":
        plain = inner["name"] == "sgd"
        rule = {"name": "GEM", "period": old.sync_every}
        rule |= {"momentum": old.gem_momentum, "kappa": old.gem_kappa}
        if plain:
            inner["rate"] = inner.get("rate", 1.0) * old.gem_lr
            out.set("optimizer", inner, "The rate is that of the worker, by --gem-lr.")
        else:
            rule["lr"] = old.gem_lr
            out.set("optimizer", inner)
        out.set("rule", rule)
    elif old.synchronous:
        _synchronous(out, old, workers, inner)
    else:
        centre = _optimizer(out, "--optimizer", old.optimizer, {})
        rule = {"name": "Downpour", "period": old.sync_every, "centre": centre}
        out.set(
            "rule",
            rule,
            "The master's optimizer is at the centre. Steps of members that are late are scaled "
            'down; scale = "none" does not, as the old program.',
        )
        out.set("optimizer", inner, "Of the members: with rate 1, what they send is a gradient.")


def _synchronous(
    out: Translation, old: argparse.Namespace, workers: int | None, inner: dict[str, object]
) -> None:
    """Synchronous Downpour: members that all make their steps together, or meet."""
    del out.table["member_batch"]
    _batch(out, old.batch, workers)
    text = "The old program took the sum of 95 % of the workers, and dropped the others."
    if old.sync_every == 1:
        out.set(
            "optimizer",
            _optimizer(out, "--optimizer", old.optimizer, {}),
            f"--synchronous: a step takes the mean of the gradients of all members. {text}",
        )
        return
    out.set("optimizer", inner)
    out.set(
        "rule",
        {"name": "DiLoCo", "period": old.sync_every, "lr": 1.0, "momentum": 0.0},
        f"--synchronous: all members meet, and take the mean of what they have learned. {text}",
    )
    out.leave(f"--optimizer {old.optimizer}", "with --sync-every there is none at the centre")


def _batch(out: Translation, each: int, workers: int | None) -> None:
    text = f"--batch {each} was for each worker; batch is the rows of all members together"
    if workers is None:
        text += f": multiply {each} by their number"
    out.set("batch", each * (workers or 1), f"{text}.")


def _parameters(text: str) -> dict[str, object]:
    try:
        found = json.loads(text.replace("'", '"'))
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise InputError(f"--worker-optimizer-params: {shown(text)} is not a JSON object")
    return found


def _optimizer(
    out: Translation, option: str, name: str, given: dict[str, object]
) -> dict[str, object]:
    """The optimizer of a name, of which some had the framework's at their end."""
    plain = name.lower()
    for end in ("torch", "tf"):
        plain = plain.removesuffix(end)
    known(option, plain, _RATES)
    made = {"name": plain, "rate": 1.0 if plain == "sgd" and not given else _RATES[plain]}
    for key, value in given.items():
        if key == "momentum" and plain == "sgd":
            made |= {"name": "momentum", "momentum": value}
        elif key == "nesterov":
            made["name"] = "nesterov_momentum" if value else made["name"]
        elif key in _NAMES or key in ("rho", "epsilon", "momentum"):
            made[_NAMES.get(key, key)] = value
        else:
            out.leave(f"--worker-optimizer-params {key}", f"{plain} has no such argument")
    return made


def _ends(out: Translation, old: argparse.Namespace) -> None:
    metrics = []
    for option, text in (
        ("--early-stopping", old.early_stopping),
        ("--target-metric", old.target_metric),
    ):
        if text is None:
            continue
        parts = [part.strip() for part in text.split(",")]
        if len(parts) != 3 or parts[1] not in ("<", ">", "~<", "~>"):
            raise InputError(f"{option}: {shown(text)}: it was metric,op,number")
        name, sign, number = parts
        if option == "--early-stopping" and not number.isdecimal():
            raise InputError(f"{option}: {shown(text)}: the patience was an integer")
        if option == "--target-metric" and not _is_number(number):
            raise InputError(f"{option}: {shown(text)}: the target was a number")
        if ":" in name:
            model, name = name.split(":", 1)
            out.leave(f"{option} {text}", f"there is one network: it is the {name} of {model}")
        name = name.removeprefix("val_")
        name = _METRICS.get(name, name)
        if name != "loss":
            metrics.append(name)
        if option == "--early-stopping":
            _stop(out, f"val_{name}", sign, int(number))
            continue
        if sign.startswith("~"):
            out.leave(f"{option} {text}", "it is compared with the value itself, no moving average")
        out.set(
            "target", f"val_{name} {sign[-1]}= {float(number)!r}", "Values have the prefix val_."
        )
    if metrics:
        out.set("metrics", list(dict.fromkeys(metrics)))


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def _stop(out: Translation, metric: str, sign: str, patience: int) -> None:
    comment = "Values have the prefix val_. Early stopping never came before."
    mode = "min" if sign.endswith("<") else "max"
    usual = mode == usual_mode(metric)
    if usual and not sign.startswith("~"):
        out.set("stop", metric, comment)
        out.set("patience", patience)
        return
    out.set("stop.metric", metric, comment)
    out.set("stop.patience", patience)
    if not usual:
        out.set("stop.mode", mode)
    if sign.startswith("~"):
        out.set("stop.smooth", True)


def _folder(out: Translation, old: argparse.Namespace) -> None:
    if old.checkpoint:
        out.set("folder", out.path(old.checkpoint), "--checkpoint: it is a folder of this run.")
    elif old.trial_name:
        out.set("folder", f"runs/{old.trial_name}", "--trial-name: the folder of the run.")
    if old.restore:
        out.set("resume", "auto")
        out.leave(
            f"--restore {old.restore}",
            "old checkpoints cannot be read; resume goes on from those of the folder",
        )
