"""Private names of NumPy."""

from __future__ import annotations

from synkhronos._libraries.library import Library

NUMPY = Library(
    "numpy",
    tried="2.4 to 2.5",
    names={
        "LLVM is imported to ask for the processor, and kept functions start later": (
            "numpy._core._multiarray_umath:__cpu_features__",
        )
    },
)
__getattr__ = NUMPY.get
