"""Values that PyTensor does not take as they are: what they are, and what to pass instead."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Set

import numpy as np


def is_masked(value: object) -> bool:
    """Whether it is a masked array that hides elements: an array of numbers would show them."""
    if not isinstance(value, np.ndarray) or type(value) is np.ndarray:
        return False
    return bool(np.any(getattr(value, "mask", False)))


def aligned(value: object) -> object:
    """An array whose elements lie where processors read them; PyTensor refuses others.

    Records after a header have such elements, as in ``np.frombuffer(raw, offset=1)``.
    """
    if isinstance(value, np.ndarray) and not value.flags.aligned:
        return np.require(value, requirements="A")
    return value


def why_unusable(value: object) -> str:
    """The fault of a value, and its cure; empty if it may be an array of numbers."""
    given = value
    if isinstance(value, list | tuple):
        with contextlib.suppress(ValueError):  # a ragged one
            given = np.asarray(value)
    kind = getattr(getattr(given, "dtype", None), "kind", "")
    if hasattr(value, "tocsr"):
        return "it is a sparse matrix, whose rows are not divided: pass value.toarray()"
    if is_masked(value):
        return (
            "it is a masked array, and members would compute with what its mask hides: pass "
            "value.filled(...), or the mask as an input of its own"
        )
    if isinstance(value, Iterator):
        return (
            f"it is a {type(value).__name__}, which can be read only once: pass np.array(list(it))"
        )
    if isinstance(value, Mapping | Set):
        return f"it is a {type(value).__name__}, and not an array: pass its values as arrays"
    if isinstance(value, str | bytes) or kind in ("U", "S", "T"):
        return "it is text, and not numbers: encode it by numbers"
    if kind == "O":
        return "it holds objects (dtype object), and not numbers: convert it with astype"
    return ""
