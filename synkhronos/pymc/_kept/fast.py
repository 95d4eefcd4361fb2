"""`fast`: a copy of a model whose log-density is computed faster, in whatever samples it."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from pymc import Model

from synkhronos._checks import options_checked
from synkhronos._compiling.lean.mode import without_c
from synkhronos._compiling.progress import telling
from synkhronos._compiling.traces import untraced
from synkhronos._errors import InputError
from synkhronos._warnings import log
from synkhronos.pymc._density.faster import Faster, mark
from synkhronos.pymc._density.faults import FaultError, finding_faults
from synkhronos.pymc._kept.copies import lead_copies
from synkhronos.pymc._reading.declared import Declared
from synkhronos.pymc._reading.models import copied, model_of, refuse_divided
from synkhronos.pymc._reading.reading import read


@options_checked
def fast(
    model: Model | None = None,
    dim: str | None = None,
    *,
    row_wise: Sequence[object] = (),
    repeated: bool = True,
) -> Model:
    """A copy of a model whose log-density and gradient take less time on one core.

    `pm.sample` (with nutpie, in its threads, or PyMC's samplers in processes), `pm.find_MAP`,
    `pm.fit`, `pm.sample_smc` and `model.compile_logp` take the copy as any model, in mode NUMBA.
    No process is started, and no memory is shared. The log-density is the same up to rounding: it
    and its gradient are compared with the plain ones at the initial point and near it first.

    Expressions of data alone are computed once. Functions such as exp, erf and gammaln are computed
    for several rows at a time. Value and gradient share their parts. Variables whose rows are too
    few to gain by that keep PyMC's graph: the number of rows and the graph decide, no clock does.
    The gradient of a multivariate normal by a covariance of parameters has a closed form.
    Loops over time whose states are a few numbers become loops of numbers, in mode NUMBA.

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
        why. So it is where the new log-density differs from the plain one, or an error prevents it:
        a warning of the log asks you to report that.

    Raises
    ------
    InputError
        An observed variable with the dimension `dim` is not a sum over its entries, or another
        reason with `dim` for which the log-density stays the plain one; an entry of `row_wise` is
        not known; or the model has symbolic initial values, so that PyMC cannot copy it.

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
    with untraced(), without_c("NUMBA"):
        model = copied(model)
        declared = Declared.of(model, row_wise)  # a wrong entry is no reason to stay plain
        try:
            with finding_faults(model):
                _make_faster(model, dim, declared, repeated)
        except InputError as exc:
            if dim is not None:
                raise
            is_fault = isinstance(exc, FaultError)
            reason = " ".join(str(exc).split())
            level = logging.WARNING if is_fault else logging.INFO
            log.log(level, "the log-density stays the plain one: %s", reason)
            if is_fault or not mark(model, model.logp()):
                return model
        lead_copies()
    return model


def _make_faster(model: Model, dim: str | None, declared: Declared, repeated: bool) -> None:
    with telling("reading the model"):
        reading = read(model, dim, declared)
    Faster(model, reading, settable=True, repeated=repeated)
