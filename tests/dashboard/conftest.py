"""A small farm's database, and the dashboard over it."""

from __future__ import annotations

import hashlib
import importlib.util
import random
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import Connection, insert
from tunefarm.compiler.space import config_space
from tunefarm.compiler.target import Target
from tunefarm.compiler.workload import Workload
from tunefarm.dashboard.app import create_app
from tunefarm.db import cordons, jobs, leases
from tunefarm.db.farm_models import LEASES
from tunefarm.db.records import (
    FINAL,
    BestKey,
    Budget,
    Config,
    Device,
    ErrorKind,
    Final,
    Job,
    JobTask,
    TaskKey,
    Trial,
    TrialKey,
    Verdict,
    WorkloadRecord,
)
from tunefarm.db.store import Store

TARGET = "llvm -mcpu=x86-64-v3 -num-cores=2"
MODEL = "Some CPU 2 cores"
COMPILER = "0.1.0+abc"
JOB = "aaaa1111"
FAILED_JOB = "bbbb2222"
DEVICE = "llvm-1"
TRIALS = 60


def matmul(rows: int) -> WorkloadRecord:
    """``x · w`` of (rows, 16) and constant (16, 24), as a build would ask for it."""
    param = '{{"constant":{},"domain":"any","dtype":"float32","shape":[{},{}]}}'
    nodes = f'[{{"args":[0,1],"attrs":{{}},"op":"matmul","type":["float32",[{rows},24]]}}]'
    params = f"[{param.format('false', rows, 16)},{param.format('true', 16, 24)}]"
    text = f'{{"nodes":{nodes},"outputs":[2],"params":{params},"version":1}}'
    workload = Workload.from_text(text)
    return WorkloadRecord(workload.key, text, workload.summary, workload.flops)


@cache
def default_config(text: str) -> Config:
    return config_space(Workload.from_text(text), Target(TARGET)).default


@dataclass(frozen=True)
class Farm:
    """What is in the database: two tasks that were tuned, and a job that failed."""

    database: str
    tasks: tuple[WorkloadRecord, ...]
    target: str = TARGET
    job: str = JOB
    device: str = DEVICE

    def trial(self, task: int, number: int, *, fails: bool = False, origin: str = "") -> Trial:
        """A candidate whose time falls with its number, and whose score knows that."""
        chance = random.Random(f"{task} {number}")
        seconds = 1e-3 / (1 + 0.03 * number) * chance.uniform(1, 1.4)
        config = dict(default_config(self.tasks[task].text))
        if number:
            config |= {"mb": 2 ** (number % 4), "nb": number % 3 + 1}
        code = hashlib.sha256(f"{task} {config}".encode()).hexdigest()
        return Trial(
            job=JOB,
            task=TaskKey(self.tasks[task].key, TARGET),
            number=number,
            config=config,
            times_s=() if fails else (seconds, seconds * 1.02, seconds * 1.1),
            error=ErrorKind.BUILD_ERROR if fails else None,
            message=f"tiles take {1000 + number} bytes of stack; at most 1000" if fails else "",
            stderr_tail="LLVM ERROR: no" if fails else "",
            device=DEVICE,
            device_model=MODEL,
            device_state={"drift": 1 + number / 1000, "load": 0.5, "noise": 0.2},
            compiler_version=COMPILER,
            space_fingerprint="f1",
            code_hash=code,
            predicted=None if number == 0 else -seconds * 1e3 + chance.uniform(0, 0.02),
            origin=origin or ("default" if number == 0 else "model"),
            phases_s={"queue": 0.1, "build": 0.2, "check": 0.01, "run": 0.05},
            created_at=time.time() - 600 + number,
        )


@pytest.fixture
def farm(tmp_path: Path) -> Farm:
    return made_farm(str(tmp_path / "farm.db"))


@pytest.fixture(scope="session")
def shared_farm(tmp_path_factory: pytest.TempPathFactory) -> Farm:
    """One for all tests that only look."""
    return made_farm(str(tmp_path_factory.mktemp("dashboard") / "farm.db"))


@pytest.fixture(scope="module")
def module_farm(tmp_path_factory: pytest.TempPathFactory) -> Farm:
    """One for the tests of a file."""
    return made_farm(str(tmp_path_factory.mktemp("dashboard") / "farm.db"))


@pytest.fixture
def postgresql_farm(request: pytest.FixtureRequest) -> Iterator[Farm]:
    """The same on PostgreSQL."""
    with request.getfixturevalue("postgres").database("latest") as url:
        yield made_farm(url)


def made_farm(database: str) -> Farm:
    made = Farm(database, (matmul(8), matmul(64)))
    with Store.open(made.database) as store:
        with store.writing() as db:
            _add_device(db)
            _add_jobs(db, made.tasks)
            _add_lease(db)
        for task in (0, 1):
            store.add_trials([made.trial(task, n, fails=n % 10 == 7) for n in range(TRIALS)])
        _promote(store, made)
    return made


def _add_device(db: Connection) -> None:
    leases.enlist(db, "worker-1", "one", COMPILER)
    device = Device(
        DEVICE, "llvm", MODEL, TARGET, "worker-1", {"rack": "3"}, {"flops_n": 1e11,
        "bandwidth_dram_n": 2e10}, 0.02,
    )  # fmt: skip
    leases.register(db, "worker-1", [device])
    cordons.cordon(db, "c1", DEVICE, actor="anna", reason="new fans")


def _add_jobs(db: Connection, tasks: tuple[WorkloadRecord, ...]) -> None:
    budget = Budget(200)
    mine = Job(
        JOB, TARGET, tuple(JobTask(t, w) for t, w in zip(tasks, (3, 1), strict=True)), budget,
        model_name="tiny net", note="on a quiet machine", owner="anna",
    )  # fmt: skip
    jobs.submit(db, mine)
    jobs.submit(db, Job(FAILED_JOB, TARGET, (JobTask(tasks[0]),), budget))
    jobs.cancel(db, FAILED_JOB, "nobody wants it")


def _add_lease(db: Connection) -> None:
    """The device was held for nine minutes of the job."""
    now = time.time()
    lease = {
        "id": "lease1", "request_id": "r1", "device": DEVICE, "client": "tuner-1", "job": JOB,
        "epoch": 1, "term_s": 10.0, "granted_at": now - 600, "ended_at": now - 60,
        "ended_reason": "given back",
    }  # fmt: skip
    db.execute(insert(LEASES).values(lease))


def _promote(store: Store, made: Farm) -> None:
    key = BestKey(made.tasks[0].key, TARGET, MODEL)
    final = TrialKey(JOB, TaskKey(made.tasks[0].key, TARGET), TRIALS)
    store.add_trials([made.trial(0, TRIALS, origin=FINAL)])
    store.promote("f1", Final(key, final, None, Verdict.BETTER, None, 1.9))


@pytest.fixture(scope="session")
def client(shared_farm: Farm) -> Iterator[TestClient]:
    """Of the farm that tests only look at."""
    with Store.open(shared_farm.database, readonly=True) as store:
        yield TestClient(create_app(store))


@pytest.fixture
def own_client(farm: Farm) -> Iterator[TestClient]:
    """Of this test's own farm."""
    with Store.open(farm.database, readonly=True) as store:
        yield TestClient(create_app(store))


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium; tests that need it are skipped where it is not."""
    from playwright.sync_api import sync_playwright

    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("Chromium is not installed; apt-get install chromium")
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def axe() -> str:
    """The script that finds what keeps people from a page."""
    found = importlib.util.find_spec("axe_core_python")
    assert found is not None
    assert found.origin is not None
    return (Path(found.origin).parent / "axe.min.js").read_text()
