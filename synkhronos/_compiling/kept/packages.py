"""Packages whose versions are a part of keys: their versions and files, and what is theirs.

A file may be newer than the code that this process has of it. So there is no key with a package
that was changed after its import.
"""

from __future__ import annotations

import contextlib
import functools
import os
import platform
import re
import sys
import types
from collections.abc import Iterator
from importlib.util import find_spec

from synkhronos._compiling.kept.digests import Unkeyed, digested
from synkhronos._libraries import imported

PACKAGE = "synkhronos"
_VERSIONS = (*("numpy", "scipy", "pytensor", "pymc", "numba", "llvmlite", "nutpie"), "pytensor-ml")
# packages whose versions are a part of keys
VERSIONED = frozenset({PACKAGE, *(n.replace("-", "_") for n in _VERSIONS)})
_BY_NAME = VERSIONED | {"builtins"} | (sys.stdlib_module_names - {"__main__"})
_INSTALLED = {"site-packages", "dist-packages"}  # folders of installers


def version(name: str) -> str | None:
    """The version of a package; None if it is not installed.

    Installers write it into the name of a folder. To read it there takes a tenth of the time.
    """
    found = _installed().get(name.replace("-", "_"), (None, ""))[0]
    if found == "":
        from importlib.metadata import PackageNotFoundError, distribution  # it takes 40 ms

        with contextlib.suppress(PackageNotFoundError):  # such as a link to a folder that is gone
            return distribution(name).version
        return None
    return found


@functools.cache
def _installed() -> dict[str, tuple[str, str]]:
    """The versions of packages by their names, and the folders that packages were put into.

    A version is empty if the name of its note has none, a folder if the note is of a checkout.
    """
    found: dict[str, tuple[str, str]] = {}
    for place in map(_real, sys.path):
        with contextlib.suppress(OSError):  # such as a zip file, or a folder that is not there
            listed = os.listdir(place)
            for entry in [name for name in listed if ".dist-info" in name or ".egg-" in name]:
                stem, dot, _ = entry.partition(".dist-info")
                project, _, number = stem.rpartition("-") if dot else (stem, "", "")
                if not dot:
                    project = re.split(r"-|\.egg-", entry)[0]
                own = entry == f"{project}.egg-info"  # beside the sources
                found.setdefault(project.replace("-", "_").lower(), (number, "" if own else place))
    return found


@functools.cache
def versions() -> tuple[object, ...]:
    _refuse_upgraded()
    found: list[object] = [sys.version, sys.implementation.cache_tag, sys.platform]
    found += [platform.machine(), _of_c()]
    found += [(name, version(name)) for name in _VERSIONS]
    return (*found, *map(sources_in, [sys.modules[PACKAGE].__path__[0], *_checkouts()]))


def _of_c() -> str | None:
    """The version of the C library, which computes constants; None where it has another name."""
    with contextlib.suppress(AttributeError, ValueError, OSError):
        return os.confstr("CS_GNU_LIBC_VERSION")
    return None


def _checkouts() -> Iterator[str]:
    """The folders of packages that were not put beside the note of their version."""
    for package in (name.replace("-", "_") for name in _VERSIONS):
        with contextlib.suppress(ImportError, ValueError):
            found = find_spec(package)
            for folder in (found and found.submodule_search_locations) or ():
                if not _is_installed(package, folder):
                    yield folder


def _is_installed(package: str, folder: str) -> bool:
    """Whether a package was put beside the note of its version."""
    above = os.path.dirname(folder)
    real = os.path.dirname(os.path.realpath(folder)) if os.path.islink(folder) else _real(above)
    return real == _installed().get(package, ("", ""))[1]


_real = functools.cache(os.path.realpath)  # it looks at each folder of a path


def _refuse_upgraded() -> None:
    """Raise if this process has another version of a package than the one that is installed."""
    for name in _VERSIONS:
        package = name.replace("-", "_")
        loaded = getattr(sys.modules.get(package), "__version__", None)
        _, place = _installed().get(package, ("", ""))
        if loaded is None or not place or loaded == version(name):
            continue
        if imported.last_change(os.stat(place)) >= imported.start():  # else it is written otherwise
            raise Unkeyed(f"{name} {version(name)} was installed after the import of {loaded}")


def sources_in(top: str) -> str:
    """A digest of a package's files: a checkout that is edited has other code."""
    folders, length = [top], len(top)
    found, changes = [], [0]
    for folder in folders:
        try:
            with os.scandir(folder) as entries:
                for each in entries:
                    if each.name.endswith((".py", ".so", ".pyd")):
                        at = each.stat()
                        found.append(f"{at.st_size} {at.st_mtime_ns} {each.path[length:]}")
                        changes += (at.st_mtime_ns, at.st_ctime_ns)
                    elif each.name != "__pycache__" and each.is_dir(follow_symlinks=False):
                        folders.append(each.path)
        except OSError as exc:
            raise Unkeyed(f"{folder} cannot be read: {exc.strerror}") from None
    package = os.path.basename(top)
    _refuse_changed(top, package, max(changes), _is_installed(package, top))
    return digested("sources", [repr(sorted(found)).encode()]).hex()


def _refuse_changed(path: str, package: str, changed: int, is_release: bool = False) -> None:
    """Raise if files were changed when this process may have had older code of their package.

    A release, whose version is that of the code, may have been installed before its import.
    """
    if package not in sys.modules or changed < imported.start():
        return
    if changed >= imported.AT or (package in imported.BEFORE and not is_release):
        raise Unkeyed(f"{path} was changed after its import")


def _stamp(path: str, package: str) -> tuple[int, int]:
    try:
        found = os.stat(path)
    except OSError as exc:
        raise Unkeyed(f"{path} cannot be read: {exc.strerror}") from None
    _refuse_changed(path, package, imported.last_change(found))
    return found.st_size, found.st_mtime_ns


def is_of_package(value: object) -> bool:
    module = getattr(value, "__module__", None)
    return isinstance(module, str) and _is_package(module)


@functools.cache
def _is_package(module: str) -> bool:
    return module.partition(".")[0] in _BY_NAME


def is_by_name(value: object) -> bool:
    """Whether a class or a function is importable from a package whose version is known."""
    name = getattr(value, "__qualname__", None)
    if not isinstance(name, str) or not is_of_package(value):
        return False
    found: object = sys.modules.get(value.__module__)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found is value


def file_of(module: types.ModuleType) -> list[bytes] | None:
    """The stamp of a module's file, if it was installed or is no Python; None of one of the user.

    Modules of packages in keys need none.
    """
    top = module.__name__.partition(".")[0]
    if top in _BY_NAME:
        return []
    file = vars(module).get("__file__")
    if file is None or (file.endswith(".py") and not _INSTALLED.intersection(file.split(os.sep))):
        return None
    return [repr((_stamp(file, top), version(top))).encode()]


def is_of_user(name: str) -> bool:
    """Whether a module can be imported, and no installer has put it there."""
    top = name.partition(".")[0]
    if top in _BY_NAME:
        return False
    try:
        found = find_spec(top)
    except (ImportError, ValueError):
        return False
    places = [*(found.submodule_search_locations or ()), found.origin or ""] if found else []
    return any(p and not _INSTALLED.intersection(p.split(os.sep)) for p in places)
