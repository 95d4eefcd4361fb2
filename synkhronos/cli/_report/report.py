"""``synk report``: reads runs, and writes their page."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Sequence
from pathlib import Path

from synkhronos._errors import BackendMissing, InputError
from synkhronos._host import files
from synkhronos._host.files import check_place
from synkhronos.cli._report.summary import read_run
from synkhronos.cli._scaling import curves_of, read_csv

_LIBRARIES = ("jinja2", "matplotlib")


def report(folders: Sequence[str], tables: Sequence[str], out: str | None) -> Path:
    """Write a page of runs and of tables of ``synk bench``; returns where it is.

    Raises
    ------
    InputError
        A folder holds no run, a table is none of ``synk bench``, or `out` has no folder.
    BackendMissing
        jinja2 or matplotlib is not installed.
    """
    path = Path(out or (Path(folders[0]) if len(folders) == 1 else Path()) / "report.html")
    if out and not path.absolute().parent.is_dir():
        raise InputError(f"{path}: there is no such folder for the page: make it first")
    for library in _LIBRARIES:
        if importlib.util.find_spec(library) is None:
            raise BackendMissing(library, "report")
    from synkhronos.cli._report.page import page

    runs = [read_run(f, i, n) for i, (f, n) in enumerate(zip(folders, names(folders), strict=True))]
    measured = curves_of(m for table in tables for m in read_csv(table))
    check_place(path)
    (files.write if out else files.replace)(path, page(runs, measured))
    return path


def names(folders: Sequence[str]) -> list[str]:
    """Short names of runs: the last part of each path; the whole paths if some are the same.

    >>> names(["runs/a", "runs/b"]), names(["x/a", "y/a"])
    (['a', 'b'], ['x/a', 'y/a'])
    """
    short = [Path(os.path.abspath(folder)).name for folder in folders]
    return short if len(set(short)) == len(short) else list(folders)
