"""What the models of jobs were called when they were submitted; those so far are called as now."""

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"


def upgrade() -> None:
    op.add_column("jobs", sa.Column("name", sa.String(), server_default="", nullable=False))
    op.execute(
        "UPDATE jobs SET name = COALESCE((SELECT models.name FROM models "
        "WHERE models.digest = jobs.model AND models.target_id = jobs.target_id), '') "
        "WHERE model != ''"
    )
