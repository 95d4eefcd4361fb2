"""`fast`: a copy of a model whose log-density is computed faster, in whatever samples it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import pytensor.tensor as pt
from pymc.model.transform.optimization import freeze_dims_and_data

from synkhronos._checks import options_checked
from synkhronos._compiling.lean.mode import without_c
from synkhronos._compiling.progress import telling
from synkhronos._errors import InputError
from synkhronos.pymc._density.density import density
from synkhronos.pymc._density.divided import Divided, Replaced, model_of, point_of, refuse_divided
from synkhronos.pymc._density.likelihood import Likelihood, tell_forms
from synkhronos.pymc._density.proof import NotFiniteError, prove
from synkhronos.pymc._density.rest_terms import prove_summands
from synkhronos.pymc._density.serial import DataInGraph, InProcess, sources_of
from synkhronos.pymc._reading.declared import Declared
from synkhronos.pymc._reading.rewrites import untraced
from synkhronos.pymc._reading.terms import Terms, read_model

log = logging.getLogger("synkhronos")


class Faster(Replaced):
    """A model with a faster log-density, until `close`.

    Parameters
    ----------
    model : pymc.Model
    terms : Terms
        Of this model.
    settable : bool, optional
        Whether the log-density follows data that the user sets. If not, data are constants.
    repeated : bool, optional
        As for `fast`.
    """

    def __init__(
        self, model: Any, terms: Terms, settable: bool = False, repeated: bool = True
    ) -> None:
        super().__init__(model)
        self._repeated = repeated
        self._settable = settable
        with telling(f"proving {', '.join(terms.names)}"), untraced(), without_c("NUMBA"):
            value = self._value_of(terms)
        self.replace(Divided(model, terms, value, self._value_of, lasting=settable))

    def _value_of(self, terms: Terms) -> Any:
        """The log-density of these terms' variables, proved."""
        likelihood = Likelihood(terms, point_of(self.model), self._repeated)
        tell_forms(likelihood)
        data = DataInGraph(likelihood, self._settable)
        found = prove(self.model, terms.all, InProcess(likelihood, data))
        if found is not None:
            raise InputError(
                f"the faster log-density of {', '.join(terms.names)} is not the plain one: "
                f"{found}. Sample the model as it is, and please report this"
            )
        prove_summands(self.model, terms)
        value = density(likelihood, data.variables, sources_of(likelihood))[0]
        value = value if data.valid is None else value * data.valid
        rests = list(terms.rests.values())
        return pt.add(value, *rests) if rests else value


@options_checked
def fast(
    model: Any = None,
    dim: str | None = None,
    *,
    row_wise: Sequence[object] = (),
    repeated: bool = True,
) -> Any:
    """A copy of a model whose log-density and gradient take less time on one core.

    `pm.sample` (with nutpie, in its threads, or PyMC's samplers in processes), `pm.find_MAP`,
    `pm.fit`, `pm.sample_smc` and `model.compile_logp` take the copy as any model, in mode NUMBA.
    No process is started, and no memory is shared. The log-density is the same up to rounding: it
    and its gradient are compared with the plain ones at the initial point and near it first.

    Expressions of data alone are computed once. Functions such as exp, erf and gammaln are computed
    for several rows at a time. Value and gradient share their parts.

    Parameters
    ----------
    model : pymc.Model, optional
        Default: the model of the current context. It is not changed.
    dim : str, optional
        As for `parallel`.
    row_wise : sequence, optional
        As for `parallel`.
    repeated : bool, optional
        As for `parallel`.

    Returns
    -------
    pymc.Model
        A new model, with the same variables, dims, coords, data and initial values. Where no
        variable can be computed faster, its log-density is the plain one; a line of the log says
        why.

    Raises
    ------
    InputError
        An observed variable with the dimension `dim` is not a sum over its entries; an entry of
        `row_wise` is not known; the new log-density differs from the plain one; or the model has
        symbolic initial values, so that PyMC cannot copy it.

    Notes
    -----
    Cost: the model is read, and its log-density evaluated with numpy a few times. Machine code is
    compiled when the copy is first sampled; that takes up to 1.5 times as long as for the model.

    `pm.set_data` on the copy, and ``set_value`` of its data or of a shared variable that the model
    reads, change its log-density, as in any model; it is NaN as long as data do not fit together.
    Values that are written into the array of a shared variable are not noticed. Functions that
    nutpie has compiled keep the data that they were compiled with; its `with_data` is refused for
    data that the log-density reads.

    PyMC's copies of a model (`pm.do`, `freeze_dims_and_data`) have its own log-density: copy first.

    In other modes than NUMBA, functions are PyTensor's own: JAX (numpyro, blackjax) compiles the
    same graph.

    Examples
    --------
    >>> import numpy as np, pymc as pm, synkhronos as synk
    >>> with pm.Model() as model:
    ...     mu = pm.Normal("mu")
    ...     y = pm.Normal("y", mu, 1, observed=np.arange(5.0))
    >>> faster = synk.pymc.fast(model)
    >>> at, mode = {"mu": 1.0}, "FAST_COMPILE"
    >>> gap = faster.compile_logp(mode=mode)(at) - model.compile_logp(mode=mode)(at)
    >>> bool(abs(gap) < 1e-9)
    True
    """
    model = model_of(model, "fast")
    refuse_divided(model)
    Declared(model, row_wise)  # a wrong entry is no reason to keep the plain log-density
    with telling("reading the model"), untraced(), without_c("NUMBA"):
        copy = copied(model)
        try:
            terms = read_model(copy, dim, row_wise)
        except InputError as exc:
            if dim is not None:
                raise
            _tell_plain(exc)
            return copy
    try:
        Faster(copy, terms, settable=True, repeated=repeated)
    except NotFiniteError as exc:
        if dim is not None:
            raise
        _tell_plain(exc)
    return copy


def _tell_plain(reason: InputError) -> None:
    log.info("the log-density stays the plain one: %s", " ".join(str(reason).split()))


def copied(model: Any, frozen: bool = False) -> Any:
    """A copy of a model, with its initial values, and its variables in the same order.

    If it is frozen, its dims and data are constants.
    """
    _refuse_shared_values(model)
    kept: list[str] | None = None if frozen else []
    try:
        copy = freeze_dims_and_data(model, dims=kept, data=kept)
    except NotImplementedError as exc:
        raise InputError(f"the model cannot be copied: {exc}") from exc
    order = {name: i for i, name in enumerate(model.named_vars)}
    kinds = ("free_RVs", "observed_RVs", "deterministics", "potentials", "data_vars")
    for variables in [getattr(copy, kind) for kind in kinds]:
        variables.sort(key=lambda v: order[v.name])
    return copy


def _refuse_shared_values(model: Any) -> None:
    """Raise for the same data as the values of two variables: PyMC copies them twice, and fails."""
    seen: dict[Any, str] = {}
    for rv in model.observed_RVs:
        value = model.rvs_to_values[rv]
        if value in model.data_vars and value in seen:
            raise InputError(
                f"the model cannot be copied: {seen[value]} and {rv.name} observe the same data "
                f"{value.name}, and PyMC copies data once for each. Make a pm.Data for each, or "
                "call synk.pymc.sample or synk.pymc.parallel, which need no copy"
            )
        seen[value] = rv.name
