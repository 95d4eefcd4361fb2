"""The graph that a model was written in, and what is noted by its key.

PyMC takes longer to make a log-density of this graph than what is kept takes to load. So the key of
the log-density is noted by the key of this graph, with the data that the log-density reads. The
note is used only where this graph has all that the log-density follows from
(`synkhronos._compiling.kept.known_code`). All values of data are in its key.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from pymc import Model
from pymc.initial_point import initial_point_rewrites_db
from pymc.logprob.rewriting import (
    cleanup_ir_rewrites_db,
    early_measurable_ir_rewrites_db,
    logprob_rewrites_db,
    measurable_ir_rewrites_db,
    specialization_ir_rewrites_db,
)
from pymc.step_methods import STEP_METHODS
from pytensor.compile.mode import get_mode
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.traversal import ancestors
from pytensor.tensor.type import TensorType

from synkhronos._compiling.data.lifted import Data
from synkhronos._compiling.kept.digests import Unkeyed
from synkhronos._compiling.kept.folder import Folder
from synkhronos._compiling.kept.known_code import KnownCode, refuse_replaced
from synkhronos._compiling.kept.pickles import pickled, unpickled
from synkhronos._libraries.pymc import PYMC
from synkhronos._warnings import log
from synkhronos.pymc._kept.graphs import Graphs, Noted

# Where PyMC looks for what it does with a class; of a CustomDist it is what the user gives
_OF_CLASSES = ("_support_point", "_logprob", "_logcdf", "_logccdf", "_icdf")
REGISTRIES = tuple(PYMC.get(name) for name in _OF_CLASSES)
_DATABASES = (
    *(logprob_rewrites_db, early_measurable_ir_rewrites_db, measurable_ir_rewrites_db),
    *(specialization_ir_rewrites_db, cleanup_ir_rewrites_db, initial_point_rewrites_db),
)
# The functions that make a log-density, and the start of a chain, are of modules in these
_MODULES = (
    *("pymc.dims", "pymc.distributions", "pymc.initial_point", "pymc.logprob", "pymc.math"),
    *("pymc.model.core", "pymc.pytensorf", "pymc.variational.minibatch_rv"),
)
_TAG = "lower_triangular"  # a note of variables that PyTensor's rewrites read


def graphs_of(model: Model, folder: Folder) -> Graphs:
    """The graphs of a model. Those with a note are made when they are asked for, if ever."""
    try:
        written = Written(model)
    except Exception as exc:  # PyMC says what is wrong with a model when it makes the log-density
        log.debug("the log-density is made to find what is kept of it: %s", exc)
        return Graphs(model)
    if (note := folder.read(written.key)) is not None:
        try:
            return Graphs(model, written.read(note))
        except Exception as exc:  # of another version
            log.debug("the note on the model cannot be read: %s", exc)
    made = Graphs(model)
    try:
        folder.write(written.key, written.note(made))
    except Exception as exc:
        log.debug("the key of the log-density is not noted: %s", exc)
    return made


# data of a log-density: the place of the model's own; or of an array the dtype, the lengths that
# its type has, the name, and its digest if the model has it, or else itself
type Source = int | tuple[str, tuple[int | None, ...], str, bytes | np.ndarray]


class Written:
    """The graph that a model was written in.

    Attributes
    ----------
    key : str
        Equal in every process for models with the same graph and data, and for no others whose
        log-density, Deterministics or start differ.

    Raises
    ------
    Unkeyed
        Code of others has a part in the log-density, the data are large, or the graph has no key.
    """

    def __init__(self, model: Model) -> None:
        _refuse_changed(model)
        values = list(model.rvs_to_values.values())
        every = [*model.rvs_to_values, *values, *model.potentials, *model.deterministics]
        self._contents = KnownCode()
        more = (
            [list(model.rvs_to_values.items()), list(model.values_to_rvs.items())],
            [model.free_RVs, model.observed_RVs, model.potentials, model.deterministics],
            [list(model.rvs_to_transforms.items()), list(model.rvs_to_initial_values.items())],
            [model.name, model.check_bounds, [v.name for v in values]],
            [getattr(v.tag, _TAG, None) for v in ancestors(every)],
            [list(STEP_METHODS), get_mode("NUMBA")],
        )
        self.key = self._contents.key(model.value_vars, every, more, REGISTRIES, _DATABASES)

    def note(self, graphs: Graphs) -> bytes:
        """The note on the graphs of the log-density of this model.

        Raises
        ------
        Unkeyed
            They have no key, or read other data than the model has.
        """
        sources = [self._source(v) for v in graphs.shared]
        made = pickled((graphs.key, graphs.initial_key(None), sources))
        again = self.read(made).shared
        if len(again) != len(graphs.shared) or not all(map(_are_equal, again, graphs.shared)):
            raise Unkeyed("a note on its data would not be equal to them")
        return made

    def read(self, note: bytes) -> Noted:
        """The contents of a note on this model."""
        key, start, sources = unpickled(note)
        return Noted(key, start, [self._data(source) for source in sources])

    def _source(self, shared: SharedVariable) -> Source:
        kind: Any = shared.type
        value = shared.get_value(borrow=True)
        if isinstance(shared, Data):
            known = self._contents.digest_of(value)
            return kind.dtype, kind.shape, str(shared.name), value if known is None else known
        if (place := self._contents.place(shared)) < 0:
            raise Unkeyed(f"{shared} is not of the graph that the model was written in")
        return place

    def _data(self, source: Source) -> SharedVariable:
        if isinstance(source, int):
            return self._contents.shared[source]
        dtype, shape, name, value = source
        array = self._contents.arrays[value] if isinstance(value, bytes) else value
        whole = np.ascontiguousarray(array).reshape(array.shape)
        return Data(TensorType(dtype, shape), whole, strict=True, name=name)


def _refuse_changed(model: Model) -> None:
    """Raise if a model, or PyMC, may make a log-density in another way than the files of PyMC say.

    Raises
    ------
    Unkeyed
    """
    if type(model) is not Model or model.parent is not None:
        raise Unkeyed("it is of another class than pymc.Model, or has a parent")
    if replaced := vars(model).keys() & set(dir(Model)):
        raise Unkeyed(f"its {', '.join(sorted(replaced))} is its own")
    names = [name for name in sys.modules if name.startswith("pymc.")]
    refuse_replaced([sys.modules[name] for name in names if name.startswith(_MODULES)])


def _are_equal(one: SharedVariable, other: SharedVariable) -> bool:
    if not isinstance(one, Data) or not isinstance(other, Data):
        return one is other
    values = [v.get_value(borrow=True) for v in (one, other)]
    found = {(v.dtype.str, v.shape, v.tobytes()) for v in values}
    return one.type == other.type and one.name == other.name and len(found) == 1
