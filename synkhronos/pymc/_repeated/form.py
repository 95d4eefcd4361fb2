"""How a sum over rows is computed; by itself the form that changes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from pytensor.graph.basic import Variable

from synkhronos.pymc._repeated.indices import Indices


@dataclass
class Form:
    """A sum over rows as a sum over other rows.

    Attributes
    ----------
    places : list of Variable
        The placeholders of data with these rows.
    whole : list of Variable
        The placeholders of data that each row needs whole.
    total : Variable
        The sum over the rows.
    holds : Variable, or None
        Whether all checks of parameters hold.
    left : int
        The number of these rows, for the data that the form was made for.
    cost : float
        The time of the sum, in that of one of the user's rows.
    indices : Indices, or None
        The indices by row, which are checked before rows are joined.
    """

    places: list[Variable]
    whole: list[Variable]
    total: Variable
    holds: Variable
    left: int
    cost: float
    indices: Indices | None = field(default=None, kw_only=True)

    def arrays(
        self, rowed: Sequence[np.ndarray], whole: Sequence[np.ndarray]
    ) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """The data for `places` and for `whole`, from all of the user's rows."""
        return list(rowed), list(whole)

    @property
    def described(self) -> str:
        """A phrase on the rows; empty if they are the user's."""
        return ""
