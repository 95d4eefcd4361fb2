"""Which option says the rows of a step: batch, or member_batch where members step by themselves."""

from __future__ import annotations

from typing import Any, NamedTuple

from synkhronos.rules._base import Rule


class StepRows(NamedTuple):
    """The rows of a step, and the option that names them.

    Attributes
    ----------
    name : str
        The option that counts.
    rows : object
        Its value.
    other : str
        The other option.
    refused : object
        Its value, which must be None.
    """

    name: str
    rows: Any
    other: str
    refused: Any


def step_rows(rule: Rule | None, batch: Any, member_batch: Any) -> StepRows:
    """The rows of a step of members that train by a rule; None: together."""
    if rule is None or rule.counts_batches_by == "group":
        return StepRows("batch", batch, "member_batch", member_batch)
    return StepRows("member_batch", member_batch, "batch", batch)
