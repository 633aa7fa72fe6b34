"""The ``tunefarm`` command: one module a group of commands, each thin over the public API."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line; a user's mistake is one sentence and exit code 2."""
    try:
        import signal

        from tunefarm.cli.app import run

        code = run(sys.argv[1:])
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # one more Ctrl-C must not change the code
    except KeyboardInterrupt:
        code = 130
    # CPython marks an interrupt that ends the running of a text, as dataclasses do, as unhandled,
    # and then dies of the signal whatever the code is. Running another text clears the mark.
    exec("")
    sys.exit(code)


__all__ = ["main"]
