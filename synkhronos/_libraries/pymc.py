"""Private names of PyMC, and functions of it that this package replaces."""

from __future__ import annotations

from synkhronos._libraries.library import Library

PYMC = Library(
    "pymc",
    tried="6.3.2 and 6.4.0",
    names={
        "models with one graph are each differentiated": (
            "pymc.sampling.mcmc:assign_step_methods",
        ),
        "chains in processes of their own do not show how far they are": (
            "pymc.sampling.mcmc:NutpieProgressBarManager",
            "pymc.sampling.mcmc:default_progress_theme",
        ),
    },
)
__getattr__ = PYMC.get
