"""``tunefarm certificates``: a farm's own CA, and what it signs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tunefarm.cli.printing import remark

DAYS = 397


def register(app: typer.Typer) -> None:
    app.command()(certificates)


def certificates(
    server: Annotated[
        list[str] | None,
        typer.Option(metavar="HOST", help="Name or address of the tracker's machine (repeatable)."),
    ] = None,
    worker: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A machine that shows its own (repeatable)."),
    ] = None,
    folder: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Where they are; `tls` in your data folder if none."),
    ] = None,
    days: Annotated[int, typer.Option(min=1, metavar="D", help="Until they expire.")] = DAYS,
) -> None:
    """Make the certificates of a farm: its CA (once), the tracker's and those of workers.

    The CA stays as it is; make a certificate again to renew it, and a running tracker takes the
    new one up. Whoever has ca.key can make certificates of the farm: keep it where it is.

    Example: tunefarm certificates --server lab1.example.org --worker lab3
    """
    from tunefarm.certificates import make_certificates
    from tunefarm.compiler import settings

    place = folder.expanduser() if folder else settings.HOME.get() / "tls"
    for path in make_certificates(place, server or (), worker or (), days):
        remark(f"wrote {path} and {path.with_suffix('.key').name}")
