"""The graphs that groups compile in mode NUMBA, without numba: it compiles each for seconds."""

from typing import Any

import pytensor
import pytest
from pytensor.compile.mode import Mode, get_mode
from pytensor.link.numba.linker import NumbaLinker
from selection import thorough

from synkhronos._compiling.data.once import values_of
from synkhronos._compiling.lean.closed import ClosedLinker
from synkhronos._compiling.lean.mode import lean, with_lean


def rewritten(inputs: Any, outputs: Any) -> Any:
    """The function of such a graph, whose operations run in Python."""
    rewrites = lean("NUMBA").provided_optimizer.including(*NumbaLinker.required_rewrites)
    # PyTensor's reciprocal of one number, in Python, has float32's precision
    left_out = (*NumbaLinker.incompatible_rewrites, "local_div_to_reciprocal")
    mode = Mode("py", rewrites.excluding(*left_out))
    return pytensor.function(inputs, outputs, mode=mode, on_unused_input="ignore")


def compiled(inputs: Any, outputs: Any) -> Any:
    """The function of such a graph, in machine code."""
    return pytensor.function(inputs, outputs, mode=lean("NUMBA"), on_unused_input="ignore")


class CompiledWithData:
    """The function of a graph with `Data`, in machine code that takes them, as nutpie calls it."""

    def __init__(self, inputs: Any, outputs: Any) -> None:
        mode = with_lean(Mode(ClosedLinker(), get_mode("NUMBA").provided_optimizer))
        function = pytensor.function(inputs, outputs, mode=mode, on_unused_input="ignore")
        self.maker, self._code = function.maker, function.vm.jit_fn
        self._data = values_of(self.maker.linker.arguments[len(inputs) :])

    def __call__(self, *values: Any) -> Any:
        return self._code(*values, *self._data)


in_python = pytest.mark.parametrize("made", [rewritten, *thorough(compiled)])
