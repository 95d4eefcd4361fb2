"""Networks as functions of their sizes: each returns a `Net`; GANs return a `Pair`.

================  ================================================================================
``_alexnet``      `alexnet`
``_vgg``          `vgg`
``_inception``    `googlenet`, `inception_v3`
``_resnet``       `resnet`, `cifar_resnet`, `wide_resnet`
``_densenet``     `densenet`
``_mobilenet``    `mobilenet`
``_dense``        `mlp`
``_cnn``          `cnn`
``_gan``          `dcgan`, `wgan`, `lsgan`; `adversarial`: of your own networks
``_sequences``    `lstm`, `transformer`
``_network``      what a function that builds a network becomes: weights are drawn from its seed
``_blocks``       layers that the networks share
``_classifier``   a `Net` of scores: losses, metrics, updates
================  ================================================================================

All are made of pytensor-ml's layers and those of `synkhronos.nn` (extra ``synkhronos[nn]``). Mean
and variance of batch normalisation are those of all members' rows, so any number of members makes
the steps of one process. Only dropout's random numbers differ by member.
"""

from typing import TYPE_CHECKING

from synkhronos._public import imported_late as _imported_late

if TYPE_CHECKING:
    from synkhronos.zoo._alexnet import alexnet
    from synkhronos.zoo._cnn import cnn
    from synkhronos.zoo._dense import mlp
    from synkhronos.zoo._densenet import densenet
    from synkhronos.zoo._gan import adversarial, dcgan, lsgan, wgan
    from synkhronos.zoo._inception import googlenet, inception_v3
    from synkhronos.zoo._mobilenet import mobilenet
    from synkhronos.zoo._resnet import cifar_resnet, resnet, wide_resnet
    from synkhronos.zoo._sequences import lstm, transformer
    from synkhronos.zoo._vgg import vgg

__all__ = [
    "adversarial",
    "alexnet",
    "cifar_resnet",
    "cnn",
    "dcgan",
    "densenet",
    "googlenet",
    "inception_v3",
    "lsgan",
    "lstm",
    "mlp",
    "mobilenet",
    "resnet",
    "transformer",
    "vgg",
    "wgan",
    "wide_resnet",
]

_HOMES = {
    "adversarial": "_gan",
    "cifar_resnet": "_resnet",
    "dcgan": "_gan",
    "googlenet": "_inception",
    "inception_v3": "_inception",
    "lsgan": "_gan",
    "lstm": "_sequences",
    "mlp": "_dense",
    "transformer": "_sequences",
    "wgan": "_gan",
    "wide_resnet": "_resnet",
}

__getattr__ = _imported_late(
    __name__, __all__, lambda name: _HOMES.get(name, f"_{name}"), "pytensor_ml", "pytensor-ml", "nn"
)
