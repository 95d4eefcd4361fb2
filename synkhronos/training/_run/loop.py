"""The loop of a run: steps, epochs, validation, checkpoints, and all who are told of them.

These rules hold here:

* Nothing interrupts a step. Signals, `stop` and callbacks only note what is wanted, and the loop
  acts on it between two steps, where all values are whole.
* The position counts a step only once it was made. Batches stand behind the latest whole step,
  after an exception too, so a further run goes on there: no row is left out or used twice.
* A loop over batches is never left without `restore`. Leaving it ends its epoch, and the rows that
  are left would be lost.
* At the end of an epoch the order is: settle, validate, record, history, callbacks, next epoch,
  checkpoint. The checkpoint has to be last: a resumed run then begins the next epoch, and tells
  nobody of this one again. `settle` has to be first: before it, members that train apart have
  values of their own.
* An epoch ends once. After an exception of a callback the next epoch has begun; a further run first
  tells the callbacks that were not told, and saves.
* Callbacks are checked before the folder is opened, so a mistake leaves no run there.
* Why a run has ended is asked of the callbacks' states at each start. So one that has stopped early
  stays ended, and goes on if the callback is given more patience, or left out.
* The recorder checks the folder before each checkpoint. A checkpoint must never go to the folder
  of another run.
* After a value was torn the run goes back to the latest checkpoint once for each step. A step that
  fails again after it would fail for ever, so it raises.
* Members that train apart step while the master waits. Their reports are late, so a stop takes
  effect some steps later, and no report belongs to one step (``train.repeatable`` is False).
* The loop knows no trainer. They share a `RunState`; events only carry the trainer to callbacks.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from synkhronos._checks import is_integer, shown
from synkhronos._engine.variables import check_whole
from synkhronos._errors import InputError, StateTorn, WorkerDied, WorkerError
from synkhronos._transport.shared_state.worker_output import logged
from synkhronos._warnings import log
from synkhronos.extensions._saving.checkpoints import Checkpoints
from synkhronos.extensions._step.step_report import StepReport
from synkhronos.training._directions import Mode, usual_mode
from synkhronos.training._record.exporters import exported
from synkhronos.training._record.history import History
from synkhronos.training._record.recorder import Recorder
from synkhronos.training._record.run_folder import CHECKPOINTS
from synkhronos.training._record.warning_lines import kept_warnings
from synkhronos.training._run.events import Event, RunControl
from synkhronos.training._run.feeds import Feed, no_rows
from synkhronos.training._run.nonfinite import Guard
from synkhronos.training._run.options import Due, Options
from synkhronos.training._run.phases import PhaseTimes, StepClock
from synkhronos.training._run.progress import Progress
from synkhronos.training._run.signals import Signals
from synkhronos.training._run.state import RunState
from synkhronos.training.optimizers import skips_in

_RECORD_SECONDS = 1.0  # between two lines of steps in the record


class Loop:
    """One run of a trainer."""

    def __init__(
        self,
        state: RunState,
        trainer: RunControl,
        slices: int | str,
        feed: Feed,
        validated: Feed | None,
        due: Due,
        options: Options,
    ) -> None:
        self._state = state  # it follows the run
        self._trainer = trainer  # what events name as their trainer; the loop asks nothing of it
        self._slices = slices
        self._feed = feed  # what is trained on
        self._validated = validated  # what metrics are evaluated on
        self._due = due
        self._options = options
        self._train = state.train
        self._position = state.position
        self._group = state.train.group
        self._subscribers = state.subscribers
        self._signals = Signals(options.folder is not None)
        self._shows = Progress(state.train, feed, self._position, due.epochs, options.progress)
        self._checkpoints: Checkpoints | None = None
        self._recorder: Recorder | None = None
        self._phases: PhaseTimes | None = None
        self._states: Mapping[str, object] | None = None  # of callbacks, from a checkpoint
        self._watched: dict[str, Mode] = {}  # by callbacks
        self._torn_at = -1  # the step after which values were half written
        self._clock = StepClock(self._shows.aside)
        self._compiles = False  # the next step
        self._row = 0  # where the latest whole step has left the batches
        self._began = self._recorded = time.monotonic()

    @property
    def latest(self) -> tuple[tuple[object, ...], object]:
        """The inputs of the latest step, and the rows of them."""
        return self._feed.latest

    def say(self, text: str) -> None:
        """Show a line."""
        self._shows.console.line(text)

    def record(self, kind: str, **values: object) -> None:
        """Add a line to the record, if there is one."""
        if self._recorder is not None:
            position = self._position
            self._recorder.write(kind, step=position.step, epoch=position.epoch, **values)

    @contextlib.contextmanager
    def opened(self, resume: str | int | None) -> Iterator[None]:
        """A context with the run's folder, if it has one; values are restored if asked."""
        if not (resume is None or resume == "auto" or is_integer(resume)):
            raise InputError(f'fit: resume={shown(resume)}: use "auto", a step, or None')
        self._watched = self._subscribers.check(self._state.token, self._modes())
        with contextlib.ExitStack() as stack:
            stack.callback(self._shows.console.close)
            if self._options.folder is not None:
                self._open(self._options.folder, resume, stack)
            elif resume is not None:
                raise InputError("fit: resume= needs the run's folder: give folder=")
            yield

    def _open(self, folder: Path, resume: str | int | None, stack: contextlib.ExitStack) -> None:
        goes_on = resume is not None or self._position.step > 0
        batches, train = self._feed.batches, self._train
        place = folder / CHECKPOINTS
        self._checkpoints = Checkpoints(place, train, batches, self._options.keep)
        restores = resume is not None and not self._position.step
        step = int(resume) if is_integer(resume) else None
        if restores and step is not None:
            self._check_step(step)
        config = {**self._options.config, "epochs": self._due.epochs, "batch": batches.size}
        config |= {"rows": batches.n, "seed": batches.seed, "members": train.size}
        self._recorder = stack.enter_context(Recorder(folder, config, resume=goes_on))
        stack.enter_context(logged(self._recorder.logs))
        stack.enter_context(kept_warnings(self._record_warning))
        for to in self._options.export:
            stack.enter_context(exported(folder, to))
        if restores:
            self._restore(step)
        elif goes_on:
            self._checkpoints.adopt()

    def _check_step(self, step: int) -> None:
        """Raise unless there is a checkpoint of a step."""
        assert self._checkpoints is not None
        there = self._checkpoints.steps()
        if step not in there:
            steps = f"there are those of {', '.join(map(str, there))}" if there else "there is none"
            raise InputError(
                f"fit: resume={step}: there is no checkpoint of step {step} in "
                f'{self._checkpoints.folder}; {steps}: give one of these steps, or resume="auto" '
                "for the latest one"
            )

    def _restore(self, step: int | None) -> None:
        """Go back to the checkpoint of a step; None: to the latest one, if there is one."""
        assert self._checkpoints is not None
        assert self._recorder is not None
        if step is None:
            found = self._checkpoints.restore(missing="ignore")
        else:
            found = self._checkpoints.restore(step)
        if found is None:
            self._recorder.resumed(0)  # what an earlier attempt has recorded does not count
            return
        if "training" not in found:
            raise InputError(
                f"fit: the checkpoint of step {found['step']} in {self._checkpoints.folder} was "
                "not saved by fit: restore it by extensions.checkpoints"
            )
        training = found["training"]
        self._position.restore(training["position"])
        self._states = training["callbacks"]
        self._state.saved = True
        self._state.history = History.of(training["history"])
        self._state.history.repeatable = self._train.repeatable
        self._recorder.resumed(self._position.step)

    def go(self) -> None:
        """Train."""
        state, position = self._state, self._position
        state.reason, state.completed = "", False
        state.history.repeatable = self._train.repeatable
        by_member = self._train.counts_batches_by == "member"
        self._shows.begin(self._options.folder, by_member, self._watched)
        self._guard = Guard(self._train, self._options.skips, self._options.folder)
        if self._recorder is not None:
            self._phases = PhaseTimes(self._train, self._feed, position)
        with self._signals:
            modes = self._modes()
            started = self._event("start", {"columns": list(modes), "modes": modes})
            self._subscribers.tell_start(started)
            self._restore_callbacks()
            for reason in self._subscribers.why_ended():
                state.stop(reason)
            try:
                self._subscribers.tell_rest()
                if not state.saved:
                    self._save()
                while position.epoch < self._due.epochs and not self._ending():
                    self._try_steps()
                    if self._steps_made():
                        self._end_epoch()
                self._name_the_end()
            except BaseException:
                self._end(failed=True)
                raise
            self._end()
        if self._signals.received and self._checkpoints is not None:
            self.say(f'step {position.step} is saved: resume="auto" goes on from it')
        self._signals.act()

    def _modes(self) -> dict[str, Mode | None]:
        """The names of the values of an epoch, and whether lower or higher ones are better."""
        parts = getattr(self._train, "names", ())
        names = ["loss", *(f"loss_{part}" for part in parts), "rows", "seconds"]
        found = {name: usual_mode(name) for name in names}
        if self._validated is not None and self._state.evaluation is not None:
            modes = self._state.evaluation.modes
            found |= {f"val_{name}": mode for name, mode in modes.items()}
        if self._options.skips and skips_in(self._train.state):
            found["skipped"] = None
        return found

    def _restore_callbacks(self) -> None:
        """Give the callbacks the states of the checkpoint, if the run goes on from one."""
        if self._states is not None:
            for text in self._subscribers.restore(self._states):
                log.warning("fit: %s", text)
            self._states = None

    def _name_the_end(self) -> None:
        """Say why the run ends."""
        received = self._signals.received
        usual = self._signals.name if received else "epochs"
        self._state.stop(usual)
        self._state.completed = not received

    def _ending(self) -> bool:
        return bool(self._state.reason or self._signals.received)

    def _steps_made(self) -> bool:
        """Whether all steps of the epoch are made, and it has not ended yet."""
        position = self._position
        return bool(position.rows) and self._feed.batches.state()["epoch"] > position.epoch

    def _try_steps(self) -> None:
        """Make the epoch's steps and settle; if asked, go back to a checkpoint for torn values."""
        try:
            if not self._steps_made():
                self._steps()
            if self._steps_made():
                self._train.settle()  # members that train apart meet, which may fail as a step may
        except (StateTorn, WorkerError, WorkerDied):
            again = self._position.step == self._torn_at  # it would fail for ever
            whole = not self._group.alive or not self._is_torn()
            if not self._options.restores or again or whole:
                raise
            assert self._checkpoints is not None
            if not self._checkpoints.steps():
                raise
            self._torn_at = self._position.step
            self.say("a failure left values half written: back to the latest checkpoint")
            self._restore(None)
            self._restore_callbacks()

    def _is_torn(self) -> bool:
        """Whether a value is half written."""
        train = self._train
        try:
            for variable in (*train.params, *train.state, *train.settings):
                check_whole(variable)
        except StateTorn:
            return True
        return False

    def _steps(self) -> None:
        """Make the steps of the rest of the epoch; leave early if the run ends."""
        train, batches = self._train, self._feed.batches
        reports, self._row = train.reports(self._feed, self._slices), batches.row
        self._compiles = not train.compiled
        self._clock.start()
        self._guard.before_step()
        try:
            for report in reports:
                self._count(report)
                self._record_steps()
                if self._ending():
                    train.stop()
                    if train.repeatable:
                        break
                elif self._is_save_due():
                    with self._clock.aside():
                        self._save()
                self._guard.before_step()
            place = batches.state()
        except BaseException:
            place = batches.state()
            if train.repeatable and self._row != batches.row:  # the latest batch made no step
                place |= {"epoch": self._position.epoch, "row": self._row}
            raise
        finally:
            self._clock.leave()
            reports.close()
            batches.restore(place)  # leaving a loop over batches would end its epoch
        if self._ending():
            if not self._steps_made():
                self._save()
        elif not self._position.rows:  # it would begin the epoch again and again
            batches.restore({**place, "epoch": self._position.epoch, "row": 0})
            raise no_rows(f"epoch {self._position.epoch + 1}")

    def _count(self, report: StepReport) -> None:
        """Count what has been done, and tell of it unless the guard has left it out."""
        position, seconds = self._position, self._clock.step()
        guarded = self._train.repeatable
        left_out = guarded and self._guard.left_out(report, position, self._feed.latest, self.say)
        position.add(report.rows, report.steps, seconds)
        self._row = self._feed.batches.row  # whatever raises from here on, the step was made
        if self._compiles and self._phases is not None:
            self._phases.compiling += seconds
        self._compiles = False
        if not left_out:
            if guarded:
                self._guard.check_loss(report, position)
            position.add_loss(report.loss, report.counted, report.part)
            if self._subscribers.wants("step"):
                self._tell("step", _step_values(report))
        self._shows.step()

    def _record_steps(self) -> None:
        """Record the losses so far, once a second."""
        if self._clock.latest - self._recorded >= _RECORD_SECONDS:
            self._recorded = self._clock.latest
            self.record("step", **self._position.known_losses, rows=self._position.rows)
            self._group.note(self._shows.note())

    def _is_save_due(self) -> bool:
        every = self._due.save if self._checkpoints is not None else None
        return every is not None and self._position.step % every == 0

    def _end_epoch(self) -> None:
        """Validate, tell, save, and begin the next epoch."""
        position = self._position
        values: dict[str, Any] = {**position.losses, "rows": position.rows}
        values["seconds"] = position.seconds
        last = position.epoch + 1 >= self._due.epochs
        ended = []
        if self._validated is not None and (last or (position.epoch + 1) % self._due.validate == 0):
            with self._group.span("validate"):
                found = self._state.evaluate(self._validated)
            validated = {f"val_{name}": value for name, value in found.items()}
            self.record("validated", **validated)
            ended.append(self._event("validated", validated))
            values |= validated
        if self._guard.counts:
            values["skipped"] = self._guard.skipped
        ended.append(self._event("epoch", values))
        self.record("epoch", **values, **({} if self._phases is None else self._phases.epoch()))
        self._shows.epoch(values)
        numbers = {name: value for name, value in values.items() if not np.ndim(value)}
        try:
            # counted as in the line that is shown
            self._state.history.append(epoch=position.epoch + 1, step=position.step, **numbers)
            self._state.saved = self._checkpoints is None
            for event in ended:
                self._subscribers.post(event)
            self._subscribers.tell_rest()
        finally:
            position.next_epoch()
        self._save()

    def _save(self) -> None:
        if self._checkpoints is None:
            return
        assert self._recorder is not None
        self._recorder.check()
        self._train.settle()
        training = {
            "position": self._position.state(),
            "callbacks": self._subscribers.state(),
            "history": self._state.history.as_rows(),
        }
        with self._group.span("save"):
            path = self._checkpoints.save(self._position.step, training=training)
        self._state.saved = True
        self.record("saved", path=str(path))
        self._recorder.sync()
        self._tell("saved", {"path": path})

    def _end(self, failed: bool = False) -> None:
        """Tell of the end; after an exception too, which counts more than one of the record."""
        reason = self._state.reason
        try:
            with contextlib.suppress(*[OSError, InputError] * failed):
                self.record("end", reason=reason)
                if self._recorder is not None:
                    self._recorder.sync()
        finally:
            self._subscribers.tell_end(self._event("end", {"reason": reason}))
        if self._state.completed:
            self._shows.end(reason)

    def _tell(self, kind: str, values: Mapping[str, object]) -> None:
        if self._subscribers.wants(kind):
            self._subscribers.tell(self._event(kind, values))

    def _event(self, kind: str, values: Mapping[str, object]) -> Event:
        position, seconds = self._position, time.monotonic() - self._began
        return Event(kind, self._trainer, position.step, position.epoch, values, seconds)

    def _record_warning(self, what: str, text: str) -> None:
        self.record("warning", what=what, text=text)


def _step_values(report: StepReport) -> dict[str, object]:
    """The event of a step, for callbacks."""
    part = {"part": report.part} if report.part else {}
    return {"loss": report.loss, "rows": report.rows, **part}
