"""Tasks that builds found no record for."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    op.create_table(
        "misses",
        sa.Column("workload_id", sa.Integer(), nullable=False),
        sa.Column("target_id", sa.Integer(), nullable=False),
        sa.Column("weight", sa.Integer(), nullable=False),
        sa.Column("default_s", sa.Double(), nullable=False),
        sa.Column("roofline_s", sa.Double(), nullable=False),
        sa.Column("builds", sa.Integer(), nullable=False),
        sa.Column("reported_at", sa.Double(), nullable=False),
        sa.Column("request_id", sa.String(), nullable=False),
        sa.Column("job", sa.String(), nullable=False),
        sa.ForeignKeyConstraint(
            ["workload_id"], ["workloads.id"], name="misses_workload_id_in_workloads"
        ),
        sa.ForeignKeyConstraint(["target_id"], ["targets.id"], name="misses_target_id_in_targets"),
        sa.PrimaryKeyConstraint("workload_id", "target_id", name="misses_key"),
    )
