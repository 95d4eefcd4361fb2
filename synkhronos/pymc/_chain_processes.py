"""Chains of nutpie with members: a process for each that runs, since a process has one group."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

from synkhronos._host import cores as _cores
from synkhronos.pymc._advice import ChainPlan
from synkhronos.pymc._node_chains import ChainsProcess, chains_of_nodes, joined, packed_chains

_LOOK_SECONDS = 0.05  # for each process in turn


def sample_in_processes(model: Any, plan: ChainPlan, arguments: Mapping[str, Any]) -> Any:
    """Sample the chains of a plan in processes, each with a group of its own, and join the draws.

    Parameters
    ----------
    model : pymc.Model
    plan : ChainPlan
    arguments : mapping
        Of `synk.pymc.sample`; the plan's numbers replace those in it.

    Raises
    ------
    Exception
        That of the first process that fails; the others are ended.
    """
    counts = chains_of_nodes(plan.chains, plan.at_once)
    asked = {"chains": plan.chains, "cores": plan.members, "members_per_chain": plan.members}
    arguments = {**arguments, **asked, "nuts_sampler": "nutpie"}
    packed = packed_chains(model, arguments, counts)
    there = _cores.available()
    with contextlib.ExitStack() as stack:
        processes = [
            stack.enter_context(
                ChainsProcess(packed, i, there[i * plan.members : (i + 1) * plan.members])
            )
            for i in range(len(counts))
        ]
        answers: dict[int, bytes] = {}
        while len(answers) < len(processes):
            for i, process in enumerate(processes):
                if i not in answers and process.wait(_LOOK_SECONDS):
                    answers[i] = process.answer()
    return joined([answers[i] for i in range(len(processes))], model, arguments)
