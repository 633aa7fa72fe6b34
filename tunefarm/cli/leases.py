"""``tunefarm leases``: who holds which device, who held it, and taking it back."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from tunefarm.cli.devices import Tracker, actor, client_of
from tunefarm.cli.jobs import DIGITS
from tunefarm.cli.printing import Json, print_json, print_rows
from tunefarm.texts import stamp

if TYPE_CHECKING:
    from tunefarm.db.records import Lease
    from tunefarm.tables import Column

app = typer.Typer()


@app.callback(invoke_without_command=True)
def leases(
    context: typer.Context,
    history: Annotated[
        bool, typer.Option("--history", help="Those that ended too, the newest first.")
    ] = False,
    device: Annotated[
        str, typer.Option(metavar="ID", help="Only of devices whose ids begin so.")
    ] = "",
    job: Annotated[str, typer.Option(metavar="ID", help="Only of jobs whose ids begin so.")] = "",
    limit: Annotated[int, typer.Option(min=1, metavar="N", help="How many of --history.")] = 50,
    tracker: Tracker = "",
    as_json: Json = False,
) -> None:
    """List the leases of a farm: who holds which device for which job, since when; revoke them.

    Example: tunefarm leases --history --device lab3
    """
    context.obj = tracker
    if context.invoked_subcommand is not None:
        return
    with client_of(tracker) as client:
        if history:
            found = client.lease_history(device=device, job=job, limit=limit)
        else:
            live = client.leases()
            found = tuple(
                one for one in live if one.device.startswith(device) and one.job.startswith(job)
            )
    if as_json:
        print_json([lease_json(lease) for lease in found])
        return
    nothing = "no lease was granted yet" if history else "nobody holds a device now"
    print_rows(found, lease_columns(found), nothing)


@app.command()
def revoke(
    context: typer.Context,
    lease: Annotated[str, typer.Argument(metavar="LEASE", help="Its id, or the first digits.")],
    reason: Annotated[
        str, typer.Option("--reason", metavar="TEXT", help="Why; its holder is told.")
    ],
    tracker: Tracker = "",
) -> None:
    """End a lease now: its holder can write nothing more, its job queues for another device.

    What it had submitted is measured under the job's next lease. To keep the job away from the
    device as well, cordon the device first, or cancel the job.

    Example: tunefarm leases revoke 9c41 --reason "its tuner hangs"
    """
    with client_of(tracker or context.find_object(str) or "") as client:
        ended = client.revoke(lease, actor=actor(), reason=reason)
    print(f"revoked {ended.id[:DIGITS]}: {ended.client} held {ended.device}")


def lease_json(lease: Lease) -> dict[str, object]:
    """A lease for scripts; times in seconds since the epoch, None for one that has not ended."""
    return {
        "lease": lease.id,
        "device": lease.device,
        "holder": lease.client,
        "owner": lease.owner,
        "job": lease.job or None,
        "epoch": lease.epoch,
        "granted_at": lease.granted_at,
        "ended_at": lease.ended_at,
        "ended_reason": lease.ended_reason,
        "recall": lease.recall,
    }


def lease_columns(found: Sequence[Lease]) -> list[Column]:
    """A row a lease: who held what, for which job, from when to when, and why it ended."""
    from tunefarm.tables import Column

    now = time.time()
    return [
        Column("lease", [one.id[:DIGITS] for one in found], left=True),
        Column("device", [one.device for one in found], rank=8, least=16, left=True),
        Column("holder", [one.client for one in found], rank=7, least=12, left=True),
        Column("job", [one.job[:DIGITS] for one in found], rank=6, left=True),
        Column("epoch", [str(one.epoch) for one in found], rank=1),
        Column("since", [stamp(one.granted_at) for one in found], rank=5, left=True),
        Column("until", [_until(one) for one in found], rank=3, left=True),
        Column("held", [_span((one.ended_at or now) - one.granted_at) for one in found], rank=2),
        Column("why it ended", [_why(one) for one in found], rank=4, least=12, left=True),
    ]


def _until(lease: Lease) -> str:
    return "" if lease.ended_at is None else stamp(lease.ended_at)


def _why(lease: Lease) -> str:
    """Why it ended or, of a live one, that it is asked back."""
    return lease.ended_reason or (f"asked back: {lease.recall}" if lease.recall else "")


def _span(seconds: float) -> str:
    """Hours, minutes and seconds."""
    whole = max(0, int(seconds))
    return f"{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d}"
