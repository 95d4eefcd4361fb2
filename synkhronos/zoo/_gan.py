"""Generative adversarial networks: a generator of images, and a critic that tells them from rows.

Both are built of 4 x 4 convolutions with stride 2, after Radford et al., arXiv:1511.06434. The
three kinds differ in losses and optimizers.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence

import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.replace import clone_replace
from pytensor.graph.traversal import ancestors
from pytensor.tensor.variable import TensorVariable
from pytensor_ml.layers import Input
from pytensor_ml.pytensorf import collect_trainable_params, rewrite_for_prediction
from pytensor_ml.state import Initializer

from synkhronos._checks import check_word, shown
from synkhronos._errors import InputError, InputTypeError
from synkhronos.extensions import updates
from synkhronos.nn import BatchNorm, Conv2D, ConvTranspose2D, noise, state_updates
from synkhronos.training._pairs.pair import Pair
from synkhronos.training.net import Net
from synkhronos.training.optimizers import clipped
from synkhronos.zoo._blocks import relu
from synkhronos.zoo._network import network

_LEAK = 0.2  # the slope of rectifiers below 0
_SPREAD = 0.02  # the standard deviation of weights


class _Small(Initializer):  # type: ignore[misc]
    """Normal numbers of standard deviation 0.02 (arXiv:1511.06434, section 4)."""

    def sample(self, shape: Sequence[int], dtype: str, rng: np.random.Generator) -> np.ndarray:
        """Draw an array."""
        kind = np.dtype(dtype).type
        return rng.standard_normal(shape, dtype=kind) * kind(_SPREAD)


def _log_losses(
    real: TensorVariable, made: TensorVariable
) -> tuple[TensorVariable, TensorVariable]:
    """Goodfellow et al., arXiv:1406.2661, with the generator's loss that does not saturate."""
    return pt.softplus(-real).mean() + pt.softplus(made).mean(), pt.softplus(-made).mean()


def _wasserstein_losses(
    real: TensorVariable, made: TensorVariable
) -> tuple[TensorVariable, TensorVariable]:
    """Arjovsky et al., arXiv:1701.07875, equation 2."""
    return made.mean() - real.mean(), -made.mean()


def _squared_losses(
    real: TensorVariable, made: TensorVariable
) -> tuple[TensorVariable, TensorVariable]:
    """Mao et al., arXiv:1611.04076, equation 9: labels 0 and 1."""
    critic = ((real - 1) ** 2).mean() / 2 + (made**2).mean() / 2
    return critic, ((made - 1) ** 2).mean() / 2


_LOSSES = {"log": _log_losses, "wasserstein": _wasserstein_losses, "squared": _squared_losses}


def _optimizer(loss: str) -> Callable[..., object]:
    """The paper's, for both networks but for the clipping."""
    if loss == "wasserstein":
        return functools.partial(updates.rmsprop, learning_rate=5e-5)
    rate = 2e-4 if loss == "log" else 1e-4
    return functools.partial(updates.adam, learning_rate=rate, beta1=0.5)


def adversarial(
    x: TensorVariable,
    generate: Callable[[TensorVariable], TensorVariable],
    judge: Callable[[TensorVariable], TensorVariable],
    *,
    loss: str = "log",
    latent: int = 100,
    params: tuple[Sequence[SharedVariable], Sequence[SharedVariable]] | None = None,
    critic_optimizer: Callable[..., object] | None = None,
    generator_optimizer: Callable[..., object] | None = None,
    critic_steps: int | None = None,
) -> Pair:
    """Make a pair of your own networks.

    Parameters
    ----------
    x : variable
        The rows that the generator learns to make.
    generate : callable
        From noise (rows, latent), of mean 0 and variance 1, to rows like those of `x`.
    judge : callable
        From rows to scores, one for each row; large for true rows. It is called twice, and has to
        use the same parameters.
    loss : {"log", "wasserstein", "squared"}
        Of arXiv:1406.2661, as in `dcgan`; of `wgan`; of `lsgan`.
    latent : int
        The numbers of noise for a row.
    params : pair of lists of SharedVariable, optional
        Of the critic, and of the generator. Default: those of pytensor-ml's layers.
    critic_optimizer, generator_optimizer : callable, optional
        Update rules. Default: those of `dcgan`, `wgan` and `lsgan`.
    critic_steps : int, optional
        Steps of the critic for each one of the generator. Default: 5 with "wasserstein", else 1.

    Returns
    -------
    Pair

    Raises
    ------
    InputError, InputTypeError
        An argument is wrong, or the critic has no parameters, or the generator has none.

    Notes
    -----
    Cost: that of the graphs. In the critic's step the generator is not differentiated.

    Examples
    --------
    >>> import numpy as np, pytensor, pytensor.tensor as pt
    >>> from synkhronos import zoo
    >>> x, a = pt.dmatrix("x"), pytensor.shared(np.ones((2, 1)), name="a")
    >>> shift = pytensor.shared(np.zeros(2), name="shift")
    >>> pair = zoo.adversarial(
    ...     x, lambda z: z + shift, lambda rows: rows @ a, latent=2, params=([a], [shift])
    ... )
    >>> pair.critic.params, pair.generator.params, pair.critic_steps
    ([a], [shift], 1)
    """
    check_word("loss", loss, [*_LOSSES])
    dtype = getattr(getattr(x, "type", None), "dtype", None)
    if dtype not in ("float32", "float64"):
        raise InputTypeError(f"x={shown(x)}: give a variable of float32 or float64 with rows")
    words = pt.vector("words", dtype="uint64")
    z = noise(words, latent, dtype=dtype)
    made = generate(z)
    # the running values of the critic's layers follow each other in the order of calls; so this
    # way round the generator's loss does not depend on x
    of_made = judge(made)
    of_real = judge(x)
    critic_loss, generator_loss = _LOSSES[loss](of_real, of_made)
    if params is None:
        own = collect_trainable_params(made)
        params = [p for p in collect_trainable_params(of_real) if p not in own], own
    critic, generator = (list(each) for each in params)
    if not critic or not generator:
        which = "generator" if critic else "critic"
        raise InputError(f"the {which} has no parameters: give params=(critic's, generator's)")
    below = set(ancestors([made]))
    changed = [u for u in state_updates(critic_loss) if u[0] not in below]
    followed = [u for u in state_updates(made) if u[0] in below]
    rule = _optimizer(loss)
    limited = clipped(rule) if loss == "wasserstein" else rule
    place = pt.matrix("latent", dtype=dtype)
    [samples] = clone_replace([made], replace=[(z, place)])
    return Pair(
        critic=Net(loss=critic_loss, params=critic, inputs=[x, words], updates=changed or None),
        generator=Net(
            loss=generator_loss, params=generator, inputs=[words], updates=followed or None
        ),
        critic_optimizer=critic_optimizer or limited,
        generator_optimizer=generator_optimizer or rule,
        critic_steps=critic_steps or (5 if loss == "wasserstein" else 1),
        words=words,
        latent=place,
        samples=rewrite_for_prediction(samples),
    )


@network
def dcgan(
    size: int = 64,
    channels: int = 3,
    *,
    latent: int = 100,
    width: int = 64,
    normalise: bool = True,
    seed: int | None = 0,
) -> Pair:
    """DCGAN: a generator of transposed convolutions, and the log loss.

    Parameters
    ----------
    size : int
        Pixels to a side: 8, 16, 32 and so on.
    channels : int
    latent : int
        The numbers of noise for an image.
    width : int
        Filters at the full size. Each halving of the size doubles them.
    normalise : bool
        Batch normalisation over the rows of all members. Without it convolutions have a bias; so
        each member can train a pair of its own.
    seed : int or None
        Of the weights. None: weights are 0, for those that are loaded.

    Returns
    -------
    Pair
        Rows are images (rows, height, width, channels) between -1 and 1, as the generator makes
        them. Adam with a rate of 0.0002 and a beta1 of 0.5.

    Raises
    ------
    InputError
        An argument is out of range.

    References
    ----------
    Radford, Metz and Chintala, Unsupervised representation learning with deep convolutional
    generative adversarial networks, arXiv:1511.06434.

    Examples
    --------
    >>> from synkhronos import zoo
    >>> pair = zoo.dcgan(seed=None)
    >>> [sum(p.get_value(borrow=True).size for p in net.params)
    ...     for net in (pair.generator, pair.critic)]
    [3576704, 2765568]
    """
    return _images("log", size, channels, latent, width, normalise)


@network
def wgan(
    size: int = 64,
    channels: int = 3,
    *,
    latent: int = 100,
    width: int = 64,
    normalise: bool = True,
    seed: int | None = 0,
) -> Pair:
    """Wasserstein GAN: the networks of `dcgan`, with a critic whose weights stay small.

    Parameters are those of `dcgan`. RMSprop with a rate of 0.00005; weights of the critic stay
    between -0.01 and 0.01; 5 steps of the critic for each one of the generator.

    References
    ----------
    Arjovsky, Chintala and Bottou, Wasserstein GAN, arXiv:1701.07875, algorithm 1.

    Examples
    --------
    >>> from synkhronos import zoo
    >>> pair = zoo.wgan(8, 1, width=4, seed=None)
    >>> pair.critic_steps, len(pair.params)
    (5, 6)
    """
    return _images("wasserstein", size, channels, latent, width, normalise)


@network
def lsgan(
    size: int = 64,
    channels: int = 3,
    *,
    latent: int = 100,
    width: int = 64,
    normalise: bool = True,
    seed: int | None = 0,
) -> Pair:
    """Least squares GAN: the networks of `dcgan`, with squared losses.

    Parameters are those of `dcgan`. Adam with a rate of 0.0001 and a beta1 of 0.5.

    References
    ----------
    Mao et al., Least squares generative adversarial networks, arXiv:1611.04076.

    Examples
    --------
    >>> from synkhronos import zoo
    >>> pair = zoo.lsgan(8, 1, width=4, seed=None)
    >>> pair.samples.type.shape
    (None, 8, 8, 1)
    """
    return _images("squared", size, channels, latent, width, normalise)


def _images(loss: str, size: int, channels: int, latent: int, width: int, normalise: bool) -> Pair:
    """A pair for images, with the losses of this name."""
    halvings = round(math.log2(size / 4))
    if halvings < 1 or 4 * 2**halvings != size:
        raise InputError(f"size={size}: give 8, 16, 32, 64 or another power of 2 above 4")
    depths = [width * 2**i for i in range(halvings)]
    x = Input("x", (None, size, size, channels), pytensor.config.floatX)
    generate = _generator(latent, depths, channels, normalise)
    judge = _critic(depths, channels, normalise)
    return adversarial(x, generate, judge, loss=loss, latent=latent)


def _generator(
    latent: int, depths: Sequence[int], channels: int, normalise: bool
) -> Callable[[TensorVariable], TensorVariable]:
    """From noise to images of 4 pixels to a side, then of twice as many by each layer."""
    ins, outs = [latent, *reversed(depths)], [*reversed(depths), channels]
    layers, norms = [], []
    for number, (old, new) in enumerate(zip(ins, outs, strict=True)):
        last = number == len(outs) - 1
        layers.append(
            ConvTranspose2D(
                f"generator{number}",
                in_channels=old,
                out_channels=new,
                kernel_size=4,
                stride=2 if number else 1,
                padding=1 if number else 0,
                bias=not normalise,
                weight_initializer=_Small(),
            )
        )
        norms.append(_norm(f"generator{number}", new) if normalise and not last else _as_it_is)

    def generate(z: TensorVariable) -> TensorVariable:
        x = z.reshape((z.shape[0], 1, 1, latent))
        for layer, norm in zip(layers[:-1], norms, strict=False):
            x = relu(norm(layer(x)))
        return pt.tanh(layers[-1](x))

    return generate


def _critic(
    depths: Sequence[int], channels: int, normalise: bool
) -> Callable[[TensorVariable], TensorVariable]:
    """From images to one score each; the first layer is not normalised."""
    ins, outs = [channels, *depths], [*depths, 1]
    layers, norms = [], []
    for number, (old, new) in enumerate(zip(ins, outs, strict=True)):
        last = number == len(outs) - 1
        layers.append(
            Conv2D(
                f"critic{number}",
                in_channels=old,
                out_channels=new,
                kernel_size=4,
                stride=1 if last else 2,
                padding=0 if last else 1,
                bias=not normalise,
                weight_initializer=_Small(),
            )
        )
        between = normalise and number and not last
        norms.append(_norm(f"critic{number}", new) if between else _as_it_is)

    def judge(x: TensorVariable) -> TensorVariable:
        for layer, norm in zip(layers[:-1], norms, strict=False):
            x = norm(layer(x))
            x = pt.maximum(x, np.asarray(_LEAK, x.dtype) * x)
        return layers[-1](x).reshape((x.shape[0],))

    return judge


def _norm(name: str, channels: int) -> Callable[[TensorVariable], TensorVariable]:
    layer: Callable[[TensorVariable], TensorVariable] = BatchNorm(f"{name}_norm", n_in=channels)
    return layer


def _as_it_is(x: TensorVariable) -> TensorVariable:
    return x
