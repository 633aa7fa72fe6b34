"""The first schema: targets, workloads, trials, best, finals, jobs, workers, devices, leases."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

_BIG_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_LIVE = sa.text("ended_at IS NULL")


def upgrade() -> None:
    _create_records()
    _create_jobs()
    _create_farm()


def _create_records() -> None:
    op.create_table(
        "targets",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("text", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="targets_key"),
        sa.UniqueConstraint("text", name="targets_unique_text"),
    )
    op.create_table(
        "workloads",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("key", sa.String(), nullable=False),
        sa.Column("text", sa.String(), nullable=False),
        sa.Column("summary", sa.String(), nullable=False),
        sa.Column("flops", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="workloads_key"),
        sa.UniqueConstraint("key", name="workloads_unique_key"),
    )
    op.create_table(
        "tasks",
        sa.Column("workload_id", sa.Integer(), nullable=False),
        sa.Column("target_id", sa.Integer(), nullable=False),
        sa.Column("ok", sa.Integer(), nullable=False),
        sa.Column("failed", sa.Integer(), nullable=False),
        sa.Column("best_s", sa.Double(), nullable=True),
        sa.Column("default_s", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(["target_id"], ["targets.id"], name="tasks_target_id_in_targets"),
        sa.ForeignKeyConstraint(
            ["workload_id"], ["workloads.id"], name="tasks_workload_id_in_workloads"
        ),
        sa.PrimaryKeyConstraint("workload_id", "target_id", name="tasks_key"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "trials",
        sa.Column("id", _BIG_ID, nullable=False),
        sa.Column("job", sa.String(), nullable=False),
        sa.Column("workload_id", sa.Integer(), nullable=False),
        sa.Column("target_id", sa.Integer(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("config", sa.JSON(), nullable=False),
        sa.Column("times_s", sa.JSON(), nullable=False),
        sa.Column("median_s", sa.Double(), nullable=True),
        sa.Column("error", sa.String(length=32), nullable=True),
        sa.Column("message", sa.String(), nullable=False),
        sa.Column("stderr_tail", sa.String(), nullable=False),
        sa.Column("device", sa.String(), nullable=False),
        sa.Column("device_model", sa.String(), nullable=False),
        sa.Column("device_state", sa.JSON(), nullable=False),
        sa.Column("protocol", sa.String(), nullable=False),
        sa.Column("compiler_version", sa.String(), nullable=False),
        sa.Column("space_fingerprint", sa.String(), nullable=False),
        sa.Column("code_hash", sa.String(), nullable=False),
        sa.Column("predicted", sa.Double(), nullable=True),
        sa.Column("origin", sa.String(), nullable=False),
        sa.Column("phases_s", sa.JSON(), nullable=False),
        sa.Column("paired_times_s", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["target_id"], ["targets.id"], name="trials_target_id_in_targets"),
        sa.ForeignKeyConstraint(
            ["workload_id"], ["workloads.id"], name="trials_workload_id_in_workloads"
        ),
        sa.PrimaryKeyConstraint("id", name="trials_key"),
        sa.UniqueConstraint(
            "job",
            "workload_id",
            "target_id",
            "number",
            name="trials_unique_job_workload_id_target_id_number",
        ),
        sqlite_autoincrement=True,
    )
    op.create_index("trials_by_job_id", "trials", ["job", "id"], unique=False)
    op.create_index("trials_by_target_id_id", "trials", ["target_id", "id"], unique=False)
    op.create_index(
        "trials_by_workload_id_target_id_id",
        "trials",
        ["workload_id", "target_id", "id"],
        unique=False,
    )
    op.create_table(
        "best",
        sa.Column("workload_id", sa.Integer(), nullable=False),
        sa.Column("target_id", sa.Integer(), nullable=False),
        sa.Column("device_model", sa.String(), nullable=False),
        sa.Column("protocol", sa.String(), nullable=False),
        sa.Column("space_fingerprint", sa.String(), nullable=False),
        sa.Column("trial_id", _BIG_ID, nullable=False),
        sa.Column("median_s", sa.Double(), nullable=False),
        sa.Column("default_s", sa.Double(), nullable=True),
        sa.Column("promoted", sa.Boolean(), nullable=False),
        sa.Column("verdict", sa.String(), nullable=True),
        sa.Column("speedup_over_default", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(["target_id"], ["targets.id"], name="best_target_id_in_targets"),
        sa.ForeignKeyConstraint(["trial_id"], ["trials.id"], name="best_trial_id_in_trials"),
        sa.ForeignKeyConstraint(
            ["workload_id"], ["workloads.id"], name="best_workload_id_in_workloads"
        ),
        sa.PrimaryKeyConstraint(
            "workload_id",
            "target_id",
            "device_model",
            "protocol",
            "space_fingerprint",
            name="best_key",
        ),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "finals",
        sa.Column("id", _BIG_ID, nullable=False),
        sa.Column("request_id", sa.String(), nullable=False),
        sa.Column("challenger_id", _BIG_ID, nullable=False),
        sa.Column("incumbent_id", _BIG_ID, nullable=True),
        sa.Column("verdict", sa.String(), nullable=False),
        sa.Column("speedup", sa.Double(), nullable=True),
        sa.Column("speedup_over_default", sa.Double(), nullable=True),
        sa.Column("promoted", sa.Boolean(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(
            ["challenger_id"], ["trials.id"], name="finals_challenger_id_in_trials"
        ),
        sa.ForeignKeyConstraint(
            ["incumbent_id"], ["trials.id"], name="finals_incumbent_id_in_trials"
        ),
        sa.PrimaryKeyConstraint("id", name="finals_key"),
        sa.UniqueConstraint("request_id", name="finals_unique_request_id"),
    )


def _create_jobs() -> None:
    op.create_table(
        "jobs",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("target_id", sa.Integer(), nullable=False),
        sa.Column("budget_trials", sa.Integer(), nullable=False),
        sa.Column("budget_s", sa.Double(), nullable=True),
        sa.Column("options", sa.JSON(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("priority", sa.Integer(), nullable=False),
        sa.Column("message", sa.String(), nullable=False),
        sa.Column("claimed_by", sa.String(), nullable=False),
        sa.Column("claim_epoch", sa.Integer(), nullable=False),
        sa.Column("claim_request", sa.String(), nullable=False),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("updated_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["target_id"], ["targets.id"], name="jobs_target_id_in_targets"),
        sa.PrimaryKeyConstraint("id", name="jobs_key"),
    )
    op.create_index("jobs_by_created_at", "jobs", ["created_at"], unique=False)
    op.create_index(
        "jobs_by_state_priority_created_at",
        "jobs",
        ["state", "priority", "created_at"],
        unique=False,
    )
    op.create_table(
        "job_tasks",
        sa.Column("job", sa.String(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("workload_id", sa.Integer(), nullable=False),
        sa.Column("weight", sa.Integer(), nullable=False),
        sa.Column("ok", sa.Integer(), nullable=False),
        sa.Column("failed", sa.Integer(), nullable=False),
        sa.Column("best_s", sa.Double(), nullable=True),
        sa.Column("default_s", sa.Double(), nullable=True),
        sa.Column("errors", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(["job"], ["jobs.id"], name="job_tasks_job_in_jobs"),
        sa.ForeignKeyConstraint(
            ["workload_id"], ["workloads.id"], name="job_tasks_workload_id_in_workloads"
        ),
        sa.PrimaryKeyConstraint("job", "position", name="job_tasks_key"),
        sa.UniqueConstraint("job", "workload_id", name="job_tasks_unique_job_workload_id"),
    )


def _create_farm() -> None:
    op.create_table(
        "workers",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("incarnation", sa.String(), nullable=False),
        sa.Column("compiler_version", sa.String(), nullable=False),
        sa.Column("started_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="workers_key"),
    )
    op.create_table(
        "devices",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("model", sa.String(), nullable=False),
        sa.Column("target", sa.String(), nullable=False),
        sa.Column("worker", sa.String(), nullable=False),
        sa.Column("attributes", sa.JSON(), nullable=False),
        sa.Column("peaks", sa.JSON(), nullable=False),
        sa.Column("noise", sa.Double(), nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(["worker"], ["workers.id"], name="devices_worker_in_workers"),
        sa.PrimaryKeyConstraint("id", name="devices_key"),
    )
    op.create_table(
        "incarnations",
        sa.Column("worker", sa.String(), nullable=False),
        sa.Column("incarnation", sa.String(), nullable=False),
        sa.Column("started_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["worker"], ["workers.id"], name="incarnations_worker_in_workers"),
        sa.PrimaryKeyConstraint("worker", "incarnation", name="incarnations_key"),
    )
    op.create_table(
        "leases",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("request_id", sa.String(), nullable=False),
        sa.Column("device", sa.String(), nullable=False),
        sa.Column("client", sa.String(), nullable=False),
        sa.Column("job", sa.String(), nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("term_s", sa.Double(), nullable=False),
        sa.Column("granted_at", sa.Double(), nullable=False),
        sa.Column("ended_at", sa.Double(), nullable=True),
        sa.Column("ended_reason", sa.String(), nullable=False),
        sa.ForeignKeyConstraint(["device"], ["devices.id"], name="leases_device_in_devices"),
        sa.PrimaryKeyConstraint("id", name="leases_key"),
        sa.UniqueConstraint("device", "epoch", name="leases_unique_device_epoch"),
        sa.UniqueConstraint("request_id", name="leases_unique_request_id"),
    )
    op.create_index(
        "leases_live_by_job",
        "leases",
        ["job"],
        unique=False,
        sqlite_where=_LIVE,
        postgresql_where=_LIVE,
    )
    op.create_index(
        "leases_one_live_a_device",
        "leases",
        ["device"],
        unique=True,
        sqlite_where=_LIVE,
        postgresql_where=_LIVE,
    )
    op.create_table(
        "requests",
        sa.Column("id", _BIG_ID, nullable=False),
        sa.Column("job", sa.String(), nullable=False),
        sa.Column("workload_id", sa.Integer(), nullable=False),
        sa.Column("target_id", sa.Integer(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("lease", sa.String(), nullable=True),
        sa.Column("config", sa.JSON(), nullable=False),
        sa.Column("predicted", sa.Double(), nullable=True),
        sa.Column("origin", sa.String(), nullable=False),
        sa.Column("against", sa.JSON(), nullable=False),
        sa.Column("budgets", sa.JSON(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("delivered_to", sa.String(), nullable=True),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["lease"], ["leases.id"], name="requests_lease_in_leases"),
        sa.ForeignKeyConstraint(
            ["target_id"], ["targets.id"], name="requests_target_id_in_targets"
        ),
        sa.ForeignKeyConstraint(
            ["workload_id"], ["workloads.id"], name="requests_workload_id_in_workloads"
        ),
        sa.PrimaryKeyConstraint("id", name="requests_key"),
        sa.UniqueConstraint(
            "job",
            "workload_id",
            "target_id",
            "number",
            name="requests_unique_job_workload_id_target_id_number",
        ),
        sqlite_autoincrement=True,
    )
    op.create_index("requests_by_lease_id", "requests", ["lease", "id"], unique=False)
