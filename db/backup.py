"""Copies of a whole database, and back: SQLite by its online backup, PostgreSQL by its own tools.

A copy is made while trackers work, is checked before it gets its name, and can be read by its
owner alone. A database is put back only while no tracker uses it.
"""

from __future__ import annotations

import os
import re
import shutil
import sqlite3
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import Connection, create_engine, inspect, text
from sqlalchemy.engine import URL
from tunefarm.db.dialect import check_file, parse_url, sole_use, sqlite_path, told
from tunefarm.db.errors import StoreError
from tunefarm.db.migrate import HEAD, REVISIONS, schema_version

_SIGN = b"PGDMP"
"""How a file of pg_dump begins."""
_EPOCHS = 1_000_000
"""By how much epochs rise in a restored database: more than were given since its copy was made."""


@dataclass(frozen=True, slots=True)
class Copy:
    """A checked copy: its schema, and its size in bytes."""

    path: Path
    schema: str
    size: int

    @property
    def is_present(self) -> bool:
        """Whether it has the schema of this version; an older one is upgraded by its tracker."""
        return self.schema == HEAD


def backup(database: str, file: Path, *, force: bool = False) -> Copy:
    """Copy a database (a URL or a SQLite file) to ``file``, which appears whole or not at all.

    StoreError if the file exists (but with ``force``), or if the copy cannot be made or is no good.
    """
    url = parse_url(database)
    source = sqlite_path(url)
    if source is not None:
        check_file(source, writing=False)
    if source is not None and file.exists() and file.samefile(source):
        raise StoreError(f"{file} is the database itself; choose another file for the copy")
    if file.exists() and not force:
        raise StoreError(f"{file} exists; choose another name, or overwrite it with --force")
    with _scratch_beside(file) as scratch:
        if source is not None:
            _copy_sqlite(source, scratch)
        else:
            with told(url):
                _check_is_ours(url)
            _run(["pg_dump", "-Fc", "-O", "-x", "-f", str(scratch), "-d", _plain(url)], url)
        found = check(scratch)
        scratch.replace(file)
    return Copy(file, found.schema, found.size)


def check(file: Path) -> Copy:
    """What a copy holds; StoreError if it is damaged, of another program or of a newer version."""
    if not file.is_file():
        raise StoreError(f"there is no copy of a database at {file}")
    is_dump = _first_bytes(file) == _SIGN
    schema = _schema_of_dump(file) if is_dump else _schema_of_file(file)
    if schema not in REVISIONS:
        raise StoreError(
            f"{file} has schema {schema}, made by a newer tunefarm; this one knows schemas up to "
            f"{HEAD}: upgrade tunefarm"
        )
    return Copy(file, schema, file.stat().st_size)


def restore(file: Path, database: str, *, force: bool = False) -> Copy:
    """Make a database what a copy holds; a SQLite file is replaced, a PostgreSQL refilled, at once.
    Leases and claims of before hold nothing in it.

    StoreError if the copy is no good or of the other kind, if a tracker uses the database, or if
    there is something in it (but with ``force``, which drops that).
    """
    found = check(file)
    url = parse_url(database)
    target = sqlite_path(url)
    is_dump = _first_bytes(file) == _SIGN
    if is_dump is (target is not None):
        kinds = ("PostgreSQL", "SQLite") if is_dump else ("SQLite", "PostgreSQL")
        raise StoreError(
            f"{file} is a copy of a {kinds[0]} database, and {url.render_as_string()} is "
            f"{kinds[1]}; carry records over with `tunefarm records export` and `import`"
        )
    if target is None:
        _refill(url, file, force)
        return found
    _check_free(target, file, force)
    with sole_use(target), _scratch_beside(target) as scratch:
        _copy_sqlite(file, scratch, then=_begin_anew())
        for name in (f"{target.name}-wal", f"{target.name}-shm"):
            target.with_name(name).unlink(missing_ok=True)
        scratch.replace(target)
    return found


def _begin_anew() -> list[str]:
    """What ends the leases and claims of a copy, and keeps its epochs apart from those that were
    given since, in the SQL of both databases and the columns of all schemas.

    Whoever held one of either kind would go on from what is no longer there.
    """
    why = "the database was restored"
    return [
        "UPDATE requests SET lease = NULL, delivered_to = NULL, attempts = "
        "CASE WHEN delivered_to IS NULL THEN attempts ELSE attempts - 1 END;",
        f"UPDATE leases SET ended_at = {time.time()}, ended_reason = '{why}' "
        "WHERE ended_at IS NULL;",
        f"UPDATE jobs SET state = 'queued', claimed_by = '', claim_request = '', message = '{why}' "
        "WHERE state = 'running';",
        f"UPDATE jobs SET claim_epoch = claim_epoch + {_EPOCHS};",
        f"UPDATE devices SET epoch = epoch + {_EPOCHS};",
    ]


def _first_bytes(file: Path) -> bytes:
    try:
        with file.open("rb") as stream:
            return stream.read(len(_SIGN))
    except OSError as error:
        raise StoreError(f"cannot read {file}: {error.strerror or error}") from error


@contextmanager
def _scratch_beside(file: Path) -> Iterator[Path]:
    """An empty file of this user's alone, in the same folder; removed unless it was renamed."""
    scratch = file.with_name(f".{file.name}.{os.getpid()}.part")
    try:
        os.close(os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600))
        yield scratch
    except OSError as error:
        raise StoreError(f"cannot write {file}: {error.strerror or error}") from error
    finally:
        scratch.unlink(missing_ok=True)


# --- SQLite -------------------------------------------------------------------------------------


def _copy_sqlite(source: Path, copy: Path, then: Sequence[str] = ()) -> None:
    """All pages in one step: in WAL mode that holds no writer up, and none makes it start again.
    ``then`` is executed in the copy."""
    try:
        with (
            closing(sqlite3.connect(f"{source.absolute().as_uri()}?mode=ro", uri=True)) as old,
            closing(sqlite3.connect(copy)) as new,
        ):
            old.backup(new)
            new.execute("PRAGMA journal_mode = DELETE")
            new.executescript("".join(then))
    except sqlite3.Error as error:
        raise StoreError(f"cannot copy {source}: {error}") from error


def _schema_of_file(file: Path) -> str:
    """The schema of a SQLite file, all of whose pages and references have been checked."""
    try:
        with closing(sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True)) as copy:
            problems = [text for (text,) in copy.execute("PRAGMA integrity_check(1)")]
            if problems != ["ok"]:
                raise StoreError(f"{file} is damaged: {problems[0]}; use another copy")
            if copy.execute("PRAGMA foreign_key_check").fetchone() is not None:
                raise StoreError(f"{file} is damaged: rows are missing; use another copy")
            return str(copy.execute("SELECT version_num FROM alembic_version").fetchone()[0])
    except (sqlite3.Error, TypeError) as error:
        raise StoreError(f"{file} is no copy of a tunefarm database: {error}") from error


def _check_free(target: Path, file: Path, force: bool) -> None:
    check_file(target, writing=True)
    if target.exists() and target.samefile(file):
        raise StoreError(f"{file} is the database itself; name the copy to restore")
    if target.exists() and not force:
        raise StoreError(f"database {target} exists; replace all of it with --force")


# --- PostgreSQL ---------------------------------------------------------------------------------


def _plain(url: URL) -> str:
    """The address as PostgreSQL's tools take it, without the password."""
    return url.set(drivername="postgresql", password=None).render_as_string()


def _run(arguments: Sequence[str], url: URL | None = None, given: str | None = None) -> str:
    """Run one of PostgreSQL's tools; what it writes. StoreError with its complaint if it fails."""
    environment = dict(os.environ)
    if url is not None and url.password is not None:
        environment["PGPASSWORD"] = str(url.password)
    program = _tool(arguments[0])
    done = subprocess.run(
        [program, *arguments[1:]], input=given, env=environment, capture_output=True, text=True
    )
    if done.returncode != 0:
        complaint = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        raise StoreError(f"{arguments[0]} failed: {complaint[0]}")
    return done.stdout


def _tool(name: str) -> str:
    """Where a tool is: in PATH, or the newest of Debian's."""
    found = shutil.which(name)
    if found is not None:
        return found
    debian = Path("/usr/lib/postgresql").glob(f"*/bin/{name}")
    newest = max(debian, key=lambda path: float(path.parts[-3]), default=None)
    if newest is None:
        raise StoreError(f"{name} is not installed; apt-get install postgresql-client")
    return str(newest)


def _schema_of_dump(file: Path) -> str:
    told = _run(["pg_restore", "-a", "-t", "alembic_version", "-f", "-", str(file)])
    found = re.search(r"^COPY \S*alembic_version .*\n(\S+)$", told, re.M)
    if found is None:
        raise StoreError(f"{file} is no copy of a tunefarm database; choose another")
    return found[1]


def _check_is_ours(url: URL) -> None:
    """StoreError if the database is empty, of another program, or newer."""
    with _connected(url) as connection:
        if schema_version(connection, url.render_as_string()) is None:
            raise StoreError(
                f"database {url.render_as_string()} is empty; there is nothing to copy"
            )


@contextmanager
def _connected(url: URL) -> Iterator[Connection]:
    engine = create_engine(url)
    try:
        with engine.connect() as connection:
            yield connection
    finally:
        engine.dispose()


def _refill(url: URL, file: Path, force: bool) -> None:
    """Drop what is there and fill in what the copy holds, in one transaction."""
    name = url.render_as_string()
    with told(url), _connected(url) as connection:
        others = connection.execute(
            text(
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
                "AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
            )
        ).scalar_one()
        if others:
            raise StoreError(f"database {name} is in use by {others} sessions; stop its trackers")
        tables = inspect(connection).get_table_names()
        if tables and not force:
            raise StoreError(f"database {name} is not empty; replace all of it with --force")
        if tables:
            schema_version(connection, name)
    statements = [f'DROP TABLE "{table}" CASCADE;' for table in tables]
    content = _run(["pg_restore", "-O", "-x", "-f", "-", str(file)])
    script = "\n".join([*statements, content, "RESET search_path;", *_begin_anew()])
    _run(["psql", "-X", "-q", "-1", "-v", "ON_ERROR_STOP=1", "-d", _plain(url)], url, script)
