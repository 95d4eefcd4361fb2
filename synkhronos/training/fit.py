"""`fit`: from a network and data to trained parameters, in one call.

These rules hold here:

* A run is exact, or it is refused. With `strict`, a loss or a metric needs a reduction over rows
  that is proved or named.
* Statistics and augmentation belong to a network. Parts become a `Net` at the entrance, and
  nothing behind it takes parts, so nothing can leave them out.
* An option goes by its name to each function that takes it: `make_train_function`, `Trainer` and
  `Trainer.fit`. `fit` reads only what concerns several of them.
* The guard is around the averages, and these are around the optimizer. A step that is left out must
  leave all states as they are, averages too.
* The group is chosen before a training function is kept: the function belongs to it.
* Checks of the first steps come before the callbacks of the user: a callback must not see a step
  that was wrong.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any, Concatenate, Protocol, overload

import pytensor
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Variable

from synkhronos._checks import check_integer, options_checked, shown
from synkhronos._compiling.graph_types import ModeLike
from synkhronos._errors import InputError, InputTypeError, ReductionWarning
from synkhronos._warnings import log, refusing
from synkhronos.extensions._rows.loader import Loader
from synkhronos.extensions._step.exchanges import Exchange, TopK
from synkhronos.extensions._step.function import TrainFunction
from synkhronos.extensions.train import make_train_function
from synkhronos.extensions.updates import rule_of
from synkhronos.rules._base import Rule
from synkhronos.training._descriptions import described
from synkhronos.training._pairs.pair import Pair
from synkhronos.training._run.augmentation import check_words
from synkhronos.training._run.evaluation import TestedRows
from synkhronos.training._run.feeds import listed, rows_of
from synkhronos.training._run.group_choice import StepRows, closing_its_group, function_in_group
from synkhronos.training._run.options import taken_by
from synkhronos.training._run.serial_check import SerialCheck
from synkhronos.training._run.subscribers import check_list
from synkhronos.training._run.tracing import TracedSteps
from synkhronos.training.callbacks import EarlyStopping, Target
from synkhronos.training.net import Net, inputs_of, is_net, net_of, training_function
from synkhronos.training.optimizers import ema as with_averages
from synkhronos.training.optimizers import guarded
from synkhronos.training.trainer import Trainer

_CURE = (
    'fit trains exactly or not at all: name the reduction, as in reduction="avg", or pass '
    "strict=False"
)


class _Fit[**P](Protocol):
    """`fit` as programs call it: with a Net, or with its parts."""

    @overload
    def __call__(
        self, net: object, data: object, /, *args: P.args, **kwargs: P.kwargs
    ) -> Trainer: ...

    @overload
    def __call__(
        self,
        loss: Variable,
        params: Sequence[SharedVariable],
        inputs: object,
        data: object,
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Trainer: ...


def _also_of_parts[**P](train: Callable[Concatenate[Net, object, P], Trainer]) -> _Fit[P]:
    """Let a function of a Net and data also take loss, params, inputs and data."""
    whole: Callable[..., Trainer] = train

    @functools.wraps(train)
    def fit(*given: object, **options: object) -> Trainer:
        if "net" not in options and not (given and is_net(given[0])):
            given = _net_of_parts(given, options)
        if len(given) > 2:
            raise _wrong_form(f"{len(given)} arguments by position, the first of which is a Net")
        for name in ("loss", "params", "inputs", "updates", "augment"):
            if options.get(name) is not None:
                raise InputError(
                    f"fit: {name}= and a Net, which has its own: leave {name}= out, or change the "
                    f"Net by dataclasses.replace(net, {name}=...)"
                )
        return whole(*given, **options)

    return fit


_PARTS = ("loss", "params", "inputs", "data")


def _net_of_parts(given: Sequence[Any], options: dict[str, Any]) -> tuple[Net, object]:
    """The Net of parts and the data, which are taken out of the options."""
    if given and isinstance(given[0], Pair):
        raise InputTypeError(
            "fit: a Pair is two networks that take turns: give its cycle to a Trainer, as in "
            "Trainer(pair.alternate(), augment=pair.words).fit(data, ...)"
        )
    parts = dict(zip(_PARTS, given, strict=False))
    twice = [name for name in parts if name in options]
    parts |= {name: options.pop(name) for name in _PARTS if name in options}
    missing = [name for name in _PARTS if name not in parts]
    if len(given) > len(_PARTS):
        raise _wrong_form(f"{len(given)} arguments by position")
    if twice:
        raise _wrong_form(f"{twice[0]} by position and by name")
    if missing:
        raise _wrong_form(f"no {missing[0]}")
    data = parts.pop("data")
    belong = {name: options.pop(name, None) for name in ("updates", "augment")}
    return Net(**parts, **belong), data


def _wrong_form(found: str) -> InputTypeError:
    return InputTypeError(
        f"fit: found {found}: give a Net and data, as in fit(net, data, optimizer=...), or loss, "
        "params, inputs and data, and all else by name"
    )


@_also_of_parts
@options_checked
@closing_its_group
def fit(
    net: Net,
    data: object,
    *,
    optimizer: Callable[..., object],
    epochs: int,
    batch: int | None = None,
    member_batch: int | None = None,
    rule: Rule | None = None,
    validation: object = None,
    test: object = None,
    metrics: Mapping[str, object] | None = None,
    callbacks: Sequence[object] = (),
    stop: str | EarlyStopping | Sequence[str | EarlyStopping] = (),
    patience: int | None = None,
    target: str | Target | Sequence[str | Target] = (),
    folder: Any = None,
    resume: str | int | None = None,
    keep: int | None = 3,
    save_every: int | None = None,
    validate_every: int = 1,
    seed: int = 0,
    shuffle: bool = True,
    last: str = "keep",
    slices: int | str = 1,
    prefetch: int = 2,
    read: str = "master",
    precision: str | None = None,
    ema: float | None = None,
    guard: str | None = "raise",
    torn: str = "raise",
    verify: int = 0,
    strict: bool = True,
    augment: object = None,
    updates: object = None,
    givens: object = None,
    clip: Callable[..., object] | None = None,
    reduction: str | None = None,
    compress: str | None = None,
    exchange: Exchange | None = None,
    overlap: bool = False,
    mode: ModeLike = None,
    name: str | None = None,
    trace: int = 0,
    config: Mapping[str, object] | None = None,
    progress: bool = True,
    export: str | Sequence[str] = (),
) -> Trainer:
    """Train parameters on data with all members of the group.

    It makes a training function (`make_train_function`) and a `Trainer`, and trains.

    Where no group is open, it opens one, as `fork` does: of one process with all threads, or of a
    member for each core, whichever is faster. A step of both is measured first, and a line tells
    the choice. ``synk.fork(n)`` before `fit` makes it yourself, and `close` ends the group.

    Parameters
    ----------
    net : Net
        Or its parts: ``fit(loss, params, inputs, data, ...)``, with ``updates=`` and ``augment=``.
    data : array, Data or source; or a tuple of them, one for each input; or a Loader
        As for `Trainer.fit`.
    optimizer : callable
        An update rule ``(loss_or_grads, params) -> updates``: of pytensor-ml, as in
        ``adamw(1e-3)``; one of `extensions.updates`, with its default rate; with another one by
        ``functools.partial(updates.adam, learning_rate=0.01)``, or by a function of yours that
        returns its result; or `scheduled`.
    epochs : int
    batch : int
        The rows of a step, of all members together. The rate does not depend on their number.
    member_batch : int
        With a free rule, in place of `batch`: the rows of a step of one member.
    rule : Rule, optional
        Of `synkhronos.rules`: members train apart.
    validation : as data, optional
        Rows on which the loss and `metrics` are evaluated.
    test : as data, optional
        Rows on which they are evaluated before the first step and after the last one:
        ``trainer.tested``.
    metrics : mapping, optional
        As for `Trainer`: beside those of the net, or in place of one of the same name. The loss is
        one of them, as "loss", unless the net has another one of this name: without dropout, say.
    ema : float, optional
        Keep moving averages of the parameters with this decay, and validate with them.
    guard : {"raise", "skip"} or None
        What to do about a gradient that is not finite: raise `NonFinite`, which names the rows; or
        leave out up to 5 such steps in a row. None: look only at the loss, which takes
        a little less time.
    verify : int
        Make the first `verify` steps again by serial PyTensor, on copies, and compare. Only for
        runs that begin, and losses without random numbers.
    strict : bool
        Refuse a loss or a metric whose reduction over rows is neither proved nor named.
    updates, augment
        As for `Net`, in the form of parts; a Net has its own.
    givens, clip, reduction, compress, exchange, overlap, mode, name
        As for `make_train_function`.
    trace : int
        Trace this number of steps, after the first two: ``trainer.trace`` shows what each member
        did, and when. With a folder it is also in its file ``trace.bin``, which ``synk trace``
        reads.
    callbacks, stop, patience, target, folder, keep, torn, config, progress, export
        As for `Trainer`.
    resume, save_every, validate_every, seed, shuffle, last, slices, prefetch, read, precision
        As for `Trainer.fit`.

    Returns
    -------
    Trainer
        ``history``, ``evaluate(data)``, ``train``; and `fit`, to go on.

    Raises
    ------
    InputError, InputTypeError
        Arguments are wrong, or contradict each other. Nothing has changed.
    NonFinite, WorkerError, WorkerDied, StateTorn, KeyboardInterrupt, SystemExit
        As for `Trainer.fit`.

    Notes
    -----
    Cost: that of the training function's steps, and about 10 us of Python for each. To choose a
    group takes 0.2 s for a run of less than 5 s in one process, else 2 s. Members then compile the
    function again.

    Examples
    --------
    >>> import functools, numpy as np, pytensor, pytensor.tensor as pt, synkhronos as synk
    >>> from synkhronos.extensions import updates
    >>> from synkhronos.training import Net, fit
    >>> _ = synk.fork(2)
    >>> x, y = pt.dmatrix("x"), pt.dvector("y")
    >>> w = pytensor.shared(np.zeros(3), name="w")
    >>> net = Net(loss=((x @ w - y) ** 2).mean(), params=[w], inputs=[x, y])
    >>> rows = np.random.default_rng(0).normal(size=(300, 3))
    >>> adam = functools.partial(updates.adam, learning_rate=0.05)
    >>> trainer = fit(
    ...     net, (rows, rows @ [1.0, 2.0, 3.0]), optimizer=adam, batch=20, epochs=20,
    ...     progress=False,
    ... )
    >>> w.get_value().round(2).tolist(), len(trainer.history)
    ([1.0, 2.0, 3.0], 20)
    >>> synk.close()
    """
    given = dict(locals())  # all arguments, each for the functions that take it
    net = net_of(net, "fit")
    wanted = inputs_of(net)
    if net.augment is not None:
        check_words(net.augment, wanted)
    verify, trace = _check_together(verify, guard, rule, resume, trace, exchange)
    if metrics is not None and not isinstance(metrics, Mapping):
        raise InputTypeError(
            f"fit: metrics={shown(metrics)}: give a dict of names and expressions, such as "
            '{"acc": accuracy}'
        )
    in_dtype = _in_their_dtype(optimizer, net.params)
    whole = in_dtype if ema is None else with_averages(in_dtype, ema)
    if guard is not None and rule is None:
        whole = guarded(whole)
    check_list("fit", callbacks)  # which other callbacks join below
    with refusing(ReductionWarning, _CURE) if strict else nullcontext():
        options = taken_by(make_train_function, given) | {"name": name or "train"}
        make = functools.partial(
            training_function, make_train_function, net, wanted, whole, **options
        )
        train, choice = function_in_group(make, mode, _rows_to_measure(given, net, wanted))
    plain = {"updates": net.updates, "givens": givens, "clip": clip, "mode": mode}
    checks = [SerialCheck(verify, net.loss, net.params, wanted, whole, **plain)] if verify else []
    traced = TracedSteps(trace, None if folder is None else Path(folder))
    tested = TestedRows(test)
    before = [*([] if choice is None else [choice]), *checks]
    behind = [traced] * bool(trace) + [tested] * (test is not None)
    evaluated = {**net.metrics, **(metrics or {})}
    if validation is not None or test is not None:
        _tell_of_noise(evaluated, train)
        loss = net.loss if reduction is None else (net.loss, reduction)
        evaluated = {"loss": loss, **evaluated}
    given |= {
        "metrics": evaluated,
        "callbacks": [*before, *callbacks, *behind] if before or behind else callbacks,
        "augment": net.augment,
        "config": {
            "optimizer": described(optimizer),
            "clip": None if clip is None else described(clip),
            "rule": rule,
            "exchange": exchange,
            "ema": ema,
            **(config or {}),  # the user's words go before
        },
    }
    trainer = Trainer(train, **taken_by(Trainer, given))
    trainer.fit(**taken_by(trainer.fit, given))
    trainer.trace, trainer.tested = traced.trace, tested.found
    return trainer


def _rows_to_measure(
    given: Mapping[str, Any], net: Net, wanted: Sequence[Variable]
) -> Callable[[], StepRows] | None:
    """Makes the rows of a step for a measurement; None if the options ask for members."""
    for_members = ("rule", "member_batch", "exchange", "compress")
    asked = given["overlap"] or any(given[name] is not None for name in for_members)
    # slices need less memory, of which a whole batch might need too much; a Loader has a group
    if asked or given["slices"] != 1 or given["batch"] is None or isinstance(given["data"], Loader):
        return None
    augmented = net.augment is not None

    def rows() -> StepRows:
        arrays = listed(given["data"])
        return StepRows(
            arrays,
            size=check_integer("fit: batch", given["batch"], 1),
            rows=rows_of(arrays, wanted[:-1] if augmented else wanted, "fit"),
            epochs=check_integer("fit: epochs", given["epochs"], 1),
            words=given["seed"] if augmented else None,
        )

    return rows


def _tell_of_noise(metrics: Mapping[str, object], train: TrainFunction) -> None:
    """Warn if what is validated is the loss with the random numbers of training."""
    if "loss" not in metrics and train.streams:
        log.warning(
            "fit: val_loss is of the loss as it is trained, with its random numbers (dropout). Let "
            'the network have the one without them as a metric: Net(..., metrics={"loss": ...})'
        )


def _check_together(
    verify: object,
    guard: object,
    rule: Rule | None,
    resume: object,
    trace: object,
    exchange: object,
) -> tuple[int, int]:
    """Raise if what only members that train together can do is asked of others."""
    verify = check_integer("fit: verify", verify, 0)
    trace = check_integer("fit: trace", trace, 0)
    if rule is not None and guard == "skip":
        raise InputError(
            'fit: guard="skip" is for members that train together: with a rule only the loss is '
            "looked at"
        )
    if trace and rule is not None and not rule.meets:
        raise InputError(
            f"fit: trace={trace}: with {rule} members step without the master, which collects "
            "the spans: trace other rules"
        )
    if verify and (rule is not None or resume is not None):
        raise InputError("fit: verify= needs a new run in which members train together")
    if verify and isinstance(exchange, TopK):
        raise InputError(
            f"fit: verify={verify}: the serial step has the whole gradient, and with "
            f"exchange={exchange} this one has not: leave one of them out"
        )
    return verify, trace


def _in_their_dtype(
    optimizer: Callable[..., object], params: Sequence[SharedVariable]
) -> Callable[..., object]:
    """The rule under floatX of its parameters, since rules of pytensor-ml cast rates to floatX."""
    dtypes = {getattr(p.type, "dtype", None) for p in params}
    if len(dtypes) != 1 or not callable(optimizer):
        return optimizer
    [dtype] = dtypes
    if dtype not in ("float32", "float64"):
        return optimizer

    rule = rule_of(optimizer)

    def made(*args: object, **kwargs: object) -> object:
        with pytensor.config.change_flags(floatX=dtype):
            return rule(*args, **kwargs)

    inner = rule.func if isinstance(rule, functools.partial) else rule
    made.__name__ = getattr(inner, "__name__", repr(inner))
    with suppress(TypeError, ValueError):  # of a rule that tells none
        vars(made)["__signature__"] = inspect.signature(rule)

    return made
