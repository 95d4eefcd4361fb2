"""A run as a config describes it: from names to a network, an optimizer, data, and `fit`.

These rules hold here:

* First PyTensor's settings, then the group, then the user's modules and files. Members that are
  forked would inherit what those have opened, and threads do not outlive a fork.
* Types and bounds of single values are checked by `config`. Here come only names, and values that
  contradict each other.
* A message names a key by its path in the file. Those of `fit` name arguments, which `_in_toml`
  turns into keys.
* A key with the name of an option of `fit` goes there by itself. Only a key that means something
  else is replaced, such as ``keep = "all"``.
* A quick run writes nothing: it has no folder, no export and no trace.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import pytensor

from synkhronos._backends.jax import runs_jax
from synkhronos._engine.group import Group, current_or_none, current_or_temporary, temporary
from synkhronos._errors import DeprecatedWarning, InputError
from synkhronos._host.launch_settings import launch_settings
from synkhronos._warnings import warn
from synkhronos.extensions._step.exchanges import Exchange, HalfPrecision
from synkhronos.extensions.updates import total_norm_constraint
from synkhronos.rules import Rule
from synkhronos.training._from_config.functions import called, function_of, look_in
from synkhronos.training._from_config.metrics import metrics_of
from synkhronos.training._from_config.optimizer import ConfiguredOptimizer, shared_rate
from synkhronos.training._from_config.rows import first, rows_of, split
from synkhronos.training._from_config.rules import exchange_of, training_rule_of
from synkhronos.training._run.options import step_rows
from synkhronos.training._run.shapes import check_network, check_rows, shapes_of
from synkhronos.training._stops import stops_of
from synkhronos.training.callbacks import Best, EarlyStopping, Plateau, Target
from synkhronos.training.config import Config, Stop, optimizer_of
from synkhronos.training.fit import fit
from synkhronos.training.net import Net, net_of
from synkhronos.training.trainer import Trainer

__all__ = ["train"]

_FIELDS = Config.__struct_fields__
_KEYS = "|".join(_FIELDS)
FEW = 3  # steps of a quick run
# callbacks by their sections, and what messages show of one: EarlyStopping("val_x", mode="min")
_SECTIONS = {"EarlyStopping": "stop", "Best": "best", "Plateau": "plateau"}
_EXAMPLE = re.compile(rf'({"|".join(_SECTIONS)})\((?:rate, )?"(.*)", mode="min"\)')
# keys of the names of options of `fit`; what means something else there is replaced below
_OF_FIT = [k for k in inspect.signature(fit).parameters if k in _FIELDS and k != "data"]
_QUICK = {"epochs": 1, "resume": None, "torn": "raise", "export": (), "trace": 0}


def train(
    config: Config,
    *,
    members: int | None = None,
    resume: str | int | None = None,
    verify: int | None = None,
    quick: bool = False,
    callbacks: Sequence[object] = (),
) -> Trainer:
    """Train as a config says.

    Parameters
    ----------
    config : Config
    members : int, optional
        Of the group, in place of the config's. With a current group, its size or None.
    resume : "auto", int or None
        In place of the config's.
    verify : int, optional
        In place of the config's.
    quick : bool
        Make 3 steps, and validate as many batches. Nothing is written. On cores, and unless the
        mode is JAX, PyTensor compiles in mode FAST_COMPILE, if Python has all operations.
    callbacks : sequence
        As for `fit`, besides those of the config.

    Returns
    -------
    Trainer
        Its ``history`` and ``train.params`` remain readable.

    Raises
    ------
    InputError
        A value of the config is not possible; the message names its path.
    BackendMissing
        A library that the config needs is not installed.
    Exception
        Of `fit`, of the user's functions, or of the start of the group.

    Notes
    -----
    It uses the current group, or starts one and closes it at the end. The user's modules are
    imported and files are opened after the start. On several nodes only the first process returns.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> from synkhronos.training import config, configured
    >>> net = '''
    ... import numpy as np, pytensor, pytensor.tensor as pt
    ... from synkhronos.training import Net
    ... def line():
    ...     x, y = pt.matrix("x"), pt.lvector("y")
    ...     w = pytensor.shared(np.zeros(4, x.dtype), name="w")
    ...     return Net(loss=((x @ w - y) ** 2).mean(), params=[w], inputs=[x, y])
    ... '''
    >>> text = '''
    ... model = "a_line_of_docs:line"
    ... optimizer = { name = "sgd", rate = 0.1 }
    ... batch = 20
    ... epochs = 2
    ... progress = false
    ... [data]
    ... train = "synthetic:4,classes=2,n=100"
    ... '''
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     place = pathlib.Path(folder)
    ...     _ = (place / "a_line_of_docs.py").write_text(net)
    ...     _ = (place / "a.toml").write_text(text)
    ...     trainer = configured.train(config.read(place / "a.toml"), members=2)
    >>> trainer.step, trainer.history["loss"][1] < trainer.history["loss"][0]
    (10, True)
    """
    look_in(config.base)
    with temporary.held(), _settings(config), _group(config, members):
        if quick and not runs_jax(None) and not _on_gpus():
            with contextlib.suppress(NotImplementedError):  # an operation has no Python code
                return _fitted(config, resume, verify, quick, callbacks, "FAST_COMPILE")
        return _fitted(config, resume, verify, quick, callbacks)


@contextlib.contextmanager
def _in_toml() -> Iterator[None]:
    """A context in which errors of `fit` name keys as the file has them: ``torn = "restore"``."""
    try:
        yield
    except InputError as exc:
        if exc.args and isinstance(exc.args[0], str):
            text = re.sub(r"^(fit|Trainer): ", "", exc.args[0])
            text = _EXAMPLE.sub(_table, text)
            text = re.sub(rf"\b({_KEYS})=(?=[\w\"'\[{{.-])", r"\1 = ", text)
            exc.args = (re.sub(rf"\b({_KEYS})=", r"\1", text), *exc.args[1:])
        raise


def _table(example: re.Match[str]) -> str:
    name, metric = example.groups()
    return f'{_SECTIONS[name]} = {{ metric = "{metric}", mode = "min" }}'


@contextlib.contextmanager
def _settings(config: Config) -> Iterator[None]:
    """PyTensor's settings of the run; members get those of the start of the group."""
    wanted = {"mode": config.mode, "floatX": config.floatX}
    given = {name: value for name, value in wanted.items() if value is not None}
    try:
        flags = pytensor.config.change_flags(**given)
        flags.__enter__()
    except ValueError as exc:
        raise InputError(f"mode: found {config.mode!r}, PyTensor has no such mode: {exc}") from None
    try:
        yield
    finally:
        flags.__exit__(None, None, None)


def _group(config: Config, members: int | None) -> AbstractContextManager[Group]:
    # what `synk run` was asked for goes before the config; the group follows it
    launch = launch_settings()
    wanted = None if launch.members or current_or_none() is not None else config.members
    devices = None if launch.devices else config.devices
    return current_or_temporary("train", members or wanted, devices)


def _on_gpus() -> bool:
    group = current_or_none()
    return group is not None and any(device.kind != "cpu" for device in group.devices)


def _fitted(
    config: Config,
    resume: object,
    verify: int | None,
    quick: bool,
    given_callbacks: Sequence[object],
    mode: str | None = None,
) -> Trainer:
    net = _net(config)
    rule = training_rule_of(config.rule, "rule", config.base)
    rows, validation = _rows(config, net, rule)
    test = None if config.data.test is None else _fitting_rows(config, "test", net)
    size = _step_size(config, rule)
    whole = -(-len(rows[0]) // size)
    optimizer, callbacks = _optimizer(config, whole * config.epochs)
    callbacks += given_callbacks
    if config.best is not None:
        best = config.best
        callbacks.append(Best(best) if isinstance(best, str) else Best(**_fields(best)))
    if quick:
        rows = first(rows, FEW * size)
        validation = None if validation is None else first(validation, FEW * size)
        test = None if test is None else first(test, FEW * size)
    folder = None
    if config.folder is not None and not quick:
        folder = os.path.join(config.base, config.folder)
    checked = config.verify if verify is None else verify
    given = resume if resume is not None else config.resume
    if checked and given == "auto" and folder is not None:
        if os.path.exists(os.path.join(folder, "run.json")):
            raise InputError(f"verify: {folder} holds a run: verify one that begins")
        given = None
    if given is not None and folder is None and not quick:
        raise InputError("folder: missing, and a run without one cannot be resumed: give a path")
    clip = None
    if config.clip is not None:
        clip = functools.partial(total_norm_constraint, max_norm=config.clip)
    with _in_toml():
        stops, targets = _stops(config)
        asked = {key: getattr(config, key) for key in _OF_FIT} | {
            "optimizer": optimizer,
            "rule": rule,
            "validation": validation,
            "test": test,
            "metrics": metrics_of(config, net),
            "callbacks": callbacks,
            "stop": stops,
            "patience": None,
            "target": targets,
            "folder": folder,
            "resume": given,
            "keep": None if config.keep == "all" else config.keep,
            "guard": None if config.guard == "none" else config.guard,
            "verify": checked,
            "clip": clip,
            "compress": None,
            "exchange": _exchange(config),
            "config": config.table(),
            "mode": mode,
            "read": "memory" if config.data.memory else config.read,
        }
        if quick:
            asked |= _QUICK
        return fit(net, rows, **asked)


def _stops(config: Config) -> tuple[list[EarlyStopping], list[Target]]:
    def made(stop: str | Stop) -> str | EarlyStopping:
        return EarlyStopping(**_fields(stop)) if isinstance(stop, Stop) else stop

    given = config.stop
    stops = [made(stop) for stop in given] if isinstance(given, list) else made(given)
    return stops_of(stops, config.patience, config.target, toml=True)


def _exchange(config: Config) -> Exchange | None:
    """The exchange of gradients between nodes; the key compress had one kind of it."""
    if config.compress is None:
        return exchange_of(config.exchange, "exchange")
    if config.exchange is not None:
        raise InputError("compress: an old key, and exchange is given: leave compress out")
    table = f'{{ name = "HalfPrecision", format = "{config.compress}" }}'
    warn(
        f'compress = "{config.compress}" is an old spelling: write exchange = {table}',
        DeprecatedWarning,
    )
    return HalfPrecision(config.compress)


def _rows(config: Config, net: Net, rule: Rule | None) -> tuple[Any, Any]:
    """The data of the training, and those of the validation, if any."""
    rows = _fitting_rows(config, "train", net)
    apart = rule is not None and rule.counts_batches_by == "member"
    if apart and not (config.data.memory or all(isinstance(v, np.ndarray) for v in rows)):
        raise InputError(
            f"data.memory: with {rule} each member takes batches by itself, from memory: give "
            "data.memory = true"
        )
    if config.data.validation is None:
        return split(rows, config.data.split) if config.data.split else (rows, None)
    if config.data.split:
        raise InputError("data.split: data.validation names other rows: leave one of them out")
    return rows, _fitting_rows(config, "validation", net)


def _step_size(config: Config, rule: Rule | None) -> int:
    """The rows of a step: of all members, or of one if each makes steps of its own."""
    (name, rows), (other, refused) = step_rows(rule, config.batch, config.member_batch)
    if rows is None:
        raise InputError(f"{name}: missing, give an integer of at least 1")
    if refused is not None:
        why = (
            "members step together"
            if name == "batch"
            else f"with {rule} each member makes steps of its own"
        )
        raise InputError(f"{other}: {why}: take it out, as by {other}= on the command line")
    return int(rows)


def _net(config: Config) -> Net:
    function = function_of(config.model, config.base, "model")
    made = called(function, config.model_arguments, "model_arguments")
    return net_of(made, f"model: {config.model}")


def _fitting_rows(config: Config, key: str, net: Net) -> tuple[object, ...]:
    """Rows that the network can take."""
    found = rows_of(config, key, net.inputs)
    check_rows(found, net.inputs, f"data.{key}")
    check_network([net.loss], shapes_of(found, net.inputs, net.inputs), f"data.{key}")
    return found


def _optimizer(config: Config, steps: int) -> tuple[object, list[object]]:
    """The update rule, and the callback that lowers its rate."""
    settings = optimizer_of(config.optimizer, "optimizer")
    choice = ConfiguredOptimizer(settings, "optimizer", config.base)
    if config.member_batch is not None and choice.lacks_steps:
        raise InputError("optimizer.steps: missing, members count their own: give an integer")
    if config.plateau is None:
        return choice.made(steps), []
    if settings.schedule is not None:
        raise InputError("plateau: the rate follows optimizer.schedule: leave one of them out")
    rate = shared_rate(settings.rate, "optimizer")
    return choice.made(steps, rate), [Plateau(rate, **_fields(config.plateau))]


def _fields(settings: Any) -> dict[str, Any]:
    return {name: getattr(settings, name) for name in settings.__struct_fields__}
