"""Errors of the file system in one sentence."""

from __future__ import annotations

import errno
import sysconfig
import traceback
from pathlib import Path

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
