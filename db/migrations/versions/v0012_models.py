"""Models: their tasks, and which jobs tuned them."""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"


def upgrade() -> None:
    op.create_table(
        "models",
        sa.Column("digest", sa.String(16), nullable=False),
        sa.Column("target_id", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("seen_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["target_id"], ["targets.id"], name="models_target_id_in_targets"),
        sa.PrimaryKeyConstraint("digest", "target_id", name="models_key"),
    )
    op.create_index("models_by_seen_at", "models", ["seen_at"])
    op.create_table(
        "model_tasks",
        sa.Column("digest", sa.String(16), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("workload_id", sa.Integer(), nullable=False),
        sa.Column("weight", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(
            ["workload_id"], ["workloads.id"], name="model_tasks_workload_id_in_workloads"
        ),
        sa.PrimaryKeyConstraint("digest", "position", name="model_tasks_key"),
    )
    op.create_index("model_tasks_by_workload_id", "model_tasks", ["workload_id"])
    op.add_column("jobs", sa.Column("model", sa.String(16), server_default="", nullable=False))
    op.create_index(
        "jobs_by_model_target_id_created_at", "jobs", ["model", "target_id", "created_at"]
    )
