"""Tokens: stored hashed, created and revoked once, and who owns a worker."""

from __future__ import annotations

import hashlib
import time

import pytest
from tunefarm.db import cordons, leases, tokens
from tunefarm.db.errors import NotYours, UnknownRecord
from tunefarm.db.records import Role, Token
from tunefarm.db.store import Store


def named(name: str, secret: str = "", **fields: object) -> Token:
    digest = hashlib.sha256((secret or name).encode()).hexdigest()
    fields.setdefault("role", Role.CLIENT)
    return Token(digest, name, **fields)  # type: ignore[arg-type]


def test_a_token_comes_back_as_it_was_made_and_is_made_once(store: Store) -> None:
    wanted = named("anna", devices="rack=3", max_priority=5, expires_at=time.time() + 60)
    with store.writing() as connection:
        made = tokens.create(connection, "r1", wanted, "boss")
        again = tokens.create(connection, "r1", wanted, "boss")
    assert made == again
    assert (made.name, made.role, made.devices) == ("anna", Role.CLIENT, "rack=3")
    assert (made.max_priority, made.expires_at) == (5, wanted.expires_at)
    assert made.created_by == "boss"
    assert made.revoked_at is None
    with store.reading() as connection:
        assert tokens.tokens(connection) == (made,)
        (event,) = cordons.events(connection, made.id)
    assert (event.actor, event.action) == ("boss", "create token")
    assert event.reason.startswith("anna, client, devices rack=3, priority up to 5, until 20")


def test_revoking_by_name_ends_all_of_it_and_by_id_one(store: Store) -> None:
    with store.writing() as connection:
        first, second, other = (
            tokens.create(connection, f"r{number}", token, "boss")
            for number, token in enumerate((named("anna", "1"), named("anna", "2"), named("bob")))
        )
        (ended,) = tokens.revoke(connection, "x1", first.id, actor="boss", reason="lost")
        assert ended.digest == first.digest
        assert ended.revoked_at is not None
        assert tokens.revoke(connection, "x1", first.id, actor="boss", reason="lost") == ()
        (ended,) = tokens.revoke(connection, "x2", "anna", actor="boss", reason="left")
        assert ended.digest == second.digest
        live = [token for token in tokens.tokens(connection) if token.revoked_at is None]
        assert live == [other]
        actions = [event.action for event in cordons.events(connection)]
    assert actions == ["revoke token", "revoke token", *["create token"] * 3]


def test_a_name_is_not_taken_for_the_beginning_of_an_id(store: Store) -> None:
    one = named("bob")
    with store.writing() as connection:
        tokens.create(connection, "r1", one, "boss")
        tokens.create(connection, "r2", named(one.digest[:6]), "boss")
        (ended,) = tokens.revoke(connection, "x", one.digest[:6], actor="boss", reason="")
        assert ended.name == one.digest[:6]


@pytest.mark.parametrize(
    ("token", "sentence"),
    [
        (named(""), "is no name of a token"),
        (named("a b"), "is no name of a token"),
        (named("a" * 65), "is no name of a token"),
        (Token("12", "anna", Role.CLIENT), "64 hexadecimal digits"),
        (named("anna", expires_at=1.0), "would have expired already"),
    ],
)
def test_what_is_no_token_is_refused(store: Store, token: Token, sentence: str) -> None:
    with store.writing() as connection, pytest.raises(ValueError, match=sentence):
        tokens.create(connection, "r", token, "boss")


@pytest.mark.parametrize("name", ["nobody", "", "abc"])
def test_an_unknown_token_cannot_be_revoked(store: Store, name: str) -> None:
    with store.writing() as connection, pytest.raises(UnknownRecord, match="tunefarm token list"):
        tokens.revoke(connection, "x", name, actor="boss", reason="")


def test_a_worker_belongs_to_the_first_token_that_speaks_for_it(store: Store) -> None:
    with store.writing() as connection:
        leases.enlist(connection, "w1", "i1", "0.1")
        tokens.own_worker(connection, "w1", "lab1")
        tokens.own_worker(connection, "w1", "lab1")
        with pytest.raises(NotYours, match="worker w1 belongs to token lab1, not to lab2"):
            tokens.own_worker(connection, "w1", "lab2")
