"""Private names of JAX."""

from __future__ import annotations

from synkhronos._libraries.library import Library

JAX = Library(
    "jax",
    tried="0.12.0.1",
    names={
        "a process in which JAX has run is forked, and members may hang": (
            "jax._src.xla_bridge:_backends",
        ),
        "JAX's option of the devices is not restored after a group": ("jax:config._read",),
    },
)
