"""Jobs keep to one compiler version; those under way to that of their latest trial."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    op.add_column("jobs", sa.Column("compiler_version", sa.String(), nullable=True))
    op.execute(
        "UPDATE jobs SET compiler_version = ("
        " SELECT trials.compiler_version FROM trials"
        " WHERE trials.job = jobs.id AND trials.compiler_version <> ''"
        " ORDER BY trials.id DESC LIMIT 1"
        ") WHERE state IN ('queued', 'running')"
    )
