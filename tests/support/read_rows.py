"""Rows that are read in batches, such as those of a file."""

from __future__ import annotations

from typing import Any

import numpy as np


class Source:
    """The rows of an array, as a source."""

    def __init__(self, rows: np.ndarray) -> None:
        self._rows = rows
        self.shape, self.dtype = rows.shape, rows.dtype

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, rows: Any) -> np.ndarray:
        return self._rows[rows]
