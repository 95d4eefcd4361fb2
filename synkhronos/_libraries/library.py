"""A library of which this package uses private names."""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from importlib.machinery import EXTENSION_SUFFIXES, ExtensionFileLoader
from importlib.util import find_spec, module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType
from typing import Any

from synkhronos._errors import VersionWarning
from synkhronos._libraries.fork_safe_lock import ForkSafeLock
from synkhronos._warnings import warn

replacing = ForkSafeLock()  # of all libraries; it is held where a function is read to be wrapped


class NameGone(ImportError):
    """A library lacks a name; the message says what is lost, and what to do."""


class Library:
    """The private names of a library.

    Parameters
    ----------
    package : str
    tried : str
        Versions of it that have all names.
    names : mapping of str to sequence of str
        What is lost without some names, and these by their modules: ``"module:name Class.method"``.
        The attribute of an object is ``"module:Class().attribute"``. Their last parts differ.
    """

    def __init__(self, package: str, tried: str, names: Mapping[str, Sequence[str]]) -> None:
        self.package, self.tried = package, tried
        self.lost = {
            f"{module}:{name}": lost
            for lost, places in names.items()
            for module, _, listed in (place.partition(":") for place in places)
            for name in listed.split()
        }
        # what each name has had, the last one on top of the one that it replaced
        self._layers: dict[str, list[object]] = {}
        self._places = {re.split("[:.]", place)[-1]: place for place in self.lost}

    def get(self, name: str) -> Any:
        """Return what has the name, the last part of its place.

        Raises
        ------
        AttributeError
            The name is not listed.
        NameGone
            The library lacks it, or a listed attribute of it.
        """
        place = self._place(name)
        found = getattr(*self._found(place))
        for below in self.lost:
            if below.startswith(f"{place}."):
                self._found(below)
        return found

    def module(self, name: str) -> str:
        """The name of the module that has the name."""
        return self._place(name).partition(":")[0]

    def is_imported(self, name: str) -> bool:
        """Whether this process has imported the module that has the name."""
        return self.module(name) in sys.modules

    def alone(self, name: str) -> ModuleType:
        """The module in C that has the name, without the package around it.

        Raises
        ------
        ImportError
        """
        return extension(self.module(name))

    def of(self, thing: object, name: str) -> Any:
        """Return a listed attribute of an object, or raise NameGone."""
        if not hasattr(thing, name):
            raise self._gone(self._place(name))
        return getattr(thing, name)

    def put(self, thing: object, name: str, value: object) -> None:
        """Set a listed attribute of an object that has it, or raise NameGone."""
        self.of(thing, name)
        setattr(thing, name, value)

    def replace(self, functions: Mapping[str, object]) -> Callable[[], None]:
        """Replace functions, all or none; returns what restores them, or raises NameGone.

        Functions may be restored in any order: those that were put in place later stay.
        """
        with replacing.held():
            found = {name: self._found(self._place(name)) for name in functions}
            for name, each in found.items():
                if not (layers := self._layers.get(name)) or layers[-1] is not getattr(*each):
                    self._layers[name] = [getattr(*each)]
                self._layers[name].append(functions[name])
                setattr(*each, functions[name])
            mine = {name: self._layers[name] for name in functions}

        def restore() -> None:
            with replacing.held():
                for name, layers in mine.items():
                    if layers[-1] is functions[name]:
                        setattr(*found[name], layers[-2])
                    del layers[next(i for i, each in enumerate(layers) if each is functions[name])]

        return restore

    def is_in_place(self, name: str, function: object) -> bool:
        """Whether a function has been put in place of the name, also if others are around it."""
        with replacing.held():
            layers = self._layers.get(name, [None])
            return layers[-1] is self.get(name) and function in layers

    def _place(self, name: str) -> str:
        if name not in self._places:
            raise AttributeError(f"{name} is not listed as a private name of {self.package}")
        return self._places[name]

    def _found(self, place: str) -> tuple[Any, str]:
        """The object that has the last part of a place, and this part."""
        module, _, path = place.partition(":")
        import_module(module.partition(".")[0])  # its own error, if the library is not there
        *owners, last = path.split(".")
        try:
            owner: Any = functools.reduce(getattr, owners, import_module(module))
            getattr(owner, last)
        except (ImportError, AttributeError) as exc:
            raise self._gone(place) from exc
        return owner, last

    def _gone(self, place: str) -> NameGone:
        from importlib.metadata import version  # it takes 40 ms, as email does, which it imports

        return NameGone(
            f"{self.lost[place]}: {self.package} {version(self.package)} has no "
            f"{place.replace(':', '.')}. Install a version of {self.package} that was tried "
            f"({self.tried}), or a later one of synkhronos"
        )


class _Here(threading.local):
    depth = 0


class Replacing:
    """A context in which names or settings of the process are replaced.

    Several threads may be in it at once: the first one replaces, the last one to leave restores.
    A fork of the process is in no context, whichever threads of the process were.

    Parameters
    ----------
    replace : callable
        Replaces them, and returns what restores them, as `Library.replace`. If a name is gone, a
        warning tells it, and the context does nothing.
    """

    def __init__(self, replace: Callable[[], Callable[[], None]]) -> None:
        self._replace = replace
        self._lock, self._threads = ForkSafeLock(), 0
        self._undo = contextlib.ExitStack()
        self._here = _Here()
        if hasattr(os, "register_at_fork"):  # Windows has no forks
            os.register_at_fork(after_in_child=self._part)

    def __enter__(self) -> None:
        with self._lock.held():
            if not self._threads:
                with optional_gain():
                    self._undo.callback(self._replace())
            self._threads += 1
        self._here.depth += 1

    @property
    def is_here(self) -> bool:
        """Whether this thread is in the context."""
        return self._here.depth > 0

    def __exit__(self, *_: object) -> None:
        self._here.depth -= 1
        with self._lock.held():
            if self._threads == 1:
                self._undo.close()
            self._threads = max(0, self._threads - 1)  # a fork may leave what it is not in

    def _part(self) -> None:
        """Restore in a fork: the threads that would restore are not there."""
        self._threads = 0
        self._undo.close()


def extension(name: str) -> ModuleType:
    """A module in C without the package around it, whose import would take most of the time.

    The package later finds the same one: Python initialises such a module once in a process.

    Raises
    ------
    ImportError
    """
    package, *rest, last = name.split(".")
    if name in sys.modules:
        return sys.modules[name]
    folders = getattr(find_spec(package), "submodule_search_locations", None) or ()
    for folder, suffix in itertools.product(folders, EXTENSION_SUFFIXES):
        file = Path(folder, *rest, last + suffix)
        if file.exists():
            loader = ExtensionFileLoader(name, str(file))
            spec = spec_from_loader(name, loader)
            assert spec is not None
            found = module_from_spec(spec)
            loader.exec_module(found)
            sys.modules.pop(name, None)
            return found
    raise ImportError(f"there is no {name} in C")


@contextlib.contextmanager
def optional_gain() -> Iterator[None]:
    """A context that ends where a private name is gone, which a warning tells once.

    The code behind it does without the name.
    """
    try:
        yield
    except NameGone as gone:
        tell(str(gone))


@functools.cache
def tell(text: str) -> None:
    """Warn, once in a process, of what another version of a library costs."""
    warn(text, VersionWarning)


@functools.cache
def usable(module: str) -> bool:
    """Whether a module of this package that needs private names can be imported; tells if not."""
    with optional_gain():
        try:
            import_module(module)
        except NameGone:
            raise
        except (ImportError, AttributeError) as exc:
            raise NameGone(f"{module} is not used: {exc}") from exc
        return True
    return False
