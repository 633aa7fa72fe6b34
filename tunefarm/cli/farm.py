"""``tunefarm tracker``, ``worker`` and ``tuner``: the processes of a farm."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tunefarm.cli.options import (
    DATABASE,
    DATABASE_HELP,
    FILE,
    TARGET,
    TRACKER,
    TRACKER_HELP,
    TlsCa,
    TlsCert,
    TlsKey,
    TokenFile,
    parse_tags,
    use_access,
)
from tunefarm.cli.printing import heard
from tunefarm.compiler.errors import TunefarmError
from tunefarm.proto.logs import Format, Level, configure
from tunefarm.worker.pulse import MAX_DRIFT

if TYPE_CHECKING:
    from tunefarm.proto.rendezvous import Rendezvous as Found
    from tunefarm.proto.tls import Tls

Rendezvous = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="File in which the tracker says where it listens."),
]
LogFormat = Annotated[
    Format, typer.Option(metavar="FORMAT", help="text (for people) or json (for machines).")
]
LogLevel = Annotated[
    Level,
    typer.Option(metavar="LEVEL", help="The least that is logged: debug, info, warning or error."),
]
HealthPort = Annotated[
    int | None,
    typer.Option(
        metavar="PORT", min=0, max=65535, help="Answer probes of health here; 0 takes a free port."
    ),
]
HealthHost = Annotated[str, typer.Option(metavar="HOST", help="Address of the probes.")]
EXIT_WITH_PARENT = "--exit-with-parent"
ExitWithParent = Annotated[bool, typer.Option(EXIT_WITH_PARENT, hidden=True)]
PAGES = 8765
"""The port of the dashboard, unless another is asked for."""
_PR_SET_PDEATHSIG = 1
_LOOK_S = 0.25
_TUNER_GRACE_S = 1.0  # what a tuner knows is in the database; only a tracker that died may hold it


def register(app: typer.Typer) -> None:
    app.command()(tracker)
    app.command()(worker)
    app.command()(tuner)


def exit_with_parent(wanted: bool, grace_s: float | None = None) -> None:
    """Have the kernel send SIGTERM to this process when its parent dies (Linux).

    With ``grace_s`` the process is gone that long after its parent, whatever it waits for then.
    """
    if not wanted or sys.platform != "linux":
        return
    parent = os.getppid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if parent == 1 or os.getppid() != parent:
        raise SystemExit(0)
    if grace_s is not None:
        arguments = (parent, grace_s)
        threading.Thread(target=_outlive, args=arguments, name="parent", daemon=True).start()


def _outlive(parent: int, grace_s: float) -> None:
    while os.getppid() == parent:
        time.sleep(_LOOK_S)
    time.sleep(grace_s)
    os._exit(0)


def tracker(
    db: Annotated[str, typer.Option(metavar=DATABASE, help=DATABASE_HELP)] = "",
    host: Annotated[
        str, typer.Option(metavar="HOST", help="Address to listen on; TLS unless loopback.")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(metavar="PORT", min=0, max=65535, help="0 takes a free port.")
    ] = 0,
    tls_cert: Annotated[str, typer.Option(metavar=FILE, help="Its certificate (PEM).")] = "",
    tls_key: Annotated[str, typer.Option(metavar=FILE, help="The certificate's key (PEM).")] = "",
    tls_client_ca: Annotated[
        str, typer.Option(metavar=FILE, help="Ask callers for a certificate of this CA (PEM).")
    ] = "",
    worker_port: Annotated[
        int | None,
        typer.Option(
            metavar="PORT",
            min=0,
            max=65535,
            help="Ask workers alone, who call here; 0 takes a free port.",
        ),
    ] = None,
    rendezvous: Rendezvous = None,
    lease_term_s: Annotated[
        float, typer.Option(metavar="S", min=0.1, help="Seconds until a lease lapses.")
    ] = 10.0,
    idle_trials: Annotated[
        int,
        typer.Option(
            min=0,
            metavar="N",
            help="Trials a task for what builds report as untuned, on idle devices; 0: none.",
        ),
    ] = 64,
    idle_after_s: Annotated[
        float, typer.Option(min=0, metavar="S", help="How long a device was free when it is idle.")
    ] = 60.0,
    prune_older_than: Annotated[
        str,
        typer.Option(
            metavar="AGE", help="Delete trials older than 90d once a day; the best ones stay."
        ),
    ] = "",
    prune_keep: Annotated[
        int,
        typer.Option(min=0, metavar="N", help="The newest N of each task are never deleted."),
    ] = 0,
    dashboard: Annotated[
        bool, typer.Option("--dashboard", help=f"Serve the dashboard too, at port {PAGES}.")
    ] = False,
    dashboard_port: Annotated[
        int | None,
        typer.Option(
            metavar="PORT", min=0, max=65535, help="The same at this port; 0 takes a free one."
        ),
    ] = None,
    metrics_port: Annotated[
        int | None,
        typer.Option(
            metavar="PORT",
            min=0,
            max=65535,
            help="Answer Prometheus and probes of health here; 0 takes a free port.",
        ),
    ] = None,
    metrics_host: Annotated[
        str, typer.Option(metavar="HOST", help="Address of the metrics.")
    ] = "127.0.0.1",
    log_format: LogFormat = Format.TEXT,
    log_level: LogLevel = Level.INFO,
    exit_with_parent_: ExitWithParent = False,
) -> None:
    """Run the tracker: it lends devices, queues jobs and writes the database.

    Example: tunefarm tracker --db farm.db --port 9190 --dashboard
    """
    from tunefarm.api import default_database
    from tunefarm.cli.database import policy_of
    from tunefarm.farm import announced
    from tunefarm.tracker.options import TrackerOptions
    from tunefarm.tracker.server import main_serve

    exit_with_parent(exit_with_parent_)
    configure(log_format, heard(log_level))
    if dashboard and dashboard_port is None:
        dashboard_port = PAGES
    if dashboard_port is not None:
        _check_dashboard()
    is_pruning = prune_older_than or prune_keep
    retention = policy_of(prune_older_than, prune_keep) if is_pruning else None
    options = TrackerOptions(
        db or default_database(), host, port, rendezvous=rendezvous,
        lease_term_s=lease_term_s, claim_term_s=lease_term_s,
        metrics_port=metrics_port, metrics_host=metrics_host, idle_trials=idle_trials,
        idle_after_s=idle_after_s,
        retention=retention, tls_cert=tls_cert, tls_key=tls_key, tls_client_ca=tls_client_ca,
        worker_port=worker_port, dashboard_port=dashboard_port,
    )  # fmt: skip
    with announced(options.rendezvous_file) as announce:
        main_serve(options, announce)


def _check_dashboard() -> None:
    """TunefarmError if a package that the dashboard needs is missing."""
    from tunefarm.dashboard.serving import ServingError, check_packages

    try:
        check_packages("--dashboard")
    except ServingError as error:
        raise TunefarmError(str(error)) from None


@dataclass(frozen=True, slots=True)
class Place:
    """Where a tracker is, and what lets in there: by its address or by a file that says both."""

    address: str = ""
    token: str = field(default="", repr=False)
    tls: Tls | None = None
    file: Path | None = None


def _place(tracker: str, rendezvous: Path | None) -> Place:
    """The tracker that the options and the environment name; TrackerUnavailable if its file is not
    there. One that is away is waited for."""
    from tunefarm.farm import check_running, default_rendezvous, is_file, own_tls, token_for

    if tracker and not is_file(tracker):
        return Place(tracker, token_for(tracker), own_tls())
    file = Path(tracker).expanduser() if tracker else rendezvous or default_rendezvous()
    if not file.exists():
        check_running(file)
    return Place(file=file)


def _place_of(place: Place) -> Found:
    """What another machine needs to come to the same tracker."""
    from tunefarm.proto.rendezvous import Rendezvous as Found
    from tunefarm.proto.rendezvous import read_rendezvous
    from tunefarm.proto.tls import SYSTEM

    if place.file is not None:
        return replace(read_rendezvous(place.file), pid=0)
    if place.tls is None:
        return Found(place.address, place.token)
    tls = place.tls
    return Found(place.address, place.token, "", 0, tls.ca or SYSTEM, tls.certificate, tls.key)


def worker(
    tracker: Annotated[str, typer.Option(metavar=TRACKER, help=TRACKER_HELP)] = "",
    rendezvous: Rendezvous = None,
    target: Annotated[
        list[str] | None,
        typer.Option(
            metavar=TARGET,
            help="Devices to offer: targets, cuda (every GPU), cuda:1; all of this host if none.",
        ),
    ] = None,
    name: Annotated[str, typer.Option(metavar="NAME", help="Name of this worker.")] = "",
    build_processes: Annotated[
        int, typer.Option(metavar="N", min=0, help="0 means one a core.")
    ] = 0,
    tag: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="Tag for `--device` to select by (repeatable)."),
    ] = None,
    max_drift: Annotated[
        float,
        typer.Option(
            min=0,
            metavar="X",
            help="Stop measuring while the reference loop takes X times as long as when the device "
            "was checked; 0: never.",
        ),
    ] = MAX_DRIFT,
    token_file: TokenFile = "",
    tls_ca: TlsCa = "",
    tls_cert: TlsCert = "",
    tls_key: TlsKey = "",
    ray: Annotated[
        bool, typer.Option("--ray", help="Run workers on the nodes of a Ray cluster instead.")
    ] = False,
    ray_address: Annotated[
        str,
        typer.Option(metavar="HOST:PORT", help="Of the cluster; the one that runs here if empty."),
    ] = "",
    ray_workers: Annotated[
        int, typer.Option(min=0, metavar="N", help="How many, one a node; 0: on each node.")
    ] = 0,
    ray_cpus: Annotated[
        float, typer.Option(min=0, metavar="N", help="CPUs that each takes; 0: a whole node's.")
    ] = 0,
    ray_gpus: Annotated[float, typer.Option(min=0, metavar="N", help="GPUs that each takes.")] = 0,
    health_port: HealthPort = None,
    health_host: HealthHost = "127.0.0.1",
    log_format: LogFormat = Format.TEXT,
    log_level: LogLevel = Level.INFO,
    exit_with_parent_: ExitWithParent = False,
) -> None:
    """Run a worker: it builds candidates and times them on this machine's devices.

    Example: tunefarm worker --tracker lab1.json --tag rack=3
    """
    from tunefarm.worker.main import WorkerOptions, run_worker

    tags = parse_tags(tag)
    exit_with_parent(exit_with_parent_)
    configure(log_format, heard(log_level))
    use_access(token_file, tls_ca, tls_cert, tls_key)
    place = _place(tracker, rendezvous)
    if ray:
        from tunefarm.on_ray import RayOptions, run_on_ray

        if name or health_port is not None:
            raise TunefarmError(
                "--name and --health-port are for one worker; leave them out with --ray, which "
                "names workers after their nodes and starts them again when they die"
            )
        options = [("--target", text) for text in target or ()]
        options += [("--tag", text) for text in tag or ()]
        options += [("--build-processes", str(build_processes)), ("--max-drift", str(max_drift))]
        options += [("--log-format", log_format), ("--log-level", log_level)]
        arguments = [word for option in options for word in option]
        resources = RayOptions(ray_address, ray_workers, ray_cpus, ray_gpus)
        run_on_ray(resources, arguments, _place_of(place))
        return
    run_worker(
        WorkerOptions(
            place.address,
            place.token,
            place.file,
            tuple(target or ()),
            name,
            build_processes,
            tags=tags,
            tls=place.tls,
            health_port=health_port,
            health_host=health_host,
            max_drift=max_drift,
        ),
        on_ready=lambda devices: print(
            f"worker offers {', '.join(d.device.id for d in devices)}", flush=True
        ),
    )


def tuner(
    tracker: Annotated[str, typer.Option(metavar=TRACKER, help=TRACKER_HELP)] = "",
    rendezvous: Rendezvous = None,
    once: Annotated[bool, typer.Option("--once", help="Stop after one job.")] = False,
    token_file: TokenFile = "",
    tls_ca: TlsCa = "",
    tls_cert: TlsCert = "",
    tls_key: TlsKey = "",
    health_port: HealthPort = None,
    health_host: HealthHost = "127.0.0.1",
    log_format: LogFormat = Format.TEXT,
    log_level: LogLevel = Level.INFO,
    exit_with_parent_: ExitWithParent = False,
) -> None:
    """Run a tuner: it claims jobs and searches for the best configs.

    Example: tunefarm tuner --tracker lab1.json
    """
    from tunefarm.tuner.execute import run_tuner
    from tunefarm.tuner.options import TunerOptions

    exit_with_parent(exit_with_parent_, _TUNER_GRACE_S)
    configure(log_format, heard(log_level))
    use_access(token_file, tls_ca, tls_cert, tls_key)
    place = _place(tracker, rendezvous)
    run_tuner(
        TunerOptions(
            tracker=place.address,
            token=place.token,
            tls=place.tls,
            rendezvous=place.file,
            once=once,
            health_port=health_port,
            health_host=health_host,
        )
    )
