"""The ``tunefarm`` command: one module a group of commands, each thin over the public API."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line; a user's mistake is one sentence and exit code 2."""
    from tunefarm.cli.app import run

    sys.exit(run(sys.argv[1:]))


__all__ = ["main"]
