"""Commands note the models that they tune and build, for the dashboard."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import select
from tunefarm.db.models import MODELS
from tunefarm.db.store import Store

from tunefarm import api
from tunefarm.cli.app import run
from tunefarm.closing import model_name


def noted(database: Path) -> list[tuple[str, str]]:
    with Store.open(str(database), readonly=True) as store, store.reading() as connection:
        query = select(MODELS.c.name, MODELS.c.digest).order_by(MODELS.c.name)
        return [tuple(row) for row in connection.execute(query)]


@pytest.fixture
def database(tmp_path: Path) -> Path:
    path = tmp_path / "farm.db"
    Store.open(str(path)).close()
    return path


def test_a_build_notes_its_model(database: Path, model: str, tmp_path: Path) -> None:
    assert run(["build", model, "-o", str(tmp_path / "m.so"), "--db", str(database)]) == 0
    digest = model_name(api.extract_tasks(api.from_onnx(model)))
    assert noted(database) == [("model", digest)]
    assert (
        run(
            [
                "build",
                model,
                "-o",
                str(tmp_path / "m.so"),
                "--db",
                str(database),
                "--shape",
                "x=8x16",
            ]
        )
        == 0
    )
    assert noted(database) == [("model x=8x16", digest)]


def test_a_build_goes_on_where_the_database_cannot_be_written(
    database: Path, model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tunefarm.db import dialect

    monkeypatch.setattr(dialect, "BUSY_S", 0.1)
    with Store.open(str(database)) as store, store.writing():
        assert run(["build", model, "-o", str(tmp_path / "m.so"), "--db", str(database)]) == 0
    assert (tmp_path / "m.so").exists()
    assert noted(database) == []


def test_a_submitted_job_names_its_model(
    database: Path, model: str, tracker: object, capsys: pytest.CaptureFixture[str]
) -> None:
    with tracker(database) as place:  # type: ignore[operator]
        assert run(["submit", model, "--trials", "4", "--tracker", place]) == 0
        capsys.readouterr()
        assert run(["jobs", "--tracker", place]) == 0
        assert "model" in capsys.readouterr().out.splitlines()[-1]
    assert [name for name, _ in noted(database)] == ["model"]
