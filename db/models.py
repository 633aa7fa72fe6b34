"""The schema of what is tuned and was measured: one class a table; ``farm_models`` has those of the
farm. ``migrations/`` builds the same tables step by step.

Workloads and targets are named by their texts everywhere else and by small integers here, because
a million trials refer to them. Times are seconds since the epoch; latencies are in seconds.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    UniqueConstraint,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

BigId = BigInteger().with_variant(Integer(), "sqlite")
"""A key of 64 bits, which SQLite's integers are."""


class Base(DeclarativeBase):
    metadata = MetaData(
        naming_convention={
            "ix": "%(table_name)s_by_%(column_0_N_name)s",
            "uq": "%(table_name)s_unique_%(column_0_N_name)s",
            "fk": "%(table_name)s_%(column_0_name)s_in_%(referred_table_name)s",
            "pk": "%(table_name)s_key",
        }
    )
    type_annotation_map = {  # noqa: RUF012 (read by SQLAlchemy)
        dict[str, Any]: JSON,
        list[Any]: JSON,
    }


class WorkloadRow(Base):
    """``text`` is empty while only the key is known (imported trials)."""

    __tablename__ = "workloads"
    id: Mapped[int] = mapped_column(primary_key=True)
    key: Mapped[str] = mapped_column(unique=True)
    text: Mapped[str]
    summary: Mapped[str]
    flops: Mapped[int] = mapped_column(BigInteger)


class TargetRow(Base):
    __tablename__ = "targets"
    id: Mapped[int] = mapped_column(primary_key=True)
    text: Mapped[str] = mapped_column(unique=True)


class TaskRow(Base):
    """Counts of stored candidates of a task over all jobs, kept as they are stored."""

    __tablename__ = "tasks"
    workload_id: Mapped[int] = mapped_column(ForeignKey("workloads.id"), primary_key=True)
    target_id: Mapped[int] = mapped_column(ForeignKey("targets.id"), primary_key=True)
    ok: Mapped[int]
    failed: Mapped[int]
    best_s: Mapped[float | None]
    default_s: Mapped[float | None]
    __table_args__ = ({"sqlite_with_rowid": False},)


class TrialRow(Base):
    """Ids rise in the order of storage and serve as cursors."""

    __tablename__ = "trials"
    id: Mapped[int] = mapped_column(BigId, primary_key=True)
    job: Mapped[str]
    workload_id: Mapped[int] = mapped_column(ForeignKey("workloads.id"))
    target_id: Mapped[int] = mapped_column(ForeignKey("targets.id"))
    number: Mapped[int]
    config: Mapped[dict[str, Any]]
    times_s: Mapped[list[Any]]
    median_s: Mapped[float | None]
    error: Mapped[str | None] = mapped_column(String(32))
    message: Mapped[str]
    stderr_tail: Mapped[str]
    device: Mapped[str]
    device_model: Mapped[str]
    device_state: Mapped[dict[str, Any]]
    protocol: Mapped[str]
    compiler_version: Mapped[str]
    space_fingerprint: Mapped[str]
    code_hash: Mapped[str]
    predicted: Mapped[float | None]
    origin: Mapped[str]
    phases_s: Mapped[dict[str, Any]]
    paired_times_s: Mapped[list[Any]]
    created_at: Mapped[float]
    __table_args__ = (
        UniqueConstraint("job", "workload_id", "target_id", "number"),
        Index(None, "job", "id"),
        Index(None, "target_id", "id"),
        Index(None, "workload_id", "target_id", "id"),
        {"sqlite_autoincrement": True},
    )


class BestRow(Base):
    """The best trial of a key among those of one space fingerprint and compiler version, so that
    records of an older compiler never hide newer ones and times of two are never compared; one at
    most of a key and fingerprint is promoted: its ``median_s`` is its time in the final, where that
    is known. The primary key is the table itself: a look-up by workload reads one range of it and
    then the trials."""

    __tablename__ = "best"
    workload_id: Mapped[int] = mapped_column(ForeignKey("workloads.id"), primary_key=True)
    target_id: Mapped[int] = mapped_column(ForeignKey("targets.id"), primary_key=True)
    device_model: Mapped[str] = mapped_column(primary_key=True)
    protocol: Mapped[str] = mapped_column(primary_key=True)
    space_fingerprint: Mapped[str] = mapped_column(primary_key=True)
    compiler_version: Mapped[str] = mapped_column(primary_key=True)
    trial_id: Mapped[int] = mapped_column(ForeignKey("trials.id"))
    median_s: Mapped[float]
    default_s: Mapped[float | None]
    promoted: Mapped[bool]
    verdict: Mapped[str | None]
    speedup_over_default: Mapped[float | None]
    model: Mapped[str | None]
    model_speedup: Mapped[float | None]
    __table_args__ = (Index(None, "trial_id"), {"sqlite_with_rowid": False})


class FinalRow(Base):
    """Every paired final that was fought, whatever its verdict."""

    __tablename__ = "finals"
    id: Mapped[int] = mapped_column(BigId, primary_key=True)
    request_id: Mapped[str] = mapped_column(unique=True)
    challenger_id: Mapped[int] = mapped_column(ForeignKey("trials.id"))
    incumbent_id: Mapped[int | None] = mapped_column(ForeignKey("trials.id"))
    verdict: Mapped[str]
    speedup: Mapped[float | None]
    speedup_over_default: Mapped[float | None]
    promoted: Mapped[bool]
    created_at: Mapped[float]
    model: Mapped[str | None]
    latency_s: Mapped[float | None]
    __table_args__ = (Index(None, "challenger_id"), Index(None, "incumbent_id"))


class JobRow(Base):
    """``revision`` rises with every change of the job and every trial stored; watchers wait on
    it. ``compiler_version`` is null until a device is granted. ``selector`` says which devices
    may measure it; ``owner`` is the name of the token that submitted it; ``model`` is the digest of
    the model whose tasks it has, and ``name`` what that was called then; both are empty if it was
    submitted without. ``note`` is what people say of it, those before it stand in ``audit``."""

    __tablename__ = "jobs"
    id: Mapped[str] = mapped_column(primary_key=True)
    target_id: Mapped[int] = mapped_column(ForeignKey("targets.id"))
    budget_trials: Mapped[int]
    budget_s: Mapped[float | None]
    options: Mapped[dict[str, Any]]
    state: Mapped[str] = mapped_column(String(16))
    priority: Mapped[int]
    message: Mapped[str]
    claimed_by: Mapped[str]
    claim_epoch: Mapped[int]
    claim_request: Mapped[str]
    revision: Mapped[int]
    created_at: Mapped[float]
    updated_at: Mapped[float]
    compiler_version: Mapped[str | None]
    selector: Mapped[str] = mapped_column(server_default="")
    owner: Mapped[str] = mapped_column(server_default="")
    model: Mapped[str] = mapped_column(String(16), server_default="")
    note: Mapped[str] = mapped_column(server_default="")
    noted_by: Mapped[str] = mapped_column(server_default="")
    noted_at: Mapped[float | None]
    name: Mapped[str] = mapped_column(server_default="")
    __table_args__ = (
        Index(None, "state", "priority", "created_at"),
        Index(None, "created_at"),
        Index(None, "model", "target_id", "created_at"),
    )


class JobTaskRow(Base):
    """A task of a job, with the counts of its stored trials kept as they are stored. It is timed by
    ``protocol`` (empty: as usual)."""

    __tablename__ = "job_tasks"
    job: Mapped[str] = mapped_column(ForeignKey("jobs.id"), primary_key=True)
    position: Mapped[int] = mapped_column(primary_key=True)
    workload_id: Mapped[int] = mapped_column(ForeignKey("workloads.id"))
    weight: Mapped[int]
    ok: Mapped[int]
    failed: Mapped[int]
    best_s: Mapped[float | None]
    default_s: Mapped[float | None]
    errors: Mapped[dict[str, Any]]
    protocol: Mapped[str] = mapped_column(server_default="")
    __table_args__ = (UniqueConstraint("job", "workload_id"),)


class ModelRow(Base):
    """A model that was tuned or built for a target. ``digest`` says which tasks it has and how
    often each runs; ``name`` is what people called it last, at ``seen_at``."""

    __tablename__ = "models"
    digest: Mapped[str] = mapped_column(String(16), primary_key=True)
    target_id: Mapped[int] = mapped_column(ForeignKey("targets.id"), primary_key=True)
    name: Mapped[str]
    created_at: Mapped[float]
    seen_at: Mapped[float]
    __table_args__ = (Index(None, "seen_at"),)


class ModelTaskRow(Base):
    """A task of all models with this digest, in the order of first use."""

    __tablename__ = "model_tasks"
    digest: Mapped[str] = mapped_column(String(16), primary_key=True)
    position: Mapped[int] = mapped_column(primary_key=True)
    workload_id: Mapped[int] = mapped_column(ForeignKey("workloads.id"))
    weight: Mapped[int]
    __table_args__ = (Index(None, "workload_id"),)


class MissRow(Base):
    """A task that builds found no record for; ``job`` is the last that was made to tune it, and
    ``request_id`` that of the last report. ``selector`` says which devices may measure it."""

    __tablename__ = "misses"
    workload_id: Mapped[int] = mapped_column(ForeignKey("workloads.id"), primary_key=True)
    target_id: Mapped[int] = mapped_column(ForeignKey("targets.id"), primary_key=True)
    weight: Mapped[int]
    default_s: Mapped[float]
    roofline_s: Mapped[float]
    builds: Mapped[int]
    reported_at: Mapped[float]
    request_id: Mapped[str]
    job: Mapped[str]
    selector: Mapped[str] = mapped_column(server_default="")


def table(row: type[Base]) -> Table:
    """The table of a class, for statements that deal in rows rather than objects."""
    found = row.__table__
    assert isinstance(found, Table)
    return found


WORKLOADS = table(WorkloadRow)
TARGETS = table(TargetRow)
TASKS = table(TaskRow)
TRIALS = table(TrialRow)
BEST = table(BestRow)
FINALS = table(FinalRow)
JOBS = table(JobRow)
JOB_TASKS = table(JobTaskRow)
MODELS = table(ModelRow)
MODEL_TASKS = table(ModelTaskRow)
MISSES = table(MissRow)
