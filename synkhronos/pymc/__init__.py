"""Data parallelism inside one chain of PyMC: the likelihood of many rows, evaluated in parts.

==================  ==============================================================================
``_parallel``       `parallel`: a model whose log-density is divided for a while
``_terms``          the observed terms of a model, and which of them cannot be divided
``_rows``           which variables of a term lie along its rows
``_likelihood``     what the members compute of their rows, and from what
``_rewrites``       ... with fewer costly functions, and nothing computed of data alone
``_fast``           ... and with exponentials and logarithms that vectorise (``_kernels``)
``_round``          one round: every member evaluates its part, the parts are added
``_chains``         which group evaluates: this process's, or one of a chain's own process
``_op``             the operation in the model's graph (``_numba``, ``_jax``: in compiled code)
``_proof``          the divided log-density is the plain one, at random points
``_advice``         `advise`: what it will bring, measured before sampling
``_alarm``          an error in a sampler's thread stops the sampler
==================  ==============================================================================

It needs the extra: ``pip install "synkhronos[pymc]"``. PyMC is imported with `parallel`, and not by
workers, which get graphs of PyTensor's operations.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from synkhronos._errors import BackendMissing

if TYPE_CHECKING:
    from synkhronos.pymc._advice import Advice as Advice
    from synkhronos.pymc._parallel import Parallel as Parallel
    from synkhronos.pymc._parallel import advise as advise
    from synkhronos.pymc._parallel import parallel as parallel

__all__ = ["Advice", "Parallel", "advise", "parallel"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        import_module("pymc")
    except ImportError:
        raise BackendMissing("PyMC", "pymc") from None
    home = "_advice" if name == "Advice" else "_parallel"
    return getattr(import_module(f"synkhronos.pymc.{home}"), name)
