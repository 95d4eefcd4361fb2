"""Models of PyMC: a faster likelihood, and members that evaluate that of their rows.

=====================  ===========================================================================
``_parallel``          `parallel`: divides a model's log-density until it is closed
``_fast``              `fast`: a copy of a model with a faster log-density, without members
``_sampling``          `sample`: chooses how the chains are sampled, and calls `pm.sample`
``_nutpie``            calls `pm.sample`, for which nutpie compiles in less time
``_failures``          raises what nutpie and `pm.find_MAP` would take for a bad point
``_estimate``          the seconds of a gradient, from its graph
``_members``           chains with members, by a measurement
``_chain_processes``   chains of nutpie with members, each in a process of its own
``_chain_progress``    how far these are
``_node_chains``       the same on several nodes: each samples some chains, by ``_node_main``
``_terms``             a model's observed terms and Potentials, and which of them cannot be divided
``_summands``          sums over rows in a scalar log-density, which are divided, and the rest
``_undivided``         the terms that stay in the master: their share of the time
``_rows``              which variables of a term lie along its rows
``_counts``            which lengths are the number of rows, whatever data are set
``_declared``          operations that the user declares to keep rows apart
``_likelihood``        the graph that members compute on their rows, and its inputs
``_rewrites``          rewrites of that graph: fewer costly functions, constants from data
``_group_likelihood``  the likelihood in a group: each member computes its rows, the sums are added
``_evaluator``         which group evaluates: this process's, or that of a chain's own process
``_divided``           what replaces a model's log-density
``_density``           the likelihood as an operation of the model's function, without a group
``_in_process``        its data, and its evaluation with numpy
``_containers``        notices that the user sets the value of a shared variable
``_initial_values``    initial values, which PyMC's copies of a model refuse
``_op``                the operation in the model's graph (compiled by ``_numba`` and ``_jax``)
``_proof``             compares the divided log-density with the plain one at random points
``_advice``            `advise`: measures and predicts the speed-up before sampling
``_after``             what follows sampling: predictive draws, log-densities, deterministics
``_fleet``             `map`: many models in slots of cores, one compilation for one graph
=====================  ===========================================================================

It needs the extra: ``pip install "synkhronos[pymc]"``. PyMC is imported when `parallel` is first
used. Workers do not import it: they get graphs of PyTensor's operations.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from synkhronos._api.public_names import belong_to as _belong_to
from synkhronos._errors import BackendMissing

if TYPE_CHECKING:
    from synkhronos.pymc._advice import Advice as Advice
    from synkhronos.pymc._after.densities import compute_log_likelihood as compute_log_likelihood
    from synkhronos.pymc._after.densities import compute_log_prior as compute_log_prior
    from synkhronos.pymc._after.deterministics import (
        compute_deterministics as compute_deterministics,
    )
    from synkhronos.pymc._after.loo import loo as loo
    from synkhronos.pymc._after.predictive import (
        sample_posterior_predictive as sample_posterior_predictive,
    )
    from synkhronos.pymc._after.predictive import (
        sample_prior_predictive as sample_prior_predictive,
    )
    from synkhronos.pymc._fast import fast as fast
    from synkhronos.pymc._fleet.mapped import map as map
    from synkhronos.pymc._fleet.results import Fits as Fits
    from synkhronos.pymc._parallel import Parallel as Parallel
    from synkhronos.pymc._parallel import advise as advise
    from synkhronos.pymc._parallel import divide as divide
    from synkhronos.pymc._parallel import parallel as parallel
    from synkhronos.pymc._sampling import sample as sample

_HOMES = {
    "Advice": "_advice",
    "Fits": "_fleet.results",
    "Parallel": "_parallel",
    "advise": "_parallel",
    "compute_deterministics": "_after.deterministics",
    "compute_log_likelihood": "_after.densities",
    "compute_log_prior": "_after.densities",
    "divide": "_parallel",
    "fast": "_fast",
    "loo": "_after.loo",
    "map": "_fleet.mapped",
    "parallel": "_parallel",
    "sample": "_sampling",
    "sample_posterior_predictive": "_after.predictive",
    "sample_prior_predictive": "_after.predictive",
}
__all__ = [
    "Advice",
    "Fits",
    "Parallel",
    "advise",
    "compute_deterministics",
    "compute_log_likelihood",
    "compute_log_prior",
    "divide",
    "fast",
    "loo",
    "map",
    "parallel",
    "sample",
    "sample_posterior_predictive",
    "sample_prior_predictive",
]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        import_module("pymc")
    except ImportError:
        raise BackendMissing("PyMC", "pymc") from None
    found = getattr(import_module(f"synkhronos.pymc.{_HOMES[name]}"), name)
    _belong_to(__name__, [found])
    return found
