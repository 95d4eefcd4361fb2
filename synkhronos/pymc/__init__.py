"""Models of PyMC: a faster likelihood, and members that evaluate that of their rows.

Each room imports only itself and the rooms before it.

===============  ===================================================================================
``_reading``     which terms of a model are sums over rows, and what these are computed from
``_repeated``    rows that repeat: the same sum over fewer rows
``_density``     the likelihood as a faster graph, proved; it knows no group
``_kept``        `fast`; models that this machine has compiled before start at once
``_group``       `parallel`, `divide`, `advise`: members compute the likelihood of their rows
``_diverged``    which variables the divergences of a run come with, and what to try
``_chains``      `sample`: chains in threads, in processes with members, and on several nodes
``_map``         `map`: many models in slots of cores, one compilation for one graph
``_after``       what follows sampling: predictive draws, log-densities, deterministics, `loo`
``_everywhere``  `everywhere`: PyMC's functions are ours, for code that calls PyMC
``_refits``      `cross_validate`, `reloo`, `lfo`: fits without some rows, by `map`
``_simulated``   `sbc`: fits to data that the model has simulated, by `map`
===============  ===================================================================================

The first three are the way from a model to its density. They, and `_kept`, import nothing of the
group, only what lies below it (up to ``synkhronos._compiling``), so `fast` works where no group
does.

It needs the extra: ``pip install "synkhronos[pymc]"``. PyMC is imported when a name of this package
is first used. Workers do not import it: they get graphs of PyTensor's operations.
"""

from typing import TYPE_CHECKING

from synkhronos._public import imported_late as _imported_late

if TYPE_CHECKING:
    from synkhronos.pymc._after.densities import compute_log_likelihood, compute_log_prior
    from synkhronos.pymc._after.deterministics import (
        compute_deterministics as compute_deterministics,
    )
    from synkhronos.pymc._after.loo import loo
    from synkhronos.pymc._after.predictive import (
        sample_posterior_predictive as sample_posterior_predictive,
    )
    from synkhronos.pymc._after.predictive import sample_prior_predictive as sample_prior_predictive
    from synkhronos.pymc._after.subsample import loo_subsample
    from synkhronos.pymc._chains.sampler import Sampler
    from synkhronos.pymc._chains.sampling import sample
    from synkhronos.pymc._diverged.explanation import Divergences, explain_divergences
    from synkhronos.pymc._everywhere.everywhere import Everywhere, everywhere
    from synkhronos.pymc._group.advice import Advice
    from synkhronos.pymc._group.parallel import Parallel, advise, divide, parallel
    from synkhronos.pymc._kept.fast import fast
    from synkhronos.pymc._map.mapped import map
    from synkhronos.pymc._map.results import Fits
    from synkhronos.pymc._refits.cross_validation import cross_validate
    from synkhronos.pymc._refits.lfo import lfo
    from synkhronos.pymc._refits.reloo import reloo
    from synkhronos.pymc._simulated.sbc import sbc

_HOMES = {
    "Advice": "_group.advice",
    "Divergences": "_diverged.explanation",
    "Everywhere": "_everywhere.everywhere",
    "Fits": "_map.results",
    "Parallel": "_group.parallel",
    "Sampler": "_chains.sampler",
    "advise": "_group.parallel",
    "compute_deterministics": "_after.deterministics",
    "compute_log_likelihood": "_after.densities",
    "compute_log_prior": "_after.densities",
    "cross_validate": "_refits.cross_validation",
    "divide": "_group.parallel",
    "everywhere": "_everywhere.everywhere",
    "explain_divergences": "_diverged.explanation",
    "fast": "_kept.fast",
    "lfo": "_refits.lfo",
    "loo": "_after.loo",
    "loo_subsample": "_after.subsample",
    "map": "_map.mapped",
    "parallel": "_group.parallel",
    "reloo": "_refits.reloo",
    "sample": "_chains.sampling",
    "sample_posterior_predictive": "_after.predictive",
    "sample_prior_predictive": "_after.predictive",
    "sbc": "_simulated.sbc",
}
__all__ = [
    "Advice",
    "Divergences",
    "Everywhere",
    "Fits",
    "Parallel",
    "Sampler",
    "advise",
    "compute_deterministics",
    "compute_log_likelihood",
    "compute_log_prior",
    "cross_validate",
    "divide",
    "everywhere",
    "explain_divergences",
    "fast",
    "lfo",
    "loo",
    "loo_subsample",
    "map",
    "parallel",
    "reloo",
    "sample",
    "sample_posterior_predictive",
    "sample_prior_predictive",
    "sbc",
]

__getattr__ = _imported_late(__name__, __all__, _HOMES.__getitem__, "pymc", "PyMC", "pymc")
