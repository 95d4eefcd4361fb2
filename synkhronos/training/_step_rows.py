"""Which option says the rows of a step: batch, or member_batch where members step by themselves."""

from __future__ import annotations

from typing import Any

from synkhronos.rules._base import Rule

Option = tuple[str, Any]  # its name and its value


def step_rows(rule: Rule | None, batch: object, member_batch: object) -> tuple[Option, Option]:
    """The option that says the rows of a step, and the one that must be None.

    Without a rule members step together.
    """
    of_group, of_member = ("batch", batch), ("member_batch", member_batch)
    if rule is None or rule.counts_batches_by == "group":
        return of_group, of_member
    return of_member, of_group
