"""Alembic's entry: runs the migrations on the connection that ``db.migrate`` hands over."""

from alembic import context
from tunefarm.db import farm_models  # noqa: F401 (its tables are a part of the schema)
from tunefarm.db.models import Base

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=Base.metadata,
    render_as_batch=True,
)
context.run_migrations()
