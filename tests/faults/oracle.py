"""What groups, functions and collectives should hold and answer: a model in plain numpy.

Values are small integers and simple fractions of them, so that sums are exact and a rounded
average is never a matter of the last bit.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytensor.tensor as pt
from modes import FAST
from pytensor.raise_op import Assert

import synkhronos as synk

FIXED = ("w", "acc", "count", "top")  # functions depend on their shapes
FREE = ("m", "k", "u", "z", "big")
NAMES = FIXED + FREE
WIDTH = 3

Array = np.ndarray
Changes = dict[str, tuple[list[Array], bool]]  # each member's new value; whether they may differ


def start_value(name: str, seed: int) -> Array:
    """A value that the variable may be given."""
    draw = np.random.default_rng(seed)
    shapes: dict[str, tuple[tuple[int, ...], str]] = {
        "w": ((WIDTH,), "float64"),
        "acc": ((WIDTH,), "float64"),
        "count": ((), "int64"),
        "top": ((), "float64"),
        "m": ((seed % 6, 2), "float32"),
        "k": ((seed % 9,), "int64"),
        "u": ((seed % 5 + 1,), "uint8"),
        "z": ((seed % 4, 2), "complex128"),
        "big": ((9_000 + seed,), "float64"),  # reduced in chunks by all members
    }
    shape, dtype = shapes[name]
    value = draw.integers(0, 9, shape).astype(dtype)
    return np.asarray(value + 1j * draw.integers(0, 9, shape) if dtype == "complex128" else value)


@dataclass
class Crew:
    """What the members of one group hold.

    Attributes
    ----------
    masters : dict
        The master's values, which all groups have in common.
    own : dict of list
        For variables whose values were made to differ, each member's (not the master's).
    """

    size: int
    master: int
    masters: dict[str, Array]
    own: dict[str, list[Array]] = field(default_factory=dict)

    def differs(self, name: str) -> bool:
        return name in self.own

    def value(self, name: str, rank: int) -> Array:
        mine = rank == self.master or name not in self.own
        return self.masters[name] if mine else self.own[name][rank]

    def values(self, name: str) -> list[Array]:
        return [self.value(name, rank) for rank in range(self.size)]

    def alike(self, name: str, value: Array) -> None:
        """All members get a value."""
        self.masters[name] = value
        self.own.pop(name, None)

    def each(self, name: str, values: Sequence[Array]) -> None:
        """Every member gets one of its own."""
        self.masters[name] = values[self.master]
        if self.size > 1:
            self.own[name] = list(values)

    def take(self, changes: Changes) -> None:
        for name, (values, differ) in changes.items():
            if differ:
                self.each(name, values)
            else:
                self.alike(name, values[self.master])

    def parts(self, rows: Array) -> list[Array]:
        """Each member's rows; numpy's rule is the package's: the first parts are the larger."""
        return np.array_split(rows, self.size)

    def working(self, parts: Sequence[Array]) -> list[int]:
        """The ranks with rows; the master where nobody has any."""
        return [r for r, p in enumerate(parts) if len(p)] or [self.master]


def reduced(values: Sequence[Array], op: str, weights: Sequence[float] | None = None) -> Array:
    """The values of all members combined, in the variable's dtype."""
    dtype = values[0].dtype
    if op == "avg":
        given = [1.0] * len(values) if weights is None else list(weights)
        wide = np.float64 if dtype.kind in "iu" else dtype
        total = sum(v.astype(wide) * (g / sum(given)) for v, g in zip(values, given, strict=True))
        return np.asarray(np.rint(total) if dtype.kind in "iu" else total).astype(dtype)
    ufuncs = {"sum": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum}
    return np.asarray(functools.reduce(ufuncs[op], values)).astype(dtype)


def same(found: Any, wanted: Any) -> bool:
    """Equal in shape and dtype, and in value up to rounding."""
    a, b = np.asarray(found), np.asarray(wanted)
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if np.array_equal(a, b):
        return True
    loose = 1e-4 if a.dtype == np.float32 else 1e-8
    return a.dtype.kind in "fc" and bool(np.allclose(a, b, rtol=loose, atol=loose))


class Raises(Exception):
    """The call should raise in these ranks."""

    def __init__(self, ranks: list[int]) -> None:
        super().__init__(ranks)
        self.ranks = ranks


@dataclass(frozen=True)
class Job:
    """A function, and what it should answer and change.

    Attributes
    ----------
    make : callable
        Of the shared variables by name: the function.
    expect : callable
        Of a crew, the selected rows and each member's part: outputs and changes; or it raises.
    kind : str
        Which Data it takes.
    least : int
        Fewest rows that it is defined for.
    more : tuple
        Its other arguments.
    """

    make: Callable[[dict[str, Any]], synk.Function]
    expect: Callable[[Crew, Array, list[Array]], tuple[list[Any], Changes]]
    kind: str = "table"
    least: int = 0
    more: tuple[float, ...] = ()


X = pt.matrix("x", dtype="float64")
V = pt.vector("v", dtype="int64")
C = pt.scalar("c", dtype="float64")
FACTOR = 2.0  # what is given for it


def make_sums(v: dict[str, Any]) -> synk.Function:
    outputs = [X.sum(), (X @ v["w"], "gather"), C * X.sum(axis=0), v["w"] + 1]
    return synk.function([X], outputs, bcast_inputs=[C], mode=FAST)


def expect_sums(crew: Crew, rows: Array, parts: list[Array]) -> tuple[list[Any], Changes]:
    work = crew.working(parts)
    gathered = np.concatenate([parts[r] @ crew.value("w", r) for r in work])
    shifted = crew.masters["w"] + 1
    if crew.differs("w"):
        weights = [len(parts[r]) for r in work] if len(rows) else None
        shifted = reduced([crew.value("w", r) + 1 for r in work], "avg", weights)
    return [rows.sum(), gathered, FACTOR * rows.sum(axis=0), shifted], {}


def make_means(v: dict[str, Any]) -> synk.Function:
    outputs = [X.mean(axis=0), X.max(), ((X * v["w"]).sum(axis=1).mean(), "avg")]
    return synk.function([X], outputs, mode=FAST)


def expect_means(crew: Crew, rows: Array, parts: list[Array]) -> tuple[list[Any], Changes]:
    weighted = sum((p * crew.value("w", r)).sum() for r, p in enumerate(parts))
    return [rows.mean(axis=0), rows.max(), np.asarray(weighted / len(rows))], {}


def make_local(v: dict[str, Any]) -> synk.Function:
    changes = [(v["acc"], v["acc"] + X.sum(axis=0), None, "local"), (v["count"], v["count"] + 1)]
    return synk.function([X], X.sum(), updates=changes, mode=FAST)


def counted(crew: Crew) -> Changes:
    return {"count": ([v + 1 for v in crew.values("count")], crew.differs("count"))}


def expect_local(crew: Crew, rows: Array, parts: list[Array]) -> tuple[list[Any], Changes]:
    sums = [v + p.sum(axis=0) for v, p in zip(crew.values("acc"), parts, strict=True)]
    return [rows.sum()], {"acc": (sums, True), **counted(crew)}


def make_everywhere(v: dict[str, Any]) -> synk.Function:
    changes = [
        (v["w"], (X * v["w"]).mean(axis=0) / 4, "avg", "all"),
        (v["top"], X.max(), "max", "all"),
    ]
    return synk.function([X], X.sum(), updates=changes, mode=FAST)


def expect_everywhere(crew: Crew, rows: Array, parts: list[Array]) -> tuple[list[Any], Changes]:
    sums = [(p * crew.value("w", r)).sum(axis=0) for r, p in enumerate(parts)]
    new = np.asarray(sum(sums) / len(rows) / 4)
    return [rows.sum()], {
        "w": ([new] * crew.size, False),
        "top": ([rows.max()] * crew.size, False),
    }


def make_checked(v: dict[str, Any]) -> synk.Function:
    whole = Assert("negative")(X, (X >= 0).all())
    changes = [(v["acc"], v["acc"] - 1), (v["count"], v["count"] + 1)]
    return synk.function([X], (whole.sum(), "sum"), updates=changes, mode=FAST)


def expect_checked(crew: Crew, rows: Array, parts: list[Array]) -> tuple[list[Any], Changes]:
    bad = [r for r, p in enumerate(parts) if (p < 0).any()]
    if bad:
        raise Raises(bad)
    less = [v - 1 for v in crew.values("acc")]
    return [rows.sum()], {"acc": (less, crew.differs("acc")), **counted(crew)}


def make_integers(v: dict[str, Any]) -> synk.Function:
    return synk.function([V], [V.sum(), (V, "gather"), V.mean()], mode=FAST)


def expect_integers(crew: Crew, rows: Array, parts: list[Array]) -> tuple[list[Any], Changes]:
    return [rows.sum(), rows, rows.mean()], {}


def make_rows(v: dict[str, Any]) -> synk.Function:
    m = v["m"]
    return synk.function([], (m.sum(axis=0), "sum"), sliceable_shareds=[m], mode=FAST)


JOBS = {
    "sums": Job(make_sums, expect_sums, more=(FACTOR,)),
    "means": Job(make_means, expect_means, least=1),
    "local": Job(make_local, expect_local),
    "everywhere": Job(make_everywhere, expect_everywhere, least=1),
    "checked": Job(make_checked, expect_checked),
    "integers": Job(make_integers, expect_integers, kind="integers", least=1),
}

# Data by the name of a kind: shape behind the rows, dtype
DATA: dict[str, tuple[tuple[int, ...] | None, str]] = {
    "table": ((WIDTH,), "float64"),
    "integers": ((), "int64"),
    "bytes": ((2,), "uint8"),
    "flags": ((), "bool"),
    "pairs": ((2, 1), "float32"),
    "waves": ((), "complex128"),
    "scalar": (None, "float64"),
}


def rows_of(kind: str, length: int, seed: int) -> Array:
    """Contents for Data of a kind."""
    tail, dtype = DATA[kind]
    shape = () if tail is None else (length, *tail)
    low = 0 if dtype == "uint8" or seed % 3 else -4  # now and then a row is negative
    return np.asarray(np.random.default_rng(seed).integers(low, 5, shape)).astype(dtype)


def make_echo(kind: str) -> synk.Function:
    """What members read in Data of a kind."""
    tail, dtype = DATA[kind]
    x = pt.tensor("x", dtype=dtype, shape=(None,) * (1 + len(tail or ())))
    return synk.function([x], (x, "gather"), mode=FAST)
