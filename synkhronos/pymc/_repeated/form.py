"""How a sum over rows is computed; by itself the form that changes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from pytensor.graph.basic import Variable

from synkhronos.pymc._repeated.indices import Indices


@dataclass
class Form:
    """A sum over rows as a sum over other rows."""

    places: list[Variable]  # the placeholders of data with these rows
    whole: list[Variable]  # the placeholders of data that each row needs whole
    total: Variable  # the sum over the rows
    holds: Variable  # whether all checks of parameters hold
    left: int  # the number of these rows, for the data that the form was made for
    cost: float  # the time of the sum, in that of a row without products
    # the indices by row, which are checked before rows are joined
    indices: Indices | None = field(default=None, kw_only=True)
    # the number of rows that these stand for; None: the user's rows
    instead_of: int | None = field(default=None, kw_only=True)

    def arrays(
        self, rowed: Sequence[np.ndarray], whole: Sequence[np.ndarray]
    ) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """The data for `places` and for `whole`, from all of the user's rows."""
        return list(rowed), list(whole)

    @property
    def described(self) -> str:
        """A phrase on the rows; empty if they are the user's."""
        return ""
