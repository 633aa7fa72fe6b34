"""The schema of the farm: who serves it, which devices it has, who holds them and what they do now;
one class a table, as in ``models``.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import ForeignKey, Index, String, UniqueConstraint, text
from sqlalchemy.orm import Mapped, mapped_column
from tunefarm.db.models import Base, BigId, table


class WorkerRow(Base):
    """``incarnation`` is the current process of the worker; ``owner`` is the name of the token that
    alone speaks for it, empty while none has. Where several trackers serve the database,
    ``seen_at`` is when it last spoke to any of them, and ``capacity`` what it then could take."""

    __tablename__ = "workers"
    id: Mapped[str] = mapped_column(primary_key=True)
    incarnation: Mapped[str]
    compiler_version: Mapped[str]
    started_at: Mapped[float]
    owner: Mapped[str] = mapped_column(server_default="")
    seen_at: Mapped[float | None]
    capacity: Mapped[int] = mapped_column(server_default="0")


class IncarnationRow(Base):
    """Every process that ever was a worker: one that was replaced stays replaced."""

    __tablename__ = "incarnations"
    worker: Mapped[str] = mapped_column(ForeignKey("workers.id"), primary_key=True)
    incarnation: Mapped[str] = mapped_column(primary_key=True)
    started_at: Mapped[float]


class DeviceRow(Base):
    """``epoch`` rises with every grant. ``health`` is what its worker tells last; ``check_number``
    is that of the last check that was asked for, ``lost`` how many candidates in a row it lost, and
    checks before ``trusted_at`` count no more."""

    __tablename__ = "devices"
    id: Mapped[str] = mapped_column(primary_key=True)
    kind: Mapped[str]
    model: Mapped[str]
    target: Mapped[str]
    worker: Mapped[str] = mapped_column(ForeignKey("workers.id"))
    attributes: Mapped[dict[str, Any]]
    peaks: Mapped[dict[str, Any]]
    noise: Mapped[float]
    epoch: Mapped[int]
    health: Mapped[dict[str, Any]] = mapped_column(server_default="{}")
    check_number: Mapped[int] = mapped_column(server_default="0")
    lost: Mapped[int] = mapped_column(server_default="0")
    trusted_at: Mapped[float] = mapped_column(server_default="0")


class DeviceCheckRow(Base):
    """What a check of a device found; ``reason`` says in what it was unlike itself. Rows are never
    changed."""

    __tablename__ = "device_checks"
    device: Mapped[str] = mapped_column(ForeignKey("devices.id"), primary_key=True)
    at: Mapped[float] = mapped_column(primary_key=True)
    peaks: Mapped[dict[str, Any]]
    noise: Mapped[float]
    trial_noise: Mapped[float]
    reference_s: Mapped[float]
    reason: Mapped[str]


class CordonRow(Base):
    """A device or worker (``scope``) that gets no new lease; uncordoned, it has no row. Rows of the
    scope ``health`` are quarantines of devices."""

    __tablename__ = "cordons"
    scope: Mapped[str] = mapped_column(String(8), primary_key=True)
    subject: Mapped[str] = mapped_column(primary_key=True)
    drain: Mapped[bool]
    actor: Mapped[str]
    reason: Mapped[str]
    at: Mapped[float]
    revoke_at: Mapped[float | None]


class AuditRow(Base):
    """What operators did; rows are never changed. Who held which device stands in ``leases``."""

    __tablename__ = "audit"
    id: Mapped[int] = mapped_column(BigId, primary_key=True)
    request_id: Mapped[str] = mapped_column(unique=True)
    at: Mapped[float]
    actor: Mapped[str]
    action: Mapped[str] = mapped_column(String(16))
    subject: Mapped[str]
    reason: Mapped[str]
    __table_args__ = ({"sqlite_autoincrement": True},)


class TokenRow(Base):
    """A credential; only the SHA-256 of its secret is kept, and rows stay when they are revoked.
    ``used_at`` is known to the minute."""

    __tablename__ = "tokens"
    digest: Mapped[str] = mapped_column(String(64), primary_key=True)
    name: Mapped[str]
    role: Mapped[str] = mapped_column(String(8))
    devices: Mapped[str]
    max_priority: Mapped[int | None]
    created_at: Mapped[float]
    created_by: Mapped[str]
    expires_at: Mapped[float | None]
    revoked_at: Mapped[float | None]
    used_at: Mapped[float | None]


class LeaseRow(Base):
    """The partial unique index is the promise that a device has one live lease at most. Rows stay
    when leases end: they are the record of who held what, when, and why it ended. ``owner`` is the
    name of the token that acquired it. ``deadline`` is when it expires where several trackers serve
    the database; the only tracker of another has the deadlines in memory."""

    __tablename__ = "leases"
    id: Mapped[str] = mapped_column(primary_key=True)
    request_id: Mapped[str] = mapped_column(unique=True)
    device: Mapped[str] = mapped_column(ForeignKey("devices.id"))
    client: Mapped[str]
    job: Mapped[str]
    epoch: Mapped[int]
    term_s: Mapped[float]
    granted_at: Mapped[float]
    ended_at: Mapped[float | None]
    ended_reason: Mapped[str]
    owner: Mapped[str] = mapped_column(server_default="")
    deadline: Mapped[float | None]
    __table_args__ = (
        UniqueConstraint("device", "epoch"),
        Index(None, "granted_at"),
        Index(
            "leases_one_live_a_device",
            "device",
            unique=True,
            sqlite_where=text("ended_at IS NULL"),
            postgresql_where=text("ended_at IS NULL"),
        ),
        Index(
            "leases_live_by_job",
            "job",
            sqlite_where=text("ended_at IS NULL"),
            postgresql_where=text("ended_at IS NULL"),
        ),
    )


class RequestRow(Base):
    """A submitted candidate without a result. ``lease`` is null while its job waits for the next
    lease; ``attempts`` counts the worker processes that got it, ``delivered_to`` is the last. Its
    code is made with ``plugins``, and timed by ``protocol`` (empty: as usual)."""

    __tablename__ = "requests"
    id: Mapped[int] = mapped_column(BigId, primary_key=True)
    job: Mapped[str]
    workload_id: Mapped[int] = mapped_column(ForeignKey("workloads.id"))
    target_id: Mapped[int] = mapped_column(ForeignKey("targets.id"))
    number: Mapped[int]
    lease: Mapped[str | None] = mapped_column(ForeignKey("leases.id"))
    config: Mapped[dict[str, Any]]
    predicted: Mapped[float | None]
    origin: Mapped[str]
    against: Mapped[list[Any]]
    budgets: Mapped[dict[str, Any]]
    attempts: Mapped[int]
    delivered_to: Mapped[str | None]
    created_at: Mapped[float]
    plugins: Mapped[list[Any]] = mapped_column(server_default="[]")
    protocol: Mapped[str] = mapped_column(server_default="")
    __table_args__ = (
        UniqueConstraint("job", "workload_id", "target_id", "number"),
        Index(None, "lease", "id"),
        {"sqlite_autoincrement": True},
    )


# --- what several trackers of one database tell each other; times are by the database's clock --


class TrackerRow(Base):
    """A tracker, and when it last was alive."""

    __tablename__ = "trackers"
    id: Mapped[str] = mapped_column(primary_key=True)
    address: Mapped[str]
    started_at: Mapped[float]
    beat_at: Mapped[float]


class ClaimTermRow(Base):
    """When the claim of a running job expires; of an older epoch it means nothing."""

    __tablename__ = "claim_terms"
    job: Mapped[str] = mapped_column(primary_key=True)
    epoch: Mapped[int]
    deadline: Mapped[float]


class WaitingRow(Base):
    """A request for a device that waits at a tracker since ``since``, and for whom (``request``);
    at ``asked_at`` its client was there."""

    __tablename__ = "waiting"
    id: Mapped[str] = mapped_column(primary_key=True)
    tracker: Mapped[str]
    request: Mapped[dict[str, Any]]
    since: Mapped[float]
    asked_at: Mapped[float]


WORKERS = table(WorkerRow)
INCARNATIONS = table(IncarnationRow)
DEVICES = table(DeviceRow)
DEVICE_CHECKS = table(DeviceCheckRow)
CORDONS = table(CordonRow)
AUDIT = table(AuditRow)
TOKENS = table(TokenRow)
LEASES = table(LeaseRow)
REQUESTS = table(RequestRow)
TRACKERS = table(TrackerRow)
CLAIM_TERMS = table(ClaimTermRow)
WAITING = table(WaitingRow)
