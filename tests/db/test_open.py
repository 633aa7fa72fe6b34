"""Opening databases: schemas old and new, and one sentence for each that cannot be used."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Connection, MetaData, StaticPool, create_engine
from tunefarm.db import (
    dialect,
    farm_models,  # noqa: F401 (its tables are a part of the schema)
    queue,
    stored_jobs,
)
from tunefarm.db.errors import StoreError
from tunefarm.db.migrate import REVISIONS, upgrade
from tunefarm.db.models import Base
from tunefarm.db.records import BestKey, Trial
from tunefarm.db.store import Store

MakeTrial = Callable[..., Trial]
SCHEMAS = Path(__file__).parent / "schemas"


def test_a_new_database_has_the_models_schema(store: Store) -> None:
    assert has_the_models_schema(store)


@pytest.mark.parametrize("revision", REVISIONS)
def test_a_database_of_every_released_schema_is_upgraded(revision: str, empty_url: str) -> None:
    fill_old(empty_url, revision)
    with Store.open(empty_url) as store:
        (trial,) = store.trials_of("kept").trials
        key = BestKey(trial.task.workload, trial.task.target, trial.device_model)
        assert trial.times_s == (0.1 + 0.2, 0.25)
        assert store.best([key])[key][0].best.trial == trial
        assert has_the_models_schema(store)


def test_jobs_and_candidates_of_older_releases_are_timed_as_usual(empty_url: str) -> None:
    fill_old(
        empty_url,
        "0014",
        "INSERT INTO jobs (id, target_id, budget_trials, options, state, priority, message, "
        "claimed_by, claim_epoch, claim_request, revision, created_at, updated_at) VALUES "
        "('kept', 1, 9, '{}', 'running', 0, '', '', 0, '', 1, 1.0, 1.0)",
        "INSERT INTO job_tasks (job, position, workload_id, weight, ok, failed, errors) VALUES "
        "('kept', 0, 1, 2, 0, 0, '{}')",
        "INSERT INTO requests (job, workload_id, target_id, number, config, origin, against, "
        "budgets, attempts, created_at) VALUES ('kept', 1, 1, 1, '{}', '', '[]', '{}', 0, 1.0)",
    )
    with Store.open(empty_url) as store, store.reading() as reading:
        (task,) = stored_jobs.get(reading, "kept").tasks
        (request,) = queue.pending(reading, "kept")
        assert (task.weight, task.protocol, request.protocol) == (2, "", "")


def test_jobs_of_older_releases_keep_the_names_that_their_models_have(empty_url: str) -> None:
    columns = "id, target_id, budget_trials, options, state, priority, message, claimed_by"
    columns += ", claim_epoch, claim_request, revision, created_at, updated_at, model"
    fill_old(
        empty_url,
        "0015",
        "INSERT INTO models (digest, target_id, name, created_at, seen_at) VALUES "
        "('d1', 1, 'mobilenet', 1.0, 1.0)",
        *(
            f"INSERT INTO jobs ({columns}) VALUES "
            f"('{job}', 1, 9, '{{}}', 'succeeded', 0, '', '', 0, '', 1, 1.0, 1.0, '{model}')"
            for job, model in (("named", "d1"), ("gone", "d2"), ("none", ""))
        ),
    )
    with Store.open(empty_url) as store:
        with store.writing() as connection:
            connection.exec_driver_sql("UPDATE models SET name = 'zzz'")
        names = {job.id: job.model_name for job in store.jobs(limit=9)}
    assert names == {"named": "mobilenet", "gone": "", "none": ""}


def test_jobs_under_way_are_bound_to_the_compiler_of_their_trials(empty_url: str) -> None:
    columns = "id, target_id, budget_trials, options, state, priority, message, claimed_by"
    columns += ", claim_epoch, claim_request, revision, created_at, updated_at"
    fill_old(
        empty_url,
        "0001",
        "UPDATE trials SET compiler_version = '0.1'",
        *(
            f"INSERT INTO jobs ({columns}) VALUES "
            f"('{job}', 1, 9, '{{}}', 'queued', 0, '', '', 0, '', 1, 1.0, 1.0)"
            for job in ("kept", "fresh")
        ),
    )
    with Store.open(empty_url) as store, store.reading() as reading:
        assert stored_jobs.get(reading, "kept").compiler_version == "0.1"
        assert stored_jobs.get(reading, "fresh").compiler_version == ""


def fill_old(url: str, revision: str, *statements: str) -> None:
    """Make a database as an older version left it: its dump, which is SQLite's, and then this."""
    path = dialect.sqlite_path(dialect.parse_url(url))
    with sqlite3.connect(path or ":memory:", check_same_thread=False) as dump:
        dump.executescript((SCHEMAS / f"{revision}.sql").read_text())
    if path is None:
        bring_to(url, revision)
        copy_rows(dump, url)
    dump.close()
    with writing(url) as connection:
        for statement in statements:
            connection.exec_driver_sql(statement)


def copy_rows(dump: sqlite3.Connection, url: str) -> None:
    source = create_engine("sqlite://", creator=lambda: dump, poolclass=StaticPool)
    with source.connect() as old, writing(url) as new:
        tables, theirs = MetaData(), MetaData()
        tables.reflect(new)
        theirs.reflect(old)
        for table in tables.sorted_tables:
            rows = [row._asdict() for row in old.execute(theirs.tables[table.name].select())]
            if rows and table.name != "alembic_version":
                new.execute(table.insert(), rows)


def bring_to(url: str, revision: str) -> None:
    with writing(url) as connection:
        upgrade(connection, revision)


@contextmanager
def writing(url: str) -> Iterator[Connection]:
    engine = dialect.writer_engine(dialect.parse_url(url))
    with engine.begin() as connection:
        yield connection
    engine.dispose()


def test_opening_twice_keeps_what_is_there(url: str, make_trial: MakeTrial) -> None:
    for number in range(2):
        with Store.open(url) as store:
            store.add_trials([make_trial(number)])
    with Store.open(url, readonly=True) as store:
        assert store.count_trials() == 2


@pytest.mark.parametrize("revision", ["", REVISIONS[0]])
def test_processes_that_open_it_at_once_all_succeed(empty_url: str, revision: str) -> None:
    if revision:
        fill_old(empty_url, revision)
    code = "import sys; from tunefarm.db.store import Store; Store.open(sys.argv[1]).close()"
    command = [sys.executable, "-c", code, empty_url]
    running = [subprocess.Popen(command, stderr=subprocess.PIPE) for _ in range(2)]
    assert [process.communicate()[1] for process in running] == [b"", b""]
    with Store.open(empty_url, readonly=True) as store:
        assert has_the_models_schema(store)


def has_the_models_schema(store: Store) -> bool:
    with store.reading() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert context.get_current_revision() == REVISIONS[-1]
        return compare_metadata(context, Base.metadata) == []


def test_readers_work_while_a_writer_writes(store: Store, url: str, make_trial: MakeTrial) -> None:
    store.add_trials([make_trial(0)])
    with Store.open(url, readonly=True) as reader, store.writing() as connection:
        connection.exec_driver_sql("DELETE FROM best")
        assert reader.count_trials() == 1


def test_a_closed_database_is_one_file(tmp_path: Path, make_trial: MakeTrial) -> None:
    """Whoever copies the file alone has all of it."""
    path = tmp_path / "farm.db"
    with Store.open(str(path)) as store:
        store.add_trials([make_trial(0)])
        assert len(store.trials_of("job").trials) == 1
    assert [file.name for file in tmp_path.iterdir()] == ["farm.db"]


def test_a_reader_cannot_write(store: Store, url: str, make_trial: MakeTrial) -> None:
    with (
        Store.open(url, readonly=True) as reader,
        pytest.raises(StoreError, match="was opened to read only"),
    ):
        reader.add_trials([make_trial(0)])
    with (
        store.reading() as connection,
        pytest.raises(StoreError, match="cannot be written"),
        dialect.told(store.url),
    ):
        connection.exec_driver_sql("DELETE FROM trials")


# --- refusals -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("sqlite://", "a database in memory cannot be shared"),
        ("mysql://host/db", "database mysql is not supported"),
        ("tracker://lab:9190", "is a tracker, not a database; give it with --tracker lab:9190"),
        ("postgresql+nodriver://host/db", "needs the driver nodriver, which is not installed"),
        ("://", "is not a database URL"),
        ("postgresql://lab:port/farm", "is not a database URL"),
        (
            "/no/such/folder/a.db",
            r"a\.db cannot be used: /no/such/folder is no folder; make it first",
        ),
        ("/", "database / is a folder"),
    ],
)
def test_urls_that_cannot_work(url: str, sentence: str) -> None:
    with pytest.raises(StoreError, match=sentence):
        Store.open(url)


@pytest.mark.parametrize("host", ["nowhere.invalid", "127.0.0.1:1"])
@pytest.mark.parametrize("readonly", [True, False])
def test_a_server_that_is_not_there(host: str, readonly: bool) -> None:
    pytest.importorskip("psycopg")
    with pytest.raises(StoreError, match=rf"^database postgresql.*{host}/farm does not answer: ."):
        Store.open(f"postgresql+psycopg://{host}/farm", readonly=readonly)


def test_a_reader_of_nothing(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"there is no database .*a\.db yet"):
        Store.open(str(tmp_path / "a.db"), readonly=True)
    assert not (tmp_path / "a.db").exists()


@pytest.mark.parametrize("readonly", [True, False])
def test_a_file_that_is_no_database(tmp_path: Path, readonly: bool) -> None:
    path = tmp_path / "a.db"
    path.write_bytes(b"this is not a database" * 100)
    with pytest.raises(StoreError, match=r"a\.db is not a SQLite database, or corrupt"):
        Store.open(str(path), readonly=readonly)


def test_a_damaged_database(tmp_path: Path, make_trial: MakeTrial) -> None:
    path = tmp_path / "a.db"
    with Store.open(str(path)) as store:
        store.add_trials([make_trial(n) for n in range(300)])
    content = bytearray(path.read_bytes())
    content[8192:-4096] = b"\xff" * (len(content) - 12288)
    path.write_bytes(content)
    with (
        pytest.raises(StoreError, match="corrupt"),
        Store.open(str(path)) as damaged,
    ):
        damaged.trials_of("job")


def test_a_database_of_another_program(tmp_path: Path) -> None:
    path = tmp_path / "mail.db"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE mail (id)")
    connection.close()
    with pytest.raises(StoreError, match="is a database of another program"):
        Store.open(str(path))


@pytest.mark.parametrize("readonly", [True, False])
def test_a_newer_schema(store: Store, url: str, readonly: bool) -> None:
    with store.writing() as connection:
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = '9999'")
    with pytest.raises(StoreError, match=r"has schema 9999, made by a newer tunefarm"):
        Store.open(url, readonly=readonly)


def test_a_locked_database(store: Store, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dialect, "BUSY_S", 0.05)
    monkeypatch.setattr(dialect, "TURN_S", 0.05)
    with store.writing(), pytest.raises(StoreError, match="has been locked by another process"):
        Store.open(url)
    Store.open(url).close()


def test_a_full_disk(sqlite_store: Store, make_trial: MakeTrial) -> None:
    store = sqlite_store
    kept = make_trial(0)
    store.add_trials([kept])
    with store.writing() as connection:
        pages = connection.exec_driver_sql("PRAGMA page_count").scalar_one()
        connection.exec_driver_sql(f"PRAGMA max_page_count = {pages + 2}")
    with pytest.raises(StoreError, match="the disk is full; free some space"):
        store.add_trials([make_trial(n) for n in range(1, 1000)])
    assert store.trials_of("job").trials == (kept,)
    with store.writing() as connection:
        connection.exec_driver_sql("PRAGMA max_page_count = 1000000")
    assert len(store.add_trials([make_trial(n) for n in range(1, 1000)])) == 999


def test_a_read_only_copy_can_be_read(tmp_path: Path, make_trial: MakeTrial) -> None:
    folder = tmp_path / "shared"
    folder.mkdir()
    with Store.open(str(folder / "a.db")) as store:
        store.add_trials([make_trial(0)])
    (folder / "a.db").chmod(0o444)
    folder.chmod(0o555)
    try:
        with Store.open(str(folder / "a.db"), readonly=True) as store:
            assert store.count_trials() == 1
    finally:
        folder.chmod(0o755)


def test_network_file_systems_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dialect, "_file_system", lambda folder: "nfs4")
    with pytest.raises(StoreError, match=r"network file system \(nfs4\)"):
        Store.open(str(tmp_path / "a.db"))


def test_a_copied_database_is_the_same(
    tmp_path: Path, sqlite_store: Store, make_trial: MakeTrial
) -> None:
    store = sqlite_store
    store.add_trials([make_trial(0)])
    store.close()
    shutil.copy(store.name, tmp_path / "copy.db")
    with Store.open(str(tmp_path / "copy.db"), readonly=True) as copy:
        assert copy.trials_of("job").trials == (make_trial(0),)
