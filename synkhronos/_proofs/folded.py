"""The Ops that treat the entries of an axis alike, also of rows folded with another axis."""

from __future__ import annotations

from pytensor.compile.ops import DeepCopyOp, ViewOp
from pytensor.graph.op import Op
from pytensor.tensor.blas import BatchedDot
from pytensor.tensor.blockwise import Blockwise
from pytensor.tensor.elemwise import CAReduce, DimShuffle, Elemwise
from pytensor.tensor.math import Argmax, Dot
from pytensor.tensor.shape import Shape, Shape_i
from pytensor.tensor.subtensor import (
    AdvancedIncSubtensor,
    AdvancedSubtensor,
    IncSubtensor,
    Subtensor,
)

from synkhronos._proofs.walk import takes_folded


@takes_folded.register(ViewOp)
@takes_folded.register(DeepCopyOp)
@takes_folded.register(Elemwise)
@takes_folded.register(CAReduce)
@takes_folded.register(Argmax)
@takes_folded.register(DimShuffle)
@takes_folded.register(Dot)
@takes_folded.register(BatchedDot)
@takes_folded.register(Blockwise)
@takes_folded.register(Shape)
@takes_folded.register(Shape_i)
@takes_folded.register(Subtensor)
@takes_folded.register(AdvancedSubtensor)
@takes_folded.register(IncSubtensor)
@takes_folded.register(AdvancedIncSubtensor)
def _alike(op: Op) -> bool:
    return True
