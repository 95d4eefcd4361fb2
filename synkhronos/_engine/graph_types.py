"""Types of what users give for graphs, for which PyTensor has no names."""

from __future__ import annotations

from collections.abc import Sequence

from pytensor.compile.mode import Mode
from pytensor.graph.basic import Variable

type ModeLike = Mode | str | None  # of a compilation; None: PyTensor's default
type Variables = Variable | Sequence[Variable]
type Output = Variable | tuple[Variable, str | None]  # with its reduction
