"""Copies of databases: made while somebody writes, checked, put back; and refusals."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, closing
from pathlib import Path

import pytest
from tunefarm.db import backup as copies
from tunefarm.db import jobs, leases, queue
from tunefarm.db.dialect import parse_url, sole_use, sqlite_path
from tunefarm.db.errors import StaleClaim, StaleLease, StoreError
from tunefarm.db.grants import Want, grant
from tunefarm.db.migrate import HEAD
from tunefarm.db.records import (
    Budget,
    Device,
    Job,
    JobTask,
    TaskKey,
    Trial,
    TrialRequest,
    WorkloadRecord,
)
from tunefarm.db.store import Store

MakeTrial = Callable[..., Trial]
FreshDatabase = Callable[..., AbstractContextManager[str]]


def stored(url: str) -> list[Trial]:
    with Store.open(url) as store:
        return list(store.trials_of("job", limit=100_000).trials)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "farm.backup"


def test_a_database_comes_back_whole(
    fresh_database: FreshDatabase, make_trial: MakeTrial, file: Path
) -> None:
    with fresh_database() as url, fresh_database("template1") as other:
        trials = [make_trial(n) for n in range(50)]
        with Store.open(url) as store:
            store.add_trials(trials)
            made = copies.backup(url, file)
        assert (made.schema, made.size) == (HEAD, file.stat().st_size)
        assert made.is_present
        assert file.stat().st_mode & 0o777 == 0o600
        assert copies.check(file) == made
        assert copies.restore(file, other) == made
        assert stored(other) == trials
        with Store.open(other) as store:
            assert store.add_trials([make_trial(99)]), "ids go on"


def test_leases_and_claims_of_before_a_restore_hold_nothing_afterwards(
    fresh_database: FreshDatabase, workload: Callable[[str], WorkloadRecord], file: Path
) -> None:
    """Neither those in the copy nor those since then, whose epochs would be given again."""
    task = JobTask(workload("gemm"), 1)
    with fresh_database() as url:
        with Store.open(url) as store, store.writing() as connection:
            for name in ("running", "queued"):
                jobs.submit(connection, Job(name, "sim", (task,), Budget(100)))
            before = jobs.claim(connection, "tuner", "r1", "running")
            leases.enlist(connection, "w", "1", "1.0")
            leases.register(connection, "w", [Device("d", "sim", "m", "sim", "w")])
            kept = grant(connection, Want("r2", "d", "c"), 60.0)
            request = TrialRequest("lab", TaskKey(task.workload.key, "sim"), 1, {}, "gemm")
            queue.submit(connection, kept.id, kept.epoch, [request])
        copies.backup(url, file)
        with Store.open(url) as store, store.writing() as connection:
            since = jobs.claim(connection, "tuner", "r3", "queued")
            leases.end(connection, kept.id, "released")
            lent = grant(connection, Want("r4", "d", "c"), 60.0)
        copies.restore(file, url, force=True)
        with Store.open(url) as store, store.writing() as connection:
            for claimed in (before, since):
                assert claimed is not None
                again = jobs.claim(connection, "another", f"again {claimed.id}", claimed.id)
                assert again is not None
                with pytest.raises(StaleClaim, match="is claimed by another"):
                    jobs.check_claim(connection, claimed.id, claimed.claim_epoch)
            with pytest.raises(StaleLease, match="has ended: the database was restored"):
                leases.check(connection, kept.id, kept.epoch)
            assert grant(connection, Want("r5", "d", "c"), 60.0).epoch > lent.epoch
            assert queue.pending_count(connection, "lab") == 1


def test_a_restore_replaces_everything_only_by_force(
    fresh_database: FreshDatabase, make_trial: MakeTrial, file: Path
) -> None:
    with fresh_database() as url:
        with Store.open(url) as store:
            store.add_trials([make_trial(1)])
        copies.backup(url, file)
        with Store.open(url) as store:
            store.add_trials([make_trial(2)])
        with pytest.raises(StoreError, match=r"(exists|not empty); replace all of it with --force"):
            copies.restore(file, url)
        copies.restore(file, url, force=True)
        assert [trial.number for trial in stored(url)] == [1]


def test_a_database_in_use_is_not_replaced(
    fresh_database: FreshDatabase, make_trial: MakeTrial, file: Path
) -> None:
    with fresh_database() as url, Store.open(url) as store:
        store.add_trials([make_trial(1)])
        copies.backup(url, file)
        path = sqlite_path(parse_url(url))
        if path is None:
            with store.reading() as connection:
                connection.exec_driver_sql("SELECT 1")
                with pytest.raises(StoreError, match=r"is in use by \d+ sessions"):
                    copies.restore(file, url, force=True)
        else:
            with sole_use(path), pytest.raises(StoreError, match="has a tracker already"):
                copies.restore(file, url, force=True)


def test_an_existing_copy_is_overwritten_only_by_force(url: str, file: Path) -> None:
    Store.open(url).close()
    file.write_text("precious")
    with pytest.raises(StoreError, match=r"exists; choose another name, or overwrite it with"):
        copies.backup(url, file)
    assert file.read_text() == "precious"
    copies.backup(url, file, force=True)
    copies.check(file)
    assert [path.name for path in file.parent.iterdir() if ".part" in path.name] == []


def test_a_copy_is_consistent_while_somebody_writes(
    sqlite_store: Store, make_trial: MakeTrial, file: Path
) -> None:
    done = threading.Event()

    def write() -> None:
        for start in range(0, 100_000, 20):
            if done.is_set():
                return
            sqlite_store.add_trials([make_trial(n) for n in range(start, start + 20)])

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(5):
            copies.backup(sqlite_store.name, file, force=True)
            with closing(sqlite3.connect(file)) as copy:
                counted = copy.execute("SELECT sum(ok) FROM tasks").fetchone()[0] or 0
                assert copy.execute("SELECT count(*) FROM trials").fetchone()[0] == counted
                assert counted % 20 == 0
    finally:
        done.set()
        writer.join()


def damaged(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[5000:9000] = b"\xff" * 4000
    file.write_bytes(content)


def test_damaged_and_foreign_files_are_refused(
    sqlite_store: Store, make_trial: MakeTrial, file: Path, tmp_path: Path
) -> None:
    sqlite_store.add_trials([make_trial(n) for n in range(200)])
    copies.backup(sqlite_store.name, file)
    damaged(file)
    with pytest.raises(StoreError, match=r"is (damaged|no copy)"):
        copies.restore(file, str(tmp_path / "new.db"))
    assert not (tmp_path / "new.db").exists()
    foreign = tmp_path / "foreign.db"
    with closing(sqlite3.connect(foreign)) as connection:
        connection.execute("CREATE TABLE songs (title)")
    for path, text in (
        (foreign, "no copy of a tunefarm database: no such table"),
        (tmp_path / "missing", "there is no copy of a database"),
    ):
        with pytest.raises(StoreError, match=text):
            copies.check(path)
    (tmp_path / "text").write_text("hello " * 1000)
    with pytest.raises(StoreError, match="file is not a database"):
        copies.check(tmp_path / "text")
    with pytest.raises(StoreError, match="is the database itself"):
        copies.backup(sqlite_store.name, Path(sqlite_store.name), force=True)


def test_a_copy_of_a_newer_version_is_refused(sqlite_store: Store, file: Path) -> None:
    copies.backup(sqlite_store.name, file)
    with closing(sqlite3.connect(file)) as copy:
        copy.execute("UPDATE alembic_version SET version_num = '9999'")
        copy.commit()
    with pytest.raises(StoreError, match="has schema 9999, made by a newer tunefarm"):
        copies.check(file)


def test_a_copy_goes_back_to_its_own_kind(sqlite_store: Store, file: Path) -> None:
    copies.backup(sqlite_store.name, file)
    url = "postgresql+psycopg://me:secret@nowhere/db"
    with pytest.raises(StoreError, match=r"is a copy of a SQLite database, and .*\*\*\*@nowhere"):
        copies.restore(file, url)
