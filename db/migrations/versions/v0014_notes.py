"""Notes of people on jobs."""

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"


def upgrade() -> None:
    op.add_column("jobs", sa.Column("note", sa.String(), server_default="", nullable=False))
    op.add_column("jobs", sa.Column("noted_by", sa.String(), server_default="", nullable=False))
    op.add_column("jobs", sa.Column("noted_at", sa.Double(), nullable=True))
