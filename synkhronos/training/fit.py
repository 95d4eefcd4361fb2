"""`fit`: from a loss and data to trained parameters, in one call."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytensor
from pytensor.compile.sharedvalue import SharedVariable

from synkhronos._checks import check_integer, options_checked, shown
from synkhronos._errors import InputError, InputTypeError, ReductionWarning
from synkhronos._warnings import refusing
from synkhronos.extensions._step.exchanges import Exchange, TopK
from synkhronos.extensions._step.function import TrainFunction
from synkhronos.extensions.train import make_train_function
from synkhronos.extensions.updates import rule_of
from synkhronos.rules._base import Rule
from synkhronos.training._run.augmentation import check_words
from synkhronos.training._run.serial_check import SerialCheck
from synkhronos.training._run.tracing import TracedSteps
from synkhronos.training.callbacks import EarlyStopping, Target
from synkhronos.training.optimizers import ema as with_averages
from synkhronos.training.optimizers import guarded
from synkhronos.training.trainer import Trainer

log = logging.getLogger("synkhronos")

_CURE = (
    'fit trains exactly or not at all: name the reduction, as in reduction="avg", or pass '
    "strict=False"
)


@options_checked
def fit(
    loss: Any,
    params: Sequence[SharedVariable],
    inputs: Any,
    data: Any,
    *,
    optimizer: Callable[..., Any],
    epochs: int,
    batch: int | None = None,
    member_batch: int | None = None,
    rule: Rule | None = None,
    validation: Any = None,
    metrics: Mapping[str, Any] | None = None,
    callbacks: Sequence[Any] = (),
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
    augment: Any = None,
    updates: Any = None,
    givens: Any = None,
    clip: Callable[..., Any] | None = None,
    reduction: str | None = None,
    compress: str | None = None,
    exchange: Exchange | None = None,
    mode: Any = None,
    name: str | None = None,
    trace: int = 0,
    config: Mapping[str, Any] | None = None,
    progress: bool = True,
    export: str | Sequence[str] = (),
) -> Trainer:
    """Train parameters on data with all members of the group.

    It makes a training function (`make_train_function`) and a `Trainer`, and trains.

    Parameters
    ----------
    loss : 0-d variable
    params : list of SharedVariable
    inputs : variable, or list of them
        The inputs of the loss that have rows.
    data : array, Data or source; or a tuple of them, one for each input; or a Loader
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
    metrics : mapping, optional
        As for `Trainer`. The loss is one of them, as "loss", unless there is another one of this
        name: of the network without dropout, say.
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
    augment : variable, optional
        The words of `synkhronos.nn.augment`, a uint64 vector, which is not among `inputs`. Words
        are drawn for each epoch and row, from `seed`. The loss and metrics are validated without
        augmentation.
    updates, givens, clip, reduction, compress, exchange, mode, name
        As for `make_train_function`.
    trace : int
        Trace this number of steps, after the first two: ``run.trace`` shows what each member did,
        and when. With a folder it is also in its file ``trace.bin``, which ``synk trace`` reads.
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
    Cost: that of the training function's steps, and about 10 us of Python for each.

    Examples
    --------
    >>> import functools, numpy as np, pytensor, pytensor.tensor as pt, synkhronos as synk
    >>> from synkhronos.extensions import updates
    >>> from synkhronos.training import fit
    >>> _ = synk.fork(2)
    >>> x, y = pt.dmatrix("x"), pt.dvector("y")
    >>> w = pytensor.shared(np.zeros(3), name="w")
    >>> rows = np.random.default_rng(0).normal(size=(300, 3))
    >>> adam = functools.partial(updates.adam, learning_rate=0.05)
    >>> run = fit(
    ...     ((x @ w - y) ** 2).mean(), [w], [x, y], (rows, rows @ [1.0, 2.0, 3.0]),
    ...     optimizer=adam, batch=20, epochs=20, progress=False,
    ... )
    >>> w.get_value().round(2).tolist(), len(run.history)
    ([1.0, 2.0, 3.0], 20)
    >>> synk.close()
    """
    wanted = _all_inputs(inputs, augment)
    verify, trace = _check_together(verify, guard, rule, resume, trace, exchange)
    if metrics is not None and not isinstance(metrics, Mapping):
        raise InputTypeError(
            f"fit: metrics={shown(metrics)}: give a dict of names and expressions, such as "
            '{"acc": accuracy}'
        )
    in_dtype = _in_their_dtype(optimizer, params)
    whole = in_dtype if ema is None else with_averages(in_dtype, ema)
    if guard is not None and rule is None:
        whole = guarded(whole)
    with refusing(ReductionWarning, _CURE) if strict else nullcontext():
        train = make_train_function(
            loss,
            params,
            wanted,
            None,
            whole,
            updates=updates,
            givens=givens,
            clip=clip,
            reduction=reduction,
            compress=compress,
            exchange=exchange,
            rule=rule,
            mode=mode,
            name=name or "train",
        )
    plain = {"updates": updates, "givens": givens, "clip": clip, "mode": mode}
    checks = [SerialCheck(verify, loss, params, wanted, whole, **plain)] if verify else []
    traced = TracedSteps(trace, None if folder is None else Path(folder))
    if validation is not None:
        _tell_of_noise(metrics or {}, train)
        metrics = {"loss": _named(loss, reduction), **(metrics or {})}
    trainer = Trainer(
        train,
        metrics=metrics,
        callbacks=[*checks, *callbacks, traced] if checks or trace else callbacks,
        stop=stop,
        patience=patience,
        target=target,
        folder=folder,
        keep=keep,
        guard=guard,
        torn=torn,
        strict=strict,
        givens=givens,
        augment=augment,
        config=_kept(config, optimizer=whole, rule=rule, exchange=exchange, ema=ema),
        progress=progress,
        export=export,
    )
    trainer.fit(
        data,
        epochs=epochs,
        batch=batch,
        member_batch=member_batch,
        validation=validation,
        resume=resume,
        seed=seed,
        shuffle=shuffle,
        last=last,
        slices=slices,
        validate_every=validate_every,
        save_every=save_every,
        prefetch=prefetch,
        read=read,
        precision=precision,
    )
    trainer.trace = traced.trace
    return trainer


def _tell_of_noise(metrics: Mapping[str, Any], train: TrainFunction) -> None:
    """Warn if what is validated is the loss with the random numbers of training."""
    if "loss" not in metrics and train.streams:
        log.warning(
            "fit: val_loss is of the loss as it is trained, with its random numbers (dropout). "
            'Give the one without them: metrics={"loss": ...}'
        )


def _kept(config: Mapping[str, Any] | None, optimizer: Any, **others: Any) -> dict[str, Any]:
    """What ``run.json`` keeps: the user's words go before those of `fit`."""
    name = getattr(optimizer, "__name__", repr(optimizer))
    return {"optimizer": name, **others, **(config or {})}


def _check_together(
    verify: Any, guard: Any, rule: Rule | None, resume: Any, trace: Any, exchange: Any
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


def _all_inputs(inputs: Any, augment: Any) -> list[Any]:
    """The inputs of the training function: the words of augmentation are the last one."""
    found = list(inputs) if isinstance(inputs, list | tuple) else [inputs]
    if augment is not None:
        if augment in found:
            raise InputError(f"fit: augment={augment} is among the inputs: leave it out there")
        found.append(augment)
        check_words(augment, found)
    return found


def _named(loss: Any, reduction: str | None) -> Any:
    return loss if reduction is None else (loss, reduction)


def _in_their_dtype(
    optimizer: Callable[..., Any], params: Sequence[SharedVariable]
) -> Callable[..., Any]:
    """The rule under floatX of its parameters, since rules of pytensor-ml cast rates to floatX."""
    dtypes = {getattr(p.type, "dtype", None) for p in params}
    if len(dtypes) != 1 or not callable(optimizer):
        return optimizer
    [dtype] = dtypes
    if dtype not in ("float32", "float64"):
        return optimizer

    rule = rule_of(optimizer)

    def made(*args: Any, **kwargs: Any) -> Any:
        with pytensor.config.change_flags(floatX=dtype):
            return rule(*args, **kwargs)

    inner = rule.func if isinstance(rule, functools.partial) else rule
    made.__name__ = getattr(inner, "__name__", repr(inner))

    return made
