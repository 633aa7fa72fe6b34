"""Group commit: operations are isolated from each other and durable when they return."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, insert
from tunefarm.db.errors import StaleLease, StoreError
from tunefarm.db.models import TARGETS
from tunefarm.db.store import Store
from tunefarm.tracker.writer import Database


def add(text: str) -> Callable[[Connection], str]:
    def run(connection: Connection) -> str:
        connection.execute(insert(TARGETS).values(text=text))
        if text == "refuse":
            raise StaleLease("refused")
        if text == "fail":
            raise RuntimeError("a bug")
        return text

    return run


def stored(path: Path | str) -> list[str]:
    with Store.open(str(path), readonly=True) as store, store.reading() as connection:
        return [row.text for row in connection.execute(TARGETS.select().order_by(TARGETS.c.id))]


@pytest.mark.parametrize("bad", [("refuse", StaleLease), ("fail", RuntimeError)])
def test_one_that_raises_does_not_spoil_its_group(
    tmp_path: Path, bad: tuple[str, type[Exception]]
) -> None:
    async def main() -> list[object]:
        database = Database(Store.open(str(tmp_path / "a.db")))
        names = ["a", "b", bad[0], "c", "a"]
        writes = [database.write(add(name)) for name in names]
        outcomes = await asyncio.gather(*writes, return_exceptions=True)
        await asyncio.to_thread(database.close)
        return list(outcomes)

    outcomes = asyncio.run(main())
    assert outcomes[:2] == ["a", "b"]
    assert isinstance(outcomes[2], bad[1])
    assert outcomes[3] == "c"
    assert "UNIQUE" in str(outcomes[4])
    assert sorted(stored(tmp_path / "a.db")) == ["a", "b", "c"]


def test_a_full_disk_is_told_and_passes(tmp_path: Path) -> None:
    async def main() -> None:
        database = Database(Store.open(str(tmp_path / "a.db")))

        def limit(pages: int) -> Callable[[Connection], Any]:
            return lambda c: c.exec_driver_sql(f"PRAGMA max_page_count = {pages}")

        await database.write(limit(1))
        with pytest.raises(StoreError, match="the disk is full"):
            await database.write(add("x" * 100_000))
        assert "the disk is full" in database.trouble
        await database.write(limit(10**6))
        await database.write(add("fits"))
        assert database.trouble == ""
        await asyncio.to_thread(database.close)
        with pytest.raises(StoreError, match="shutting down"):
            await database.write(add("late"))

    asyncio.run(main())
    assert stored(tmp_path / "a.db") == ["fits"]


def test_a_write_whose_connection_ends_is_repeated(postgres: Any) -> None:
    """A tracker that stood still in the middle of one loses its turn, and its connection."""
    runs = 0

    def write(connection: Connection) -> str:
        nonlocal runs
        runs += 1
        connection.execute(insert(TARGETS).values(text="once"))
        if runs == 1:
            connection.exec_driver_sql("SELECT pg_terminate_backend(pg_backend_pid())")
        return "written"

    async def main(url: str) -> str:
        database = Database(Store.open(url))
        try:
            return await database.write(write)
        finally:
            await asyncio.to_thread(database.close)

    with postgres.database("latest") as url:
        assert asyncio.run(main(url)) == "written"
        assert stored(url) == ["once"]
    assert runs == 2
