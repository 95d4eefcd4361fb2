"""A fork that runs a check, beside other threads of this process."""

from __future__ import annotations

import faulthandler
import os
import traceback
import warnings
from collections.abc import Callable

_SECONDS = 60


def fork_to(check: Callable[[], object]) -> int:
    """The number of a fork that ends with status 0 if the check raises nothing in it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of a fork beside a thread
        pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        faulthandler.dump_traceback_later(_SECONDS, exit=True)
        check()
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)
