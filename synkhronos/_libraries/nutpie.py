"""Private names of nutpie, and functions of it that this package replaces."""

from __future__ import annotations

from synkhronos._libraries.library import Library

NUTPIE = Library(
    "nutpie",
    tried="0.16.11",
    names={
        "nutpie compiles as it is, which takes longer": (
            "nutpie.compile_pymc:_compile_pymc_model_numba _make_functions",
            "nutpie.compile_pymc:_prepare_dims_and_coords CompiledPyMCModel",
            "nutpie.compile_pymc:CompiledPyMCModel()._coords CompiledPyMCModel()._n_dim",
            "nutpie.compile_pymc:CompiledPyMCModel()._shapes make_user_data",
        ),
        "runs in a folder cannot be sampled, and no metric is chosen": ("nutpie:sample",),
        "runs in a folder cannot be sampled": (
            "nutpie.sample:_add_arrow_data",
            "nutpie._lib:PyNutsSettings",
        ),
        "models with one graph are each compiled": ("nutpie:compile_pymc_model",),
        "after the death of a member nutpie may return draws that mean nothing, without an error": (
            "nutpie.sample:_BackgroundSampler.wait _BackgroundSampler._extract",
            "nutpie.sample:_BackgroundSampler()._compiled_model _BackgroundSampler()._sampler",
        ),
    },
)
__getattr__ = NUTPIE.get
