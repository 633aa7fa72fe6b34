"""``tunefarm db``: copies of a database, and leaving old trials out."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tunefarm.cli.options import Database
from tunefarm.cli.printing import Json, print_json, remark
from tunefarm.compiler.errors import TunefarmError

if TYPE_CHECKING:
    from tunefarm.db.backup import Copy
    from tunefarm.db.retention import Policy
    from tunefarm.db.store import Store

PAUSE_S = 0.05
"""Between two batches, in which a tracker writes."""
_UNITS_S = {"h": 3600.0, "d": 86400.0, "w": 7 * 86400.0}

File = Annotated[Path, typer.Argument(metavar="FILE", help="File of the copy.")]
Age = Annotated[
    str, typer.Option("--older-than", metavar="AGE", help="Only trials older than 90d, 12h or 8w.")
]
Keep = Annotated[
    int, typer.Option("--keep", min=0, metavar="N", help="The newest N of each task stay.")
]

app = typer.Typer(
    help="Upgrade a database, back it up, restore it, leave old trials out.\n\n"
    "Example: tunefarm db backup monday.db",
    no_args_is_help=True,
)


@app.command()
def upgrade(db: Database = "", as_json: Json = False) -> None:
    """Bring a database of an earlier release to the schema of this one; a tracker does so too.

    Example: tunefarm db upgrade --db farm.db
    """
    from tunefarm.api import default_database
    from tunefarm.db.dialect import parse_url, sole_use, sqlite_path
    from tunefarm.db.migrate import HEAD

    path = sqlite_path(parse_url(db or default_database()))
    alone = sole_use(path) if path is not None and path.exists() else nullcontext()
    with alone, _open(db, readonly=False) as store:
        if as_json:
            print_json({"database": store.name, "schema": HEAD})
        else:
            remark(f"{store.name} has schema {HEAD}")


@app.command()
def backup(
    file: File,
    db: Database = "",
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file.")] = False,
    as_json: Json = False,
) -> None:
    """Copy a whole database to a file, also while a tracker works on it; the copy is checked.

    Example: tunefarm db backup monday.db --db farm.db
    """
    from tunefarm.api import default_database
    from tunefarm.db.backup import backup as copy

    found = copy(db or default_database(), file, force=force)
    _tell("wrote", found, as_json)


@app.command()
def check(file: File, as_json: Json = False) -> None:
    """Check a copy: that nothing of it is damaged, and which schema it has.

    Example: tunefarm db check monday.db
    """
    from tunefarm.db.backup import check as look

    _tell("sound:", look(file), as_json)


@app.command()
def restore(
    file: File,
    db: Database = "",
    force: Annotated[
        bool, typer.Option("--force", help="Replace what is in the database.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Make a database what a copy holds; no tracker may use it meanwhile.

    Example: tunefarm db restore monday.db --db farm.db
    """
    from tunefarm.api import default_database
    from tunefarm.db.backup import restore as put_back
    from tunefarm.embedded import with_folder

    database = db or default_database()
    found = put_back(file, with_folder(database), force=force)
    later = "" if found.is_present else "; the next tracker upgrades it"
    _tell("restored", found, as_json, later)


@app.command()
def prune(
    older_than: Age = "",
    keep: Keep = 0,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say how many it would be.")
    ] = False,
    db: Database = "",
    as_json: Json = False,
) -> None:
    """Delete old trials; never best ones, what explains those, finals, or those of open jobs.

    Example: tunefarm db prune --older-than 90d --keep 1000 --dry-run
    """
    from tunefarm.db.retention import prunable
    from tunefarm.texts import counted

    policy = policy_of(older_than, keep)
    with _open(db, readonly=dry_run) as store:
        with store.reading() as connection:
            ids = prunable(connection, policy, time.time())
        total = store.count_trials()
        deleted = len(ids) if dry_run else _leave_out(store, ids)
    if as_json:
        print_json({"deleted": deleted, "of": total, "dry_run": dry_run})
    elif dry_run:
        print(f"would delete {counted(deleted, 'trial')} of {total}")
    else:
        remark(f"deleted {counted(deleted, 'trial')} of {total}")


def _leave_out(store: Store, ids: Sequence[int]) -> int:
    """In small transactions with pauses between them; how many were deleted."""
    from tunefarm.db.retention import batches, leave_out

    done = 0
    for batch in batches(ids):
        with store.writing() as connection:
            done += leave_out(connection, batch)
        time.sleep(PAUSE_S)
    return done


def policy_of(older_than: str, keep: int) -> Policy:
    """The policy that the options say; TunefarmError if they say none."""
    from tunefarm.db.retention import Policy

    if not older_than and not keep:
        raise TunefarmError(
            "say which trials to delete: --older-than 90d, and --keep 1000 for the newest of each "
            "task to stay"
        )
    return Policy(_age(older_than) if older_than else None, keep)


def _age(text: str) -> float:
    """``90d`` in seconds."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([hdw])", text)
    if found is None or float(found[1]) <= 0:
        raise TunefarmError(f"--older-than {text!r} is no age; write for instance 90d, 12h or 8w")
    return float(found[1]) * _UNITS_S[found[2]]


def _open(db: str, readonly: bool) -> Store:
    from tunefarm.api import default_database
    from tunefarm.db.dialect import check_file, parse_url, sqlite_path
    from tunefarm.db.store import Store

    database = db or default_database()
    path = sqlite_path(parse_url(database))
    if path is not None:
        check_file(path, writing=False)
    return Store.open(database, readonly=readonly)


def _tell(done: str, copy: Copy, as_json: bool, later: str = "") -> None:
    """Say what was done to a copy."""
    if as_json:
        print_json({"file": copy.path.absolute(), "bytes": copy.size, "schema": copy.schema})
    else:
        remark(f"{done} {described(copy)}{later}")


def described(copy: Copy) -> str:
    """``FILE: 12.3 MB, schema 0005``"""
    return f"{copy.path}: {copy.size / 1e6:.1f} MB, schema {copy.schema}"
