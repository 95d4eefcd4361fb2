"""Leads PyMC and nutpie to what is kept of models of `fast`, which the user's own calls sample."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

from pymc import Model

from synkhronos._libraries.library import Library, optional_gain, replacing
from synkhronos._libraries.nutpie import NUTPIE
from synkhronos._libraries.pymc import PYMC
from synkhronos.pymc._density.late_arviz import import_nutpie
from synkhronos.pymc._density.nutpie import compiled_soon
from synkhronos.pymc._kept.models import assigned_by, compiled_by, kept_model

_put: dict[str, object] = {}  # what leads copies, by the names that it has replaced


def lead_copies() -> None:
    """Lead calls of `pm.sample` and nutpie, from now on; other models are sampled as ever."""
    _replace(PYMC, "assign_step_methods", _assigned)
    if NUTPIE.is_imported("compile_pymc_model"):
        _replace(NUTPIE, "compile_pymc_model", _compiled)


def _replace(library: Library, name: str, by: Callable[..., Any]) -> None:
    """Replace a function for good, once."""
    with replacing.held(), optional_gain():
        if not library.is_in_place(name, _put.get(name)):
            function = library.get(name)
            _put[name] = functools.wraps(function)(functools.partial(by, function))
            library.replace({name: _put[name]})


def _is_copy(model: Model) -> bool:
    return getattr(vars(model).get("logp"), "lasting", False)


def _assigned(assign: Any, model: Model, step: object = None, methods: Any = None) -> Any:
    """As ``assign_step_methods`` of PyMC, which imports nutpie next."""
    if not _is_copy(model):
        return assign(model, step, methods=methods)
    if find_spec("nutpie") is not None:
        with contextlib.suppress(ImportError):  # PyMC says so
            import_nutpie()
            _replace(NUTPIE, "compile_pymc_model", _compiled)
    return assigned_by(kept_model(model), assign, model, step, methods)


def _compiled(compile_model: Any, model: Model, **given: Any) -> Any:
    """As ``compile_pymc_model`` of nutpie."""
    if not _is_copy(model):
        return compile_model(model, **given)
    kept = kept_model(model)  # anew: the model or its data may have changed since any other call
    with compiled_soon():
        return compiled_by(kept, compile_model, model, given)
