"""``tunefarm report``: a job as one page to send."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tunefarm.cli.jobs import JobId
from tunefarm.cli.options import Database, check_output, history_source
from tunefarm.cli.printing import remark
from tunefarm.compiler.errors import TunefarmError


def register(app: typer.Typer) -> None:
    """Add ``report`` to the commands."""
    app.command()(report)


def report(
    job: JobId,
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="FILE", help="File to write: .html.")
    ] = Path("report.html"),
    db: Database = "",
) -> None:
    """Write a job as one page to send: charts and tables in a file that loads nothing else.

    Example: tunefarm report 4f2a -o report.html
    """
    from tunefarm.api import default_database
    from tunefarm.dashboard.serving import ServingError, check_packages
    from tunefarm.db.store import Store

    check_output(output, ".html", ".htm")
    try:
        check_packages("a report")
    except ServingError as error:
        raise TunefarmError(str(error)) from None
    if not db and history_source("") == ():
        raise TunefarmError("there are no jobs yet; `tunefarm tune MODEL` runs one")
    from tunefarm.dashboard.queries import jobs
    from tunefarm.dashboard.report import report as page

    with (
        Store.open(db or default_database(), readonly=True) as store,
        store.reading() as connection,
    ):
        made = page(connection, jobs.job(connection, job))
    output.write_text(made, encoding="utf-8")
    remark(f"wrote {output}")
