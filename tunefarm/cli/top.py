"""``tunefarm farm top``: a farm at a glance."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from tunefarm.cli.devices import Tracker, client_of, device_json
from tunefarm.cli.jobs import job_json
from tunefarm.cli.leases import lease_json
from tunefarm.cli.printing import Json, print_json
from tunefarm.updates import done

if TYPE_CHECKING:
    from rich.console import RenderableType

    from tunefarm.db.records import JobUpdate
    from tunefarm.top import Look, Watch

EVERY_S = 2.0

app = typer.Typer(no_args_is_help=True)


@app.callback()
def farm() -> None:
    """Watch a whole farm.

    Example: tunefarm farm top
    """


@app.command()
def top(
    once: Annotated[bool, typer.Option("--once", help="Print it once.")] = False,
    every: Annotated[
        float, typer.Option("--every", min=0.2, metavar="S", help="Seconds between two looks.")
    ] = EVERY_S,
    tracker: Tracker = "",
    as_json: Json = False,
) -> None:
    """Show devices, leases, jobs, throughput and latest bests, live; Ctrl-C ends it.

    Example: tunefarm farm top --tracker lab1:9190
    """
    from rich.live import Live

    from tunefarm.tables import console, print_whole
    from tunefarm.top import Watch, shown

    out = console()
    with client_of(tracker) as client:
        watch = Watch(client)
        first = watch.look()
        if as_json:
            print_json(look_json(first))
            return
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


def look_json(look: Look) -> dict[str, object]:
    """A farm at one time, for scripts; once, as ``--once``."""
    from tunefarm.top import rates

    return {
        "at": look.at,
        "database": look.info.database,
        "version": look.info.version,
        "started_at": look.info.started_at,
        "queued": look.queued,
        "trials_s": sum(rates(look.newest, look.at).values()),
        "devices": [device_json(device) for device in look.devices],
        "leases": [lease_json(lease) for lease in look.leases],
        "jobs": [job_json(update.job) | _counts(update) for update in look.jobs],
    }


def _counts(update: JobUpdate) -> dict[str, object]:
    """How far a job is; the job of an update comes without its tasks."""
    return {
        "tasks": len(update.progress),
        "trials": done(update),
        "pending": sum(row.pending for row in update.progress),
    }


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
