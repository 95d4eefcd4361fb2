"""Private names of PyMC, and functions of it that this package replaces."""

from __future__ import annotations

from synkhronos._libraries.library import Library

PYMC = Library(
    "pymc",
    tried="6.3.2 and 6.4.0",
    names={
        "models with one graph are each compiled": (
            "pymc.distributions.distribution:_support_point",
            "pymc.logprob.abstract:_icdf _logccdf _logcdf _logprob",
            "pymc.model.fgraph:ModelDeterministic ModelFreeRV ModelObservedRV fgraph_from_model",
            "pymc.model.fgraph:model_from_fgraph",
            "pytensor.graph.fg:FunctionGraph()._coords FunctionGraph()._dim_lengths",
            "pymc.sampling.mcmc:assign_step_methods",
        ),
        "functions of PyMC are compiled in each run": ("pymc.pytensorf:Mode",),
        "each model is differentiated once for each parameter": (
            "pymc.step_methods:NUTS._competence",
        ),
        "a model's gradient is not measured": (
            "pymc.model.core:ValueGradFunction()._pytensor_function",
            "pymc.model.core:ValueGradFunction()._raveled_inputs",
        ),
        "advice does not count NUTS's own work": (
            "pymc.step_methods.hmc.integration:CpuLeapfrogIntegrator",
            "pymc.step_methods.hmc.quadpotential:QuadPotentialDiag",
        ),
        "a nutpie that is too old for PyMC is an error": (
            "pymc.sampling.mcmc:_nutpie_meets_min_version",
        ),
        "chains in processes of their own do not show how far they are": (
            "pymc.sampling.mcmc:NutpieProgressBarManager default_progress_theme",
        ),
    },
)
__getattr__ = PYMC.get
