"""The number of divergences of a run: most runs have none, and need no explanation."""

from __future__ import annotations

from xarray import DataTree

from synkhronos._warnings import log


def count_of(result: object) -> int:
    """The number of divergences in a sampler's result; 0 if it does not tell.

    Nothing is raised: it would lose the draws.
    """
    try:
        stats = result.get("sample_stats") if isinstance(result, DataTree) else None
        return int(stats["diverging"].sum()) if stats and "diverging" in stats else 0
    except Exception:
        log.debug("divergences are not counted", exc_info=True)
        return 0
