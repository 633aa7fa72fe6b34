"""Bests of each compiler version stand side by side."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"

_BIG_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_KEY = ("workload_id", "target_id", "device_model", "protocol", "space_fingerprint")
_REST = ("trial_id", "median_s", "default_s", "promoted", "verdict", "speedup_over_default",
         "model", "model_speedup")  # fmt: skip


def upgrade() -> None:
    kept = ", ".join(f"best.{name}" for name in (*_KEY, *_REST))
    op.execute(
        f"CREATE TABLE best_before AS SELECT {kept}, trials.compiler_version"
        " FROM best JOIN trials ON trials.id = best.trial_id"
    )
    op.drop_table("best")
    op.create_table(
        "best",
        sa.Column("workload_id", sa.Integer(), nullable=False),
        sa.Column("target_id", sa.Integer(), nullable=False),
        sa.Column("device_model", sa.String(), nullable=False),
        sa.Column("protocol", sa.String(), nullable=False),
        sa.Column("space_fingerprint", sa.String(), nullable=False),
        sa.Column("compiler_version", sa.String(), nullable=False),
        sa.Column("trial_id", _BIG_ID, nullable=False),
        sa.Column("median_s", sa.Double(), nullable=False),
        sa.Column("default_s", sa.Double(), nullable=True),
        sa.Column("promoted", sa.Boolean(), nullable=False),
        sa.Column("verdict", sa.String(), nullable=True),
        sa.Column("speedup_over_default", sa.Double(), nullable=True),
        sa.Column("model", sa.String(), nullable=True),
        sa.Column("model_speedup", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(["target_id"], ["targets.id"], name="best_target_id_in_targets"),
        sa.ForeignKeyConstraint(["trial_id"], ["trials.id"], name="best_trial_id_in_trials"),
        sa.ForeignKeyConstraint(
            ["workload_id"], ["workloads.id"], name="best_workload_id_in_workloads"
        ),
        sa.PrimaryKeyConstraint(*_KEY, "compiler_version", name="best_key"),
        sqlite_with_rowid=False,
    )
    names = ", ".join((*_KEY, "compiler_version", *_REST))
    op.execute(f"INSERT INTO best ({names}) SELECT {names} FROM best_before")
    op.drop_table("best_before")
