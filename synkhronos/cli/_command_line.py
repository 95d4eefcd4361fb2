"""Reads the command line of ``synk``, and runs the verb that it names."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from synkhronos._engine.exit_codes import FAILED, INTERRUPTED, code_of
from synkhronos._errors import SynkhronosError
from synkhronos._host.system import works
from synkhronos.cli._files import sentence
from synkhronos.cli._parser import meant, parsers_for
from synkhronos.cli._say import complain

_ON_WINDOWS = ("completion", "env", "new")  # verbs that need nothing of Linux, nor of a group


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `synk`; returns the exit code.

    Parameters
    ----------
    arguments : sequence of str, optional
        Default: those of this process.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    chosen = next((a for a in given if not a.startswith("-")), "")
    parser, verbs = parsers_for(chosen)
    try:
        options, unknown = parser.parse_known_args(given)
        if unknown:
            verb = verbs.get(chosen, parser)
            verb.error(f"unrecognized arguments: {' '.join(unknown)}{meant(unknown[0], verb)}")
        if options.verb is None:
            parser.print_help()
            return 0
        if sys.platform == "win32" and options.verb not in _ON_WINDOWS:
            complain(f"synk {chosen}: {works(sys.platform)}")
            return FAILED
        code = int(options.verb_main(options))
        sys.stdout.flush()  # here, so that a full disk is told of
        return code
    except SystemExit as ended:  # of argparse: after help, version or wrong usage
        return int(ended.code or 0)
    except SynkhronosError as exc:
        complain(f"synk {chosen}: {exc}")
        return code_of(type(exc))
    except BrokenPipeError:  # such as by `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return FAILED
    except OSError as exc:
        if (said := sentence(exc)) is None:
            raise
        complain(f"synk {chosen}: {said}")
        return FAILED
    except KeyboardInterrupt:
        return INTERRUPTED
