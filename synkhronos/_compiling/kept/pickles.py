"""Pickles of the folder, which belongs to the user alone: nothing else is unpickled here."""

from __future__ import annotations

import io
import pickle
from collections.abc import Sequence
from typing import Any

from pytensor.compile.builders import OpFromGraph
from pytensor.graph.basic import Variable
from pytensor.graph.utils import Scratchpad

# what Python raises of a thing that has no pickle
NO_PICKLE = (pickle.PicklingError, AttributeError, TypeError)


def pickled(thing: object, inputs: Sequence[Variable] = ()) -> bytes:
    """A pickle of an object, in which inputs of a graph are numbers.

    Notes of variables about the lines that made them are left out, and those of operations about
    their gradients, which are functions that have no pickle.
    """
    file = io.BytesIO()
    _Pickler(file, inputs).dump(thing)
    return file.getvalue()


def unpickled(data: bytes, inputs: Sequence[Variable] = ()) -> Any:
    """The object, with these inputs."""
    return _Unpickler(data, inputs).load()


class _Pickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO, inputs: Sequence[Variable]) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self._places = {id(v): place for place, v in enumerate(inputs)}

    def persistent_id(self, thing: object) -> int | None:
        return self._places.get(id(thing))

    def reducer_override(self, thing: object) -> Any:
        if isinstance(thing, OpFromGraph):
            return thing.clone_with_inner_graph(thing.fgraph).__reduce_ex__(pickle.HIGHEST_PROTOCOL)
        return (Scratchpad, ()) if isinstance(thing, Scratchpad) else NotImplemented


class _Unpickler(pickle.Unpickler):
    def __init__(self, data: bytes, inputs: Sequence[Variable]) -> None:
        super().__init__(io.BytesIO(data))
        self._inputs = inputs

    def persistent_load(self, place: int) -> Variable:
        return self._inputs[place]
