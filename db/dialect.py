"""What differs between databases: URLs, engines, upserts and the meaning of their errors.

Writers take turns in both: the code that reads and then writes never meets another's change in
between, and rows get their ids in the order in which readers come to see them. SQLite serves one
machine: WAL, writers begin with BEGIN IMMEDIATE (a plain BEGIN fails with "database is locked" when
two transactions read and then write), readers open read-only. On PostgreSQL writers begin with an
advisory lock, and one that stands still within a transaction loses it.
"""

from __future__ import annotations

import fcntl
import importlib.util
import json
import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sqlalchemy import (
    ColumnElement,
    Connection,
    Double,
    Engine,
    Table,
    cast,
    create_engine,
    event,
    extract,
    func,
    literal,
    make_url,
    select,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import URL
from sqlalchemy.exc import ArgumentError, DBAPIError, OperationalError, SQLAlchemyError
from tunefarm.db.errors import HAS_TRACKER, DatabaseInUse, StoreError

BUSY_S = 5.0
"""How long a writer waits for another process's transaction, in seconds."""
TURN_S = 30.0
"""How long a writer of PostgreSQL waits for its turn, in seconds."""
STILL_S = 5.0
"""How long a writer of PostgreSQL may do nothing within a transaction, in seconds."""

_WRITERS = 0x74756E65_6661726D
"""The advisory lock of those who write."""

_NETWORK_FILE_SYSTEMS = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "afs", "9p", "ceph", "glusterfs", "lustre",
     "beegfs", "fuse.sshfs", "fuse.glusterfs", "fuse.ceph"}
)  # fmt: skip


def parse_url(text: str) -> URL:
    """The database that ``text`` names: a URL, or the path of a SQLite file."""
    if "://" not in text:
        return URL.create("sqlite", database=str(Path(text).expanduser().absolute()))
    try:
        url = make_url(text)
    except (ArgumentError, ValueError) as error:  # the latter of a port that is no number
        raise StoreError(
            f"{text!r} is not a database URL; write for instance sqlite:////path/tuning.db "
            "or postgresql+psycopg://farm@db.lab:5432/farm"
        ) from error
    kind = url.get_backend_name()
    if text.startswith("tracker://"):
        place = text.removeprefix("tracker://")
        raise StoreError(f"{text} is a tracker, not a database; give it with --tracker {place}")
    if kind not in ("sqlite", "postgresql"):
        raise StoreError(f"database {kind} is not supported; use sqlite or postgresql")
    if kind == "postgresql" and importlib.util.find_spec(url.get_driver_name()) is None:
        raise StoreError(
            f"{text} needs the driver {url.get_driver_name()}, which is not installed; "
            "pip install 'tunefarm[postgres]' and write postgresql+psycopg://…"
        )
    if kind == "sqlite" and url.database in (None, "", ":memory:"):
        raise StoreError("a database in memory cannot be shared; give sqlite a file")
    return url


def driver_place(text: str) -> str:
    """A PostgreSQL database as its driver names it."""
    return parse_url(text).set(drivername="postgresql").render_as_string(hide_password=False)


def sqlite_path(url: URL) -> Path | None:
    """The file of a SQLite database, None for other databases."""
    if url.get_backend_name() != "sqlite":
        return None
    assert url.database is not None
    return Path(url.database).absolute()


def check_file(path: Path, *, writing: bool) -> None:
    """Refuse a SQLite file that cannot work, before SQLite does so less clearly."""
    check_folder(path)
    if path.is_dir():
        raise StoreError(f"database {path} is a folder; name a file in it")
    if not path.exists() and not writing:
        raise StoreError(f"there is no database {path} yet; tune something first")
    if path.exists() and not os.access(path, os.R_OK):
        raise StoreError(f"database {path} may not be read by this user")
    if writing:
        _check_writable(path)


def check_folder(path: Path) -> None:
    """Refuse a SQLite file whose folder does not exist: nobody makes one for it."""
    if not path.parent.is_dir():
        raise StoreError(
            f"database {path} cannot be used: {path.parent} is no folder; make it first"
        )


@contextmanager
def sole_use(path: Path) -> Iterator[None]:
    """Keep trackers, and what replaces the file, off a SQLite database; DatabaseInUse if one has
    it."""
    try:
        lock = path.with_name(f"{path.name}.lock").open("a")
    except OSError as error:
        raise StoreError(
            f"database {path} cannot be written: {error.strerror} ({error.filename})"
        ) from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DatabaseInUse(
                f"database {path} {HAS_TRACKER}; use it with --tracker, or stop it"
            ) from None
        yield


def _check_writable(path: Path) -> None:
    blocked = path if path.exists() and not os.access(path, os.W_OK) else path.parent
    if not os.access(blocked, os.W_OK):
        raise StoreError(f"database {path} cannot be written: {blocked} is read-only here")
    kind = _file_system(path.parent)
    if kind in _NETWORK_FILE_SYSTEMS:
        raise StoreError(
            f"database {path} is on a network file system ({kind}), where SQLite loses data; "
            "use a local folder or PostgreSQL"
        )


def _file_system(folder: Path) -> str:
    """The type of the file system of a folder; empty where the kernel does not tell."""
    try:
        mounts = Path("/proc/self/mounts").read_text().splitlines()
    except OSError:
        return ""
    resolved = folder.resolve()
    best, kind = -1, ""
    for line in mounts:
        _, point, type_, *_ = line.split()
        place = Path(point.replace("\\040", " "))
        if resolved.is_relative_to(place) and len(place.parts) >= best:
            best, kind = len(place.parts), type_
    return kind


# --- engines ------------------------------------------------------------------------------------


def writer_engine(url: URL) -> Engine:
    """An engine of one connection whose transactions hold the right to write from their start."""
    if url.get_backend_name() != "sqlite":
        return _postgresql_writer(url)
    engine = create_engine(url, json_serializer=_compact, pool_size=1, max_overflow=0)

    @event.listens_for(engine, "connect")
    def configure(connection: sqlite3.Connection, _: object) -> None:
        connection.isolation_level = None
        connection.execute(f"PRAGMA busy_timeout = {int(BUSY_S * 1000)}")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("PRAGMA foreign_keys = ON")

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    return engine


def _postgresql_writer(url: URL) -> Engine:
    engine = create_engine(url, json_serializer=_compact, pool_size=1, max_overflow=0)
    begins = f"BEGIN; SELECT pg_advisory_xact_lock({_WRITERS})"
    as_it_is = {"no_parameters": True}

    @event.listens_for(engine, "connect")
    def configure(connection: Any, _: object) -> None:
        connection.autocommit = True  # the driver's BEGIN would take a message of its own
        connection.execute(f"SET lock_timeout = {int(TURN_S * 1000)}")
        connection.execute(f"SET idle_in_transaction_session_timeout = {int(STILL_S * 1000)}")

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        connection.exec_driver_sql(begins, execution_options=as_it_is)

    return engine


def reader_engine(url: URL) -> Engine:
    """An engine that cannot write; it never holds up the writer."""
    path = sqlite_path(url)
    if path is None:
        return create_engine(
            url,
            json_serializer=_compact,
            pool_pre_ping=True,
            execution_options={"postgresql_readonly": True},
        )

    def connect() -> sqlite3.Connection:
        # In a folder that cannot be written, WAL readers can make no index beside the file.
        mode = "mode=ro" if os.access(path.parent, os.W_OK) else "mode=ro&immutable=1"
        connection = sqlite3.connect(
            f"file:{quote(str(path))}?{mode}",
            uri=True,
            timeout=BUSY_S,
            check_same_thread=False,
        )
        connection.execute("PRAGMA query_only = ON")
        return connection

    return create_engine(url, creator=connect, json_serializer=_compact)


def _compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def upsert(connection: Connection, table: Table) -> Any:
    """An INSERT that has ``on_conflict_do_nothing`` and ``on_conflict_do_update``."""
    if connection.dialect.name == "postgresql":
        return postgresql.insert(table)
    return sqlite.insert(table)


_CLOCK = cast(extract("epoch", func.clock_timestamp()), Double)


def is_shared(connection: Connection) -> bool:
    """Whether several trackers may serve the database; then deadlines stand in its rows."""
    return connection.dialect.name == "postgresql"


def clock(connection: Connection) -> float:
    """The time by the clock of the database, which all its trackers have; SQLite has its host's."""
    if not is_shared(connection):
        return time.time()
    return float(connection.execute(select(_CLOCK)).scalar_one())


def clock_there(connection: Connection) -> ColumnElement[float]:
    """``clock`` for use within a statement."""
    return _CLOCK if is_shared(connection) else literal(time.time())


# --- errors -------------------------------------------------------------------------------------


@contextmanager
def told(url: URL) -> Iterator[None]:
    """Turn what the database's driver raises into a StoreError of one sentence."""
    try:
        yield
    except SQLAlchemyError as error:
        sentence = _sentence(error, url.render_as_string(hide_password=True))
        if sentence is None:
            raise
        raise StoreError(sentence) from error


def _sentence(error: SQLAlchemyError, name: str) -> str | None:
    """What a driver's error means for the user; None where it means a bug of ours."""
    if not isinstance(error, DBAPIError):
        return None
    path = name.removeprefix("sqlite:///")
    text = str(error.orig)
    for sign, meaning in (
        ("file is not a database", "is not a SQLite database, or corrupt; restore a copy of it"),
        ("malformed", "is corrupt; restore a copy, or save its rows with sqlite3 .recover"),
        ("is locked", f"has been locked by another process for {BUSY_S:.0f} s; stop that one"),
        ("readonly database", "cannot be written: the file or its folder is read-only"),
        ("is full", "cannot grow: the disk is full; free some space"),
        ("disk I/O error", "cannot be used: the disk fails or is full (disk I/O error)"),
        ("unable to open database file", "cannot be opened; look at its folder and permissions"),
        ("read-only transaction", "cannot be written: it was opened to read, or is a stand-by"),
        ("lock timeout", f"has been locked by another process for {TURN_S:.0f} s; stop that one"),
        ("deadlock detected", "is being changed by another program; try again"),
        ("No space left", "cannot grow: the disk is full; free some space"),
    ):
        if sign in text:
            if path.endswith(".jsonl"):
                meaning = "is a file of records; `tunefarm records import` puts them into one"
            return f"database {path} {meaning}"
    never_came = isinstance(error, OperationalError) and error.statement is None
    if never_came or error.connection_invalidated or "connection" in text:
        return f"database {path} does not answer: {text.splitlines()[0]}"
    return None
