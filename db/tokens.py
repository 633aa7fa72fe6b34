"""Tokens: who may call, as what. Only hashes of secrets are stored.

Every function that changes something takes a request id: asked again, it changes nothing.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping
from typing import Any

from sqlalchemy import Connection, bindparam, insert, select, update
from tunefarm.db.cordons import PREFIX_LENGTH, note
from tunefarm.db.errors import NotYours, UnknownRecord
from tunefarm.db.farm_models import TOKENS, WORKERS
from tunefarm.db.models import JOBS
from tunefarm.db.records import Role, Token
from tunefarm.db.rows import chunks

MAX_TOKENS = 10_000
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")
_DIGEST = re.compile(r"[0-9a-f]{64}")


def create(connection: Connection, request_id: str, token: Token, actor: str) -> Token:
    """Let the secret of this digest in from now on; the token as stored.

    ValueError if its name, digest or expiry is none, or if the farm has ``MAX_TOKENS``.
    """
    _check(token)
    known = connection.execute(select(TOKENS)).all()
    again = next((row for row in known if row.digest == token.digest), None)
    if again is not None:
        return _from_row(again)
    if len(known) >= MAX_TOKENS:
        raise ValueError(f"the farm has {len(known)} tokens, {MAX_TOKENS} are allowed")
    values = {
        "digest": token.digest,
        "name": token.name,
        "role": str(token.role),
        "devices": token.devices,
        "max_priority": token.max_priority,
        "created_at": time.time(),
        "created_by": actor,
        "expires_at": token.expires_at,
        "revoked_at": None,
    }
    note(connection, request_id, actor, "create token", f"token {token.id}", _told(token))
    connection.execute(insert(TOKENS).values(values))
    return get(connection, token.digest)


def revoke(
    connection: Connection, request_id: str, name: str, *, actor: str, reason: str
) -> tuple[Token, ...]:
    """End every live token of this name, or the one whose id begins so; those that it ended.

    UnknownRecord if there is none, or if several ids begin so.
    """
    known = tokens(connection)
    found = [token for token in known if token.name == name]
    if not found and len(name) >= PREFIX_LENGTH:
        found = [token for token in known if token.digest.startswith(name.lower())]
        if len(found) > 1:
            raise UnknownRecord(f"several tokens begin with {name}; give more digits of the id")
    if not found:
        raise UnknownRecord(f"there is no token {name!r}; `tunefarm token list` lists them")
    ended = [token for token in found if token.revoked_at is None]
    for number, token in enumerate(ended):
        why = f"{token.name}: {reason}" if reason else token.name
        note(connection, f"{request_id}/{number}", actor, "revoke token", f"token {token.id}", why)
    digests = [token.digest for token in ended]
    connection.execute(
        update(TOKENS).where(TOKENS.c.digest.in_(digests)).values(revoked_at=time.time())
    )
    return tuple(get(connection, token.digest) for token in ended)


def tokens(connection: Connection) -> tuple[Token, ...]:
    """Every token that ever was, the oldest first."""
    query = select(TOKENS).order_by(TOKENS.c.created_at, TOKENS.c.digest)
    return tuple(map(_from_row, connection.execute(query)))


def get(connection: Connection, digest: str) -> Token:
    """The token of a digest; UnknownRecord if there is none."""
    row = connection.execute(select(TOKENS).where(TOKENS.c.digest == digest)).one_or_none()
    if row is None:
        raise UnknownRecord(f"there is no token {digest[:8]}")
    return _from_row(row)


def note_uses(connection: Connection, used: Mapping[str, float]) -> None:
    """Store when calls last came with the tokens of these digests, in seconds since the epoch."""
    rows = [{"of": digest, "at": at} for digest, at in used.items()]
    statement = update(TOKENS).where(TOKENS.c.digest == bindparam("of"))
    connection.execute(statement.values(used_at=bindparam("at")), rows)


def owners_of_jobs(connection: Connection, names: Iterable[str]) -> dict[str, str]:
    """Whose each of these jobs is; those that are not stored are left out."""
    found: dict[str, str] = {}
    for chunk in chunks(sorted(set(names))):
        query = select(JOBS.c.id, JOBS.c.owner).where(JOBS.c.id.in_(chunk))
        found |= {row.id: row.owner for row in connection.execute(query)}
    return found


def own_worker(connection: Connection, worker: str, owner: str) -> None:
    """Make a worker that nobody owns the owner's; NotYours if it is another's."""
    mine = update(WORKERS).where(WORKERS.c.id == worker, WORKERS.c.owner == "")
    connection.execute(mine.values(owner=owner))
    stored = connection.execute(select(WORKERS.c.owner).where(WORKERS.c.id == worker)).scalar_one()
    if stored != owner:
        raise NotYours(
            f"worker {worker} belongs to token {stored}, not to {owner}; name this one otherwise "
            "with --name"
        )


def _check(token: Token) -> None:
    if _NAME.fullmatch(token.name) is None:
        raise ValueError(
            f"{token.name!r} is no name of a token; write 1 to 64 letters, digits and . _ @ -, "
            "for instance anna or lab3"
        )
    if _DIGEST.fullmatch(token.digest) is None:
        raise ValueError("a token is told by the SHA-256 of its secret, 64 hexadecimal digits")
    if token.expires_at is not None and token.expires_at <= time.time():
        raise ValueError(f"token {token.name} would have expired already")


def _told(token: Token) -> str:
    """What the audit trail says of a new token."""
    words = [f"{token.name}, {token.role}"]
    if token.devices:
        words.append(f"devices {token.devices}")
    if token.max_priority is not None:
        words.append(f"priority up to {token.max_priority}")
    if token.expires_at is not None:
        words.append(time.strftime("until %Y-%m-%d %H:%M UTC", time.gmtime(token.expires_at)))
    return ", ".join(words)


def _from_row(row: Any) -> Token:
    return Token(**{**row._mapping, "role": Role(row.role)})
