"""Theano-MPI's tmlauncher, and its config file, which is parsed and never run."""

from __future__ import annotations

import argparse
import ast
import math
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from synkhronos._errors import InputError
from synkhronos._host import files
from synkhronos.cli._new.translation.translation import OldParser, Translation, divided, parsed

# of its models: epochs, rate, rows of a worker's batch
_MODELS = {
    "AlexNet": (70, 0.01, 128),
    "GoogLeNet": (90, 0.005, 32),
    "Cifar10_model": (70, 0.01, 256),
    "VGG16": (40, 0.002, 64),
    "ResNet50": (90, 0.0125, 32),
}
_USUAL = (70, 0.01, 128)
_ZOO: dict[str, tuple[str, dict[str, object]]] = {
    "AlexNet": ("alexnet", {"towers": 2, "size": 227}),
    "GoogLeNet": ("googlenet", {"auxiliary": True}),
    "VGG16": ("vgg", {"depth": 16}),
    "ResNet50": ("resnet", {"depth": 50}),
}
_RULES: dict[str, dict[str, object]] = {
    "EASGD": {"name": "EASGD", "period": 10, "alpha": 0.5},
    "GOSGD": {"name": "GoSGD", "probability": 0.01},
    "ASGD": {"name": "Downpour", "period": 1},
}
_KINDS: dict[str, dict[str, object] | None] = {
    "cdd": None,
    "avg": {"name": "Average", "period": 1},
    "swap": {"name": "Swap", "period": 1},
}
_NAMES = (*("RULE", "MODELFILE", "MODELCLASS", "DEVICES"), *("BSP_SYNC_TYPE", "BSP_EXCH_STRATEGY"))
_SET = re.compile(r"(?:export\s+)?([A-Za-z_]\w*)=(.*)", re.DOTALL)


def translate(out: Translation, line: list[str]) -> None:
    """Set what an old line and its config file ask for.

    Raises
    ------
    InputError
        The old program would have refused it, or the file does more than to set values.
    """
    launcher, program, words = divided(line, ("tmlauncher",), {})
    out.launch(launcher)
    parser = OldParser(program, add_help=False, allow_abbrev=False)
    _arguments(parser)
    given, unknown = parsed(parser, words)
    found: dict[str, list[str]] = {}
    if given.config is not None:
        found = settings_of(given.config)
    for name, words_of in found.items():
        if name not in _NAMES:
            out.leave(f"{name}={' '.join(words_of)}", "not known")
    for name in _NAMES:
        if (text := getattr(given, name, None)) is not None:
            there = found.setdefault(name, [text])
            if there != [text]:
                out.leave(f"{name}={text}", f"the config file goes before it: {' '.join(there)}")
    devices = [d for each in found.get("DEVICES", []) for d in _devices(each)]
    rule = "".join(found.get("RULE", ["BSP"])).upper()
    kind = "".join(found.get("BSP_SYNC_TYPE", ["cdd"]))
    members = _members(out, devices, rule)
    old = _model(out, found)
    _rule(out, rule, kind, members, "".join(found.get("MODELCLASS", [])), old)
    if "BSP_EXCH_STRATEGY" in found:
        strategy = "".join(found["BSP_EXCH_STRATEGY"])
        if strategy.endswith("16") and rule == "BSP" and kind == "cdd":
            said = f"{strategy}: between nodes only; else it has no effect."
            out.set("exchange.name", "HalfPrecision", said)
            out.set("exchange.format", "fp16")
        else:
            out.leave(f"BSP_EXCH_STRATEGY={strategy}", "the exchange is chosen by the group")
    if given.size:
        out.leave(f"-s={given.size}", "it had no effect")
    if given.bind:
        out.leave("-bind", "members are bound to their cores anyway")
    for word in unknown:
        out.leave(word, "not known")


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-cfg", "--config", dest="config")
    parser.add_argument("-file", "--modelfile", dest="MODELFILE")
    parser.add_argument("-class", "--modelclass", dest="MODELCLASS")
    parser.add_argument("-r", "--rule", dest="RULE")
    parser.add_argument("-s", "--size", dest="size")
    parser.add_argument("-bsp_sync_type", dest="BSP_SYNC_TYPE")
    parser.add_argument("-bsp_exch_strategy", dest="BSP_EXCH_STRATEGY")
    parser.add_argument("-b", "-bind", dest="bind", action="store_true")


def settings_of(path: str) -> dict[str, list[str]]:
    """The values that a config file sets, by name; each is a list of words.

    The file is one of bash, and the old program ran it. Here it may only set names to plain texts
    and to lists of them.

    Raises
    ------
    InputError
        It cannot be read, or does something else.
    """
    try:
        text = files.read_text(path)
    except (OSError, UnicodeDecodeError) as exc:
        raise InputError(f"{path}: the config file cannot be read: {exc}") from None
    found = {}
    for number, statement in _statements(text, path):
        match = _SET.fullmatch(statement)
        if match is None or re.search(r"[$`;&|<>]", statement):
            raise InputError(
                f"{path}, line {number}: {statement.splitlines()[0]!r}: only NAME=value is read, "
                "and nothing is run: write the value"
            )
        name, value = match.groups()
        inside = value[1:-1] if value.startswith("(") and value.endswith(")") else value
        try:
            words = shlex.split(inside, comments=True)
        except ValueError as exc:  # a quote has no end
            raise InputError(f"{path}, line {number}: {name}: {exc}: close the quote") from None
        if inside is value and len(words) > 1:
            raise InputError(f"{path}, line {number}: {name} is set to several words: quote them")
        found[name] = words or [""]
    return found


def _statements(text: str, path: str) -> Iterator[tuple[int, str]]:
    """The lines of the file, those of a list in parentheses together."""
    held, first = "", 0
    for number, line in enumerate(text.splitlines(), 1):
        stripped = _without_comment(line).strip()
        if not stripped and not held:
            continue
        first = first if held else number
        held = f"{held}\n{stripped}" if held else stripped
        if "=(" in held and not held.rstrip().endswith(")"):
            continue
        yield first, held
        held = ""
    if held:
        raise InputError(f"{path}, line {first}: the list is not closed by )")


def _without_comment(line: str) -> str:
    """A line up to a # that begins a word, outside of quotes."""
    quote = ""
    for i, sign in enumerate(line):
        if quote:
            quote = "" if sign == quote else quote
        elif sign in "'\"":
            quote = sign
        elif sign == "#" and (i == 0 or line[i - 1].isspace()):
            return line[:i]
    return line


def _devices(text: str) -> list[str]:
    """The devices of "cuda0,cuda1", or of "node:cuda0,cuda1"."""
    node, colon, names = text.rpartition(":")
    return [f"{node}{colon}{name.strip()}" for name in names.split(",") if name.strip()]


def _members(out: Translation, devices: list[str], rule: str) -> int | None:
    if not devices:
        return None
    members = len(devices)
    text = f"The old devices were {', '.join(devices)}"
    server = rule == "EASGD" and members > 1
    text += (
        ". The first was for a server, which is not needed: a member uses it." if server else "."
    )
    text += ' Members use cores; for GPUs: mode = "JAX", devices = "cuda".'
    nodes = {d.rpartition(":")[0] for d in devices if ":" in d}
    if len(nodes) > 1:
        members = -(-members // len(nodes))
        text += f" On {len(nodes)} nodes: this is the number on each; see `synk run --nodes`."
        if rule != "BSP":
            out.leave(
                f"RULE={rule} on {len(nodes)} nodes",
                "members of several nodes do not train apart: use the rule Nodes, or EASGD with "
                "meet = true",
            )
    out.set("members", members, text)
    return members * max(len(nodes), 1)


def _model(out: Translation, found: dict[str, list[str]]) -> OldModel:
    file = "".join(found.get("MODELFILE", []))
    name = "".join(found.get("MODELCLASS", []))
    if not file or not name:
        raise InputError("the old line of tmlauncher: it names no model file and no model class")
    old = model_in(file, name)
    if file.startswith("theanompi.") and name in _ZOO:
        function, arguments = _ZOO[name]
        out.set("model", f"synkhronos.zoo:{function}", f"{name} of Theano-MPI: needs the extra nn.")
        if arguments:
            out.set("model_arguments", dict(arguments))
        rows = "mine"
    else:
        rows = file
        out.set(
            "model",
            f"{file}:{name}",
            f"{name} is called without the old config: [model_arguments] are its arguments. It "
            "needs the attributes loss, params and inputs; outputs and metrics are used if it has "
            "them. Not called, and where their content goes:",
        )
        for method in old.methods:
            out.set("model", f"{file}:{name}", f"- {method}: {METHODS[method]}")
    out.set(
        "data.train",
        f"{rows}:train_rows",
        "The old class had the data, in batches: n_batch_train * batch_size rows. This is a "
        "function that returns an array for each input; or name files.",
    )
    out.set("data.validation", f"{rows}:validation_rows", "n_batch_val * batch_size rows.")
    return old


def _rule(
    out: Translation, rule: str, kind: str, members: int | None, name: str, old: OldModel
) -> None:
    usual = dict(zip(SETTINGS, _MODELS.get(name, _USUAL), strict=True))
    usual |= {"momentum": 0.9, "weight_decay": 5e-4}
    set_there = {**usual, **old.settings}
    epochs, rate, each = (set_there[key] for key in SETTINGS)
    known = f"as {name} had it" if name in _MODELS else "of the old class: set yours"
    if SETTINGS[0] in old.settings:
        known = f"as in {old.file}"
    if rule == "BSP":
        if kind not in _KINDS:
            raise InputError(f"BSP_SYNC_TYPE={kind}: it was one of {', '.join(_KINDS)}")
        made = _KINDS[kind]
        text = f"{each} rows for each worker, {known}; batch is the rows of all members together"
        if members is None:
            text += ": multiply it by their number"
        out.set("batch", each * (members or 1), f"{text}.")
    elif rule in _RULES:
        made = _RULES[rule]
        out.set("member_batch", each, f"Rows of a member's step, {known}.")
    else:
        raise InputError(f"RULE={rule}: it was one of BSP, {', '.join(_RULES)}")
    if made is not None:
        about = "alpha was fixed; without it, it is 0.9 / members." if rule == "EASGD" else ""
        out.set("rule", dict(made), about)
    out.set("epochs", epochs, f"{known[0].upper()}{known[1:]}.")
    out.set(
        "optimizer",
        {
            "name": "momentum",
            "rate": rate,
            "momentum": set_there["momentum"],
            "weight_decay": set_there["weight_decay"],
        },
        "Biases had twice the rate and no decay. The rate is never multiplied by the number of "
        "members; the old one grew to that in its first 5 epochs.",
    )


# where the content of the methods and attributes goes that its documentation asks for
METHODS = {
    "compile_iter_fns": "left out, the training function compiles at its first step",
    "compile_train": "left out, as compile_iter_fns",
    "compile_val": "left out, as compile_iter_fns",
    "train_iter": "its cost is loss, its inputs are inputs, its update rule is [optimizer]",
    "val_iter": "its errors are metrics; rows come from data.validation",
    "adjust_hyperp": "optimizer.rate and optimizer.schedule, or [plateau]",
    "scale_lr": "optimizer.rate, which is not scaled by the members",
    "reset_iter": "left out, each epoch draws a new order of rows by seed",
    "cleanup": "left out, the run closes what it has opened",
    "save": "folder, which gets a checkpoint after each epoch",
    "load": "resume",
    "print_info": "left out, progress is shown",
    "data": "data.train and data.validation; rows / batch are n_batch_train and n_batch_val",
}
_DOCUMENTED = ("compile_iter_fns", "train_iter", "val_iter", "adjust_hyperp", "cleanup", "data")
SETTINGS = ("n_epochs", "learning_rate", "batch_size")
_NUMBERS = (*SETTINGS, "momentum", "weight_decay")


@dataclass(frozen=True)
class OldModel:
    """The contents of a model file."""

    file: str
    # names of METHODS that the class has; without the file those of the documentation
    methods: list[str] = field(default_factory=lambda: list(_DOCUMENTED))
    # the numbers that the module sets, by the names of `SETTINGS`, momentum and weight_decay
    settings: dict[str, Any] = field(default_factory=dict)


def model_in(module: str, name: str) -> OldModel:
    """The contents of a class in the file of a module.

    Files of Python 2 that Python 3 cannot parse are as files that are not there.
    """
    path = Path(*module.split(".")).with_suffix(".py")
    try:
        tree = ast.parse(files.read_text(path))
    except (OSError, SyntaxError, ValueError):
        return OldModel(str(path))
    found: list[str] = []
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            there = {each.name for each in node.body if isinstance(each, ast.FunctionDef)}
            found = [method for method in METHODS if method in there or method == "data"]
    return OldModel(str(path), found or list(_DOCUMENTED), _settings(tree))


def _settings(tree: ast.Module) -> dict[str, Any]:
    found = {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
            for target in node.targets:
                if isinstance(target, ast.Name) and _fits(target.id, node.value.value):
                    found[target.id] = node.value.value
    return found


def _fits(name: str, value: object) -> bool:
    """Whether a config can have this number."""
    if name not in _NUMBERS or isinstance(value, bool) or not isinstance(value, int | float):
        return False
    whole = name in ("n_epochs", "batch_size")
    least = 0 if name in ("momentum", "weight_decay") else math.ulp(0.0)
    return least <= value < math.inf and (isinstance(value, int) or not whole)
