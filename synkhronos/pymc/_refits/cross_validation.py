"""`cross_validate`: each fold of rows is predicted by a fit without it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pymc as pm
from xarray import DataTree

from synkhronos._checks import check_flag
from synkhronos.pymc._after.elpd import is_pointwise, of_arviz
from synkhronos.pymc._reading.models import model_of
from synkhronos.pymc._refits.fits import Refits, result_rows
from synkhronos.pymc._refits.folds import check_folds, folds_of


def cross_validate(
    model: pm.Model | None,
    idata: DataTree,
    *,
    k: int | None = None,
    by: Any = None,
    folds: Any = None,
    stratify_by: Any = None,
    group_by: Any = None,
    pointwise: bool | None = None,
    var_name: str | None = None,
    save_fits: bool = False,
    seed: int | None = 271,
    backend: str | None = None,
    compile_kwargs: dict[str, object] | None = None,
    **kwargs: Any,
) -> Any:
    """Cross-validate a model: fit it without each fold of rows, and predict these.

    The result and the arguments are those of `arviz.loo_kfold`, which wants a wrapper that samples.
    Here `map` fits the folds, in slots of cores, with one compilation for all of them.

    Parameters
    ----------
    model : pymc.Model or None
        None: that of the current context.
    idata : DataTree
        The fit to all rows, with the group ``posterior``. If it has ``log_likelihood``, the numbers
        of that are used for ``p``.
    k : int, optional
        The number of folds; default 10. Rows are shared out at random.
    by : str or array, optional
        One fold for each of its values: a dim of the observed variable, data of the model of some
        of its dims, or an array with a value for each row. To leave one group out after another.
        Arrays are flat or of the shape of the rows; those of xarray have some dims of the rows.
    folds : array, optional
        As in ArviZ: the fold of each row.
    stratify_by, group_by : array, optional
        As in ArviZ: a value for each row, for `k` folds. The values are shared out evenly, or rows
        with the same value stay together.
    pointwise : bool, optional
        Whether the result has numbers of each row. Default: ArviZ's ``rcParams``. `az.compare`
        needs them.
    var_name : str, optional
        The observed variable; needed if there are several. The others stay in all fits.
    save_fits : bool
        Whether the result has ``fold_fits``: the draws of each fold, in memory, by the number of
        the fold as in ArviZ, or by the value of `by` as a text. Folds that ``folder`` has without
        draws are fitted again, with the same numbers.
    seed : int or None
        Of the folds that are drawn at random. Folds of one seed are those of ArviZ.
    backend, compile_kwargs
        As for `pm.compute_log_likelihood`.
    **kwargs
        Arguments of `map`, such as on, cores, members, folder, random_seed and limit; and
        of `pm.sample`, such as draws, tune, chains and target_accept. Default: as many draws
        and chains as `idata` has.

    Returns
    -------
    ELPDDataLOOKFold
        Of ArviZ; ``az.compare`` takes it.

    Raises
    ------
    InputError, InputTypeError
        An argument is not possible, `by` names nothing that has the groups of rows, there are fewer
        rows or groups than folds, there are fewer than 25 draws, or the log-likelihoods in `idata`
        are not those of the model. Nothing was fitted.
    SynkhronosError
        A fit has failed. With ``folder=`` the others are kept.
    KeyboardInterrupt
        Ctrl-C. The fits in ``folder`` stay.

    Warns
    -----
    UserWarning
        Draws of some fits diverged.

    Notes
    -----
    Cost: a compilation in each slot, and a fit for each fold. Rows that are left out cost as much
    as others: the model keeps its shape, and their log-likelihoods are replaced by 0. So parameters
    of a group that is left out stay, and are drawn from what the other groups say about them.

    Draws follow from ``random_seed`` and the name of the fold: not from the number of processes.
    Deterministics are not computed. The fits that `save_fits` keeps have the posterior alone.

    See Vehtari, Gelman, Gabry, "Practical Bayesian Model Evaluation Using Leave-One-Out
    Cross-Validation and WAIC", Statistics and Computing 27(5), 2017.

    Examples
    --------
    ::

        tens = synk.pymc.cross_validate(model, idata, k=10, random_seed=1)
        shops = synk.pymc.cross_validate(model, idata, by="shop", random_seed=1)
        az.compare({"model": tens, "other": synk.pymc.cross_validate(other, its_idata)})
    """
    given = {"by": by, "folds": folds, "stratify_by": stratify_by, "group_by": group_by}
    check_folds(k, given, seed)
    check_flag("cross_validate: save_fits", save_fits)
    model = model_of(model, "cross_validate")
    fits = Refits("cross_validate", idata, model, var_name, (backend, compile_kwargs), kwargs)
    rows = fits.rows
    places = folds_of(model, rows, k, given, seed)
    items = {name: {"out": own, "scored": own, "together": False} for name, own in places.items()}
    found = fits.run(items, keeps=save_fits)
    elpd = np.empty(rows.size)
    for name, own in places.items():
        elpd[own] = found[name]["elpd"]
    p = fits.log_means() - elpd
    kept = (
        {
            name if by is not None else int(name): {"fit": found[name]["fit"], "test_indices": own}
            for name, own in places.items()
        }
        if save_fits
        else None
    )
    each = is_pointwise(pointwise)
    values = {
        "elpd": elpd.sum(),
        "se": np.sqrt(elpd.size * elpd.var()),
        "p": p.sum(),
        "n_samples": fits.draws,
        "n_data_points": elpd.size,
        "scale": "log",
        "warning": False,
        "good_k": None,
        "elpd_i": result_rows(rows, elpd) if each else None,
        "n_folds": len(places),
        "p_kfold_i": result_rows(rows, p) if each else None,
        "fold_fits": kept,
    }
    return of_arviz("loo_kfold", "LOOKFold", values)
