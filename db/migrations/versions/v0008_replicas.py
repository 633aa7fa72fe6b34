"""Several trackers serve one database: deadlines, presence and the queue stand in rows."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    op.add_column("leases", sa.Column("deadline", sa.Double(), nullable=True))
    op.add_column("workers", sa.Column("seen_at", sa.Double(), nullable=True))
    op.add_column(
        "workers", sa.Column("capacity", sa.Integer(), nullable=False, server_default="0")
    )
    op.create_table(
        "trackers",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("address", sa.String(), nullable=False),
        sa.Column("started_at", sa.Double(), nullable=False),
        sa.Column("beat_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="trackers_key"),
    )
    op.create_table(
        "claim_terms",
        sa.Column("job", sa.String(), nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("deadline", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("job", name="claim_terms_key"),
    )
    op.create_table(
        "waiting",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("tracker", sa.String(), nullable=False),
        sa.Column("request", sa.JSON(), nullable=False),
        sa.Column("since", sa.Double(), nullable=False),
        sa.Column("asked_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="waiting_key"),
    )
