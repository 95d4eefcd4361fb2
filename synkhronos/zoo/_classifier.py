"""A `Net` of scores: its loss, the metrics of validation, the updates of its layers."""

from __future__ import annotations

from collections.abc import Sequence

import pytensor.tensor as pt
from pytensor.tensor.variable import TensorVariable
from pytensor_ml.pytensorf import collect_trainable_params, rewrite_for_prediction

from synkhronos.nn import state_updates, without_augmentation
from synkhronos.training.metrics import accuracy
from synkhronos.training.net import Net
from synkhronos.zoo._blocks import Images


def classifier(
    x: TensorVariable | Images,
    scores: TensorVariable,  # of shape (rows, classes)
    # (weight, scores) of further classifiers, whose losses are added in training
    beside: Sequence[tuple[float, TensorVariable]] = (),
) -> Net:
    """A Net that classifies rows."""
    given, words = (x.given, x.words) if isinstance(x, Images) else (x, None)
    y = pt.ivector("y")
    loss = cross_entropy(scores, y)
    for weight, others in beside:
        loss = loss + weight * cross_entropy(others, y)
    predicted = prediction(scores)
    return Net(
        loss=loss,
        params=collect_trainable_params(loss),
        inputs=[given, y],
        outputs=predicted,
        metrics={"loss": cross_entropy(predicted, y), "accuracy": accuracy(predicted, y)},
        updates=state_updates(loss) or None,
        augment=words,
    )


def cross_entropy(scores: TensorVariable, labels: TensorVariable) -> TensorVariable:
    """The mean over rows of -log of the probability of a row's label."""
    log_p = pt.special.log_softmax(scores, axis=1)
    return -log_p[pt.arange(labels.shape[0]), labels].mean()


def prediction(scores: TensorVariable) -> TensorVariable:
    """The scores without dropout and augmentation, by running values of batch normalisation."""
    [plain] = without_augmentation([scores])
    found = rewrite_for_prediction(plain)
    found.name = "scores"
    return found
