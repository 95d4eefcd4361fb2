"""Metrics of all rows, computed by all members, in one call or in many.

These rules hold here:

* A value must not depend on how rows are divided: over members, over calls, over batches. So each
  metric has a reduction that is proved or named, or consists of sums over rows.
* Values of several calls are added only by reductions for which this is exact. Means are weighted
  by their rows, and sums are added in float64 or in their own integer dtype.
* The function of a `Metric` runs once, in the master, on the sums over all rows. A mean of its
  values for parts would be another number.
* Validation knows no augmentation. A metric that still depends on the words is refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
from pytensor.graph.basic import Variable
from pytensor.graph.traversal import ancestors

from synkhronos._api.function import Function, function
from synkhronos._checks import shown
from synkhronos._errors import InputError, InputTypeError, ReductionWarning
from synkhronos._warnings import refusing
from synkhronos.nn import without_augmentation
from synkhronos.training._directions import Mode, usual_mode
from synkhronos.training._run.events import Event, RunControl
from synkhronos.training._run.feeds import Feed, no_rows
from synkhronos.training._run.shapes import check_network, check_rows, shapes_of
from synkhronos.training.metrics import Metric

_CURE = (
    'A metric must be exact for any split: name its reduction, as in (variable, "avg"), make it a '
    "Metric of sums over rows, or pass strict=False"
)
# how values of several calls make one, by reduction; those of None do not depend on rows
_ADDED: dict[str | None, Any] = {
    "avg": np.add,  # weighted by rows
    "sum": np.add,
    "min": np.minimum,
    "max": np.maximum,
    "prod": np.multiply,
    "gather": lambda before, now: np.concatenate([before, now]),  # of a `Metric` only
    None: lambda before, now: now,
}


class Evaluation:
    """A function that evaluates metrics over all rows, exactly.

    Parameters
    ----------
    inputs : list of Variable
    metrics : mapping of str to Variable, (Variable, reduction) or Metric
    givens : mapping, optional
        Replacements in the graph, such as parameters by their averages.
    strict : bool
        Refuse a metric whose reduction over rows is neither proved nor named.
    **options
        For `synkhronos.function`: mode, name.

    Attributes
    ----------
    names : list of str

    Raises
    ------
    InputError, InputTypeError
        A metric is neither an expression of the inputs nor a Metric; or, if strict, its reduction
        cannot be proved.

    Examples
    --------
    >>> import numpy as np, pytensor.tensor as pt, synkhronos as synk
    >>> from synkhronos.training import Evaluation, metrics
    >>> x, y = pt.dvector("x"), pt.dvector("y")
    >>> with synk.Group(2):
    ...     evaluate = Evaluation([x, y], {"rmse": metrics.rmse(x, y), "bias": (x - y).mean()})
    ...     evaluate(np.array([1.0, 2.0, 3.0]), np.array([1.0, 2.0, 6.0]))
    {'rmse': 1.7320508075688772, 'bias': -1.0}
    """

    def __init__(
        self,
        inputs: Sequence[Variable],
        metrics: Mapping[str, object],
        givens: Mapping[object, object] | None = None,
        strict: bool = True,
        **options: object,
    ) -> None:
        if not isinstance(metrics, Mapping) or not metrics:
            raise InputTypeError(
                f"metrics={shown(metrics)}: give a dict of names and expressions, such as "
                '{"acc": accuracy}'
            )
        self.names = list(metrics)
        self._metrics = dict(metrics)
        outputs: list[object] = []
        for name, metric in self._metrics.items():
            outputs += _outputs(name, metric)
        checked: AbstractContextManager[None] = nullcontext()
        if strict:
            checked = refusing(ReductionWarning, _CURE)
        with checked:
            self._function: Function = function(
                list(inputs),
                outputs,
                givens=dict(givens or {}),
                on_unused_input="ignore",
                **{"name": "evaluation", **options},
            )

    @property
    def modes(self) -> dict[str, Mode | None]:
        """The directions of the metrics: their own, or what their names say."""
        return {
            name: (metric.mode if isinstance(metric, Metric) else None) or usual_mode(name)
            for name, metric in self._metrics.items()
        }

    def __call__(self, *data: object) -> dict[str, object]:
        """Evaluate the metrics over all rows of Data or arrays, in one call.

        Returns
        -------
        dict
            A float for each metric, or an array.
        """
        return self._finished(self._function(*data, num_slices="auto"))

    def check(self, given: Sequence[object]) -> None:
        """Raise unless rows have the shapes that the inputs declare, and the metrics take.

        Raises
        ------
        InputError, InputTypeError
        """
        inputs, outputs = self._function.graph
        check_rows(given, inputs, "validation")
        check_network(outputs, shapes_of(given, inputs, inputs), "validation")

    def over(self, feed: Feed) -> dict[str, object]:
        """Evaluate the metrics over all batches of a feed, whose rows need not fit into memory.

        Raises
        ------
        InputError
            A metric is neither a mean nor a sum over rows, nor a minimum, maximum or product, nor
            a `Metric`.
        SourceError
            Sources have left out all rows.
        """
        modes = self._function.output_modes
        self._check_many(modes)
        totals: list[Any] = []
        rows = 0
        for args, batch, n in feed:
            found = zip(self._function(*args, batch=batch), modes, strict=True)
            values = [_addend(v, mode, n) for v, mode in found]
            if rows:
                pairs = zip(modes, totals, values, strict=True)
                values = [_ADDED[mode](total, value) for mode, total, value in pairs]
            totals, rows = values, rows + n
        if not rows:
            raise no_rows("the validation")
        return self._finished(
            [t / rows if mode == "avg" else t for t, mode in zip(totals, modes, strict=True)]
        )

    def _check_many(self, modes: Sequence[object]) -> None:
        owners = [name for name, metric in self._metrics.items() for _ in _outputs(name, metric)]
        for name, mode in zip(owners, modes, strict=True):
            named_none = mode is None and isinstance(self._metrics[name], tuple)
            gathers = mode == "gather" and not isinstance(self._metrics[name], Metric)
            if mode not in _ADDED or named_none or gathers:
                raise InputError(
                    f"the metric {name!r} cannot be added up over several calls, and these data "
                    "are read in batches: make it a Metric, of sums over rows and a function of "
                    "these sums"
                )

    def _finished(self, values: Sequence[object]) -> dict[str, object]:
        found, left = {}, list(values)
        for name, metric in self._metrics.items():
            if isinstance(metric, Metric):
                n = len(metric.sums)
                sums = [_wide(v) for v in left[:n]]
                value, left = metric.finish(*sums), left[n:]
            else:
                value, *left = left
            array = np.asarray(value)
            found[name] = array if array.ndim else array.item()
        return found


def _outputs(name: str, metric: object) -> list[object]:
    if isinstance(metric, Metric):
        return [(v, metric.reduction) for v in metric.sums]
    if isinstance(metric, Variable) or (isinstance(metric, tuple) and len(metric) == 2):
        return [metric]
    raise InputTypeError(
        f"the metric {name!r} is {shown(metric)}: give an expression, a pair (expression, "
        "reduction), or a Metric"
    )


def not_augmented(metrics: Mapping[str, object], words: Variable) -> dict[str, object]:
    """The metrics of images without augmentation.

    Raises
    ------
    InputError
        Something else of a metric depends on the words.
    """
    found: dict[str, object] = {}
    for name, metric in metrics.items():
        plain = without_augmentation(_expressions(name, metric))
        if words in ancestors(plain):
            raise InputError(
                f"the metric {name!r} depends on {words} beside synkhronos.nn.augment, and there "
                "are no words in validation: give an expression without them"
            )
        if isinstance(metric, Metric):
            found[name] = replace(metric, sums=plain)
        else:
            found[name] = (*plain, metric[1]) if isinstance(metric, tuple) else plain[0]
    return found


def _expressions(name: str, metric: object) -> list[Any]:
    return [v[0] if isinstance(v, tuple) else v for v in _outputs(name, metric)]


def _wide(value: object) -> np.ndarray:
    """A sum as float64, or of its own integer dtype."""
    array = np.asarray(value)
    return array.astype(np.float64) if array.dtype.kind == "f" else array


def _addend(value: object, mode: str | None, rows: int) -> np.ndarray:
    """The value of one call, as those of several calls are combined."""
    if mode == "avg":
        return np.asarray(value, np.float64) * rows
    return _wide(value) if mode in ("sum", "prod") else np.asarray(value)


class TestedRows:
    """A callback that evaluates the metrics over rows before and after the training.

    It stands behind callbacks that restore values at the end.
    """

    def __init__(self, rows: object) -> None:
        self._rows = rows
        # "before" and "after": the metrics by their names
        self.found: dict[str, dict[str, Any]] = {}

    def on_start(self, event: Event) -> None:
        """Evaluate them, unless the run goes on from a later step."""
        if not event.step:
            self._evaluate("before", event.trainer)

    def on_end(self, event: Event) -> None:
        """Evaluate them, unless the run has been broken off."""
        if event.trainer.completed:
            self._evaluate("after", event.trainer)

    def _evaluate(self, when: str, trainer: RunControl) -> None:
        self.found[when] = found = trainer.evaluate(self._rows)
        trainer.record("tested", when=when, **{f"test_{name}": v for name, v in found.items()})
        numbers = [f"{name} {v:.4g}" for name, v in found.items() if isinstance(v, float)]
        trainer.say(f"test {when} training: {', '.join(numbers)}")
