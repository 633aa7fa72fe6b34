"""Devices tell how they are, their checks are kept, and those that are not well are quarantined."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    op.add_column("devices", sa.Column("health", sa.JSON(), nullable=False, server_default="{}"))
    for name, kind in (
        ("check_number", sa.Integer()),
        ("lost", sa.Integer()),
        ("trusted_at", sa.Double()),
    ):
        op.add_column("devices", sa.Column(name, kind, nullable=False, server_default="0"))
    op.create_table(
        "device_checks",
        sa.Column("device", sa.String(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("peaks", sa.JSON(), nullable=False),
        sa.Column("noise", sa.Double(), nullable=False),
        sa.Column("trial_noise", sa.Double(), nullable=False),
        sa.Column("reference_s", sa.Double(), nullable=False),
        sa.Column("reason", sa.String(), nullable=False),
        sa.ForeignKeyConstraint(["device"], ["devices.id"], name="device_checks_device_in_devices"),
        sa.PrimaryKeyConstraint("device", "at", name="device_checks_key"),
    )
