"""``tunefarm devices``: what a farm measures on, and keeping devices from new leases."""

from __future__ import annotations

import getpass
import socket
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tunefarm.cli.farm import Rendezvous
from tunefarm.cli.options import TRACKER, TRACKER_HELP

if TYPE_CHECKING:
    from tunefarm.db.records import AuditEvent, Device
    from tunefarm.proto.client import FarmClient
    from tunefarm.tables import Column

LOOK_S = 0.5
Tracker = Annotated[str, typer.Option("--tracker", metavar=TRACKER, help=TRACKER_HELP)]
Name = Annotated[
    str,
    typer.Argument(
        metavar="DEVICE|WORKER", help="Id of a device or of a worker, or its first characters."
    ),
]
Reason = Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why; it is kept and shown.")]

app = typer.Typer(help="List the devices of a farm; keep new leases from them.")


@app.callback(invoke_without_command=True)
def devices(context: typer.Context, tracker: Tracker = "", rendezvous: Rendezvous = None) -> None:
    """List the devices of a farm, with their measured peaks and noise; cordon and drain them."""
    from tunefarm.tables import console, print_table

    context.obj = (tracker, rendezvous)
    if context.invoked_subcommand is not None:
        return
    with _client(context, "") as client:
        found = client.devices()
    out = console()
    if not found:
        out.print("no devices; `tunefarm worker` offers this machine's")
        return
    print_table(out, device_columns(found))


@app.command()
def cordon(context: typer.Context, name: Name, reason: Reason = "", tracker: Tracker = "") -> None:
    """Grant no new lease of a device, or of any device of a worker; present ones go on."""
    with _client(context, tracker) as client:
        found, devices, live = client.cordon(name, actor=actor(), reason=reason)
    print(f"cordoned {found.scope} {found.subject}")
    for lease in live:
        print(f"{lease.client} holds {lease.device}{_job_text(lease.job)} and goes on")
    if not devices:
        print("it has no device now; those that it offers later get no lease either")


@app.command()
def drain(
    context: typer.Context,
    name: Name,
    reason: Reason = "",
    minutes: Annotated[
        float | None,
        typer.Option(min=0.0, metavar="M", help="Revoke what is not given back after that time."),
    ] = None,
    wait: Annotated[
        bool, typer.Option("--wait/--no-wait", help="Wait until no lease is left.")
    ] = True,
    tracker: Tracker = "",
) -> None:
    """Cordon a device or worker, and ask its leases back: a tuner yields after what it submitted.

    Ctrl-C ends the waiting, not the drain; `uncordon` ends that.
    """
    after_s = None if minutes is None else 60 * minutes
    with _client(context, tracker) as client:
        found, devices, live = client.cordon(
            name, actor=actor(), reason=reason, drain=True, revoke_after_s=after_s
        )
        names = {device.id for device in devices}
        left = {lease.id for lease in live}
        for lease in live:
            print(f"asked {lease.client} for {lease.device}{_job_text(lease.job)}", flush=True)
        try:
            while wait and left:
                time.sleep(LOOK_S)
                left = {lease.id for lease in client.leases() if lease.device in names}
        finally:
            state = "drained" if not left else "draining"
            print(f"{state} {found.scope} {found.subject}", flush=True)


@app.command()
def uncordon(
    context: typer.Context, name: Name, reason: Reason = "", tracker: Tracker = ""
) -> None:
    """Let a device or worker have leases again."""
    with _client(context, tracker) as client:
        after = client.uncordon(name, actor=actor(), reason=reason)
    for device in after:
        state = f"still {device.cordon}: {device.cordon_reason}" if device.cordon else device.state
        print(f"{device.id} is {state}")


@app.command()
def history(
    context: typer.Context,
    name: Annotated[
        str, typer.Argument(metavar="[ID]", help="Only of this device, worker or lease.")
    ] = "",
    limit: Annotated[int, typer.Option(min=1, metavar="N", help="How many, newest first.")] = 50,
    tracker: Tracker = "",
) -> None:
    """List who cordoned, drained, uncordoned or revoked what, when and why."""
    from tunefarm.tables import console, print_table

    with _client(context, tracker) as client:
        events = client.audit(name, limit)
    out = console()
    if not events:
        out.print("nothing was cordoned, drained or revoked yet")
        return
    print_table(out, event_columns(events))


def actor() -> str:
    """Who gives the command, as the farm keeps it: ``anna@lab3``."""
    return f"{getpass.getuser()}@{socket.gethostname()}"


def client_of(tracker: str, rendezvous: Path | None = None) -> FarmClient:
    """A client of the farm that a command names, by default this user's own."""
    from tunefarm.farm import connect_local

    return connect_local(tracker, rendezvous)


def _client(context: typer.Context, tracker: str) -> FarmClient:
    """A client of the farm that is named behind the subcommand or, else, before it."""
    before, rendezvous = context.find_object(tuple) or ("", None)
    return client_of(tracker or before, rendezvous)


def _job_text(job: str) -> str:
    return f" for job {job[:8]}" if job else ""


def device_columns(found: Sequence[Device]) -> list[Column]:
    """A row a device, with its measured peak and noise."""
    from tunefarm.tables import Column

    peaks = [d.peaks.get("flops_n") or d.peaks.get("flops_1") for d in found]
    return [
        Column("device", [d.id for d in found], left=True),
        Column("state", [_state(d) for d in found], rank=8, left=True),
        Column("target", [d.target for d in found], rank=7, least=16, left=True),
        Column("GFLOP/s", [f"{p / 1e9:.0f}" if p else "–" for p in peaks], rank=6),
        Column("noise", [f"{100 * d.noise:.1f}%" for d in found], rank=4),
        Column("compiler", [d.compiler_version for d in found], rank=5, left=True),
        Column("worker", [d.worker for d in found], rank=4, least=8, left=True),
        Column("model", [d.model for d in found], rank=3, least=12, left=True),
        Column("host", [d.attributes.get("host", "") for d in found], rank=2, left=True),
        Column("why", [d.cordon_reason for d in found], rank=6, least=8, left=True),
    ]


def _state(device: Device) -> str:
    return f"{device.state}, {device.cordon}" if device.cordon else device.state


def event_columns(events: Sequence[AuditEvent]) -> list[Column]:
    """A row for each thing that an operator did."""
    from tunefarm.tables import Column

    return [
        Column("when", [stamp(e.at) for e in events], rank=8, left=True),
        Column("who", [e.actor for e in events], rank=6, left=True),
        Column("what", [e.action for e in events], left=True),
        Column("to", [e.subject for e in events], least=20, left=True),
        Column("why", [e.reason for e in events], rank=7, least=12, left=True),
    ]


def stamp(at: float) -> str:
    """A time as tables show it: local, to the second."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))
