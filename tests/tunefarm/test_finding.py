"""Finding the tracker of a database: SQLite tells by a file, PostgreSQL by a file or its rows."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import insert
from tunefarm.db.dialect import clock
from tunefarm.db.farm_models import TRACKERS
from tunefarm.db.store import Store
from tunefarm.proto.client import FarmClient
from tunefarm.proto.rendezvous import Rendezvous, read_rendezvous, write_rendezvous

from tunefarm.cli.app import run
from tunefarm.farm import finder, how_to_find


@pytest.fixture
def shared(postgres: Any) -> Iterator[Store]:
    with postgres.database("latest") as url, Store.open(url) as store:
        yield store


@pytest.fixture
def ca(tmp_path: Path) -> Path:
    assert run(["certificates", "--server", "lab1", "--folder", str(tmp_path)]) == 0
    return tmp_path / "ca.pem"


def listen(store: Store, address: str, ago_s: float = 0.0) -> None:
    """A tracker that was last heard of so long ago."""
    with store.writing() as db:
        at = clock(db) - ago_s
        row = {"id": address, "address": address, "started_at": at, "beat_at": at}
        db.execute(insert(TRACKERS).values(row))


def url_of(store: Store) -> str:
    return store.url.render_as_string(hide_password=False)


def test_the_file_beside_a_database_counts_while_its_tracker_runs(
    tmp_path: Path, tracker: Any
) -> None:
    path = tmp_path / "farm.db"
    with tracker(path), Store.open(str(path), readonly=True) as store:
        default = tmp_path / "farm.db.tracker.json"
        find = finder(store)
        default.write_text((tmp_path / "farm.json").read_text())
        default.chmod(0o600)
        found = find()
        assert found is not None
        assert found.address == read_rendezvous(tmp_path / "farm.json").address
    assert find() is None
    assert "while `tunefarm tracker` runs on it" in how_to_find(store)


def test_a_tracker_of_the_same_user_is_found_by_its_database(shared: Store, home: Path) -> None:
    home.mkdir()
    database = shared.url.set(username="another", drivername="postgresql").render_as_string()
    write_rendezvous(
        home / "a.tracker.json", Rendezvous("127.0.0.1:1", "s", "postgresql:///other", os.getpid())
    )
    assert finder(shared)() is None
    mine = Rendezvous("127.0.0.1:2", "s", database.replace("postgresql:", "postgresql+psycopg:"))
    file = home / "b.tracker.json"
    write_rendezvous(file, mine)
    assert finder(shared)() is None  # its process is gone
    write_rendezvous(file, Rendezvous(mine.address, mine.token, mine.database, os.getpid()))
    found = finder(shared)()
    assert found is not None
    assert (found.address, found.token) == ("127.0.0.1:2", "s")


def test_the_trackers_in_the_database_are_asked_with_tls(
    shared: Store, ca: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listen(shared, "0.0.0.0:9190")
    listen(shared, "127.0.0.1:9190")
    listen(shared, "gone:9190", ago_s=600)
    monkeypatch.setenv("TUNEFARM_TLS_CA", str(ca))
    assert finder(shared)() is None
    listen(shared, "lab1:9190", ago_s=2)
    listen(shared, "lab2:9190", ago_s=1)
    found = finder(shared)()
    assert found is not None
    assert found.address == "lab2:9190,lab1:9190"
    assert found.tls is not None
    assert found.tls.ca == ca.read_text()
    monkeypatch.delenv("TUNEFARM_TLS_CA")
    assert finder(shared)() is None  # in the clear anybody may listen there
    assert "name it with `tunefarm dashboard --tracker HOST:PORT`" in how_to_find(shared)


def test_who_names_the_tracker_is_believed(shared: Store, tmp_path: Path) -> None:
    found = finder(shared, "lab1:9190")()
    assert found is not None
    assert (found.address, found.token, found.tls) == ("lab1:9190", "", None)
    file = tmp_path / "anna.json"
    write_rendezvous(file, Rendezvous("lab1:9190", "anna's"))  # carried here
    found = finder(shared, str(file))()
    assert found is not None
    assert (found.address, found.token) == ("lab1:9190", "")


def test_a_name_that_leads_nowhere_is_told_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Store.open(str(tmp_path / "farm.db")).close()
    words = ["dashboard", "--db", str(tmp_path / "farm.db"), "--port", "0"]
    assert run([*words, "--tracker", str(tmp_path / "none.json")]) == 2
    assert "cannot read" in capsys.readouterr().err


def test_a_tracker_of_postgresql_is_found_as_it_is_started(shared: Store, home: Path) -> None:
    command = [sys.executable, "-m", "tunefarm", "tracker", "--db", url_of(shared)]
    process = subprocess.Popen(
        [*command, "--rendezvous", str(home.parent / "t.json"), "--log-level", "error"],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        while "token is in" not in process.stdout.readline():
            assert process.poll() is None
        while not list(home.glob("*.tracker.json")):
            assert process.poll() is None
            time.sleep(0.05)
        found = finder(shared)()
        assert found is not None
        with FarmClient(found.address, found.token) as farm:
            assert farm.info().started_at > 0
    finally:
        process.terminate()
        process.communicate()
    assert finder(shared)() is None
