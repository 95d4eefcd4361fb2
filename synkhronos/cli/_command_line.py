"""Reads the command line of ``synk``, and runs the verb that it names."""

from __future__ import annotations

import errno
import os
import sys
import sysconfig
import traceback
from collections.abc import Sequence
from pathlib import Path

from synkhronos._engine.exit_codes import FAILED, INTERRUPTED, code_of
from synkhronos._errors import SynkhronosError
from synkhronos._host.system import works
from synkhronos.cli._parser import meant, parsers_for
from synkhronos.cli._say import complain

_ON_WINDOWS = ("completion", "env", "new")  # verbs that need nothing of Linux, nor of a group


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `synk`; returns the exit code.

    Parameters
    ----------
    arguments : sequence of str, optional
        Default: those of this process. A script in the place of a verb is that of
        ``synk run --pymc``.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given and given[0].endswith(".py"):
        given = ["run", "--pymc", *given]
    chosen = next((a for a in given if not a.startswith("-")), "")
    parser, verbs = parsers_for(chosen)
    try:
        options, unknown = parser.parse_known_args(given)
        if unknown:
            verb = verbs.get(chosen, parser)
            verb.error(f"unrecognized arguments: {' '.join(unknown)}{meant(unknown[0], verb)}")
        if options.verb is None:
            parser.print_help()
            return 0
        if sys.platform == "win32" and options.verb not in _ON_WINDOWS:
            complain(f"synk {chosen}: {works(sys.platform)}")
            return FAILED
        code = int(options.verb_main(options))
        sys.stdout.flush()  # here, so that a full disk is told of
        return code
    except SystemExit as ended:  # of argparse, after help, version or wrong usage; of the user
        if isinstance(ended.code, int | None):
            return ended.code or 0
        complain(str(ended.code))  # as Python does
        return FAILED
    except SynkhronosError as exc:
        complain(f"synk {chosen}: {exc}")
        return code_of(type(exc))
    except BrokenPipeError:  # such as by `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return FAILED
    except OSError as exc:
        if (said := sentence(exc)) is None:
            raise
        complain(f"synk {chosen}: {said}")
        return FAILED
    except KeyboardInterrupt:
        return INTERRUPTED


_OTHER = "choose a place that this user can write to"
_ANOTHER = "choose another path"
_SPACE = "free some space, or choose a place on another disk"
_CURES = {
    errno.EACCES: _OTHER,
    errno.EPERM: _OTHER,
    errno.EROFS: _OTHER,
    errno.ENOSPC: _SPACE,
    errno.EDQUOT: _SPACE,
    errno.EFBIG: _SPACE,
    errno.ENAMETOOLONG: "choose a shorter name",
    errno.ENOENT: _ANOTHER,
    errno.ENOTDIR: _ANOTHER,
    errno.EISDIR: _ANOTHER,
    errno.EEXIST: _ANOTHER,
    errno.ELOOP: _ANOTHER,
    errno.EINVAL: _ANOTHER,
    errno.EILSEQ: _ANOTHER,
}
_LIBRARIES = tuple(
    [str(Path(__file__).parents[1]), "<frozen "]
    + [path for name, path in sysconfig.get_paths().items() if name.endswith(("stdlib", "lib"))]
)


def sentence(error: OSError) -> str | None:
    """A sentence on the failure and its cure; None if the traceback is needed.

    It is needed for errors that are not about files, and for those of the user's own code.
    """
    cure = _CURES.get(error.errno or 0)
    frames = traceback.extract_tb(error.__traceback__)
    if cure is None or not all(frame.filename.startswith(_LIBRARIES) for frame in frames):
        return None
    notes = getattr(error, "__notes__", [])
    parts = [error.filename, error.strerror, "; ".join(notes) or _of_caches(error) or cure]
    return ": ".join(str(part) for part in parts if part)


def _of_caches(error: OSError) -> str:
    """The cure where PyTensor has no place for the code that it compiles."""
    if ".pytensor" not in Path(str(error.filename)).parts:
        return ""
    return (
        "PyTensor keeps compiled code there: set the environment variable "
        "PYTENSOR_FLAGS=base_compiledir=FOLDER to a folder that this user can write to"
    )
