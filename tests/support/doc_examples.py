"""The examples in the docstrings of the package's modules."""

from __future__ import annotations

import ast
import doctest
import importlib
import inspect
import pkgutil
from pathlib import Path
from types import ModuleType
from typing import Any

import pytensor
from selection import thorough

import synkhronos as synk

LARGE = ("synkhronos.pymc", "synkhronos.sklearn")  # their folders of tests run their examples


def modules_of(package: str, but: tuple[str, ...] = ()) -> list[Any]:
    """Cases of a test: the names of a package and of all modules below it, but not below `but`.

    Modules without an example, three of four, are only imported; these cases are thorough.
    """
    path = importlib.import_module(package).__path__
    names = [package] + [m.name for m in pkgutil.walk_packages(path, f"{package}.")]
    wanted = [name for name in names if not f"{name}.".startswith(but)]
    return [name if ">>> " in _text_of(name) else thorough(name)[0] for name in wanted]


def _text_of(name: str) -> str:
    """The text of a module, which is not imported for it."""
    place = Path(synk.__file__).parents[1].joinpath(*name.split("."))
    return (place / "__init__.py" if place.is_dir() else place.with_suffix(".py")).read_text()


def check_examples(name: str) -> None:
    """Run the examples of a module."""
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    examples = examples_of(importlib.import_module(name))
    with pytensor.config.change_flags(mode="FAST_COMPILE"):  # no example is about the compiler
        for test in examples:
            runner.run(test)
    synk.close()
    assert runner.failures == 0


def examples_of(module: ModuleType) -> list[doctest.DocTest]:
    """The examples of all that a module defines, also of classes that name a public package."""
    finder = doctest.DocTestFinder()
    tree = ast.parse(inspect.getsource(module))
    own = {node.name for node in tree.body if isinstance(node, ast.ClassDef)}
    classes = {n: c for n, c in vars(module).items() if inspect.isclass(c) and n == c.__name__}
    elsewhere = {f"{module.__name__}.{n}" for n in classes if n not in own}
    found = [
        test
        for test in finder.find(module)
        if not any(f"{test.name}.".startswith(f"{path}.") for path in elsewhere)
    ]
    for name in own:
        if classes[name].__module__ != module.__name__:
            path = f"{module.__name__}.{name}"
            found += finder.find(classes[name], path, module=False, globs=dict(vars(module)))
    return [test for test in found if test.examples]
