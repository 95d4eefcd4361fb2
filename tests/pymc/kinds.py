"""A kind of model, and what becomes of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pymc as pm

N = 61  # rows: odd, so that parts differ


@dataclass(frozen=True)
class Kind:
    """A model, and what becomes of it.

    Attributes
    ----------
    make : callable
    reason : str
        Part of the message that refuses it; empty if it is divided.
    dim : str, optional
        The dimension to divide.
    names : tuple of str
        The terms that are divided, if these are not all observed variables.
    row_wise : tuple
        What is declared to keep rows apart.
    rtol : float
        Allowed relative difference of gradients; more than rounding if an ill-conditioned
        Cholesky factor amplifies it.
    """

    make: Callable[[], pm.Model]
    reason: str = ""
    dim: str | None = None
    names: tuple[str, ...] = ()
    row_wise: tuple[str, ...] = ()
    rtol: float = 1e-8


def rng() -> np.random.Generator:
    return np.random.default_rng(20161104)
