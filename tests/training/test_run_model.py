"""Any order of fit, restarts, exceptions and stops: as the model says, no checkpoint is lost."""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from modes import FAST
from run_model import Broken, Fault, Model

import synkhronos as synk
from synkhronos.extensions import make_train_function, updates
from synkhronos.training import Best, EarlyStopping, Event, Trainer

ROWS = np.ones(4)
FAULTS = st.none() | st.builds(
    Fault,
    st.sampled_from(["raise", "stop"]),
    st.sampled_from(["step", "validated", "epoch", "saved"]),
    st.integers(1, 3),
)
EPOCHS = st.integers(1, 3)
BESTS = st.dictionaries(st.sampled_from(["up", "down"]), st.integers(1, 2))


class Runs(RuleBasedStateMachine):
    """Runs in one folder, each by a trainer of its own; the number of steps is the parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.run = Path(self.folder.name)
        self.model = Model()
        self.trainer: Trainer | None = None
        self.fault: Fault | None = None
        self.used: dict[str, Best] = {}

    def fail(self, event: Event) -> None:
        self.count[event.kind] = self.count.get(event.kind, 0) + 1
        if self.fault and self.fault[1:] == (event.kind, self.count[event.kind]):
            if self.fault.how == "raise":
                raise Broken
            event.trainer.stop("a callback has stopped it")

    @rule(
        which=st.integers(0, 3),
        bests=BESTS,
        patience=st.integers(0, 3),
        fails_first=st.booleans(),
        again=st.booleans(),
        more=EPOCHS,
        fault=FAULTS,
    )
    def start(
        self,
        which: int,
        bests: dict[str, int],
        patience: int,
        fails_first: bool,
        again: bool,
        more: int,
        fault: Fault | None,
    ) -> None:
        """A new start of the script: at the latest checkpoint, or at an earlier one."""
        steps = sorted(self.model.saved)
        at = steps[which] if 0 < which < len(steps) else None
        modes: Any = {"up": "max", "down": "min"}
        made = {n: Best(f"val_{n}", keep, modes[n]) for n, keep in bests.items()}
        if again:  # the objects of an earlier run
            made |= {n: best for n, best in self.used.items() if n in bests}
            for name, keep in bests.items():
                made[name].keep = keep
        self.used |= made
        watches: list[Any] = list(made.values())
        if patience:
            watches.append(EarlyStopping("val_up", patience, "max"))
        where = 0 if fails_first else len(watches)
        self.trainer = trainer_of(self.run, [*watches[:where], self.fail, *watches[where:]])
        self.model.start(at, bests, patience, fails_first)
        self.go(more, fault, "auto" if at is None else at)

    @precondition(lambda self: self.trainer is not None)
    @rule(more=EPOCHS, fault=FAULTS)
    def go_on(self, more: int, fault: Fault | None) -> None:
        """A further call of fit."""
        self.go(more, fault, None)

    def go(self, more: int, fault: Fault | None, resume: Any) -> None:
        assert self.trainer is not None
        self.fault, self.count = fault, dict[str, int]()
        epochs = self.model.place.epoch + more
        breaks = False
        try:
            self.model.go(epochs, fault)
        except Broken:
            breaks = True
        try:
            self.trainer.fit(ROWS, batch=2, epochs=epochs, validation=ROWS, resume=resume)
        except Broken:
            assert breaks
        else:
            assert not breaks

    @precondition(lambda self: self.trainer is not None)
    @invariant()
    def as_the_model_says(self) -> None:
        assert self.trainer is not None
        place = self.model.place
        assert (self.trainer.step, self.trainer.epoch) == (place.step, place.epoch)
        history = self.trainer.history
        assert (history["step"] if len(history) else []) == place.ends
        assert steps_in(self.run / "ckpt") == sorted(self.model.saved)
        found: dict[str, list[int]] = {"up": [], "down": []}
        for folder in self.run.glob("best*"):
            for step in steps_in(folder):
                entries = json.loads((folder / f"step-{step:08d}" / "meta.json").read_text())
                [name] = [n for n in found if f"val_{n}" in entries["meta"]]
                found[name].append(step)
        assert found == {name: sorted(kept.steps) for name, kept in self.model.kept.items()}

    def teardown(self) -> None:
        self.folder.cleanup()


def steps_in(folder: Path) -> list[int]:
    return sorted(int(p.name[5:]) for p in folder.iterdir()) if folder.exists() else []


def trainer_of(folder: Path, callbacks: list[Any]) -> Trainer:
    """Its parameter grows by 1 in each step, and both metrics follow from it."""
    x, w = pt.dvector("x"), pytensor.shared(np.zeros(()), name="w")
    train = make_train_function(-(x * w).mean(), [w], [x], None, updates.sgd, 1.0)
    value = (7919 * w % 10007 + 0 * x.mean(), "avg")
    options = {"folder": folder, "keep": None, "progress": False, "callbacks": callbacks}
    return Trainer(train, metrics={"up": value, "down": value}, **options)  # type: ignore[arg-type]


def test_runs_follow_the_model(trials: Callable[[Any, Any], Any]) -> None:
    how = settings(
        max_examples=trials(4, 100),
        stateful_step_count=trials(6, 10),
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
        phases=trials([Phase.generate], [Phase.generate, Phase.shrink]),
    )
    with contextlib.ExitStack() as stack:
        stack.enter_context(pytensor.config.change_flags(mode=FAST))
        stack.enter_context(synk.Group(1))
        run_state_machine_as_test(Runs, settings=how)
