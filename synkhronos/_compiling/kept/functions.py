"""Functions of PyTensor that this machine has made before: no rewriting, and no compiling.

An entry has the rewritten graph of a function, and the machine code that numba has made of it. Its
key is that of the graph before its rewriting. Values of shared variables are in neither of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytensor
from pytensor.compile.aliasing import DestroyHandler
from pytensor.compile.io import SymbolicInput, SymbolicOutput
from pytensor.compile.maker import FunctionMaker
from pytensor.compile.mode import Mode
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.rewriting.basic import copy_stack_trace

from synkhronos._compiling.kept.digests import Unkeyed
from synkhronos._compiling.kept.folder import Folder, kept_folder
from synkhronos._compiling.kept.image import NotLoadable
from synkhronos._compiling.kept.keys import graph_key
from synkhronos._compiling.kept.machine_code import PythonCode, code_of, first_of
from synkhronos._compiling.kept.pickles import pickled, unpickled
from synkhronos._libraries.library import Replacing, optional_gain
from synkhronos._libraries.numba import NUMBA
from synkhronos._libraries.pytensor import PYTENSOR
from synkhronos._warnings import log

_MOST_CODES = 8  # of one function, each for other types of arguments
_MOST_OPERANDS = 1024  # of a fused loop, as PyTensor's own for C code
_OPERANDS = "elemwise_max_operands_fct"


def _lift_limit() -> Callable[[], None]:
    """Let PyTensor fuse loops with many operands; returns what restores its limit."""
    own = PYTENSOR.get(_OPERANDS)

    def most(node: object) -> int:
        return _MOST_OPERANDS if _many_operands.is_here else own(node)

    return PYTENSOR.replace({_OPERANDS: most})


# A context in which loops of numba are fused that have more than 32 operands, as many as numpy's
# functions take. Without a C compiler, PyTensor fuses nothing of such a loop.
_many_operands = Replacing(_lift_limit)


class KeptMode(Mode):
    """A mode whose functions are kept."""

    @property
    def function_maker(self) -> type[FunctionMaker]:
        """The class that makes them."""
        return KeptMaker


class KeptMaker(FunctionMaker):
    """Makes a function of what is kept, or keeps what it makes.

    Its linker gets what is kept as its attribute `kept`.
    """

    kept: KeptFunction | None = None

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self.linker.kept = self.kept

    def prepare_fgraph(  # type: ignore[override]
        self,
        inputs: Sequence[SymbolicInput],
        outputs: Sequence[SymbolicOutput],
        additional_outputs: Sequence[SymbolicOutput],
        fgraph: FunctionGraph,
        mode: Mode,
        profile: object,
    ) -> None:
        """Rewrite the graph, unless the rewritten one is kept."""
        plain = not profile and type(fgraph) is FunctionGraph
        self.kept = (
            _kept_of(fgraph, inputs, [*outputs, *additional_outputs], mode) if plain else None
        )
        if self.kept is not None and self.kept.restore(fgraph):
            return
        with _many_operands:
            super().prepare_fgraph(inputs, outputs, additional_outputs, fgraph, mode, profile)
        if self.kept is not None:
            self.kept.note_graph(fgraph)


def _kept_of(
    fgraph: FunctionGraph,
    inputs: Sequence[SymbolicInput],
    outputs: Sequence[SymbolicOutput],
    mode: Mode,
) -> KeptFunction | None:
    """Find what is kept, or will be, of a graph before its rewriting; None if it has no key."""
    if (folder := kept_folder()) is None:
        return None
    options = [
        [(each.mutable, getattr(each, "borrow", None)) for each in inputs],
        [each.borrow for each in outputs],
        fgraph.update_mapping,
        pytensor.config.cxx,  # some of PyTensor's rewrites look whether there is a compiler
    ]
    try:
        key = graph_key(fgraph.inputs, fgraph.outputs, mode, options)
    except Unkeyed as exc:
        log.debug("a function is not kept: %s", exc)
        return None
    return KeptFunction(folder, key)


class KeptFunction:
    """The rewritten graph and the machine code of one function.

    Attributes
    ----------
    codes : list of PythonCode
        Machine code, each for other types of arguments.
    """

    def __init__(self, folder: Folder, key: str) -> None:
        self._folder, self._key = folder, key
        self._graph: bytes | None = None
        self.codes: list[PythonCode] = []

    def restore(self, fgraph: FunctionGraph) -> bool:
        """Give a graph the outputs that it was rewritten to; False if they are not kept."""
        if (entry := self._folder.read(self._key)) is None:
            return False
        try:
            self._graph, self.codes = unpickled(entry)
            outputs = unpickled(self._graph, fgraph.inputs)
        except Exception as exc:  # such as an operation whose module is gone
            log.debug("%s is not used: %s", self._key, exc)
            self._graph, self.codes = None, []
            return False
        before = list(fgraph.outputs)
        fgraph.attach_feature(DestroyHandler())
        for place, new in enumerate(outputs):
            copy_stack_trace(before[place], new)
            fgraph.change_node_input(*fgraph.get_output_client(place), new)
        return True

    def note_graph(self, fgraph: FunctionGraph) -> None:
        """Keep a rewritten graph, unless its order has been made exact, which no pickle has."""
        handler: DestroyHandler | None = getattr(fgraph, "destroy_handler", None)
        if fgraph.orderings() != ({} if handler is None else handler.orderings(fgraph)):
            return
        try:
            self._graph = pickled(list(fgraph.outputs), fgraph.inputs)
        except Exception as exc:  # whatever the pickling of an operation raises
            log.debug("a function is not kept: %s", exc)
            return
        self._write()

    def note_code(self, payload: object) -> None:
        """Keep machine code, as numba writes it to its cache."""
        if self._graph is None or len(self.codes) >= _MOST_CODES:
            return
        try:
            self.codes.append(code_of(payload))
        except NotLoadable as exc:
            log.debug("machine code of a function is not kept: %s", exc)
            return
        self._write()

    def _write(self) -> None:
        self._folder.write(self._key, pickled((self._graph, self.codes)))

    def function(self, other: Callable[..., object]) -> Callable[..., object] | None:
        """A function of the machine code, which calls another one with other types of arguments."""
        if not self.codes:
            return None
        try:
            return first_of(self.codes, other)
        except NotLoadable as exc:
            log.debug("machine code of a function is not used: %s", exc)
            return None

    def watch(self, dispatcher: object) -> None:
        """Keep the machine code that a function of numba gets, compiled or from numba's cache."""
        with optional_gain():
            cache = NUMBA.of(dispatcher, "_cache")
            if isinstance(cache, NUMBA.get("NullCache")):
                return
            form = NUMBA.of(cache, "_impl")
            rebuild, reduce_ = form.rebuild, form.reduce

            def rebuilt(context: object, payload: object) -> object:
                self.note_code(payload)
                return rebuild(context, payload)

            def reduced(result: object) -> object:
                payload = reduce_(result)
                self.note_code(payload)
                return payload

            form.rebuild, form.reduce = rebuilt, reduced
