"""`everywhere`: PyMC's functions are ours for every caller in the process."""

from __future__ import annotations

import functools
import inspect
import os
import sys
import weakref
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from pymc import modelcontext, sampling, stats

from synkhronos._compiling.progress import silent, tell
from synkhronos._errors import InputError
from synkhronos._libraries.fork_safe_lock import ForkSafeLock
from synkhronos.pymc._chains.chain_folder import path_of
from synkhronos.pymc._chains.sampling import sample, sampler_of
from synkhronos.pymc._everywhere.names import renamed
from synkhronos.pymc._reading.bambi import is_fitting


class Everywhere:
    """PyMC's functions are ours until `close`, or until the end of ``with``: see `everywhere`."""

    def __init__(self, nuts_sampler: str | None, folder: Path | None, quiet: bool) -> None:
        self._options = _Options(nuts_sampler, folder, quiet)
        self._entered = 0

    def __repr__(self) -> str:
        if self._is_open:
            return "PyMC's functions are those of synkhronos.pymc, until close()"
        return "closed: this has left PyMC's functions"

    @property
    def _is_open(self) -> bool:
        return any(each.options is self._options for each in _opened)

    def _open(self) -> None:
        _opened.append(_Opened(weakref.ref(self), self._options))
        try:
            found = renamed([(own, routed) for own, routed in _ROUTED.items()])
            if taken := sorted(place for place in found if place.partition(".")[0] != "pymc"):
                with silent(self._options.quiet):
                    tell(f"everywhere: ours are also names that were imported before: {taken}")
        except BaseException:
            self._leave()
            raise

    def _leave(self) -> None:
        _opened[:] = [each for each in _opened if each.options is not self._options]
        if not _opened:  # also names that were imported meanwhile
            renamed([(routed, own) for own, routed in _ROUTED.items()])

    def close(self) -> None:
        """Restore PyMC's functions, unless others have opened it too. Again it does nothing.

        Others that no variable holds any more, as where a cell has run again, end with it.
        """
        with _lock.held():
            if self._is_open:
                _opened[:] = [each for each in _opened if each.by() is not None]
                self._leave()

    def __enter__(self) -> Everywhere:
        with _lock.held():
            if not self._is_open:
                self._open()
            self._entered += 1
        return self

    def __exit__(self, *_: object) -> None:
        with _lock.held():
            self._entered -= 1
            if not self._entered:
                self._leave()


@dataclass(frozen=True, eq=False)
class _Options:
    """The options of an `Everywhere`, by which calls are made."""

    nuts_sampler: str | None
    folder: Path | None
    quiet: bool

    def call(self, own: _Function, ours: _Function, args: Any, kwargs: dict[str, Any]) -> Any:
        """Call ours; or PyMC's own function, with arguments that ours does not take."""
        with silent(self.quiet or bool(kwargs.get("quiet"))):
            if ours is sample:
                if kwargs.get("nuts_sampler") == "pymc" and is_fitting():
                    kwargs = self._as_bambi_may_mean(kwargs)
                if self.folder is not None:
                    kwargs = {"folder": self.folder, **kwargs}
            signature = inspect.signature(ours)
            try:
                signature.bind(*args, **kwargs)
            except TypeError as exc:
                reason = str(exc)
            else:
                try:
                    return ours(*args, **kwargs)
                except InputError as exc:
                    known = inspect.signature(own).parameters.keys()
                    if kwargs.keys() & (signature.parameters.keys() - known):
                        raise  # the user addresses ours
                    reason = str(exc)
            tell(f"this pm.{own.__name__} is PyMC's own: {' '.join(reason.split())}")
            return own(*args, **kwargs)

    def _as_bambi_may_mean(self, kwargs: dict[str, Any]) -> dict[str, Any]:
        """The arguments without PyMC's own sampler, which is the default of Bambi's fit."""
        if self.nuts_sampler == "pymc":
            return kwargs
        who = "HSSM" if is_fitting(_HSSM) else "Bambi"
        tell(
            f"{who} asks for nuts_sampler='pymc', which is its default; here it is "
            f"{self.nuts_sampler or 'that of pm.sample'}. "
            f"everywhere(nuts_sampler='pymc') obeys {who}"
        )
        found = {name: value for name, value in kwargs.items() if name != "nuts_sampler"}
        found |= {"nuts_sampler": self.nuts_sampler} if self.nuts_sampler else {}
        if who == "HSSM" and found.get("init") == _INIT_OF_HSSM:
            free = {name: value for name, value in found.items() if name != "init"}
            model = modelcontext(found.get("model"))
            if sampler_of(model, free, by_nuts=lambda: True) != "pymc":
                return free
        return found


# HSSM gives it to each sampler unless the user names another one. Only PyMC's own reads it, and
# `pm.sample` would take PyMC's own for it.
_HSSM, _INIT_OF_HSSM = "hssm", "adapt_diag"
_Function = Callable[..., Any]


@dataclass(frozen=True)
class _Opened:
    """An `Everywhere` that is open. Also one that nobody holds stays so, as by a mere call."""

    by: weakref.ref[Everywhere]
    options: _Options


_lock = ForkSafeLock()
_opened: list[_Opened] = []  # the latest last
_inside: ContextVar[bool] = ContextVar("_inside", default=False)  # PyMC calls its own functions


def _routed(own: _Function, ours: _Function) -> _Function:
    """A function in the place of PyMC's own; code may keep it after `close`."""

    @functools.wraps(own)
    def routed(*args: Any, **kwargs: Any) -> Any:
        latest = _opened[-1:]
        if not latest or _inside.get():
            return own(*args, **kwargs)
        token = _inside.set(True)
        try:
            return latest[0].options.call(own, ours, args, kwargs)
        finally:
            _inside.reset(token)

    return routed


def _pairs() -> Iterator[tuple[_Function, _Function]]:
    """PyMC's own functions, and ours."""
    yield sampling.sample, sample
    if sys.platform == "win32":  # the others divide their work over groups
        return
    own = vars(sampling) | vars(stats)
    for module, names in _AFTER.items():
        ours = import_module(f"synkhronos.pymc._after.{module}")
        for name in names:
            yield own[name], getattr(ours, name)


_AFTER = {
    "predictive": ("sample_posterior_predictive", "sample_prior_predictive"),
    "densities": ("compute_log_likelihood", "compute_log_prior"),
    "deterministics": ("compute_deterministics",),
}
_ROUTED = {own: _routed(own, ours) for own, ours in _pairs()}


def everywhere(
    *,
    nuts_sampler: str | None = None,
    folder: str | os.PathLike[str] | None = None,
    quiet: bool = False,
) -> Everywhere:
    """Let PyMC's functions be those of this package, for every caller in this process.

    Until `close`, or until the end of ``with``, these are ours: `pm.sample`,
    `pm.sample_posterior_predictive`, `pm.sample_prior_predictive`, `pm.compute_log_likelihood`,
    `pm.stats.compute_log_prior` and `pm.compute_deterministics`. Bambi, PyMC-Marketing and other
    packages call them, and gain without a change.

    Parameters
    ----------
    nuts_sampler : str, optional
        The sampler where Bambi or HSSM asks for PyMC's own, which is their default. Default: that
        of `pm.sample`, which is nutpie if it is installed and can sample the model. ``"pymc"``
        obeys them.
    folder : path, optional
        That of `sample` for each call of `pm.sample` that names none: draws are on disk while they
        are made, and the same script goes on after a kill. It is the folder of one model with its
        data, and an error says so for another one: let each model have an `everywhere` of its own,
        or name the folder in the call, as in ``fit(..., folder="night")``.
    quiet : bool
        Write no lines. A call with ``quiet=True`` writes none either.

    Returns
    -------
    Everywhere
        A context, which also has `close`.

    Raises
    ------
    InputTypeError
        The folder is not a path.

    Notes
    -----
    Ours take the arguments of PyMC's. A call that ours refuse goes to PyMC's own function, and a
    line says why, unless it names an argument of ours alone, or a folder is to keep its draws.
    `pm.sample` with ``nuts_sampler="pymc"``, ``step``, ``callback``, ``trace``,
    ``init`` or ``return_inferencedata=False`` is PyMC's sampler with the log-density of `fast`.

    Calls in all threads are ours, and in forks of this process. Other processes that it starts have
    PyMC's own. A call that runs when another thread closes is not disturbed. The options of the
    latest opened count. The last one that is closed restores PyMC's functions. It may be used as a
    context again.

    Modules that have imported a function before, by ``from pymc import sample``, get ours as well,
    and a line names them. A function that another package has put around PyMC's own, as MLflow's
    logging of PyMC-Marketing does, calls ours. Other functions in classes, closures and default
    values are not found. PyMC's own function is ``pm.sample.__wrapped__`` meanwhile.

    On Windows only `pm.sample` is ours. `az.loo` stays ArviZ's: it reads a log-likelihood that is
    there, and `loo` needs none.

    Cost: about 30 ms, to find all names.

    Examples
    --------
    >>> import pymc as pm, synkhronos as synk
    >>> with pm.Model() as model:
    ...     mu = pm.Normal("mu")
    >>> with synk.pymc.everywhere(quiet=True), model:
    ...     tree = pm.sample_prior_predictive(100, random_seed=1)  # is synk.pymc's
    >>> tree["prior"]["mu"].shape
    (1, 100)
    """
    opened = Everywhere(nuts_sampler, None if folder is None else path_of(folder), quiet)
    with _lock.held():
        opened._open()
    return opened
