"""``tunefarm db``: backup, check, restore and prune as an operator types them."""

from __future__ import annotations

import re
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest
from tunefarm.db.migrate import HEAD
from tunefarm.db.records import TaskKey, Trial
from tunefarm.db.store import Store

from tunefarm.cli.app import run

DAY = 86400.0
SCHEMAS = Path(__file__).parents[1] / "db" / "schemas"


@pytest.fixture
def database(tmp_path: Path) -> str:
    """300 trials of one task, one a day; number 7 is the best."""
    path = str(tmp_path / "farm.db")
    now = time.time()
    with Store.open(path) as store:
        task = TaskKey("0" * 64, "sim")
        trials = [
            Trial(
                "job", task, n, {}, (1e-3 * (1 + abs(n - 7)),), created_at=now - (299.5 - n) * DAY
            )
            for n in range(300)
        ]
        store.add_trials(trials)
    return path


def said(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    assert run(["db", *arguments]) == code
    shown = capsys.readouterr()
    return shown.err if code else shown.out


def test_backup_check_restore(
    database: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy, fresh = str(tmp_path / "copy"), str(tmp_path / "new" / "farm.db")
    described = re.escape(copy) + r": 0\.\d MB, schema \d{4}\n"
    assert re.fullmatch(f"wrote {described}", said(capsys, "backup", copy, "--db", database))
    assert "exists; choose another name" in said(capsys, "backup", copy, "--db", database, code=2)
    assert re.fullmatch(f"sound: {described}", said(capsys, "check", copy))
    assert "is no folder; make it first" in said(capsys, "restore", copy, "--db", fresh, code=2)
    (tmp_path / "new").mkdir()
    assert re.fullmatch(f"restored {described}", said(capsys, "restore", copy, "--db", fresh))
    with Store.open(fresh, readonly=True) as store:
        assert store.count_trials() == 300
    again = said(capsys, "restore", copy, "--db", fresh, code=2)
    assert again == f"tunefarm: database {fresh} exists; replace all of it with --force\n"
    missing = said(capsys, "backup", copy, "--db", str(tmp_path / "none.db"), code=2)
    assert "there is no database" in missing


def test_prune_says_first_what_it_would_do(
    database: str, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--older-than", "90d", "--keep", "30", "--db", database]
    assert said(capsys, "prune", *options, "--dry-run") == "would delete 208 trials of 300\n"
    assert said(capsys, "prune", *options) == "deleted 208 trials of 300\n"
    with Store.open(database, readonly=True) as store:
        left = [trial.number for trial in store.trials_of("job").trials]
    assert left == [0, 7, *range(210, 300)], "the best, and the default that it beats"
    assert said(capsys, "prune", "--keep", "1", "--db", database) == "deleted 89 trials of 92\n"


def test_a_tracker_prunes_by_itself(database: str) -> None:
    options = ["--db", database, "--prune-older-than", "90d", "--prune-keep", "30"]
    tracker = subprocess.Popen(
        [sys.executable, "-m", "tunefarm", "tracker", *options], stderr=subprocess.PIPE, text=True
    )
    try:
        assert tracker.stderr is not None
        assert any("deleted 208 old trials" in line for line in tracker.stderr)
    finally:
        tracker.kill()
        tracker.communicate()
    with Store.open(database, readonly=True) as store:
        assert store.count_trials() == 92


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ([], "say which trials to delete: --older-than 90d, and --keep 1000"),
        (["--older-than", "soon"], "--older-than 'soon' is no age; write for instance 90d"),
        (["--older-than", "0d"], "--older-than '0d' is no age"),
        (["--older-than", "9d", "--db", "/nowhere/farm.db"], "/nowhere is no folder; make it"),
    ],
)
def test_a_mistake_is_one_sentence(
    options: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    error = said(capsys, "prune", *options, code=2)
    assert sentence in error
    assert error.count("\n") == 1


def test_an_older_database_is_upgraded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old = tmp_path / "old.db"
    with closing(sqlite3.connect(old)) as connection:
        connection.executescript((SCHEMAS / "0004.sql").read_text())
    assert "`tunefarm db upgrade` brings it there" in said(
        capsys, "prune", "--older-than", "9d", "--dry-run", "--db", str(old), code=2
    )
    assert said(capsys, "upgrade", "--db", str(old)) == f"{old} has schema {HEAD}\n"
    with Store.open(str(old), readonly=True) as store:
        assert store.count_trials() > 0
    assert "no database" in said(capsys, "upgrade", "--db", str(tmp_path / "none.db"), code=2)
