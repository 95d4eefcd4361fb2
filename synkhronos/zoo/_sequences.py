"""Networks of sequences: a recurrent one that classifies, and a language model."""

from __future__ import annotations

import math

import pytensor
import pytensor.tensor as pt
from pytensor.tensor.variable import TensorVariable
from pytensor_ml.layers import LSTM, Embedding, Input, LayerNorm, TransformerBlock
from pytensor_ml.pytensorf import collect_trainable_params
from pytensor_ml.state import NormalInitializer

from synkhronos._checks import check_word
from synkhronos._errors import InputError
from synkhronos.nn import state_updates
from synkhronos.training.metrics import has_highest
from synkhronos.training.net import Net
from synkhronos.zoo._blocks import drop, linear
from synkhronos.zoo._classifier import classifier, prediction
from synkhronos.zoo._network import network

SPREAD = 0.02  # standard deviation of GPT-2's embeddings


@network
def lstm(
    columns: int = 128,
    hidden: int = 128,
    *,
    classes: int = 2,
    layers: int = 1,
    length: int | None = None,
    vocabulary: int | None = None,
    summary: str = "last",
    dropout: float = 0.0,
    seed: int | None = 0,
) -> Net:
    """Recurrent layers with long short-term memory, which classify sequences.

    Parameters
    ----------
    columns : int
        Values of a step; of words, those of their embedding.
    hidden : int
        Units of a layer.
    classes : int
    layers : int
    length : int, optional
        Of all sequences, in steps.
    vocabulary : int, optional
        The sequences are of words, numbers below this one. Default: of vectors.
    summary : {"last", "mean"}
        Classify the state after the last step, or the mean over steps.
    dropout : float
        Share of the values before the scores that is removed in training.
    seed : int or None
        Of the weights and of dropout. None: weights are 0, for those that are loaded.

    Returns
    -------
    Net
        Inputs: sequences (rows, length, columns) or words (rows, length), and labels (rows,).
        Outputs: scores (rows, classes), as in validation.

    Raises
    ------
    InputError
        An argument is out of range.

    Notes
    -----
    A layer of h units with n inputs has 4 h (n + h + 1) weights, the scores have (h + 1) classes.

    References
    ----------
    Hochreiter and Schmidhuber, Long short-term memory, Neural Computation 9 (1997).

    Examples
    --------
    >>> from synkhronos import zoo
    >>> net = zoo.lstm(2, 32, classes=2, seed=None)
    >>> sum(p.get_value(borrow=True).size for p in net.params)
    4546
    """
    check_word("summary", summary, ("last", "mean"))
    if vocabulary is None:
        given = x = Input("x", (None, length, columns), pytensor.config.floatX)
    else:
        given = Input("x", (None, length), "int32")
        words = Embedding("words", n_embeddings=vocabulary, n_features=columns)
        x = words(given)
    for number in range(layers):
        x = LSTM(f"lstm{number}", n_in=hidden if number else columns, n_hidden=hidden)(x)
    x = x[:, -1] if summary == "last" else x.mean(axis=1)
    x = pt.specify_shape(x, (None, hidden))
    return classifier(given, linear("scores", drop("drop", x, dropout, seed), classes))


@network
def transformer(
    vocabulary: int = 50257,
    *,
    length: int = 1024,
    width: int = 768,
    heads: int = 12,
    layers: int = 12,
    dropout: float = 0.1,
    seed: int | None = 0,
) -> Net:
    """A transformer that predicts the next token of a text. The default is GPT-2, small.

    Parameters
    ----------
    vocabulary : int
        Tokens are numbers below this one.
    length : int
        Of the sequences, in tokens.
    width : int
        Values of a token, a multiple of `heads`.
    heads, layers : int
    dropout : float
        Share of the values that each part of a layer adds that is removed in training.
    seed : int or None
        Of the weights and of dropout. None: weights are 0, for those that are loaded.

    Returns
    -------
    Net
        Inputs: tokens (rows, length), and for each of them the next one. Outputs: scores (rows,
        length, vocabulary), as in validation.

    Raises
    ------
    InputError
        An argument is out of range.

    Notes
    -----
    The scores are products with the embeddings of tokens, so they have no weights of their own.

    Cost: PyTensor looks through the whole graph for the shape of each dropout's mask, so the time
    to build it grows with the square of `layers`: 5 s for 12, and 0.4 s without dropout.

    References
    ----------
    Vaswani et al., Attention is all you need, arXiv:1706.03762. Radford et al., Language models are
    unsupervised multitask learners, 2019.

    Examples
    --------
    >>> from synkhronos import zoo
    >>> net = zoo.transformer(layers=1, seed=None)  # GPT-2 has 12: 124,439,808 weights
    >>> sum(p.get_value(borrow=True).size for p in net.params)
    46473216
    """
    if width % heads:
        raise InputError(f"width={width}: give a multiple of heads={heads}")
    x, y = Input("x", (None, length), "int32"), Input("y", (None, length), "int32")
    drawn = {"n_features": width, "weight_initializer": NormalInitializer(std=SPREAD)}
    words = Embedding("words", n_embeddings=vocabulary, **drawn)
    places = Embedding("places", n_embeddings=length, **drawn)
    states = drop("drop", words(x) + places.W[None], dropout, seed)
    small = NormalInitializer(std=SPREAD / math.sqrt(2 * layers))
    for number in range(layers):
        name = f"layer{number}"
        how = {"is_causal": True, "fused_qkv": True, "residual_initializer": small}
        parts = TransformerBlock(name, d_model=width, n_head=heads, **how)
        seen = parts.attn(parts.norm1(states))
        states = states + drop(f"{name}_drop_a", seen, dropout, seed)
        made = parts.ff(parts.norm2(states))
        states = states + drop(f"{name}_drop_b", made, dropout, seed)
    scores = LayerNorm("last", n_in=width)(states) @ words.W.T
    loss, predicted = _next_loss(scores, y), prediction(scores)
    right = has_highest(predicted, y).astype(scores.dtype).mean()
    return Net(
        loss=loss,
        params=collect_trainable_params(loss),
        inputs=[x, y],
        outputs=predicted,
        metrics={"loss": _next_loss(predicted, y), "accuracy": right},
        updates=state_updates(loss) or None,
    )


def _next_loss(scores: TensorVariable, tokens: TensorVariable) -> TensorVariable:
    """The mean over all places of -log of the probability of the next token."""
    log_p = pt.special.log_softmax(scores, axis=2)
    rows, places = pt.arange(tokens.shape[0]), pt.arange(tokens.shape[1])
    return -log_p[rows[:, None], places[None, :], tokens].mean()
