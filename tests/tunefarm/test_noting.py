"""Commands note the models that they tune and build, for the dashboard."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import select
from tunefarm.db.models import MODELS, WORKLOADS
from tunefarm.db.records import TaskKey, Trial
from tunefarm.db.store import Store
from tunefarm.proto.errors import FarmError

from tunefarm import api
from tunefarm.cli.app import run
from tunefarm.closing import model_name
from tunefarm.noting import noter, records_of


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


def test_a_build_tells_the_farm_of_its_model(
    database: Path, model: str, tracker: object, tmp_path: Path
) -> None:
    library = str(tmp_path / "m.so")
    with tracker(database) as place:  # type: ignore[operator]
        assert run(["build", model, "-o", library, "--tracker", place]) == 0
        digest = model_name(api.extract_tasks(api.from_onnx(model)))
        assert noted(database) == [("model", digest)]
        with api.apply_history_best(f"tracker://{place}", model_name="my net"):
            api.build(api.from_onnx(model))
        assert noted(database) == [("my net", digest)]
        with api.apply_history_best(f"tracker://{place}"):
            api.build(api.from_onnx(model))
    assert noted(database) == [("my net", digest)]
    with Store.open(str(database), readonly=True) as store, store.reading() as connection:
        told = connection.execute(select(WORKLOADS.c.summary, WORKLOADS.c.flops)).all()
    assert [tuple(row) for row in told] == [
        (task.workload.summary, task.workload.flops)
        for task in api.extract_tasks(api.from_onnx(model))
    ]


def test_a_farm_hears_of_a_model_that_has_nothing_to_do(
    database: Path, model: str, tracker: object
) -> None:
    tasks = api.extract_tasks(api.from_onnx(model))
    (task,) = records_of(tasks)
    key = TaskKey(task.workload.key, tasks[0].target.text)
    with Store.open(str(database)) as store:
        store.add_trials([Trial("j1", key, n, {"sketch": "plain"}, (1e-3,)) for n in range(4)])
    with tracker(database) as place:  # type: ignore[operator]
        assert run(["tune", model, "--trials", "4", "--tracker", place]) == 0
    assert [name for name, _ in noted(database)] == ["model"]


def test_a_build_goes_on_where_a_farm_is_too_old(model: str) -> None:
    class Old:
        def note_model(self, name: str, target: str, tasks: object) -> None:
            raise FarmError("the tracker is too old for this; upgrade it")

    noter(Old(), "net")(api.extract_tasks(api.from_onnx(model)))


def test_a_submitted_job_names_its_model(
    database: Path, model: str, tracker: object, capsys: pytest.CaptureFixture[str]
) -> None:
    with tracker(database) as place:  # type: ignore[operator]
        assert run(["submit", model, "--trials", "4", "--tracker", place]) == 0
        capsys.readouterr()
        assert run(["jobs", "--tracker", place]) == 0
        assert "model" in capsys.readouterr().out.splitlines()[-1]
    assert [name for name, _ in noted(database)] == ["model"]
