"""Report what works on this machine, and what to do next.

It checks guards, limits, cores, GPUs, libraries and caches. It starts a real group in each mode,
and under MPI if there is one. This takes some seconds; longer at the first time, which compiles.

exit codes: 0 a group can be started, 1 none can

Examples:
  synk doctor
  synk doctor --json | jq .works
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys

from synkhronos.cli._say import say


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this verb."""
    parser.add_argument("--json", action="store_true", help="print one JSON object, for programs")


def run(options: argparse.Namespace) -> int:
    """Print the report; return 0 if a group can be started, else 1."""
    from synkhronos._compiling.progress import in_a_table
    from synkhronos.cli._doctor.examination import BAD, examine, next_steps

    findings = []
    about = ""
    with in_a_table():
        for finding in examine():
            findings.append(finding)
            if not options.json:
                if finding.about != about:
                    about = finding.about
                    _say(about)
                _say(f"  {finding.state:<6}  {finding.name}: {finding.text}")
                if finding.fix:
                    _say(f"          {finding.fix}")
    works = any(f.about == "modes" and "members started" in f.text for f in findings)
    if options.json:
        _say(json.dumps({"works": works, "findings": list(map(dataclasses.asdict, findings))}))
    else:
        bad = sum(f.state == BAD for f in findings)
        _say(f"{'a group can be started' if works else 'NO GROUP CAN BE STARTED'}; {bad} bad")
        for line in next_steps(findings, works):
            _say(line)
    return 0 if works else 1


def _say(line: str) -> None:
    say(line)
    sys.stdout.flush()
