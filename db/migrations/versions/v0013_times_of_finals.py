"""Finals: what the challenger took in it, where its tuner says."""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"


def upgrade() -> None:
    op.add_column("finals", sa.Column("latency_s", sa.Double(), nullable=True))
