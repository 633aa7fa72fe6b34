"""``tunefarm report``: a job as one page to send."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tunefarm.cli.jobs import JobId
from tunefarm.cli.options import Database, Farm, check_output, history_source
from tunefarm.cli.printing import remark
from tunefarm.compiler.errors import TunefarmError

if TYPE_CHECKING:
    from tunefarm.db.store import Store


def register(app: typer.Typer) -> None:
    """Add ``report`` to the commands."""
    app.command()(report)


def report(
    job: JobId,
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="FILE", help="File to write: .html.")
    ] = Path("report.html"),
    db: Database = "",
    tracker: Farm = "",
) -> None:
    """Write a job as one page to send: charts and tables in a file that loads nothing else.

    It reads your own database, that of --db, or what the farm of --tracker tells.

    Example: tunefarm report 4f2a -o report.html
    """
    from tunefarm.dashboard.serving import ServingError, check_packages

    check_output(output, ".html", ".htm")
    try:
        check_packages("a report")
    except ServingError as error:
        raise TunefarmError(str(error)) from None
    if history_source(db, tracker) == ():
        raise TunefarmError("there are no jobs yet; `tunefarm tune MODEL` runs one")
    from tunefarm.dashboard.queries import jobs
    from tunefarm.dashboard.report import report as page

    with _store(job, db, tracker) as (store, name), store.reading() as connection:
        made = page(connection, jobs.job(connection, name))
    try:
        output.write_text(made, encoding="utf-8")
    except OSError as error:
        raise TunefarmError(f"{output} cannot be written: {error.strerror}") from None
    remark(f"wrote {output}")


@contextmanager
def _store(job: str, db: str, tracker: str) -> Iterator[tuple[Store, str]]:
    """The database that knows the job, and the job's name there."""
    from tunefarm.api import default_database
    from tunefarm.db.store import Store
    from tunefarm.farm import connect
    from tunefarm.fetched import fetched

    if not tracker:
        with Store.open(db or default_database(), readonly=True) as store:
            yield store, job
        return
    with connect(tracker) as farm, fetched(farm, job) as (store, found):
        yield store, found.id
