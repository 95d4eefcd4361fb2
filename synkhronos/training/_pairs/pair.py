"""Two networks that train against each other, as `Alternate` takes them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pytensor.compile.sharedvalue import SharedVariable

from synkhronos._checks import check_integer
from synkhronos._compiling.graph_types import ModeLike
from synkhronos._errors import ReductionWarning
from synkhronos._warnings import refusing
from synkhronos.extensions._apart.separate import make_local_train_function
from synkhronos.extensions.train import make_train_function
from synkhronos.rules.swap import Swap
from synkhronos.training._pairs.alternate import Alternate
from synkhronos.training.net import Net, training_function

_CURE = "Pair trains exactly or not at all: write each loss as a mean over rows"


@dataclass(frozen=True, kw_only=True)
class Pair:
    """A critic (discriminator) and a generator: a loss, parameters and an optimizer of each.

    `synkhronos.zoo` makes pairs; or make one of your own losses.

    Parameters
    ----------
    critic, generator : Net
        Loss, params, inputs and updates are used. The words are the last of the inputs.
    critic_optimizer, generator_optimizer : callable
        Update rules, as for `fit`.
    critic_steps : int
        Steps of the critic for each step of the generator.
    words : variable, optional
        The uint64 vector of which `synkhronos.nn.noise` makes the generator's noise. Give it as
        ``augment=`` to the `Trainer`.
    latent : variable, optional
        A matrix of noise, the input of `samples`.
    samples : variable, optional
        What the generator makes of `latent`.

    Examples
    --------
    >>> import functools, numpy as np, pytensor, pytensor.tensor as pt, synkhronos as synk
    >>> from synkhronos import nn
    >>> from synkhronos.extensions import updates
    >>> from synkhronos.training import Net, Pair, Trainer, clipped
    >>> x, words = pt.dmatrix("x"), pt.vector("words", dtype="uint64")
    >>> a, shift = pytensor.shared(np.zeros(1), name="a"), pytensor.shared(np.zeros(1), name="b")
    >>> made = nn.noise(words, 1, dtype="float64") + shift
    >>> judged = (made @ a).mean()
    >>> pair = Pair(
    ...     critic=Net(loss=judged - (x @ a).mean(), params=[a], inputs=[x, words]),
    ...     generator=Net(loss=-judged, params=[shift], inputs=[words]),
    ...     critic_optimizer=clipped(functools.partial(updates.sgd, learning_rate=0.1), 0.1),
    ...     generator_optimizer=functools.partial(updates.sgd, learning_rate=0.5),
    ...     critic_steps=2, words=words,
    ... )
    >>> rows = np.random.default_rng(0).normal(size=(1200, 1)) + 3
    >>> with synk.Group(2):
    ...     trainer = Trainer(pair.alternate("FAST_COMPILE"), augment=words, progress=False)
    ...     history = trainer.fit(rows, batch=20, epochs=5)
    >>> bool(2.5 < shift.get_value()[0] < 3.5)
    True
    """

    critic: Net
    generator: Net
    critic_optimizer: Callable[..., object]
    generator_optimizer: Callable[..., object]
    critic_steps: int = 1
    words: object = None
    latent: object = None
    samples: object = None

    @property
    def params(self) -> list[SharedVariable]:
        """The parameters of both: first those of the generator."""
        return [*self.generator.params, *self.critic.params]

    def alternate(self, mode: ModeLike = None, *, swap: Swap | None = None) -> Alternate:
        """Make the training functions, "critic" and "generator", and their cycle.

        Parameters
        ----------
        mode : optional
            As for `synkhronos.function`.
        swap : rules.Swap, optional
            Each member trains a pair of its own, by local steps. After each period of steps, random
            pairs of members exchange critics. Without it all members train one pair.

        Returns
        -------
        Alternate

        Raises
        ------
        InputError, InputTypeError
            The reduction of a loss over rows is not proved, or arguments do not fit together.

        Notes
        -----
        Cost: two graphs are proved; they are compiled at the first steps.
        """
        make: Callable[..., Any] = make_train_function
        if swap is not None:
            make = make_local_train_function
        critic_steps = check_integer("Pair: critic_steps", self.critic_steps, 1)
        parts = [
            ("critic", self.critic, self.critic_optimizer),
            ("generator", self.generator, self.generator_optimizer),
        ]
        with refusing(ReductionWarning, _CURE):
            critic, generator = [
                training_function(make, net, list(net.inputs), rule, mode=mode, name=name)
                for name, net, rule in parts
            ]
        return Alternate([(critic, critic_steps), (generator, 1)], swap=swap)
