"""Where a step of PyTensor's `Scan` reads and writes: order of arguments, and rows of buffers."""

from __future__ import annotations

from typing import Literal, NamedTuple

from pytensor.scan.op import ScanInfo

# "row": of a sequence. "tap": of a buffer that has earlier steps too. "carried": the last value
# alone. "whole": the same in each step.
type Kind = Literal["row", "tap", "carried", "whole"]


class Place(NamedTuple):
    """The place of an inner input or of an inner output.

    Attributes
    ----------
    kind : Kind
    outer : int
        The outer input.
    offset : int
        Of a tap: the row of the buffer in step 0.
    """

    kind: Kind
    outer: int
    offset: int = 0


class Read(NamedTuple):
    """A number that a step reads.

    Attributes
    ----------
    source : int
        The inner input of the scan; what follows the inner inputs are tables.
    where : tuple of int or tuple of int
        The index of the element. A tuple has a position among the step's inputs: that of the
        number that tells it.
    """

    source: int
    where: tuple[int | tuple[int], ...]


class Buffer(NamedTuple):
    """Rows that a scan writes.

    Attributes
    ----------
    outer : int
        The outer input: its first rows, or its number of rows if there are none.
    ends : int or None
        The rows after the last step, less the number of steps. None: rows are not moved.
    is_new : bool
        Whether the input is a number of rows.
    """

    outer: int
    ends: int | None
    is_new: bool


def read_places(info: ScanInfo) -> list[Place]:
    """The places of the inner inputs."""
    found = [Place("row", 1 + at) for at in range(info.n_seqs)]
    outer = 1 + info.n_seqs
    for taps in _taps(info):
        found += [Place("tap", outer, tap + _before(taps)) for tap in taps]
        outer += 1
    found += [Place("carried", outer + at) for at in range(info.n_untraced_sit_sot)]
    outer += info.n_untraced_sit_sot + info.n_nit_sot
    return found + [Place("whole", outer + at) for at in range(info.n_non_seqs)]


def written_places(info: ScanInfo) -> list[Place]:
    """The places of the inner outputs, without a condition."""
    found, outer = [], 1 + info.n_seqs
    for taps, written in zip(info.mit_mot_in_slices, info.mit_mot_out_slices, strict=True):
        found += [Place("tap", outer, tap + _before(taps)) for tap in written]
        outer += 1
    for taps in (*info.mit_sot_in_slices, *info.sit_sot_in_slices):
        found.append(Place("tap", outer, _before(taps)))
        outer += 1
    new = outer + info.n_untraced_sit_sot  # the inputs have the two in another order
    found += [Place("tap", new + at) for at in range(info.n_nit_sot)]
    return found + [Place("carried", outer + at) for at in range(info.n_untraced_sit_sot)]


def buffers(info: ScanInfo) -> list[Buffer]:
    """The buffers, in the order of the outputs."""
    first = 1 + info.n_seqs
    found = []
    for at, taps in enumerate(_taps(info)):
        is_moved = at >= len(info.mit_mot_in_slices)
        found.append(Buffer(first + at, _before(taps) if is_moved else None, False))
    first += len(found) + info.n_untraced_sit_sot
    return found + [Buffer(first + at, 0, True) for at in range(info.n_nit_sot)]


def _taps(info: ScanInfo) -> list[tuple[int, ...]]:
    return [*info.mit_mot_in_slices, *info.mit_sot_in_slices, *info.sit_sot_in_slices]


def _before(taps: tuple[int, ...]) -> int:
    """The rows of a buffer before that of step 0."""
    return -min(0, *taps)
