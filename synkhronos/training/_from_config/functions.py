"""Functions that a config names: of the user's modules, called with the arguments of a table."""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from synkhronos._checks import closest, shown
from synkhronos._errors import InputError

_FUNCTION = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")


def function_of(text: str, base: str, path: str) -> Callable[..., object]:
    """The function that "module:function" names; modules in the folder `base` come first.

    Raises
    ------
    InputError
        There is no such module or function.
    """
    module, _, name = text.partition(":")
    if not _FUNCTION.fullmatch(text):
        raise InputError(f'{path}: found {shown(text)}, give "module:function"')
    look_in(base)
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError as exc:
        if exc.name != module.partition(".")[0] and exc.name != module:
            raise  # of an import in the module
        raise InputError(
            f"{path}: there is no module {module!r} in {base}, nor is one installed"
        ) from None
    own = Path(base, *module.split("."))
    for file in (own.with_suffix(".py"), own / "__init__.py"):
        if file.exists() and not _is_of(found, file):
            raise InputError(
                f"{path}: {module!r} is {found.__file__} in this process, not {file}: give the "
                "module another name"
            )
    if not callable(getattr(found, name, None)):
        there = [n for n, v in vars(found).items() if callable(v) and not n.startswith("_")]
        there += getattr(found, "__all__", [])  # a package may import its names when they are used
        raise InputError(f"{path}: {module} has no function {name!r}{meant(name, there)}")
    return getattr(found, name)


def look_in(base: str) -> None:
    """Let imports find modules of a folder first, from now on.

    Members need the same folder for what functions of these modules put into graphs, so this comes
    before the start of a group.
    """
    if base not in sys.path:
        sys.path.insert(0, base)


def _is_of(module: object, file: Path) -> bool:
    place = getattr(module, "__file__", None)
    return place is not None and Path(place).resolve() == file.resolve()


def called[T](function: Callable[..., T], arguments: Mapping[str, object], path: str) -> T:
    """The result of a function for arguments of a table.

    Raises
    ------
    InputError
        It does not take them.
    """
    check_arguments(function, arguments, path)
    return function(**arguments)


def check_arguments(
    function: Callable[..., object], arguments: Mapping[str, object], path: str, given: int = 0
) -> None:
    """Raise unless a function takes these arguments after `given` positional ones."""
    name = getattr(function, "__name__", repr(function))
    try:
        known = inspect.signature(function).parameters
    except ValueError:  # of some classes and functions that C code has made
        return
    names = list(known)[given:]
    if not any(p.kind is p.VAR_KEYWORD for p in known.values()):
        for key in arguments:
            if key not in names:
                there = f"; there are {', '.join(names)}" if names else "; it takes none"
                raise InputError(
                    f"{path}.{key}: {name} has no such argument{meant(key, names)}{there}"
                )
    for key in names:
        p = known[key]
        required = p.default is p.empty and p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
        if required and key not in arguments:
            raise InputError(f"{path}.{key}: missing, {name} needs it")


def meant(name: str, names: Iterable[str]) -> str:
    """The end of a message about an unknown name: the one that was meant, if any is near."""
    found = closest(name, list(names))
    return f"; did you mean {found}?" if found else ""
