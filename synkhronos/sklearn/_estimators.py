"""The estimators: parameters as keywords, and a group for the time of `fit`."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Self

import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.replace import clone_replace
from pytensor.graph.traversal import ancestors
from pytensor.tensor.variable import TensorVariable
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.callback import CallbackSupportMixin, with_callbacks
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from synkhronos._checks import check_integer, closest, shown
from synkhronos._compiling.graph_types import ModeLike
from synkhronos._engine.group import current_or_temporary
from synkhronos._errors import InputError, InputTypeError
from synkhronos.extensions import updates
from synkhronos.training._run.events import Event
from synkhronos.training.fit import fit
from synkhronos.training.net import Net, net_of

_RULES = tuple(name for name in updates.__all__ if hasattr(getattr(updates, name), "rule"))
_FLOATS = (np.float64, np.float32)


class _SynkEstimator(CallbackSupportMixin, BaseEstimator):  # type: ignore[misc]
    """The common base of both estimators."""

    _function: Callable[..., Any] | None = None  # of rows and `_values`

    def __init__(
        self,
        layers: Sequence[int] = (100,),
        *,
        net: Callable[[int, int], object] | None = None,
        optimizer: object = "adam",
        rate: float = 1e-2,
        epochs: int = 100,
        batch: int = 64,
        members: int | None = None,
        mode: ModeLike = None,
        random_state: object = None,
        verbose: bool = False,
    ) -> None:
        self.layers = layers
        self.net = net
        self.optimizer = optimizer
        self.rate = rate
        self.epochs = epochs
        self.batch = batch
        self.members = members
        self.mode = mode
        self.random_state = random_state
        self.verbose = verbose

    def __getstate__(self) -> dict[str, object]:
        """The pickled state: no compiled function, and no group."""
        return {k: v for k, v in super().__getstate__().items() if k != "_function"}

    def _made(self, columns: int, outputs: int, dtype: str, draw: np.random.RandomState) -> Net:
        raise NotImplementedError

    def _own(self, columns: int, outputs: int) -> Net:
        """The user's network, checked."""
        assert self.net is not None
        name = f"{type(self).__name__}: net"
        if not callable(self.net):
            raise InputTypeError(f"{name}={shown(self.net)}: a function of columns and outputs")
        found = net_of(self.net(columns, outputs), name)
        if len(found.inputs) != 2 or found.outputs is None:
            raise InputError(f"{name} has returned a Net without two inputs, X and y, and outputs")
        return found

    def _train(self, X: np.ndarray, y: np.ndarray, targets: np.ndarray, outputs: int) -> Self:
        """Train on checked rows, and keep the values of the network.

        Parameters
        ----------
        X, y : arrays
            As scikit-learn's callbacks get them.
        targets : array
            In place of y, as the network takes it.
        outputs : int
        """
        draw = check_random_state(self.random_state)
        self._check_layers()
        net = self._made(X.shape[1], outputs, X.dtype.name, draw)
        x_type, y_type = (v.type.dtype for v in net.inputs)
        with current_or_temporary("fit", self.members):
            # after the start of the group, since callbacks may start threads
            tasks = self._init_callback_context(max_subtasks=self.epochs)
            tasks.call_on_fit_task_begin(estimator=self, X=X, y=y)
            epochs = _Epochs(self, net, outputs, tasks, {"X": X, "y": y})
            run = fit(
                replace(net, metrics={}),  # without rows for validation there are none
                (X.astype(x_type, copy=False), targets.astype(y_type, copy=False)),
                optimizer=self._rule(),
                epochs=self.epochs,
                batch=min(self.batch, len(X)) if isinstance(self.batch, int) else self.batch,
                callbacks=[epochs],
                mode=self.mode,
                seed=int(draw.randint(2**31 - 1)),
                progress=bool(self.verbose),
            )
        found = epochs.fitted() | {"history_": run.history}
        for name, value in found.items():
            setattr(self, name, value)
        tasks.call_on_fit_task_end(estimator=self, X=X, y=y, reconstruction_attributes=found)
        return self

    def _check_layers(self) -> None:
        name, layers = f"{type(self).__name__}: layers", self.layers
        if not isinstance(layers, list | tuple | np.ndarray):
            raise InputTypeError(
                f"{name}={shown(layers)}: give the units of each hidden layer, as in (100,), or ()"
            )
        for number, units in enumerate(layers):
            check_integer(f"{name}[{number}]", units, 1)

    def _rule(self) -> Callable[..., object]:
        if callable(self.optimizer):
            found: Callable[..., object] = self.optimizer
            return found
        if self.optimizer not in _RULES:
            meant = closest(str(self.optimizer), _RULES)
            hint = f"; did you mean {meant}?" if meant else ""
            raise InputError(
                f"{type(self).__name__}: optimizer={shown(self.optimizer)}: one of "
                f"{', '.join(_RULES)}, or an update rule{hint}"
            )
        return functools.partial(getattr(updates, self.optimizer), learning_rate=self.rate)

    def _predicted(self, X: Any) -> np.ndarray:
        """The outputs of the network for rows."""
        check_is_fitted(self, "params_")
        X = validate_data(self, X, reset=False, dtype=_FLOATS)
        if self._function is None:  # it has been unpickled
            draw = np.random.RandomState(0)
            self._function = _compiled(
                self._made(X.shape[1], self._outputs, self._dtype, draw), self.mode
            )
        values = *self.params_, *self._others
        return np.array(self._function(X.astype(self._dtype, copy=False), *values))


class _Epochs:
    """A callback of a run, which tells those of scikit-learn: each epoch is a task."""

    def __init__(
        self, estimator: Any, net: Net, outputs: int, tasks: Any, rows: dict[str, np.ndarray]
    ) -> None:
        self._estimator = estimator
        self._net = net
        self._outputs = outputs
        self._tasks = tasks  # the context of all epochs
        self._rows = rows
        self._task: Any = None  # the context of the epoch at hand
        self._function: Callable[..., Any] | None = None

    def on_start(self, event: Event) -> None:
        """Begin the first epoch."""
        self._begin()

    def on_epoch(self, event: Event) -> None:
        """End the epoch, and begin the next one unless a callback stops the run."""
        stops = self._task.call_on_fit_task_end(
            estimator=self._estimator, **self._rows, reconstruction_attributes=self.fitted
        )
        if stops:
            event.trainer.stop("a callback of scikit-learn has stopped it")
        elif event.epoch + 1 < self._estimator.epochs:
            self._begin()

    def _begin(self) -> None:
        self._task = self._tasks.subcontext(task_name="epoch")
        self._task.call_on_fit_task_begin(estimator=self._estimator, **self._rows)

    def fitted(self) -> dict[str, object]:
        """The values with which an estimator predicts as the network does now."""
        if self._function is None:
            self._function = _compiled(self._net, self._estimator.mode)
        values = [v.get_value() for v in _held(self._net)]
        count = len(self._net.params)
        return {
            "params_": values[:count],
            "_others": values[count:],
            "_outputs": self._outputs,
            "_dtype": self._net.inputs[0].type.dtype,
            "_function": self._function,
        }


def _held(net: Net) -> list[Any]:
    """The variables whose values the outputs need: parameters, then others, such as statistics."""
    shared = [v for v in ancestors([net.outputs]) if isinstance(v, SharedVariable)]
    others = [v for v in shared if v not in net.params and hasattr(v.type, "dtype")]
    return [*net.params, *others]


def _compiled(net: Net, mode: ModeLike) -> Callable[..., Any]:
    """The outputs as a function of rows and of the values of `_held`, which needs no group."""
    held = _held(net)
    places = [v.type() for v in held]
    [outputs] = clone_replace([net.outputs], replace=list(zip(held, places, strict=True)))
    found: Callable[..., Any] = pytensor.function(
        [net.inputs[0], *places], outputs, mode=mode, on_unused_input="ignore"
    )
    return found


class SynkClassifier(ClassifierMixin, _SynkEstimator):  # type: ignore[misc]
    """A classifier of scikit-learn: a network that all members of a group train together.

    `fit` uses the current group, or starts one and closes it. Then no group is needed: the
    estimator holds arrays, can be pickled, and predicts in this process.

    Parameters
    ----------
    layers : sequence of int
        The units of the hidden layers, with rectifiers.
    net : callable, optional
        In place of `layers`: a function ``(columns, classes) -> Net`` of the inputs X and y, whose
        outputs are scores (rows, classes). y are the numbers of classes, int64.
    optimizer : str or callable
        A rule of `extensions.updates` by name, which gets `rate`; or an update rule, as for `fit`.
    rate : float
        The learning rate.
    epochs : int
    batch : int
        The rows of a step, of all members together.
    members : int, optional
        Of the group that `fit` starts. Default: one for each core.
    mode : str or Mode, optional
        Of PyTensor.
    random_state : int, RandomState or None
        Of the first weights, and of the order of rows.
    verbose : bool
        Show a line of progress.

    Attributes
    ----------
    classes_ : array
        The labels.
    params_ : list of arrays
        The trained parameters.
    history_ : History
        A row for each epoch.
    n_features_in_ : int

    Raises
    ------
    InputError, InputTypeError
        A parameter is not possible; `fit` raises it.
    ValueError, TypeError
        Of scikit-learn, for X and y.

    Notes
    -----
    Cost: that of `fit`, and the compilation of two functions.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from synkhronos.sklearn import SynkClassifier
    >>> X, y = load_iris(return_X_y=True)
    >>> model = SynkClassifier((8,), epochs=100, members=2, random_state=0).fit(X, y)
    >>> model.score(X, y) > 0.9
    True
    """

    @with_callbacks  # type: ignore[untyped-decorator]
    def fit(self, X: Any, y: Any) -> Self:
        """Train on rows X (rows, columns) and their labels y."""
        X, y = validate_data(self, X, y, dtype=_FLOATS)
        check_classification_targets(y)
        self.classes_, numbers = np.unique(y, return_inverse=True)
        return self._train(X, y, numbers.astype(np.int64), len(self.classes_))

    def predict_proba(self, X: object) -> np.ndarray:
        """The probabilities of the classes, (rows, classes)."""
        scores = self._predicted(X)
        scores = np.exp(scores - scores.max(axis=1, keepdims=True))
        return scores / scores.sum(axis=1, keepdims=True)

    def predict(self, X: object) -> np.ndarray:
        """The labels with the highest scores."""
        found = self._predicted(X).argmax(axis=1)
        labels: np.ndarray = self.classes_[found]
        return labels

    def _made(self, columns: int, outputs: int, dtype: str, draw: np.random.RandomState) -> Net:
        if self.net is not None:
            return self._own(columns, outputs)
        return classifier(*dense(columns, outputs, self.layers, dtype, draw))


class SynkRegressor(RegressorMixin, _SynkEstimator):  # type: ignore[misc]
    """A regressor of scikit-learn: a network that all members of a group train together.

    Parameters
    ----------
    layers, net, optimizer, rate, epochs, batch, members, mode, random_state, verbose
        As for `SynkClassifier`. A `net` is called with 1 output; its outputs are a vector, and y
        are floats.

    Attributes
    ----------
    params_, history_, n_features_in_
        As for `SynkClassifier`.

    Examples
    --------
    >>> import numpy as np
    >>> from synkhronos.sklearn import SynkRegressor
    >>> X = np.random.default_rng(0).normal(size=(100, 2))
    >>> y = X @ [1.0, -2.0]
    >>> model = SynkRegressor((), rate=0.1, epochs=50, members=2, random_state=0).fit(X, y)
    >>> model.score(X, y) > 0.9
    True
    """

    @with_callbacks  # type: ignore[untyped-decorator]
    def fit(self, X: Any, y: Any) -> Self:
        """Train on rows X (rows, columns) and their values y."""
        X, y = validate_data(self, X, y, dtype=_FLOATS, y_numeric=True)
        return self._train(X, y, y, 1)

    def predict(self, X: object) -> np.ndarray:
        """The values, (rows,)."""
        return self._predicted(X)

    def _made(self, columns: int, outputs: int, dtype: str, draw: np.random.RandomState) -> Net:
        if self.net is not None:
            return self._own(columns, outputs)
        return regressor(*dense(columns, outputs, self.layers, dtype, draw))


def dense(
    columns: int, outputs: int, layers: Sequence[int], dtype: str, draw: np.random.RandomState
) -> tuple[TensorVariable, TensorVariable, list[SharedVariable]]:
    """The input, the scores (rows, outputs) and the parameters of a network.

    Weights are drawn as by He et al., arXiv:1502.01852; the last ones, which no rectifier follows,
    with half of the variance.
    """
    x = pt.matrix("x", dtype=dtype)
    params: list[SharedVariable] = []
    value, sizes = x, [columns, *layers, outputs]
    for n, (rows, units) in enumerate(itertools.pairwise(sizes)):
        last = n == len(layers)
        scale = np.sqrt((1 if last else 2) / rows)
        w = pytensor.shared(draw.normal(0, scale, (rows, units)).astype(dtype), name=f"w{n}")
        b = pytensor.shared(np.zeros(units, dtype), name=f"b{n}")
        params += [w, b]
        value = value @ w + b
        if not last:
            value = pt.maximum(value, 0)
    return x, value, params


def classifier(x: TensorVariable, scores: TensorVariable, params: Sequence[SharedVariable]) -> Net:
    """The network with the cross-entropy of classes, which are numbered."""
    y = pt.lvector("y")
    log_p = pt.special.log_softmax(scores, axis=1)
    loss = -log_p[pt.arange(y.shape[0]), y].mean()
    return Net(loss=loss, params=params, inputs=[x, y], outputs=scores)


def regressor(x: TensorVariable, scores: TensorVariable, params: Sequence[SharedVariable]) -> Net:
    """The network with the mean of squared errors."""
    y, found = pt.vector("y", dtype=x.dtype), scores[:, 0]
    return Net(loss=((found - y) ** 2).mean(), params=params, inputs=[x, y], outputs=found)
