"""Tokens with a role, a scope and an expiry; jobs, leases and workers have an owner."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    for table in ("jobs", "leases", "workers"):
        op.add_column(table, sa.Column("owner", sa.String(), nullable=False, server_default=""))
    op.create_table(
        "tokens",
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("role", sa.String(length=8), nullable=False),
        sa.Column("devices", sa.String(), nullable=False),
        sa.Column("max_priority", sa.Integer(), nullable=True),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("created_by", sa.String(), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=True),
        sa.Column("revoked_at", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("digest", name="tokens_key"),
    )
