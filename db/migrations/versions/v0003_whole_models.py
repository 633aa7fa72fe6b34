"""Finals and bests name the model in whose whole runs they were decided."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    op.add_column("best", sa.Column("model", sa.String(), nullable=True))
    op.add_column("best", sa.Column("model_speedup", sa.Double(), nullable=True))
    op.add_column("finals", sa.Column("model", sa.String(), nullable=True))
