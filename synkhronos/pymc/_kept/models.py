"""Leads `pm.sample` to what is kept of a model."""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import Any

import numpy as np
from pymc import NUTS, Model
from pymc.step_methods import STEP_METHODS

from synkhronos._compiling.kept.digests import Unkeyed
from synkhronos._compiling.kept.folder import Folder, kept_folder
from synkhronos._compiling.kept.keys import graph_key
from synkhronos._compiling.lean.mode import without_c
from synkhronos._compiling.memory import rarely_collected
from synkhronos._compiling.traces import untraced
from synkhronos._libraries.library import Library, Replacing, optional_gain, replacing, usable
from synkhronos._libraries.nutpie import NUTPIE
from synkhronos._libraries.pymc import PYMC
from synkhronos._warnings import log
from synkhronos.pymc._density.nutpie import compiled_soon, data_stay
from synkhronos.pymc._density.step_methods import ModelWithGraph
from synkhronos.pymc._kept.entry import is_fixed, packed, unpacked, with_lengths
from synkhronos.pymc._kept.graphs import Graphs

_KEYED = {"backend", "var_names", "initial_points"}  # arguments of nutpie that a key can have


def kept_model(model: Model) -> KeptModel | None:
    """The model with its graphs; None if nothing is kept on this machine."""
    if (folder := kept_folder()) is None:
        return None
    try:
        with untraced(), rarely_collected():
            return KeptModel(_graphs_of(model, folder), folder)
    except Exception as exc:  # PyMC says what is wrong with a model when it samples it
        log.debug("the model is compiled as it is, and not kept: %s", exc)
        return None


def _graphs_of(model: Model, folder: Folder) -> Graphs:
    if not usable("synkhronos.pymc._kept.written"):
        return Graphs(model)
    from synkhronos.pymc._kept.written import graphs_of

    return graphs_of(model, folder)


class KeptModel:
    """A model that is sampled, and what is kept of it.

    Parameters
    ----------
    graphs : Graphs
    folder : Folder

    Attributes
    ----------
    form : str or None
        The key of the form that its log-density gets. None: its own; empty: one without a key.
    prepare : callable
        Gives it this form. It is called once, before the model is compiled.
    """

    def __init__(self, graphs: Graphs, folder: Folder) -> None:
        self.graphs = graphs
        self.form: str | None = None
        self.prepare: Callable[[], object] = _nothing
        self._folder = folder

    @property
    def model(self) -> Model:
        """The model."""
        return self.graphs.model

    def key(self, what: str, *more: object) -> str:
        """The key of something of this model.

        Raises
        ------
        Unkeyed
        """
        return graph_key([], [], what, self.graphs.key, *more)

    @functools.cached_property
    def _data(self) -> str:
        """The digest of the model's data, which stay while it is sampled."""
        return graph_key([], [], self.graphs.values())

    def recall(self, what: str, *more: object) -> Any:
        """The note on the model with its data; None if there is none."""
        try:
            found = self._folder.read(self.key(what, self._data, *more))
            return None if found is None else json.loads(found)
        except (Unkeyed, ValueError):
            return None

    def note(self, value: object, what: str, *more: object) -> None:
        """Note something of the model with its data."""
        with contextlib.suppress(Unkeyed):
            key = self.key(what, self._data, *more)
            self._folder.write(key, json.dumps(value).encode())

    def assigned(self, assign: Any, step: object, methods: Any) -> Any:
        """As ``assign_step_methods`` of PyMC, which differentiates the log-density."""
        if step is not None or methods is not STEP_METHODS:
            return assign(self.model, step, methods=methods)
        found: list[Any] = [([], {NUTS: list(self.model.value_vars)})]

        def look() -> bool:
            found.append(assign(self.with_graph(), step, methods=methods))
            return bool(found[0] == found[1])

        self.by_nuts(look)
        return found[-1]

    def by_nuts(self, look: Callable[[], bool]) -> bool:
        """Whether `pm.sample` gives all parameters to NUTS; `look` differentiates the model."""
        try:
            key = self.key("nuts")
        except Unkeyed:
            return look()
        if self._folder.read(key) is not None:
            return True
        if found := look():
            self._folder.write(key, b"")
        return found

    def form_of(self, *options: object) -> str:
        """The key of the form that a log-density gets by options; empty if it has none."""
        try:
            return self.key("form", self._data, *options)
        except Unkeyed as exc:
            log.debug("the faster log-density is not kept: %s", exc)
            return ""

    def has(self, form: str) -> bool:
        """Whether the model was compiled with a log-density of this form."""
        return bool(form) and self._folder.read(form) is not None

    @property
    def _is_own(self) -> bool:
        """Whether the model has the log-density that the key is of."""
        return self.form is None and self.graphs.is_current

    def with_graph(self) -> Any:
        """The model, with the graph of its log-density, if that is the one that the key is of."""
        return ModelWithGraph(self.model, self.graphs.value) if self._is_own else self.model

    def compiled(self, compile_model: Callable[..., Any], given: dict[str, Any]) -> Any:
        """The compiled model of nutpie, from the folder if it is there."""
        if given.get("var_names") is not None:  # an iterator is read once
            given = {**given, "var_names": list(given["var_names"])}
        asked = {k: v for k, v in given.items() if v is not None and v is not False}
        others = asked.keys() - _KEYED or asked.get("backend", "numba") != "numba"
        known = not others and bool(self.form or self._is_own)
        key = self._key_of(asked) if known else None
        if key is not None and (found := self._unpacked(key)) is not None:
            return found
        prepare, self.prepare = self.prepare, _nothing
        prepare()
        found = compile_model(self.with_graph() if known else self.model, **given)
        if key is None:
            return found
        try:
            entry = packed(found, self.graphs)
            if is_fixed(found) and self._folder.read(key) is not None:
                key = self._of_lengths(key)
            self._folder.write(key, entry)
            if self.form:
                self._folder.write(self.form, b"")
        except Exception as exc:
            log.debug("the compiled model is not kept: %s", exc)
        return found

    def _unpacked(self, key: str) -> Any:
        """The compiled model of a key, for the lengths of its data; None if there is none."""
        first = None
        for of_lengths in (False, True):
            entry = self._folder.read(self._of_lengths(key) if of_lengths else key)
            if entry is None:
                break
            first = first or entry
            try:
                return unpacked(entry, self.graphs)
            except Exception as exc:  # of another version of PyTensor's operations, such as a wheel
                log.debug("what is kept of the model cannot be loaded: %s", exc)
        return None if first is None else self._with_lengths(key, first)

    def _with_lengths(self, key: str, first: bytes) -> Any:
        """The compiled model of a key, by an entry for other lengths; None if it has no code."""
        try:
            found, entry = with_lengths(first, self.graphs)
        except Exception as exc:
            log.debug("its code is not written for other lengths: %s", exc)
            return None
        if entry is not None:
            self._folder.write(self._of_lengths(key), entry)
        return found

    def _of_lengths(self, key: str) -> str:
        return graph_key([], [], key, [np.shape(value) for value in self.graphs.values()])

    def _key_of(self, asked: dict[str, Any]) -> str | None:
        """The key of the model that nutpie compiles with these arguments; None if it has none."""
        try:
            start = self.graphs.initial_key(asked.get("initial_points"))
            names = sorted(asked["var_names"]) if "var_names" in asked else None
            return self.key("nutpie", self.form, names, start, data_stay.get())
        except Unkeyed as exc:
            log.debug("the compiled model is not kept: %s", exc)
            return None


def _nothing() -> None:
    """The model has its form."""


_led = list[KeptModel]()


@contextlib.contextmanager
def leading(kept: KeptModel | None) -> Iterator[None]:
    """A context in which `pm.sample` gets what is kept of this model; other models are as they are.

    Several threads may be in it at once: the last one to leave restores the functions.
    """
    if kept is None:
        yield
        return
    with compiled_soon(), _lent:  # what comes second is called first
        _led.append(kept)
        try:
            yield
        finally:
            _led.remove(kept)


def _lend() -> Callable[[], None]:
    """Replace functions of PyMC and nutpie; returns what restores them."""
    with contextlib.ExitStack() as undo:
        places: list[tuple[Library, str, Callable[..., Any]]]
        places = [(PYMC, "assign_step_methods", _assigned)]
        if find_spec("nutpie") is not None:
            places.append((NUTPIE, "compile_pymc_model", _compiled))
        for library, name, by in places:
            with optional_gain(), replacing.held():
                function = functools.partial(by, library.get(name))
                undo.callback(library.replace({name: function}))
        return undo.pop_all().close


def _kept_of(model: Model) -> KeptModel | None:
    return next((kept for kept in _led if kept.model is model), None)


def _assigned(assign: Any, model: Model, step: object = None, methods: Any = None) -> Any:
    """As ``assign_step_methods`` of PyMC."""
    return assigned_by(_kept_of(model), assign, model, step, methods)


def _compiled(compile_model: Any, model: Model, **given: Any) -> Any:
    """As ``compile_pymc_model`` of nutpie."""
    return compiled_by(_kept_of(model), compile_model, model, given)


_lent = Replacing(_lend)


def assigned_by(
    kept: KeptModel | None, assign: Any, model: Model, step: object, methods: Any
) -> Any:
    """The step methods of a model, by what is kept of it if anything is."""
    if kept is None:
        return assign(model, step, methods=methods)
    return kept.assigned(assign, step, methods)


def compiled_by(
    kept: KeptModel | None, compile_model: Any, model: Model, given: dict[str, Any]
) -> Any:
    """The compiled model of nutpie, by what is kept of it if anything is."""
    with rarely_collected(), untraced(), without_c((given.get("backend") or "numba").upper()):
        if kept is None:
            return compile_model(model, **given)
        return kept.compiled(compile_model, given)
