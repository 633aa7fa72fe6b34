"""``tunefarm doctor``, printed."""

from __future__ import annotations

import typer

from tunefarm.cli.options import Database, Farm
from tunefarm.cli.printing import Json, is_quiet, print_json

FOUND = 3
_MARKS = {"ok": ("✓", "green"), "note": ("·", "blue"), "fix": ("✗", "red")}


def register(app: typer.Typer) -> None:
    """Add ``doctor`` to the commands."""
    app.command()(doctor)


def doctor(
    db: Database = "",
    tracker: Farm = "",
    as_json: Json = False,
) -> None:
    """Look at this machine, its database and a tracker, and say what to fix before tuning.

    Takes some seconds, and changes nothing. The exit code is 3 if there is something to fix.

    Example: tunefarm doctor --tracker lab1:9190
    """
    from rich.text import Text

    from tunefarm.api import default_database
    from tunefarm.doctor import State, examine
    from tunefarm.tables import console

    out = console()
    found = []
    for finding in examine(db or default_database(), tracker):
        found.append(finding)
        if as_json or (is_quiet() and finding.state is not State.FIX):
            continue
        mark, colour = _MARKS[finding.state]
        line = Text.assemble((f"{mark} ", colour), (f"{finding.subject:<10}", "bold"), finding.told)
        out.print(line, soft_wrap=not out.is_terminal)
        if finding.remedy:
            out.print(f"{'':12}→ {finding.remedy}", soft_wrap=not out.is_terminal)
    if as_json:
        print_json(found)
    to_fix = sum(finding.state is State.FIX for finding in found)
    if to_fix:
        raise typer.Exit(FOUND)
