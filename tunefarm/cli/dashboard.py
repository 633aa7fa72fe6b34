"""``tunefarm dashboard``: web pages over a database."""

from __future__ import annotations

from typing import Annotated

import typer

from tunefarm.cli.options import TRACKER, Database, history_source
from tunefarm.cli.printing import remark
from tunefarm.compiler.errors import TunefarmError


def register(app: typer.Typer) -> None:
    app.command()(dashboard)


def dashboard(
    db: Database = "",
    port: Annotated[
        int, typer.Option(metavar="PORT", min=0, max=65535, help="0 takes a free port.")
    ] = 8765,
    host: Annotated[
        str, typer.Option(metavar="HOST", help="Address to listen on (loopback).")
    ] = "127.0.0.1",
    tls_cert: Annotated[
        str, typer.Option(metavar="FILE", help="Certificate, for hosts beyond this machine.")
    ] = "",
    tls_key: Annotated[str, typer.Option(metavar="FILE", help="Its private key.")] = "",
    tracker: Annotated[
        str,
        typer.Option(
            metavar=TRACKER, help="The tracker that changes jobs, where it is not found by itself."
        ),
    ] = "",
) -> None:
    """Show models, jobs, records, devices and failures of a database in a browser; it is only read.

    Beyond this machine pages ask for a token of the farm, and come over TLS. The tracker of the
    database cancels and resubmits jobs for whoever signs in with a token; it is found by itself on
    this machine, and beyond by --tracker. `tunefarm tracker --dashboard` serves the same.

    Example: tunefarm dashboard --db farm.db --port 8080
    """
    from tunefarm.api import default_database
    from tunefarm.dashboard.serving import Address, ServingError, check, serve
    from tunefarm.db.store import Store
    from tunefarm.farm import finder, how_to_find, rendezvous_of

    address = Address(host, port, tls_cert, tls_key)
    try:
        check(address)
        from tunefarm.dashboard.actions import Tracker  # which takes the packages checked for

        if not db and history_source("") == ():
            raise TunefarmError("there are no records yet; `tunefarm tune MODEL` makes some")
        database = db or default_database()
        with Store.open(database, readonly=True) as store:
            beside = None if tracker else rendezvous_of(database)
            asked = Tracker(finder(store, tracker), how_to_find(store), beside)
            if tracker:
                asked.find()
            elif store.is_shared and not asked.is_known:
                remark(asked.unknown)
            serve(store, address, _announce, asked)
    except ServingError as error:
        raise TunefarmError(str(error)) from None


def _announce(url: str) -> None:
    print(f"dashboard at {url} (Ctrl-C ends it)", flush=True)
