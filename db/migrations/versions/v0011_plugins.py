"""Candidates name their plug-ins, misses select devices, and tokens say when they were used."""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"


def upgrade() -> None:
    op.add_column("requests", sa.Column("plugins", sa.JSON(), nullable=False, server_default="[]"))
    op.add_column("misses", sa.Column("selector", sa.String(), nullable=False, server_default=""))
    op.add_column("tokens", sa.Column("used_at", sa.Double(), nullable=True))
