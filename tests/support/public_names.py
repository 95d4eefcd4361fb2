"""The names of public packages, as Python tells them."""

from __future__ import annotations

import importlib
import inspect
import pickle
from dataclasses import is_dataclass


def check_public_names(package: str) -> None:
    """Classes and functions are of the package that users import.

    So say reprs, tracebacks and pickles; what inspect says of them is as before.
    """
    module = importlib.import_module(package)
    for name in module.__all__:
        thing = getattr(module, name)
        if not inspect.isclass(thing) and not inspect.isfunction(thing):
            continue
        assert thing.__module__ == package, name
        assert pickle.loads(pickle.dumps(thing)) is thing
        assert inspect.getmodule(thing) is module
        assert inspect.getdoc(thing)
        if inspect.isfunction(thing):
            assert f"def {thing.__name__}" in inspect.getsource(thing)
        elif not is_dataclass(thing):
            for method, value in vars(thing).items():
                if inspect.isfunction(value) and method == value.__name__:
                    assert f"def {method}" in inspect.getsource(value)
