"""``tunefarm token``: who may call a farm, as what, until when."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tunefarm.cli.devices import Tracker, actor, client_of
from tunefarm.cli.options import DATABASE, FILE
from tunefarm.cli.printing import Json, is_quiet, print_json, print_rows, remark
from tunefarm.compiler.errors import TunefarmError
from tunefarm.db.records import Role
from tunefarm.texts import stamp

if TYPE_CHECKING:
    from tunefarm.db.records import Token
    from tunefarm.tables import Column

DAYS = 365
DAY_S = 86400.0

Db = Annotated[
    str,
    typer.Option(
        "--db",
        metavar=DATABASE,
        help="Write the database itself, where no tracker lets you in yet.",
    ),
]

app = typer.Typer()


@app.callback(no_args_is_help=True)
def _options() -> None:
    """Make, list and revoke the tokens that let in at a farm.

    Example: tunefarm token create anna --role client
    """


@app.command()
def create(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Whose it is: anna, lab3, ci.")],
    role: Annotated[Role, typer.Option("--role", help="What its holder may do.")],
    devices: Annotated[
        str,
        typer.Option("--devices", metavar="SELECTOR", help="Only devices with these tags: rack=3."),
    ] = "",
    max_priority: Annotated[
        int | None,
        typer.Option("--max-priority", metavar="N", help="Highest priority of its jobs."),
    ] = None,
    days: Annotated[
        float, typer.Option("--days", min=0, metavar="D", help="Until it expires; 0: never.")
    ] = DAYS,
    file: Annotated[
        Path | None,
        typer.Option(
            "--file", metavar=FILE, help="Write what a machine needs (for --tracker FILE) here."
        ),
    ] = None,
    address: Annotated[
        str,
        typer.Option(
            "--address", metavar="HOST:PORT", help="Where it finds the tracker; for FILE."
        ),
    ] = "",
    tls: Annotated[
        Path | None,
        typer.Option(
            "--tls", metavar="FOLDER", help="Put `tunefarm certificates` of this folder into FILE."
        ),
    ] = None,
    tracker: Tracker = "",
    db: Db = "",
    as_json: Json = False,
) -> None:
    """Make a token. Its secret is printed once, or goes into a file; the farm keeps a hash of it.

    With --file FILE, what is in there is all that a machine needs: `tunefarm worker --tracker
    FILE`. Without it the secret is for TUNEFARM_TOKEN, or for a file named by --token-file.

    Example: tunefarm token create anna --role client --days 30
    """
    from tunefarm.db.records import Token
    from tunefarm.proto.tokens import digest_of, new_secret

    if bool(file) != bool(address) or (tls and not file):
        raise TunefarmError(
            "--file FILE and --address HOST:PORT belong together, and --tls to them"
        )
    secret = new_secret()
    expires_at = time.time() + DAY_S * days if days else None
    token = Token(digest_of(secret), name, role, devices, max_priority, expires_at=expires_at)
    write = _carried(file, address, name, tls) if file else None
    with _tokens(tracker, db) as calls:
        made = calls.create(token)
    if write is not None:
        write(secret)
    if as_json:
        given = {"file": file.absolute()} if file else {"secret": secret}
        print_json({**token_json(made), **given})
        return
    if write is None:
        print(secret)
    if is_quiet():
        return
    until = f"until {stamp(made.expires_at)}" if made.expires_at else "for ever"
    where = f"; {file} lets it in" if file else "; this secret is not shown again"
    print(f"token {made.id} of {made.name}, {made.role}, {until}{where}", file=sys.stderr)


@app.command("list")
def list_(
    every: Annotated[
        bool, typer.Option("--all", help="Those that expired or were revoked too.")
    ] = False,
    tracker: Tracker = "",
    db: Db = "",
    as_json: Json = False,
) -> None:
    """List the tokens of a farm; no secret is stored, so none is shown.

    Example: tunefarm token list --all
    """
    with _tokens(tracker, db) as calls:
        found = [token for token in calls.list() if every or _state(token) == "live"]
    if as_json:
        print_json([token_json(token) for token in found])
        return
    nothing = "no tokens; `tunefarm token create NAME --role worker` makes one"
    print_rows(found, token_columns(found), nothing)


@app.command()
def revoke(
    name: Annotated[
        str, typer.Argument(metavar="NAME|ID", help="A name, for all of its tokens, or one id.")
    ],
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why; it is kept.")] = "",
    tracker: Tracker = "",
    db: Db = "",
) -> None:
    """Let nobody in with these tokens any more, and cut the calls that they have under way.

    Example: tunefarm token revoke anna --reason "her laptop was stolen"
    """
    with _tokens(tracker, db) as calls:
        ended = calls.revoke(name, reason)
    for token in ended:
        remark(f"revoked {token.id} of {token.name}, {token.role}")
    if not ended:
        remark(f"{name} was revoked before")


@dataclass(frozen=True, slots=True)
class _Calls:
    """What is done to tokens, by way of a tracker or in the database itself."""

    create: Callable[[Token], Token]
    list: Callable[[], Sequence[Token]]
    revoke: Callable[[str, str], Sequence[Token]]


@contextmanager
def _tokens(tracker: str, db: str) -> Iterator[_Calls]:
    if tracker and db:
        raise TunefarmError("give --tracker (a running farm) or --db (a database), not both")
    if db:
        with _in_database(db) as calls:
            yield calls
        return
    with client_of(tracker) as client:
        yield _Calls(
            lambda token: client.create_token(token, actor=actor()),
            client.tokens,
            lambda name, reason: client.revoke_token(name, actor=actor(), reason=reason),
        )


@contextmanager
def _in_database(db: str) -> Iterator[_Calls]:
    import uuid

    from tunefarm.db import tokens
    from tunefarm.db.dialect import parse_url, sole_use, sqlite_path
    from tunefarm.db.store import Store

    path = sqlite_path(parse_url(db))
    with sole_use(path) if path else nullcontext(), Store.open(db) as store:

        def create(token: Token) -> Token:
            with store.writing() as connection:
                return tokens.create(connection, uuid.uuid4().hex, token, actor())

        def list_() -> Sequence[Token]:
            with store.reading() as connection:
                return tokens.tokens(connection)

        def revoke(name: str, reason: str) -> Sequence[Token]:
            with store.writing() as connection:
                return tokens.revoke(
                    connection, uuid.uuid4().hex, name, actor=actor(), reason=reason
                )

        yield _Calls(create, list_, revoke)


def _carried(file: Path, address: str, name: str, tls: Path | None) -> Callable[[str], None]:
    """What writes a secret with address and certificates into a file of mode 0600."""
    from tunefarm.certificates import CA
    from tunefarm.proto.rendezvous import Rendezvous, write_rendezvous
    from tunefarm.proto.tls import read_pem

    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise TunefarmError(f"{address!r} is not a tracker's address; write HOST:PORT")
    found = Rendezvous(address, "")
    if tls is not None:
        ca = read_pem(tls / f"{CA}.pem", "CERTIFICATE")
        found = Rendezvous(address, "", ca=ca)
        if (tls / f"{name}.pem").exists():
            certificate = read_pem(tls / f"{name}.pem", "CERTIFICATE")
            key = read_pem(tls / f"{name}.key", "PRIVATE KEY")
            found = Rendezvous(address, "", ca=ca, certificate=certificate, key=key)

    def write(secret: str) -> None:
        write_rendezvous(file, replace(found, token=secret))

    return write


def token_json(token: Token) -> dict[str, object]:
    """A token for scripts; times in seconds since the epoch, None for never."""
    return {
        "token": token.id,
        "name": token.name,
        "role": token.role,
        "state": _state(token),
        "devices": token.devices,
        "max_priority": token.max_priority,
        "created_at": token.created_at,
        "created_by": token.created_by,
        "expires_at": token.expires_at,
        "revoked_at": token.revoked_at,
        "used_at": token.used_at,
    }


def token_columns(found: Sequence[Token]) -> list[Column]:
    """A row a token."""
    from tunefarm.tables import Column

    bounds = ["" if t.max_priority is None else str(t.max_priority) for t in found]
    return [
        Column("token", [t.id for t in found], left=True),
        Column("name", [t.name for t in found], rank=9, left=True),
        Column("role", [str(t.role) for t in found], rank=8, left=True),
        Column("state", [_state(t) for t in found], rank=8, left=True),
        Column("devices", [t.devices for t in found], rank=6, least=12, left=True),
        Column("priority", bounds, rank=3),
        Column("until", [_until(t) for t in found], rank=7, left=True),
        Column("used", [stamp(t.used_at) if t.used_at else "" for t in found], rank=6, left=True),
        Column("made", [stamp(t.created_at) for t in found], rank=4, left=True),
        Column("by", [t.created_by for t in found], rank=5, least=8, left=True),
    ]


def _state(token: Token) -> str:
    if token.revoked_at is not None:
        return "revoked"
    is_over = token.expires_at is not None and token.expires_at <= time.time()
    return "expired" if is_over else "live"


def _until(token: Token) -> str:
    at = token.revoked_at or token.expires_at
    return "for ever" if at is None else stamp(at)
