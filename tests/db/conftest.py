"""Records to store, and a fresh database to store them in."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
from tunefarm.db.records import ErrorKind, TaskKey, Trial, WorkloadRecord
from tunefarm.db.store import Store

MakeTrial = Callable[..., Trial]
FreshDatabase = Callable[..., AbstractContextManager[str]]


@pytest.fixture(params=["sqlite", "postgresql"])
def fresh_database(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> FreshDatabase:
    """Makes databases of each kind; without tables if asked for that template."""

    @contextmanager
    def fresh(template: str = "latest") -> Iterator[str]:
        if request.param == "sqlite":
            yield str(tmp_path_factory.mktemp("database") / "tuning.db")
            return
        with request.getfixturevalue("postgres").database(template) as url:
            yield url

    return fresh


@pytest.fixture
def url(fresh_database: FreshDatabase) -> Iterator[str]:
    """A database of each kind, without records."""
    with fresh_database() as url:
        yield url


@pytest.fixture
def empty_url(fresh_database: FreshDatabase) -> Iterator[str]:
    """A database of each kind, without tables."""
    with fresh_database("template1") as url:
        yield url


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    """Every contract of the database holds on each kind of it."""
    with Store.open(url) as opened:
        yield opened


@pytest.fixture
def sqlite_store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(str(tmp_path / "tuning.db")) as opened:
        yield opened


@pytest.fixture
def workload() -> Callable[[str], WorkloadRecord]:
    def make(text: str) -> WorkloadRecord:
        return WorkloadRecord(hashlib.sha256(text.encode()).hexdigest(), text, f"op {text}", 2048)

    return make


@pytest.fixture
def make_trial(workload: Callable[[str], WorkloadRecord]) -> MakeTrial:
    def make(
        number: int,
        seconds: float | None = 1e-3,
        *,
        job: str = "job",
        text: str = "gemm",
        target: str = "llvm -mcpu=znver5 -num-cores=2",
        model: str = "EPYC",
        fingerprint: str = "f1",
        created_at: float = 1.0,
        compiler: str = "",
    ) -> Trial:
        return Trial(
            job=job,
            task=TaskKey(workload(text).key, target),
            number=number,
            config={"sketch": "gemm", "tile": number},
            times_s=(seconds, seconds * 1.5, seconds) if seconds else (),
            error=None if seconds else ErrorKind.BUILD_ERROR,
            message="" if seconds else "LLVM said no",
            device="d1",
            device_model=model,
            space_fingerprint=fingerprint,
            compiler_version=compiler,
            phases_s={"build": 0.25},
            created_at=created_at,
        )

    return make
