"""When a token was last used, as the database is told."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from tunefarm.db import tokens
from tunefarm.db.records import Role, Token
from tunefarm.db.store import Store
from tunefarm.proto.tokens import digest_of
from tunefarm.tracker.keyring import NOTED_S, Keyring
from tunefarm.tracker.writer import Database


def test_a_use_is_stored_once_a_minute(tmp_path: Path) -> None:
    store = Store.open(str(tmp_path / "farm.db"))
    for name in ("used", "idle"):
        token = Token(digest_of(name), name, Role.CLIENT)
        with store.writing() as connection:
            tokens.create(connection, name, token, "root")

    def stored() -> dict[str, float | None]:
        with store.reading() as connection:
            return {token.name: token.used_at for token in tokens.tokens(connection)}

    async def use() -> None:
        await keyring.load()
        keyring.admit("Bearer used")
        await keyring.note_uses()

    database = Database(store)
    keyring = Keyring("own", database)
    before = time.time()
    asyncio.run(use())
    first = stored()
    assert first["idle"] is None
    assert first["used"] is not None
    assert before <= first["used"] <= time.time()
    asyncio.run(use())
    assert stored() == first
    with store.writing() as connection:
        tokens.note_uses(connection, {digest_of("used"): before - NOTED_S - 1})
    asyncio.run(use())
    again = stored()["used"]
    assert again is not None
    assert again >= first["used"]
    database.close()
