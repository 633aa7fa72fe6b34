"""``tunefarm doctor``, printed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from tunefarm.cli.options import Database, Farm
from tunefarm.cli.printing import Json, is_quiet, print_json

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

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
    from tunefarm.doctor.examine import examine
    from tunefarm.doctor.findings import State
    from tunefarm.tables import console

    out = console()
    found = []
    for finding in examine(db or default_database(), tracker):
        found.append(finding)
        if as_json or (is_quiet() and finding.state is not State.FIX):
            continue
        mark, colour = _MARKS[finding.state]
        subject = Text.assemble((f"{mark} ", colour), (f"{finding.subject:<10}", "bold"))
        _print_beside(out, subject, finding.told)
        if finding.remedy:
            _print_beside(out, Text(f"{'':12}→ "), finding.remedy)
    if as_json:
        print_json(found)
    to_fix = sum(finding.state is State.FIX for finding in found)
    if to_fix:
        raise typer.Exit(FOUND)


def _print_beside(out: Console, subject: Text, told: str) -> None:
    """A line, whose further lines on a narrow terminal stand beside its subject."""
    from rich.table import Table

    if not out.is_terminal:
        out.print(subject.append(told), soft_wrap=True)
        return
    line = Table.grid()
    line.add_row(subject, told)
    out.print(line)
