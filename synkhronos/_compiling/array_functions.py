"""Functions of arrays, for operations of which PyTensor has a function of one number only."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np

_LOG_HALF = float(np.log(0.5))


def softplus(x: np.ndarray) -> Any:
    """log(1 + exp(x)).

    >>> softplus(np.array([-800.0, 0.0, 800.0])).round(6).tolist()
    [0.0, 0.693147, 800.0]
    """
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


def log1mexp(x: np.ndarray) -> Any:
    """log(1 - exp(x)), for x below 0.

    >>> log1mexp(np.array([-800.0, -0.1])).round(6).tolist()
    [-0.0, -2.352168]
    """
    return np.where(x < _LOG_HALF, np.log1p(-np.exp(x)), np.log(-np.expm1(x)))


def clip(x: np.ndarray, low: np.ndarray, high: np.ndarray) -> Any:
    """The values between two limits; the lower one counts where it is above the other.

    >>> clip(np.array([0.0, 2.0, 9.0]), 1.0, 3.0).tolist()
    [1.0, 2.0, 3.0]
    """
    return np.where(x < low, low, np.where(x > high, high, x))


def trigamma(x: np.ndarray) -> Any:
    """The second derivative of the logarithm of the gamma function.

    >>> trigamma(np.array([1.0])).round(6).tolist()
    [1.644934]
    """
    return importlib.import_module("scipy.special").polygamma(1, x)
