"""Protocols that tasks and candidates are to be timed by."""

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"


def upgrade() -> None:
    for table in ("job_tasks", "requests"):
        op.add_column(table, sa.Column("protocol", sa.String(), server_default="", nullable=False))
