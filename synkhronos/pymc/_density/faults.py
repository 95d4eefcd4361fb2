"""Faults of this package: a model that PyMC can sample keeps its own log-density then."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import numpy as np
from pymc import Model

from synkhronos._compiling.python_mode import python_mode
from synkhronos._errors import InputError, SynkhronosError, WorkerError
from synkhronos._warnings import log

_PLAIN = python_mode("canonicalize", "stabilize")


class FaultError(InputError):
    """No faster log-density was made, though the model is right; the model has not been changed."""


@contextlib.contextmanager
def finding_faults(model: Model) -> Iterator[None]:
    """A context that makes a faster log-density: an unexpected exception becomes a `FaultError`.

    An exception stays as it is if PyMC's own log-density raises, too: it is the user's. numba would
    not raise all of those, such as that of an index out of bounds.
    """
    try:
        yield
    except Exception as exc:
        expected = isinstance(exc, SynkhronosError) and not isinstance(exc, WorkerError)
        if expected or _fails_plainly(model):
            raise
        log.debug("no faster log-density was made", exc_info=True)
        names = ", ".join(v.name for v in (*model.observed_RVs, *model.potentials))
        said = f"{type(exc).__name__}: {str(exc).partition('\n')[0]}"
        raise FaultError(
            f"a faster log-density of {names} could not be made ({said}). The model has not been "
            "changed; please report this, with the traceback that the log has at level DEBUG"
        ) from exc


def _fails_plainly(model: Model) -> bool:
    """Whether the model's own log-density raises at the initial point."""
    try:
        with np.errstate(all="ignore"):
            model.compile_logp(mode=_PLAIN)(model.initial_point(0))
    except NotImplementedError:  # an operation that has no code in Python
        return False
    except Exception:
        return True
    return False
