"""Versions of packages. No package is imported: a worker of a pool asks before it starts others."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterable


def versions(packages: Iterable[str]) -> dict[str, str | None]:
    """The version of each package by its metadata; None if it is not installed."""
    found: dict[str, str | None] = {}
    for name in packages:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = None
    return found
