"""How a tracker is started."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from tunefarm.db.dialect import parse_url, sqlite_path
from tunefarm.db.retention import Policy

LOOPBACK = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True, slots=True)
class TrackerOptions:
    """What ``tunefarm tracker`` and the embedded farm decide.

    ``database`` is a URL or the path of a SQLite file. ``port`` 0 means the port of the last run
    on this rendezvous file if it is free, else any free one. An empty ``token`` means that of the
    last run, else a fresh one. The rendezvous file (mode 0600) tells clients the address and the
    token; by default it stands beside a SQLite file as ``NAME.tracker.json``. A lease or a claim
    that is not renewed for its term ends; a worker that does not Sync for a lease term is lost.
    What builds report as untuned is tuned on devices that were idle for ``idle_after_s``, with
    ``idle_trials`` a task; 0 leaves idle devices alone.
    Trials that ``retention`` leaves out are deleted once a day.
    With ``dashboard_port`` (0: a free one) it serves the dashboard on ``host``, with its TLS.
    With ``metrics_port`` (0: a free one) it answers HTTP there: its metrics and probes of health.
    With ``tls_cert`` and ``tls_key`` (PEM files) ``host`` may be any, and processes of this machine
    have a port of their own, in the clear; the rendezvous file names it. ``tls_client_ca`` asks
    for certificates that it signed: of workers alone if they have a ``worker_port``, else of all.
    """

    database: str
    host: str = "127.0.0.1"
    port: int = 0
    token: str = field(default="", repr=False)
    rendezvous: Path | None = None
    lease_term_s: float = 10.0
    claim_term_s: float = 10.0
    idle_trials: int = 0
    idle_after_s: float = 60.0
    retention: Policy | None = None
    dashboard_port: int | None = None
    metrics_port: int | None = None
    metrics_host: str = "127.0.0.1"
    tls_cert: str = ""
    tls_key: str = ""
    tls_client_ca: str = ""
    worker_port: int | None = None

    @property
    def rendezvous_file(self) -> Path | None:
        return self.rendezvous or default_rendezvous(self.database)


def default_rendezvous(database: str) -> Path | None:
    """Where the tracker of a SQLite database tells its address; None for other databases."""
    path = sqlite_path(parse_url(database))
    return path.with_name(f"{path.name}.tracker.json") if path else None
