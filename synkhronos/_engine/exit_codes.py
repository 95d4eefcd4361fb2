"""Exit codes: why a script that `synk run` has started, or a verb of `synk`, has ended."""

from __future__ import annotations

import sys
from types import TracebackType

from synkhronos._errors import GroupTimeout, StartFailed, WorkerDied

FAILED, USAGE, NO_START, DEATH, STALL = 1, 2, 3, 4, 5
AGAIN = 75  # stopped with a checkpoint: EX_TEMPFAIL of sysexits.h
INTERRUPTED = 130  # 128 + SIGINT, as shells have it

_CODES: dict[type[BaseException], int] = {
    StartFailed: NO_START,
    WorkerDied: DEATH,
    GroupTimeout: STALL,
}


def code_of(kind: type[BaseException]) -> int:
    """The exit code for an exception that nobody has caught.

    >>> code_of(StartFailed), code_of(WorkerDied), code_of(KeyError)
    (3, 4, 1)
    """
    return next((code for each, code in _CODES.items() if issubclass(kind, each)), FAILED)


def tell_launcher() -> None:
    """From now on, end this process with the code of the exception that nobody has caught.

    The traceback is shown as before, by the hook that was there. Python ends the process with the
    code of a SystemExit that the hook raises, after the handlers of `atexit`.
    """
    shown_by = sys.excepthook
    if getattr(shown_by, "tells_launcher", False):
        return

    def tell(
        kind: type[BaseException], error: BaseException, trace: TracebackType | None, /
    ) -> None:
        shown_by(kind, error, trace)
        if (code := code_of(kind)) != FAILED:
            raise SystemExit(code)

    tell.tells_launcher = True  # type: ignore[attr-defined]
    sys.excepthook = tell
