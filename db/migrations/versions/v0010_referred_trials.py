"""Find what refers to a trial by an index: deleting one asks for it."""

from alembic import op

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    op.create_index("best_by_trial_id", "best", ["trial_id"])
    for column in ("challenger_id", "incumbent_id"):
        op.create_index(f"finals_by_{column}", "finals", [column])
