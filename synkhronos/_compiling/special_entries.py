"""Functions of SciPy that machine code calls by name, and their addresses in this process."""

from __future__ import annotations

import ctypes
import functools
import importlib
import re

_PREFIX = "synkhronos_special_"
# Cython's signatures of functions of numbers; its own last argument says where Python is asked
_SIGNATURE = re.compile(r"double \((double(?:, double)*), int __pyx_skip_dispatch\)")

_name_of = ctypes.pythonapi.PyCapsule_GetName
_name_of.restype, _name_of.argtypes = ctypes.c_char_p, [ctypes.py_object]
_pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
_pointer_of.restype, _pointer_of.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]


def entry(function: str) -> str:
    """The name by which machine code calls a function of `scipy.special`."""
    return _PREFIX + function


@functools.cache
def entry_address(name: str, operands: int | None = None) -> int | None:
    """The address of an entry: a C function of doubles and of an int, which is 0.

    Parameters
    ----------
    name : str
        Of `entry`.
    operands : int, optional
        How many doubles it must have.

    Returns
    -------
    int or None
        None: there is no such function here.
    """
    function = name.removeprefix(_PREFIX)
    if function == name:
        return None
    module = importlib.import_module("scipy.special.cython_special")
    capsules = getattr(module, "__pyx_capi__", {})
    # those of several types have a name for each, which is another one from Cython 3.3 on
    for each in (function, f"{function}[double]", f"__pyx_fuse_0{function}"):
        if each in capsules:
            signature = _name_of(capsules[each])
            fits = _SIGNATURE.fullmatch(signature.decode())
            if fits and operands in (None, fits[1].count("double")):
                return int(_pointer_of(capsules[each], signature))
    return None
