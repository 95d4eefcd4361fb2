"""`Sampler`: `sample` as an object, which PyMC's own call takes."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

from pymc import Model

from synkhronos._compiling.graph_types import ModeLike
from synkhronos._errors import InputError
from synkhronos.pymc._chains.sampling import sample


class Sampler:
    """`sample` as an object, for ``pm.sample(sampler=Sampler())``.

    PyMC 6.4 does not take samplers as objects yet: use `everywhere`, or call `sample_from_init`.

    Parameters
    ----------
    nuts_sampler : str, optional
        As for `pm.sample`. Default: nutpie, if it is installed and can sample the model.
    dim, members_per_chain, mode, row_wise, repeated
        As for `sample`.
    **kwargs
        Arguments of `sample` that are not of one run: nuts, adaptation, folder, keep, step, init,
        callback, backend and so on.

    Raises
    ------
    InputError
        An argument is one of a run, such as draws: `pm.sample` and `sample_from_init` take it.

    Examples
    --------
    >>> import numpy as np, pymc as pm, synkhronos as synk
    >>> with pm.Model() as model:
    ...     y = pm.Normal("y", pm.Normal("mu"), 1, observed=np.arange(5.0))
    >>> sampler = synk.pymc.Sampler(nuts_sampler="pymc")
    >>> run = dict(draws=5, tune=5, chains=2, cores=1, progressbar=False, quiet=True)
    >>> idata = sampler.sample_from_init(model=model, compute_convergence_checks=False, **run)
    >>> idata.posterior["mu"].shape
    (2, 5)
    """

    def __init__(
        self,
        *,
        nuts_sampler: str | None = None,
        dim: str | None = None,
        members_per_chain: int | None = None,
        mode: ModeLike = None,
        row_wise: Sequence[object] = (),
        repeated: bool = True,
        **kwargs: Any,
    ) -> None:
        of_run = inspect.signature(self.sample_from_init).parameters.keys() - {"compile_kwargs"}
        if wrong := sorted(kwargs.keys() & of_run):
            named = ", ".join(f"{name}=..." for name in wrong)
            raise InputError(
                f"Sampler({named}): what is of one run is given to pm.sample, or to "
                "sample_from_init"
            )
        self._configuration: Mapping[str, Any] = {
            "nuts_sampler": nuts_sampler,
            "dim": dim,
            "members_per_chain": members_per_chain,
            "mode": mode,
            "row_wise": row_wise,
            "repeated": repeated,
            **kwargs,
        }

    def sample_from_init(
        self,
        *,
        model: Model | None = None,
        draws: int = 1000,
        tune: int | None = None,
        chains: int | None = None,
        cores: int | None = None,
        initvals: Any = None,
        random_seed: Any = None,
        progressbar: Any = True,
        quiet: bool = False,
        discard_tuned_samples: bool = True,
        keep_warning_stat: bool = False,
        var_names: Sequence[str] | None = None,
        idata_kwargs: Mapping[str, Any] | None = None,
        compute_convergence_checks: bool = True,
        blas_cores: Any = "auto",
        compile_kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Sample a model; the arguments are those of `pm.sample` for one run.

        Returns
        -------
        xarray.DataTree
            As that of `sample`.
        """
        compiled = {} if compile_kwargs is None else {"compile_kwargs": dict(compile_kwargs)}
        return sample(
            model=model,
            draws=draws,
            tune=tune,
            chains=chains,
            cores=cores,
            initvals=initvals,
            random_seed=random_seed,
            progressbar=progressbar,
            quiet=quiet,
            discard_tuned_samples=discard_tuned_samples,
            keep_warning_stat=keep_warning_stat,
            var_names=var_names,
            idata_kwargs=idata_kwargs,
            compute_convergence_checks=compute_convergence_checks,
            blas_cores=blas_cores,
            **{**self._configuration, **compiled},
        )


def _register() -> None:
    """Let PyMC know the class as a sampler, in versions that have such a class."""
    try:
        import_module("pymc.sampling.samplers").Sampler.register(Sampler)
    except (ImportError, AttributeError):
        return


_register()
