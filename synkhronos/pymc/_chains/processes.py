"""Chains of nutpie with members: a process for each that runs, since a process has one group."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pymc import Model

from synkhronos._compiling.progress import tell
from synkhronos._host import cores as _cores
from synkhronos.pymc._chains.nodes import ChainsProcess, chains_of_nodes, joined, packed_chains
from synkhronos.pymc._chains.progress import ChainProgress, same_totals, table, while_read
from synkhronos.pymc._group.advice import ChainPlan

_LOOK_SECONDS = 0.05  # for each process in turn


def sample_in_processes(model: Model, plan: ChainPlan, arguments: Mapping[str, Any]) -> Any:
    """Sample the chains of a plan in processes, each with a group of its own, and join the draws.

    The numbers of the plan replace those in the arguments of `synk.pymc.sample`. Ctrl-C keeps the
    draws so far, as nutpie does; a second one gives them up.

    Raises
    ------
    Exception
        That of the first process that fails; the others are ended.
    KeyboardInterrupt
        Ctrl-C before there were any draws, or again.
    """
    counts = chains_of_nodes(plan.chains, plan.at_once)
    asked = {"chains": plan.chains, "cores": plan.members, "members_per_chain": plan.members}
    arguments = {**arguments, **asked, "nuts_sampler": "nutpie"}
    unshown = {**arguments, "progressbar": False}
    packed = packed_chains(model, unshown, counts, "the processes of chains")
    there = _cores.available()
    with contextlib.ExitStack() as stack:
        processes = [
            stack.enter_context(
                ChainsProcess(packed, i, there[i * plan.members : (i + 1) * plan.members], count)
            )
            for i, count in enumerate(counts)
        ]
        answers: list[bytes] = []
        try:
            with table(plan.chains, arguments) as shown:
                answers = _answers(processes, while_read(shown.update))
        except OSError:  # of the end of the table, which nobody reads any more
            if not answers:
                raise
        except KeyboardInterrupt:
            answers = _so_far(processes)
            if not answers:
                raise
            arguments["compute_convergence_checks"] = False
    return joined(answers, model, arguments)


def _answers(
    processes: Sequence[ChainsProcess], show: Callable[[list[ChainProgress]], object]
) -> list[bytes]:
    """The draws of processes, once all have ended; `show` is told meanwhile how far they are."""
    answers: dict[int, bytes] = {}
    while len(answers) < len(processes):
        for i, process in enumerate(processes):
            if i not in answers and process.wait(_LOOK_SECONDS):
                answers[i] = process.answer()
        if chains := same_totals([chain for p in processes for chain in p.progress]):
            show(chains)
    return [answers[i] for i in range(len(processes))]


def _so_far(processes: Sequence[ChainsProcess]) -> list[bytes]:
    """The draws that processes have, which are interrupted."""
    for process in processes:
        process.interrupt()
    for process in processes:
        while not process.wait(_LOOK_SECONDS):
            pass
    found = [draws for p in processes if (draws := p.draws()) is not None]
    if found:
        tell(
            f"interrupted: the draws so far of {len(found)} of {len(processes)} processes are kept"
        )
    return found
