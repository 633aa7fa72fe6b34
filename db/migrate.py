"""Schema versions: which one a database has, and how it gets to the present one."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import Connection, inspect
from tunefarm.db.errors import StoreError

REVISIONS = (
    "0001", "0002", "0003", "0004", "0005", "0006", "0007", "0008", "0009", "0010", "0011", "0012",
    "0013", "0014", "0015", "0016",
)  # fmt: skip
"""Every released schema, oldest first; the last is the one that this version reads."""
HEAD = REVISIONS[-1]
_FOLDER = Path(__file__).parent / "migrations"


def schema_version(connection: Connection, name: str) -> str | None:
    """The database's revision, None if it is empty; StoreError if it is not ours or newer."""
    tables = inspect(connection).get_table_names()
    if not tables:
        return None
    if "alembic_version" not in tables or "trials" not in tables:
        raise StoreError(f"{name} is a database of another program; choose another file")
    version = connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalar()
    if version not in REVISIONS:
        raise StoreError(
            f"{name} has schema {version}, made by a newer tunefarm; this one knows schemas up "
            f"to {HEAD}: upgrade tunefarm"
        )
    return str(version)


def upgrade(connection: Connection, revision: str = HEAD) -> None:
    """Bring the database to ``revision`` within the caller's transaction."""
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(_FOLDER).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    command.upgrade(config, revision)
