"""Public models of PyMC's, Stan's and R. McElreath's examples, written anew, with data drawn here.

Numbers of rows, groups and categories are those of the real data. `pymc_catalogue.py` runs them.
"""

from __future__ import annotations

from catalogue import counts, groups, latent, regressions

MODELS = groups.MODELS | regressions.MODELS | counts.MODELS | latent.MODELS
