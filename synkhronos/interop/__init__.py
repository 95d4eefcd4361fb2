"""Networks of other frameworks in a group, and networks of ours in other programs.

================  ================================================================================
`from_keras`      a Keras 3 model as a `KerasNet`, for `fit` and for every rule (extra ``keras``)
`to_onnx`         a network as an ONNX file (extra ``onnx``)
``_keras``        the model's text, and what it computes as functions of JAX
``_keras_json``   models from the JSON of Keras 1, 2 and 3
``_operations``   operations that call such a function, with their gradient
``_jax``          the operations in JAX programs, see ``_compiling.late_imports``
================  ================================================================================

The weights of other frameworks' files need no module: see the how-to "Use other frameworks".
"""

from synkhronos._public import belong_to as _belong_to
from synkhronos.interop._keras import KerasNet, from_keras
from synkhronos.interop._onnx import to_onnx

__all__ = ["KerasNet", "from_keras", "to_onnx"]

_belong_to(__name__, [KerasNet, from_keras, to_onnx])
