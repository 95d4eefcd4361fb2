"""The command line: ``synk doctor``, or ``python -m synkhronos doctor``."""

from __future__ import annotations

import sys

USAGE = """\
usage: synk doctor [--json]

doctor   report what works on this machine; starts a real group in each mode
"""


def main() -> int:
    """Run the command named by the arguments."""
    if sys.argv[1:2] == ["doctor"] and set(sys.argv[2:]) <= {"--json"}:
        from synkhronos.cli import doctor

        return doctor.main(sys.argv[2:])
    wants_help = sys.argv[1:] in ([], ["-h"], ["--help"])
    (sys.stdout if wants_help else sys.stderr).write(USAGE)
    return 0 if wants_help else 2


if __name__ == "__main__":
    sys.exit(main())
