"""A script that runs with empty caches, and again: what it prints depends on none of them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from user_scripts import LIMIT

from synkhronos._compiling.kept.folder import MEGABYTES, SETTING


def told_by_runs(tmp_path: Path, script: str, *args: str) -> list[str]:
    """What a script prints with empty caches, with full ones, and with those of numba only."""
    flags = f"{os.environ.get('PYTENSOR_FLAGS', '')},base_compiledir={tmp_path / 'caches'},cxx="
    dropped = ("NUMBA_CACHE_DIR",)
    given = {name: value for name, value in os.environ.items() if name not in dropped}
    given["PYTENSOR_FLAGS"] = f"{flags},mode=NUMBA".strip(",")
    return [
        subprocess.run(
            [sys.executable, script, *args],
            env={**given, SETTING: keep, "PYTHONHASHSEED": str(number)},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
            timeout=LIMIT,
        ).stdout
        for number, keep in enumerate([str(MEGABYTES), str(MEGABYTES), "0"])
    ]
