"""``tunefarm farm top``: a farm at a glance."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from tunefarm.cli.devices import Tracker, client_of

if TYPE_CHECKING:
    from rich.console import RenderableType

    from tunefarm.top import Watch

EVERY_S = 2.0

app = typer.Typer(help="Watch a whole farm.", no_args_is_help=True)


@app.callback()
def farm() -> None:
    """Watch a whole farm."""


@app.command()
def top(
    once: Annotated[bool, typer.Option("--once", help="Print it once.")] = False,
    every: Annotated[
        float, typer.Option("--every", min=0.2, metavar="S", help="Seconds between two looks.")
    ] = EVERY_S,
    tracker: Tracker = "",
) -> None:
    """Show devices, leases, jobs, throughput and latest bests, live; Ctrl-C ends it."""
    from rich.live import Live

    from tunefarm.tables import console, print_whole
    from tunefarm.top import Watch, shown

    out = console()
    with client_of(tracker) as client:
        watch = Watch(client)
        first = watch.look()
        if once or not out.is_terminal:
            print_whole(out, shown(first, out.width))
            return
        client.hurry()
        try:
            with Live(
                shown(first, out.width, out.height), console=out, screen=True, auto_refresh=False
            ) as live:
                while True:
                    time.sleep(every)
                    live.update(_next(watch, out.width, out.height), refresh=True)
        except KeyboardInterrupt:
            return


def _next(watch: Watch, width: int, height: int) -> RenderableType:
    """The next look, or why there is none now."""
    from rich.text import Text

    from tunefarm.proto.errors import FarmError, TokenRefused
    from tunefarm.top import shown

    try:
        return shown(watch.look(), width, height)
    except TokenRefused:
        raise
    except FarmError as error:
        return Text(f"{error}; trying again")
