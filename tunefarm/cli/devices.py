"""``tunefarm devices``: what a farm measures on, how it is, and keeping it from new leases."""

from __future__ import annotations

import getpass
import socket
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tunefarm.cli.farm import Rendezvous
from tunefarm.cli.options import TRACKER, TRACKER_HELP
from tunefarm.cli.printing import Json, print_json, print_rows, remark
from tunefarm.texts import stamp

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

app = typer.Typer()


@app.callback(invoke_without_command=True)
def devices(
    context: typer.Context,
    tracker: Tracker = "",
    rendezvous: Rendezvous = None,
    as_json: Json = False,
) -> None:
    """List the devices of a farm: peaks, noise, drift, last check; check, cordon, drain them.

    Example: tunefarm devices --tracker lab1:9190
    """
    context.obj = (tracker, rendezvous)
    if context.invoked_subcommand is not None:
        return
    with _client(context, "") as client:
        found = client.devices()
    if as_json:
        print_json([device_json(device) for device in found])
        return
    print_rows(found, device_columns(found), "no devices; `tunefarm worker` offers this machine's")


@app.command()
def cordon(context: typer.Context, name: Name, reason: Reason = "", tracker: Tracker = "") -> None:
    """Grant no new lease of a device, or of any device of a worker; present ones go on.

    Example: tunefarm devices cordon lab3 --reason "new fans on Friday"
    """
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

    Example: tunefarm devices drain lab3 --reason "new fans" --minutes 30
    """
    after_s = None if minutes is None else 60 * minutes
    with _client(context, tracker) as client:
        found, devices, live = client.cordon(
            name, actor=actor(), reason=reason, drain=True, revoke_after_s=after_s
        )
        names = {device.id for device in devices}
        left = {lease.id for lease in live}
        for lease in live:
            remark(f"asked {lease.client} for {lease.device}{_job_text(lease.job)}")
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
    """Let a device or worker have leases again.

    Example: tunefarm devices uncordon lab3
    """
    with _client(context, tracker) as client:
        after = client.uncordon(name, actor=actor(), reason=reason)
    for device in after:
        state = f"still {device.cordon}: {device.cordon_reason}" if device.cordon else device.state
        print(f"{device.id} is {state}")


@app.command()
def check(
    context: typer.Context,
    name: Name,
    reason: Reason = "",
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Wait for what they find.")] = True,
    tracker: Tracker = "",
) -> None:
    """Check a device now, or all of a worker: right answers, peaks, noise; a device that is found
    well leaves its quarantine.

    Example: tunefarm devices check lab3
    """
    with _client(context, tracker) as client:
        asked = client.check_devices(name, actor=actor(), reason=reason)
        _follow_checks(client, asked, wait)


@app.command()
def lift(
    context: typer.Context,
    name: Name,
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why; it is kept.")],
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Wait for the check.")] = True,
    tracker: Tracker = "",
) -> None:
    """End the quarantine of a device, or of all of a worker: trust them as they are now.

    They are checked, and compared with this check from now on.

    Example: tunefarm devices lift lab3 --reason "it has a new heat sink"
    """
    with _client(context, tracker) as client:
        asked = client.check_devices(name, actor=actor(), reason=reason, lift=True)
        _follow_checks(client, asked, wait)


def _follow_checks(client: FarmClient, asked: Mapping[str, int], wait: bool) -> None:
    """Say what each check finds, as soon as it is done, or that it will be."""
    left = dict(asked)
    while left:
        for device in [d for d in client.devices() if d.id in left]:
            if device.health.check >= left[device.id]:
                print(f"{device.id} is {_found(device)}", flush=True)
            elif not wait or device.state == "offline":
                print(f"{device.id} is {device.state}; it is checked when its worker hears of it")
            else:
                continue
            del left[device.id]
        if left:
            time.sleep(LOOK_S)


def _found(device: Device) -> str:
    if device.cordon:
        return f"{device.cordon}: {device.cordon_reason}"
    noise = f"noise {_percent(device.noise)}, {_percent(device.health.trial_noise)} between trials"
    return f"well: {_peak(device, 'flops_n', 'flops_1')} GFLOP/s, {noise}"


@app.command()
def history(
    context: typer.Context,
    name: Annotated[
        str, typer.Argument(metavar="ID", help="Only of this device, worker or lease.")
    ] = "",
    limit: Annotated[int, typer.Option(min=1, metavar="N", help="How many, newest first.")] = 50,
    tracker: Tracker = "",
    as_json: Json = False,
) -> None:
    """List who cordoned, drained, checked or revoked what, when and why.

    Example: tunefarm devices history lab3 --limit 10
    """
    with _client(context, tracker) as client:
        events = client.audit(name, limit)
    if as_json:
        print_json(events)
        return
    nothing = "nothing was cordoned, drained, checked or revoked yet"
    print_rows(events, event_columns(events), nothing)


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


def device_json(device: Device) -> dict[str, object]:
    """A device for scripts: peaks in operations and bytes a second, noise as fractions."""
    health = device.health
    return {
        "device": device.id,
        "state": device.state,
        "target": device.target,
        "model": device.model,
        "worker": device.worker,
        "compiler": device.compiler_version,
        "attributes": device.attributes,
        "peaks": device.peaks,
        "noise": device.noise,
        "trial_noise": health.trial_noise,
        "drift": health.drift,
        "checked_at": health.checked_at or None,
        "trouble": health.trouble,
        "cordon": device.cordon,
        "cordon_reason": device.cordon_reason,
    }


def device_columns(found: Sequence[Device]) -> list[Column]:
    """A row a device: its peaks, its noise in finals and between trials, its drift and the age of
    its last check, which cores it times and builds on, and why it gets no lease."""
    from tunefarm.tables import Column

    columns = [
        Column("device", [d.id for d in found], left=True),
        Column("state", [_state(d) for d in found], rank=8, left=True),
        Column("target", [d.target for d in found], rank=6, least=16, left=True),
        Column("GFLOP/s", [_peak(d, "flops_n", "flops_1") for d in found], rank=6),
        Column("GB/s", [_peak(d, "bandwidth_dram_n") for d in found], rank=3),
        Column("noise", [_percent(d.noise) for d in found], rank=4),
        Column("trials", [_percent(d.health.trial_noise) for d in found], rank=3),
        Column("drift", [_drift(d) for d in found], rank=6),
        Column("checked", [_age(d.health.checked_at) for d in found], rank=4),
        Column("cores", [_cores(d) for d in found], rank=4, left=True),
        Column("compiler", [d.compiler_version for d in found], rank=5, left=True),
        Column("worker", [d.worker for d in found], rank=4, least=8, left=True),
        Column("model", [d.model for d in found], rank=3, least=12, left=True),
        Column("host", [d.attributes.get("host", "") for d in found], rank=2, left=True),
    ]
    if any(d.cordon for d in found):
        why = [d.cordon_reason for d in found]
        columns.append(Column("why", why, rank=8, least=16, left=True))
    return columns


def _peak(device: Device, *names: str) -> str:
    """The first of these peaks that the device has, in units of 10⁹."""
    peak = next((device.peaks[name] for name in names if device.peaks.get(name)), 0.0)
    return f"{peak / 1e9:.0f}" if peak else "–"


def _percent(fraction: float) -> str:
    return f"{100 * fraction:.1f}%" if fraction else "–"


def _drift(device: Device) -> str:
    """How much slower the reference loop is than at the last check."""
    return f"{100 * (device.health.drift - 1):+.0f}%" if device.health.checked_at else "–"


def _age(at: float) -> str:
    """How long ago a time was: ``5 min``."""
    if not at:
        return "never"
    minutes = max(0.0, time.time() - at) / 60
    if minutes < 90:
        return f"{minutes:.0f} min"
    return f"{minutes / 60:.0f} h" if minutes < 48 * 60 else f"{minutes / 1440:.0f} d"


def _cores(device: Device) -> str:
    """The cores that are timed on, and those that build meanwhile."""
    timed, builds = (device.attributes.get(name, "") for name in ("cpuset", "build_cores"))
    return f"{timed}, builds {builds}" if timed and builds else timed


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
