"""The command line: ``synk``, or ``python -m synkhronos``."""

from __future__ import annotations

import sys

from synkhronos.cli._command_line import main

if __name__ == "__main__":
    sys.exit(main())
