"""Jobs select devices; devices and workers are cordoned, and what operators do is kept."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"

_BIG_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.add_column("jobs", sa.Column("selector", sa.String(), nullable=False, server_default=""))
    op.create_index("leases_by_granted_at", "leases", ["granted_at"], unique=False)
    op.create_table(
        "cordons",
        sa.Column("scope", sa.String(length=8), nullable=False),
        sa.Column("subject", sa.String(), nullable=False),
        sa.Column("drain", sa.Boolean(), nullable=False),
        sa.Column("actor", sa.String(), nullable=False),
        sa.Column("reason", sa.String(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("revoke_at", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("scope", "subject", name="cordons_key"),
    )
    op.create_table(
        "audit",
        sa.Column("id", _BIG_ID, nullable=False),
        sa.Column("request_id", sa.String(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("actor", sa.String(), nullable=False),
        sa.Column("action", sa.String(length=16), nullable=False),
        sa.Column("subject", sa.String(), nullable=False),
        sa.Column("reason", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="audit_key"),
        sa.UniqueConstraint("request_id", name="audit_unique_request_id"),
        sqlite_autoincrement=True,
    )
