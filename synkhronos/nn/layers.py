"""pytensor-ml's layers on the operations of this package: same arguments, parameters and values.

Use pytensor-ml's other layers (``Linear``, ``Dropout``, ``LSTM`` ...) directly. pytensor-ml's own
versions of the layers below are slower on CPUs, and have no gradient in mode JAX with padding.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.rewriting.basic import node_rewriter
from pytensor.tensor.variable import TensorVariable
from pytensor_ml.layers import conv as _conv
from pytensor_ml.layers import norm as _norm
from pytensor_ml.layers.conv import Col2Im, Im2Col
from pytensor_ml.pytensorf import collect_non_trainable_updates
from pytensor_ml.pytensorf.rng import collect_default_updates
from pytensor_ml.rewriting.layers import predict_db

from synkhronos._checks import check_integer
from synkhronos.nn._convolution import conv2d, conv_transpose2d
from synkhronos.nn._inference_rules import follow_layers
from synkhronos.nn._moments import Moments
from synkhronos.nn._pooling import avg_pool2d, max_pool2d

follow_layers(Im2Col, Col2Im)


class _Convolving:
    """A layer that convolves with `conv2d`; with padding other than zeros, as pytensor-ml does."""

    def __init__(
        self, name: str | None = None, *, in_channels: int, groups: int = 1, **kwargs: object
    ) -> None:
        groups = check_integer("groups", groups, 1)
        if in_channels % groups:
            raise ValueError(f"{in_channels} channels cannot be divided into {groups!r} groups")
        if kwargs.get("out_channels", 0) % groups:
            raise ValueError(
                f"{kwargs['out_channels']} new channels cannot be divided into {groups} groups"
            )
        if groups > 1 and kwargs.get("padding_mode", "constant") != "constant":
            raise ValueError(f"{groups} groups: pad with zeros, padding_mode='constant'")
        self.groups = groups
        # each kernel sees the channels of its group: this sets the shape of W and how it is drawn
        super().__init__(name, in_channels=in_channels // groups, **kwargs)  # type: ignore[call-arg]
        self.in_channels = in_channels

    def __call__(self, X: TensorVariable) -> TensorVariable:
        found = _convolved(self, X)
        return super().__call__(X) if found is None else found


class _Enlarging:
    """A layer that computes its transposed convolution with `conv_transpose2d`."""

    def __call__(self, X: TensorVariable) -> TensorVariable:
        found = _enlarged(self, X)
        return super().__call__(X) if found is None else found


class _Pooling:
    """A layer that pools with this package's function; with dilation, as pytensor-ml does."""

    _pool: object

    def __call__(self, X: TensorVariable) -> TensorVariable:
        found = _pooled(self, X, self._pool)
        return super().__call__(X) if found is None else found


class Conv2D(_Convolving, _conv.Conv2D):
    """``pytensor_ml.layers.Conv2D``: images (rows, height, width, channels) with `conv2d`.

    ``groups`` is as for `conv2d`; pytensor-ml's layer has none.

    Examples
    --------
    >>> import numpy as np, pytensor
    >>> from pytensor_ml.layers import Input
    >>> from synkhronos.nn import Conv2D
    >>> images = Input("images", shape=(None, 5, 5, 1), dtype="float64")
    >>> layer = Conv2D(in_channels=1, out_channels=2, kernel_size=3, padding="same")
    >>> layer(images).eval({images: np.zeros((4, 5, 5, 1))}).shape
    (4, 5, 5, 2)
    """


class Conv1D(_Convolving, _conv.Conv1D):
    """``pytensor_ml.layers.Conv1D``: sequences (rows, time, channels) with `conv2d`.

    ``groups`` is as for `conv2d`; pytensor-ml's layer has none.

    >>> import numpy as np
    >>> from pytensor_ml.layers import Input
    >>> from synkhronos.nn import Conv1D
    >>> x = Input("x", shape=(None, 6, 1), dtype="float64")
    >>> layer = Conv1D(in_channels=1, out_channels=2, kernel_size=3)
    >>> layer(x).eval({x: np.zeros((4, 6, 1))}).shape
    (4, 4, 2)
    """


class ConvTranspose2D(_Enlarging, _conv.ConvTranspose2D):
    """``pytensor_ml.layers.ConvTranspose2D``: enlarges images, with `conv_transpose2d`.

    >>> import numpy as np
    >>> from pytensor_ml.layers import Input
    >>> from synkhronos.nn import ConvTranspose2D
    >>> x = Input("x", shape=(None, 4, 4, 3), dtype="float64")
    >>> layer = ConvTranspose2D(in_channels=3, out_channels=2, kernel_size=4, stride=2, padding=1)
    >>> layer(x).eval({x: np.ones((5, 4, 4, 3))}).shape
    (5, 8, 8, 2)
    """


class ConvTranspose1D(_Enlarging, _conv.ConvTranspose1D):
    """``pytensor_ml.layers.ConvTranspose1D``: lengthens sequences, with `conv_transpose2d`.

    >>> import numpy as np
    >>> from pytensor_ml.layers import Input
    >>> from synkhronos.nn import ConvTranspose1D
    >>> x = Input("x", shape=(None, 4, 3), dtype="float64")
    >>> layer = ConvTranspose1D(in_channels=3, out_channels=2, kernel_size=2, stride=2)
    >>> layer(x).eval({x: np.ones((5, 4, 3))}).shape
    (5, 8, 2)
    """


class MaxPool2D(_Pooling, _conv.MaxPool2D):
    """``pytensor_ml.layers.MaxPool2D`` with `max_pool2d`.

    >>> import numpy as np
    >>> from pytensor_ml.layers import Input
    >>> from synkhronos.nn import MaxPool2D
    >>> x = Input("x", shape=(None, 4, 4, 1), dtype="float64")
    >>> MaxPool2D(kernel_size=2)(x).eval({x: np.ones((3, 4, 4, 1))}).shape
    (3, 2, 2, 1)
    """

    _pool = staticmethod(max_pool2d)


class MaxPool1D(_Pooling, _conv.MaxPool1D):
    """``pytensor_ml.layers.MaxPool1D`` with `max_pool2d`.

    >>> import numpy as np
    >>> from pytensor_ml.layers import Input
    >>> from synkhronos.nn import MaxPool1D
    >>> x = Input("x", shape=(None, 6, 2), dtype="float64")
    >>> MaxPool1D(kernel_size=2)(x).eval({x: np.ones((3, 6, 2))}).shape
    (3, 3, 2)
    """

    _pool = staticmethod(max_pool2d)


class AvgPool2D(_Pooling, _conv.AvgPool2D):
    """``pytensor_ml.layers.AvgPool2D`` with `avg_pool2d`.

    >>> import numpy as np
    >>> from pytensor_ml.layers import Input
    >>> from synkhronos.nn import AvgPool2D
    >>> x = Input("x", shape=(None, 4, 4, 1), dtype="float64")
    >>> AvgPool2D(kernel_size=2)(x).eval({x: np.ones((3, 4, 4, 1))}).shape
    (3, 2, 2, 1)
    """

    _pool = staticmethod(avg_pool2d)


class AvgPool1D(_Pooling, _conv.AvgPool1D):
    """``pytensor_ml.layers.AvgPool1D`` with `avg_pool2d`.

    >>> import numpy as np
    >>> from pytensor_ml.layers import Input
    >>> from synkhronos.nn import AvgPool1D
    >>> x = Input("x", shape=(None, 6, 2), dtype="float64")
    >>> AvgPool1D(kernel_size=2)(x).eval({x: np.ones((3, 6, 2))}).shape
    (3, 3, 2)
    """

    _pool = staticmethod(avg_pool2d)


class BatchNorm(_norm.BatchNorm):
    """``pytensor_ml.layers.BatchNorm``, with mean and variance over the rows of all members.

    If the loss is a mean over rows, a step gives the values and gradients of a serial step, for any
    number of members. pytensor-ml's own layer uses the statistics of each member's part.

    Running values are updates of the function, as with pytensor-ml's layer:
    ``collect_non_trainable_updates(loss)`` returns them. ``rewrite_for_prediction`` replaces the
    batch's values by them.

    Notes
    -----
    Cost: two all-reduces of two vectors in each step, one for the statistics and one for their
    gradient.

    Examples
    --------
    >>> import numpy as np
    >>> from pytensor_ml.layers import Input
    >>> from synkhronos.nn import BatchNorm
    >>> x = Input("x", shape=(None, 2), dtype="float64")
    >>> BatchNorm(n_in=2)(x).eval({x: np.array([[1.0, 2.0], [3.0, 6.0]])}).round(3).tolist()
    [[-1.0, -1.0], [1.0, 1.0]]
    """

    def __call__(self, X: TensorVariable) -> TensorVariable:
        """Normalise; without running values, call pytensor-ml's layer."""
        X = pt.as_tensor(X)
        if X.ndim < 2 or not self.track_running_stats:
            return super().__call__(X)
        self._initialize_params(X)
        known = self.new_running_mean is not None
        running = (
            (self.new_running_mean, self.new_running_var)
            if known
            else (self.running_mean, self.running_var)
        )
        moments = Moments(self.momentum)(X, *running)
        mean, variance, self.new_running_mean, self.new_running_var, _ = moments
        found = (X - mean) / pt.sqrt(variance + np.asarray(self.epsilon, X.dtype))
        if self.affine:
            found = self.loc + found * self.scale
        found.name = f"{self.name}_output"
        return found


def state_updates(outputs: object) -> list[tuple[object, ...]]:
    """Collect the updates of layers: dropout's generators, running values of batch normalisation.

    Parameters
    ----------
    outputs : variable or list of variables
        The outputs of a function, such as a loss.

    Returns
    -------
    list of updates for `synkhronos.function` and ``make_train_function``
        Each member advances its own generators. Running values of `BatchNorm` are the same in all
        members. Those of pytensor-ml's own layer are averaged over members, weighted by rows.

    Notes
    -----
    Cost of averaging: an all-reduce of two vectors for each of pytensor-ml's own layers.

    Examples
    --------
    >>> import pytensor
    >>> from pytensor_ml.layers import Input
    >>> from synkhronos.nn import BatchNorm, state_updates
    >>> y = BatchNorm("norm", n_in=2)(Input("x", shape=(None, 2)))
    >>> [update[0].name for update in state_updates(y)]
    ['norm_running_mean', 'norm_running_var']
    """
    found = collect_non_trainable_updates(outputs)
    draws: list[tuple[object, ...]] = list(collect_default_updates(outputs).items())
    return draws + [
        (shared, new)
        if new.owner is not None and isinstance(new.owner.op, Moments)
        else (shared, new, "avg", "all")
        for shared, new in found.items()
    ]


@node_rewriter([Moments])  # type: ignore[untyped-decorator]
def _predicted(fgraph: FunctionGraph, node: Apply) -> list[Variable]:
    """Replace the batch's mean and variance by the running values."""
    del fgraph
    _, mean, variance, token = node.inputs
    return [mean, variance, mean, variance, token]


predict_db.register("synkhronos_moments", _predicted, "basic")


def _convolved(layer: object, given: TensorVariable) -> TensorVariable:
    """The layer's output, or None if pytensor-ml's own code has to compute it."""
    X = pt.as_tensor(given)
    rank, zeros = layer.n_spatial + 2, layer.padding_mode == "constant"
    if X.ndim != rank or not (zeros or not any(map(any, layer.padding))):
        return None
    kernel = layer.W if rank == 4 else layer.W[None]
    steps, around, gaps = (_flat(v, rank) for v in (layer.stride, layer.padding, layer.dilation))
    made = conv2d(_as_images(X), kernel, steps, around, gaps, layer.groups)
    return _shifted(layer, _as_sequence(made, rank))


def _enlarged(layer: object, given: TensorVariable) -> TensorVariable:
    """The layer's output, or None if pytensor-ml's own code has to refuse the rank."""
    X = pt.as_tensor(given)
    rank = layer.n_spatial + 2
    if X.ndim != rank:
        return None
    kernel = layer.W if rank == 4 else layer.W[None]
    steps, around, gaps = (_flat(v, rank) for v in (layer.stride, layer.padding, layer.dilation))
    added = layer.output_padding if rank == 4 else (0, *layer.output_padding)
    made = conv_transpose2d(_as_images(X), kernel, steps, around, gaps, added)
    return _shifted(layer, _as_sequence(made, rank))


def _shifted(layer: object, found: TensorVariable) -> TensorVariable:
    found = found + layer.b if layer.bias else found
    found.name = f"{layer.name}_output"
    return found


def _pooled(
    layer: object, given: TensorVariable, pool: Callable[..., TensorVariable]
) -> TensorVariable:
    X = pt.as_tensor(given)
    rank = layer.n_spatial + 2
    if X.ndim != rank or any(gap != 1 for gap in layer.dilation):
        return None
    size, steps, around = (_flat(v, rank) for v in (layer.kernel_size, layer.stride, layer.padding))
    found = _as_sequence(pool(_as_images(X), size, steps, around), rank)
    found.name = f"{layer.name}_output"
    return found


def _flat(given: TensorVariable, rank: int) -> TensorVariable:
    """Numbers for both axes of an image; a sequence is an image that is one pixel high."""
    if rank == 4:
        return given
    [along] = given
    return ((0, 0), along) if isinstance(along, tuple) else (1, along)


def _as_images(X: TensorVariable) -> TensorVariable:
    return X if X.ndim == 4 else X.dimshuffle(0, "x", 1, 2)


def _as_sequence(images: TensorVariable, rank: int) -> TensorVariable:
    return images if rank == 4 else images[:, 0]
