"""Finds the module in which a documented name is defined, for the links to its source.

Public names say that they belong to the package that exports them, which is not where they are
written.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator
from typing import Any

from sphinx.application import Sphinx


def defined_in(app: Sphinx, modname: str, attribute: str) -> str | None:
    """The module whose source has the definition; None: Sphinx looks itself."""
    del app
    try:
        value: Any = importlib.import_module(modname)
        for name in attribute.split("."):
            value = (
                inspect.getattr_static(value, name)
                if inspect.isclass(value)
                else getattr(value, name)
            )
    except (ImportError, AttributeError):
        return None
    return next(modules_of(value), None)


def modules_of(value: Any) -> Iterator[str]:
    """The modules of the functions that a value consists of."""
    value = getattr(value, "fget", None) or getattr(value, "__func__", value)
    for each in vars(value).values() if inspect.isclass(value) else [value]:
        function = inspect.unwrap(each) if callable(each) else None
        if inspect.isfunction(function):
            yield function.__globals__["__name__"]


def setup(app: Sphinx) -> dict[str, bool]:
    """Register."""
    app.connect("viewcode-follow-imported", defined_in)
    return {"parallel_read_safe": True}
