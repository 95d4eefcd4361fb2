"""Options between the positional arguments of a verb."""

from __future__ import annotations

import argparse
from typing import Any


def in_any_order(parser: argparse.ArgumentParser) -> None:
    """Let options stand between CONFIG and the values, which argparse else takes for the end."""
    usual = parser.parse_known_args

    def parse(args: Any = None, namespace: Any = None) -> Any:
        vars(parser)["parse_known_args"] = usual  # which the method below calls
        try:
            return parser.parse_known_intermixed_args(args, namespace)
        finally:
            vars(parser)["parse_known_args"] = parse

    vars(parser)["parse_known_args"] = parse
