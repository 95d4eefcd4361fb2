"""The trainer: epochs of steps, with validation, callbacks, checkpoints, and a record.

These rules hold here:

* Arguments are checked before anything is computed or written. A call that raises `InputError` has
  changed nothing.
* A trainer outlives its runs. Its `RunState` and its place in the batches stay, so a further `fit`
  goes on after the last whole step, after an exception too.
* All that belongs to one run ends with it, however it ends: feeds, the lock of the folder, handlers
  of signals, the precision of products. All of it is in contexts that `fit` enters.
* With other data than before, the number of the epoch stays, and the epoch begins anew: a place in
  other rows means nothing, and neither do the sums of the rows up to it.
* `epochs` counts all epochs, of earlier calls and of the run that is resumed. So a script that is
  started again asks for the same.
* Metrics see the network as it predicts: images without augmentation, averages in place of the
  parameters.
* Callbacks call `stop`, `say`, `values` and `checkpoints_in` between two steps. None of these may
  change what the next step computes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pytensor.compile.sharedvalue import SharedVariable

from synkhronos._checks import check_integer, check_word, options_checked, or_none, shown
from synkhronos._engine.group import current
from synkhronos._engine.process_bound import ProcessBound
from synkhronos._engine.trace import Trace
from synkhronos._errors import InputError, InputTypeError
from synkhronos._host.launch_settings import launch_settings
from synkhronos.extensions._rows.batches import Batches
from synkhronos.extensions._rows.loader import Loader
from synkhronos.extensions._saving.checkpoints import Checkpoints
from synkhronos.extensions._step.training_function import TrainingFunction
from synkhronos.training._record.exporters import checked_targets
from synkhronos.training._record.history import History
from synkhronos.training._run.augmentation import check_words
from synkhronos.training._run.evaluation import Evaluation, not_augmented
from synkhronos.training._run.events import RunControl
from synkhronos.training._run.feeds import Feed, Order, listed, rows_of
from synkhronos.training._run.loop import Loop
from synkhronos.training._run.options import Due, Options, step_rows
from synkhronos.training._run.position import Position
from synkhronos.training._run.precision import check_precision, precision_of
from synkhronos.training._run.shapes import check_network, check_rows, shapes_of
from synkhronos.training._run.state import RunState
from synkhronos.training._run.subscribers import Subscribers, check_list
from synkhronos.training._stops import stops_of
from synkhronos.training.callbacks import EarlyStopping, Target
from synkhronos.training.optimizers import averages_of


class Trainer(ProcessBound, RunControl):
    """Trains by a training function: epochs, validation, callbacks, checkpoints, a record.

    `fit` makes one; or give it your own training function. A second call of `fit` goes on where the
    first one has ended.

    Parameters
    ----------
    train : TrainFunction, RoundFunction, FreeFunction or Alternate
        Of `make_train_function`; or several that take turns.
    metrics : mapping, optional
        Of name to expression of the inputs of `train`, pair (expression, reduction), or `Metric`:
        what is evaluated over the validation rows. Values have these names with the prefix
        ``val_``. With an update rule made by `ema`, averages replace the parameters.
    callbacks : sequence
        Functions of an `Event`, or objects with methods ``on_epoch`` and the like.
    stop : str, EarlyStopping, or list of them
        Stop after `patience` validations in which this value was not better, such as "val_loss".
    patience : int, optional
        Validations (or epochs, of a value without ``val_``), for each name in `stop`. Default: 5.
    target : str, Target, or list of them
        Stop when a value has reached a number: "val_acc >= 0.97", "val_loss <= 0.1".
    folder : path, optional
        Of the run: checkpoints, ``metrics.jsonl`` and ``run.json``. Needs safetensors.
    keep : int or None
        The number of checkpoints to keep, the latest ones. None: all.
    guard : {"raise", "skip"} or None
        With an update rule made by `guarded`: raise `NonFinite` at the first step whose gradient is
        not finite, or leave out up to 5 such steps in a row. Without one, and with None: raise if
        the loss is not finite.
    torn : {"raise", "restore"}
        After an error that has left values half written (`StateTorn`): raise it, or go on from the
        latest checkpoint. After a worker's death this needs ``fork(max_restarts=n)``.
    strict : bool
        Refuse metrics whose reduction over rows is neither proved nor named.
    givens : mapping, optional
        Replacements in the graphs of the metrics.
    augment : variable, optional
        The words of `synkhronos.nn.augment` and `synkhronos.nn.noise`, the last input of `train`: a
        uint64 vector. The
        trainer draws them for each epoch (`augmentation_words`). Metrics see images without
        augmentation.
    config : mapping, optional
        What ``run.json`` keeps.
    progress : bool
        Show a line of progress, and what goes on.
    export : {"tensorboard", "csv", "mlflow"} or list of them
        Give what the run records to these, while it trains, by processes of their own (``synk
        export``). Needs a folder.

    Attributes
    ----------
    train : TrainFunction or Alternate
    history : History
        A row for each epoch, which counts them from 1. Its seconds are those of the epoch's steps,
        with the compiling of the first one. Metrics that are arrays are in events and
        ``metrics.jsonl`` only.
    trace : Trace
        Of the steps that `fit` has traced, with its ``trace=``.
    tested : dict
        "before" and "after": the metrics of the rows that `fit` was given as ``test=``.
    step, epoch : int
        Steps so far, and the current epoch, from 0.
    reason : str
        Why the run has ended: what `stop` was told, "epochs" or the name of a signal. Empty while
        it goes on, and after an exception.
    completed : bool
        Whether the run has ended by `stop` or after all epochs.
    position, subscribers
        Counts of the run, and its callbacks.

    Raises
    ------
    InputError, InputTypeError
        An argument is wrong.
    BackendMissing
        There is a folder, and safetensors is not installed; or what `export` needs is not.

    Notes
    -----
    Cost: the trainer's own Python takes about 10 us for a step, and it starts no thread.

    Examples
    --------
    >>> import numpy as np, pytensor, pytensor.tensor as pt, synkhronos as synk
    >>> from synkhronos.extensions import make_train_function, updates
    >>> from synkhronos.training import Trainer
    >>> x, w = pt.dvector("x"), pytensor.shared(np.zeros(()), name="w")
    >>> error = ((w - x) ** 2).mean()
    >>> with synk.Group(2):
    ...     train = make_train_function(error, [w], x, None, updates.sgd, 0.25)
    ...     trainer = Trainer(train, metrics={"error": error}, progress=False)
    ...     history = trainer.fit(np.full(8, 3.0), batch=4, epochs=2, validation=np.full(3, 3.0))
    >>> [round(v, 3) for v in history["val_error"]], trainer.step
    ([0.562, 0.035], 4)
    """

    _instead = "folder= keeps a run, which resumes; trainer.history can be pickled"

    @options_checked
    def __init__(
        self,
        train: TrainingFunction,
        *,
        metrics: Mapping[str, object] | None = None,
        callbacks: Sequence[object] = (),
        stop: str | EarlyStopping | Sequence[str | EarlyStopping] = (),
        patience: int | None = None,
        target: str | Target | Sequence[str | Target] = (),
        folder: Any = None,
        keep: int | None = 3,
        guard: str | None = "raise",
        torn: str = "raise",
        strict: bool = True,
        givens: Mapping[Any, object] | None = None,
        augment: Any = None,
        config: Mapping[str, object] | None = None,
        progress: bool = True,
        export: str | Sequence[str] = (),
    ) -> None:
        if not isinstance(train, TrainingFunction) or not train.one_model:
            raise InputTypeError(
                f"Trainer: {shown(train)} is not a training function of make_train_function"
            )
        check_word("Trainer: guard", guard, ("raise", "skip", None))
        check_word("Trainer: torn", torn, ("raise", "restore"))
        if torn == "restore" and folder is None:
            raise InputError('Trainer: torn="restore" needs a folder of checkpoints: give folder=')
        self.train = train
        self.trace = Trace()
        self.tested: dict[str, dict[str, Any]] = {}
        self._options = Options(
            folder=None if folder is None else Path(folder),
            keep=keep,
            skips=guard == "skip",
            restores=torn == "restore",
            config=dict(config or {}),
            progress=progress,
            export=checked_targets(export, folder),
        )
        stops, targets = stops_of(stop, patience, target)
        check_list("Trainer", callbacks)
        self._state = RunState(train, Subscribers([*callbacks, *stops, *targets]))
        self._augmented = augment is not None
        self._inputs = list(train.inputs)
        if augment is not None:
            check_words(augment, self._inputs)
            self._inputs.pop()
        averages = averages_of(train.state)
        _check_averages(train, averages)
        if metrics:
            replaced = {**averages, **(givens or {})}
            if augment is not None:
                metrics = not_augmented(metrics, augment)
            self._state.evaluation = Evaluation(
                self._inputs, metrics, replaced, strict, mode=train.mode
            )
        if self._options.folder is not None:
            Checkpoints(self._options.folder, train)  # raises before anything is computed
        self._batches: Batches | None = None
        self._loop: Loop | None = None

    def __repr__(self) -> str:
        return f"<synkhronos.training.Trainer of {self.train!r}, step {self.step}>"

    @property
    def history(self) -> History:
        """A row for each epoch."""
        return self._state.history

    @property
    def position(self) -> Position:
        """Counts of the run."""
        return self._state.position

    @property
    def subscribers(self) -> Subscribers:
        """The callbacks of the run."""
        return self._state.subscribers

    @property
    def token(self) -> str:
        """A text that no other run has: a further `fit` of this trainer goes on with this run."""
        return self._state.token

    @property
    def reason(self) -> str:
        """Why the run has ended; empty while it goes on, and after an exception."""
        return self._state.reason

    @property
    def completed(self) -> bool:
        """Whether the run has ended by `stop` or after all epochs."""
        return self._state.completed

    @property
    def step(self) -> int:
        """Steps so far."""
        return self.position.step

    @property
    def epoch(self) -> int:
        """The current epoch, from 0."""
        return self.position.epoch

    @property
    def metrics(self) -> list[str]:
        """The names of the metrics."""
        return self._state.metrics

    @property
    def latest(self) -> tuple[tuple[object, ...], object]:
        """The inputs of the latest step, and the rows of them (None: all); for callbacks."""
        return ((), None) if self._loop is None else self._loop.latest

    def stop(self, reason: str = "stop() was called") -> None:
        """End the run after the step at hand; for callbacks.

        Parameters
        ----------
        reason : str
        """
        self._state.stop(str(reason))

    def say(self, text: str) -> None:
        """Show a line above the line of progress.

        Parameters
        ----------
        text : str
        """
        if self._loop is not None:
            self._loop.say(text)

    def record(self, kind: str, **values: object) -> None:
        """Add a line to ``metrics.jsonl``, while a run with a folder goes on; for callbacks.

        Parameters
        ----------
        kind : str
            Such as a name of your own.
        **values
            What JSON can hold, and arrays. Each line has its own kind, time, step and epoch.

        Raises
        ------
        InputError, InputTypeError
            A value has one of these names, or cannot be JSON.
        """
        if clash := {"time", "step", "epoch"} & values.keys():
            raise InputError(
                f"record: each line has its own {min(clash)!r}: leave it out, or choose another "
                "name"
            )
        if self._loop is not None:
            self._loop.record(kind, **values)

    def values(self) -> dict[SharedVariable, Any]:
        """Copies of the values of all variables that training changes, but for generators."""
        train = self.train
        train.collect()
        return {v: v.get_value() for v in (*train.params, *train.state, *train.settings)}

    def checkpoints_in(self, name: str) -> Checkpoints | None:
        """Checkpoints of this run in a folder of their own, all of which are kept.

        Parameters
        ----------
        name : str
            Of the folder in the run's folder.

        Returns
        -------
        Checkpoints, or None
            None if the run has no folder.
        """
        if self._options.folder is None:
            return None
        made = Checkpoints(self._options.folder / name, self.train, keep=None)
        made.adopt()  # the run's folder is locked, and was checked at the start
        return made

    def claim(self, name: str, owner: object) -> bool:
        """Whether a folder of `checkpoints_in` is the owner's: it is whose who asks first.

        Parameters
        ----------
        name : str
            Of the folder in the run's folder.
        owner : object
            A callback.
        """
        return self._state.claims.setdefault(name, owner) is owner

    def evaluate(self, data: object, batch: int | None = None) -> dict[str, Any]:
        """Evaluate the metrics over all rows.

        Parameters
        ----------
        data : array, Data or source; or a tuple of them, one for each input
        batch : int, optional
            Rows of a batch, where data are read from a source. Default: 1024.

        Returns
        -------
        dict
            By name, without prefix: a float or an array.

        Raises
        ------
        InputError, InputTypeError
            There are no metrics, or data do not fit.
        """
        if self._state.evaluation is None:
            raise InputError("evaluate: there are no metrics: give metrics= to the Trainer")
        size = or_none(check_integer, "evaluate: batch", batch, 1)
        with self._validation_feed(data, size) as feed:
            return self._state.evaluate(feed)

    def _validation_feed(self, data: object, batch: int | None, read: str = "master") -> Feed:
        given, inputs = listed(data), self._inputs
        n = rows_of(given, inputs, "validation")
        if self._state.evaluation is not None:
            self._state.evaluation.check(given)
        held = "memory" if read == "memory" else "master"
        return Feed(given, inputs, Order(min(n, batch or 1024), shuffle=False, read=held))

    @options_checked
    def fit(
        self,
        data: object,
        *,
        epochs: int,
        batch: int | None = None,
        member_batch: int | None = None,
        validation: object = None,
        resume: str | int | None = None,
        seed: int = 0,
        shuffle: bool = True,
        last: object = "keep",
        slices: int | str = 1,
        validate_every: int = 1,
        save_every: int | None = None,
        prefetch: int = 2,
        read: str = "master",
        precision: str | None = None,
    ) -> History:
        """Train until `epochs` epochs are made, or until something stops the run.

        Parameters
        ----------
        data : array, Data or source; or a tuple of them, one for each input; or a Loader
            Arrays, tensors of other libraries, and tables of pandas by the order of their rows,
            are copied to shared memory once. Sources (h5py datasets, `training.sources`) are read
            in batches, by a thread. If the first source has `blocks`, rows are shuffled by blocks,
            so that each block is decoded once in an epoch.
        epochs : int
            In all, with those of earlier calls and of the run that is resumed.
        batch : int
            The rows of a step, of all members together.
        member_batch : int
            With a free rule, in place of `batch`: the rows of a step of one member.
        validation : as data, optional
            Rows on which `metrics` are evaluated.
        resume : "auto", int or None
            "auto": go on from the latest checkpoint in the folder, if there is one. int: from that
            of this step. None: begin; an error if the folder holds a run. After a restart by
            ``synk run --max-restarts``, or with ``synk run --resume``, None is "auto".
        seed, shuffle, last
            As for `extensions.Batches`.
        slices : int or "auto"
            Each member computes its gradient in this number of slices, one after the other. The
            step is the same.
        validate_every : int
            Epochs.
        save_every : int, optional
            Steps between two checkpoints inside of epochs. One is always saved at the end of each
            epoch, and of the run.
        prefetch
            Of sources, as for `extensions.Loader`.
        read : {"master", "node", "memory"}
            Of sources. "memory": all rows are read once, before the first step, into shared memory;
            steps then cost what they cost with arrays, and rows are shuffled as those of arrays.
            Else as for `extensions.Loader`.
        precision : {"float32", "tf32", "bf16"}, optional
            On GPUs, compute products of float32 matrices with 23, 10 or 7 bits of precision;
            parameters and updates stay float32. None: JAX's default, which is TF32 on GPUs that
            have it. Use a training function that has made no step before.

        Returns
        -------
        History

        Raises
        ------
        InputError, InputTypeError
            An argument is wrong. Nothing has changed.
        NonFinite
            A gradient or a loss is not finite. With `guarded`, all variables have the values of
            before this step. Rows that were found are also in ``nonfinite-STEP.npz`` in the folder.
        KeyboardInterrupt
            Ctrl-C: the step has ended, and a checkpoint was written. The second Ctrl-C ends the run
            at once.
        SystemExit
            SIGTERM or SIGUSR1 in a run with a folder: as Ctrl-C, with exit code 75.
        Exception
            Of a member, a source or a callback. A further `fit` goes on after the last whole step.
        """
        current("fit")
        due = Due(
            check_integer("fit: epochs", epochs, 1),
            check_integer("fit: validate_every", validate_every, 1),
            or_none(check_integer, "fit: save_every", save_every, 1),
        )
        check_precision(self.train, precision)
        check_word("fit: read", read, ("master", "node", "memory"))
        size = self._step_rows(data, batch, member_batch)
        feed = self._feed(data, Order(size, seed, shuffle, last, prefetch, read))
        validated = None
        if validation is not None:
            if self._state.evaluation is None:
                raise InputError("fit: validation= without metrics: give metrics=")
            validated = self._validation_feed(validation, size, read)
        _check_feed(self.train, feed)
        loop = Loop(self._state, self, slices, feed, validated, due, self._options)
        if resume is None and self._options.folder is not None:
            resume = launch_settings().resume or None
        with contextlib.ExitStack() as stack:
            for each in (feed, validated):
                if each is not None:
                    stack.enter_context(each)
            self._continue(feed.batches, isinstance(data, Loader))
            stack.enter_context(loop.opened(resume))
            stack.enter_context(precision_of(self.train, precision))
            self._loop = loop
            stack.callback(setattr, self, "_loop", None)
            loop.go()
        return self.history

    def _feed(self, data: object, order: Order) -> Feed:
        if isinstance(data, Loader):
            if order.read == "memory":
                raise InputError(
                    'fit: a Loader reads batches, and read="memory" all rows: give its sources'
                )
            self._check(data.sources, casts=False)
            return Feed([data], self._inputs, augmented=self._augmented)
        given = listed(data)
        rows_of(given, self._inputs, "fit")
        self._check(given)
        return Feed(given, self._inputs, order, self._augmented)

    def _continue(self, batches: Batches, placed: bool) -> None:
        """Go on in the batches of a run before; those of a Loader are `placed` by their owner."""
        before, self._batches = self._batches, batches
        if before is None or batches.state() == before.state():
            return
        if not placed:
            try:
                batches.restore(before.state())
            except InputError:  # of other rows
                batches.restore({**batches.state(), "epoch": self.epoch})
            else:
                return
        self.position.begin_epoch()

    def _check(self, given: Sequence[object], casts: bool = True) -> None:
        """Raise unless rows have the shapes that the inputs declare, and the network takes."""
        if len(given) != len(self._inputs):  # of a Loader, as its first step says
            return
        check_rows(given, self._inputs, "fit", casts)
        for inputs, outputs in self.train.graphs:
            check_network(outputs, shapes_of(given, self._inputs, inputs), "fit")

    def _step_rows(self, data: object, batch: object, member_batch: object) -> int:
        if isinstance(data, Loader):
            if batch is not None or member_batch is not None:
                raise InputError("fit: a Loader has its own batches: leave batch= out")
            return data.batches.size
        train = self.train
        (name, rows), (_, refused) = step_rows(train.rule, batch, member_batch)
        if refused is not None or rows is None:
            why = (
                "batch is the number of rows of all members together"
                if name == "batch"
                else f"with {train.rule} each member makes steps of its own"
            )
            raise InputError(f"fit: give {name}=, and not the other one: {why}")
        return check_integer(f"fit: {name}", rows, 1)


def _check_feed(train: TrainingFunction, feed: Feed) -> None:
    """Raise if members take batches by themselves, and the rows are not in memory."""
    if train.counts_batches_by == "member" and not feed.in_memory:
        raise InputError(
            f"fit: with {train.rule} each member takes batches by itself, and these rows are read "
            'from a source: give arrays or Data, or read="memory"; in a config data.memory = true'
        )


def _check_averages(train: TrainingFunction, averages: Mapping[Any, object]) -> None:
    """Raise if the averages of parameters would not follow the members that train apart."""
    rule: Any = train.rule
    if averages and rule is not None and (not rule.meets or rule.policy == "reset"):
        raise InputError(
            f"Trainer: with {rule} members lose their averages of parameters (ema), which would be "
            'validated: leave ema out, or use a round rule with state="keep" or "average"'
        )
