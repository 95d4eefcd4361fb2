"""Any order of calls, with faults among them, against a model (promise 20): a state machine.

    python tests/faults/orders.py [--steps N] [--seed N] [--shrink]

Each step is a call of the public interface, or a fault, or both; after it all that the master can
see is compared with the model, and now and then what every member holds.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import itertools
import logging
import signal
import sys
import time
import traceback
import warnings
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule, run_state_machine_as_test
from order_draws import which
from order_faults import Faults
from order_sides import LONGEST
from order_surroundings import Surroundings
from order_values import Values

import synkhronos as synk


class Orders(Values, Faults, Surroundings):
    """All of it, and checkpoints."""

    @rule(which=which, step=st.integers(0, 3))
    def save(self, which: int, step: int) -> None:
        replaces = self.saved and step <= max(self.saved)  # as another run's would
        warned = pytest.warns(synk.CheckpointWarning) if replaces else contextlib.nullcontext()
        with warned, self.within(which) if self.sides else contextlib.nullcontext():
            self.checkpoints().save(step, text="x")
        self.saved.pop(step, None)
        self.saved[step] = {name: value.copy() for name, value in self.masters.items()}
        while len(self.saved) > 2:
            del self.saved[next(iter(self.saved))]
        assert self.checkpoints().steps() == list(self.saved)

    @precondition(lambda self: self.saved)
    @rule(which=which, step=which)
    def restore(self, which: int, step: int) -> None:
        with self.within(which) if self.sides else contextlib.nullcontext() as side:
            wanted = list(self.saved)[step % len(self.saved)]
            values = self.saved[wanted]
            if any(v.shape != self.masters[n].shape for n, v in values.items()):
                with pytest.raises(synk.InputError, match="does not fit"):
                    self.checkpoints().restore(wanted)
                return
            assert self.checkpoints().restore(wanted) == {"step": wanted, "text": "x"}
            for name, value in values.items():
                self.masters[name] = value.copy()
                if side is not None:
                    side.crew.alike(name, self.masters[name])


def how(sequences: int, length: int, shrink: bool = True) -> settings:
    """Hypothesis's settings."""
    return settings(
        max_examples=sequences,
        stateful_step_count=length,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=(Phase.generate, Phase.shrink) if shrink else (Phase.generate,),
        report_multiple_bugs=False,
    )


def hang(number: int, frame: Any) -> None:
    raise TimeoutError(f"a step has taken {LONGEST:.0f} s")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--length", type=int, default=100, help="steps of a sequence")
    parser.add_argument("--shrink", action="store_true", help="look for shorter failing sequences")
    args = parser.parse_args()
    counts, began = Orders.counts, time.monotonic()
    signal.signal(signal.SIGALRM, hang)
    # values that differ are set by the hundred
    logging.getLogger("synkhronos").setLevel(logging.CRITICAL)
    warnings.simplefilter("ignore", synk.ReplicaWarning)
    warnings.simplefilter("ignore", synk.BatchWarning)
    for number in itertools.count(args.seed):
        machine = seed(number)(type("Orders", (Orders,), {"whole": True}))
        try:
            run_state_machine_as_test(machine, settings=how(10, args.length, args.shrink))
        except (Exception, BaseExceptionGroup, pytest.fail.Exception):
            counts.wrong.append(traceback.format_exc())
            print(f"seed {number}: {counts.wrong[-1]}", flush=True)
        print(f"{counts.steps} steps, {time.monotonic() - began:.0f} s", flush=True)
        gc.collect()
        if counts.steps >= args.steps:
            break
    signal.setitimer(signal.ITIMER_REAL, 0)
    faults = ", ".join(f"{n} {what}" for what, n in sorted(counts.faults.items()))
    print(
        f"{counts.sequences} sequences, {counts.steps} steps; faults: {faults}; "
        f"{len(counts.wrong)} divergences; {time.monotonic() - began:.0f} s"
    )
    return bool(counts.wrong)


if __name__ == "__main__":
    sys.exit(main())
