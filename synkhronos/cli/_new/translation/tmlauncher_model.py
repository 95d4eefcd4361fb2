"""The file of a ModelClass of Theano-MPI: it is parsed and never run."""

from __future__ import annotations

import ast
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from synkhronos._host import files

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
