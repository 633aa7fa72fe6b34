"""A tracker in a process of its own, and a worker that measures with a formula."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tunefarm.db.records import (
    Budget,
    Device,
    Held,
    Job,
    JobTask,
    Result,
    TaskKey,
    Trial,
    TrialKey,
    TrialRequest,
    WorkerState,
    WorkloadRecord,
)
from tunefarm.proto.client import FarmClient
from tunefarm.proto.errors import FarmError, Superseded
from tunefarm.proto.rendezvous import read_rendezvous

from tests.ports import own_port

_CODE = """
import json, sys
from pathlib import Path
from typing import Any
from tunefarm.tracker.options import TrackerOptions
from tunefarm.tracker.server import main_serve
options = json.loads(sys.argv[1])
if "rendezvous" in options:
    options["rendezvous"] = Path(options["rendezvous"])
try:
    main_serve(TrackerOptions(**options))
except Exception as error:
    sys.exit(f"{type(error).__name__}: {error}")
"""
TERM_S = 4.0
TEXT = "gemm 64"
WORKLOAD = WorkloadRecord(hashlib.sha256(TEXT.encode()).hexdigest(), TEXT, "gemm", 1024)
TASK = TaskKey(WORKLOAD.key, "sim")


@dataclass
class Tracker:
    """A tracker process on ``database``; ``start`` again after ``kill``. With a ``folder`` the
    rendezvous file is there, and the database is PostgreSQL's."""

    database: Path | str
    folder: Path | None = None
    options: dict[str, object] = field(default_factory=dict)
    process: subprocess.Popen[str] | None = None
    told: str = ""
    log: Path | None = None

    def start(self) -> Tracker:
        first = not self.rendezvous.exists()
        self.process = self.spawn(**({"port": own_port()} if first else {}))
        assert self.process.stdout is not None
        self.told = self.process.stdout.readline()
        if not self.told.startswith("tracker listening on "):
            raise AssertionError(self.told + self.process.communicate()[1])
        return self

    def spawn(self, **changes: object) -> subprocess.Popen[str]:
        options = {"database": str(self.database), "lease_term_s": TERM_S, "claim_term_s": TERM_S}
        if self.folder is not None:
            options["rendezvous"] = str(self.rendezvous)
        command = [sys.executable, "-c", _CODE, json.dumps(options | self.options | changes)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self._errors(), text=True)

    def _errors(self) -> Any:
        """Where standard error goes: a file if one is named, as a pipe that nobody reads fills."""
        return subprocess.PIPE if self.log is None else self.log.open("a")

    @property
    def kind(self) -> str:
        return "sqlite" if self.folder is None else "postgresql"

    @property
    def rendezvous(self) -> Path:
        if self.folder is not None:
            return self.folder / "tracker.json"
        assert isinstance(self.database, Path)
        return self.database.with_name(f"{self.database.name}.tracker.json")

    @property
    def address(self) -> str:
        return read_rendezvous(self.rendezvous).address

    @property
    def token(self) -> str:
        return read_rendezvous(self.rendezvous).token

    def client(self, token: str = "") -> FarmClient:
        return FarmClient(self.address, token or self.token)

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.communicate()

    def stop(self) -> tuple[int, str]:
        """SIGTERM; returns the exit status and what it wrote to standard error."""
        assert self.process is not None
        self.process.terminate()
        _, errors = self.process.communicate(timeout=120)
        return self.process.returncode, errors


@dataclass
class SimWorker:
    """A worker whose times are a formula of the config; ``vanish`` is its kill -9."""

    client: FarmClient
    device: Device
    name: str = "w1"
    version: str = "0.1"
    poison: frozenset[int] = frozenset()
    wait_s: float = 0.3
    incarnation: str = field(default_factory=lambda: uuid.uuid4().hex)
    measured: list[int] = field(default_factory=list)
    cancelled: list[Held] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    superseded: bool = False
    vanished: threading.Event = field(default_factory=threading.Event)
    thread: threading.Thread | None = None

    def start(self) -> SimWorker:
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()
        return self

    def vanish(self) -> None:
        self.vanished.set()
        assert self.thread is not None
        self.thread.join(60)

    def _run(self) -> None:
        results: dict[tuple[str, int, TrialKey], Result] = {}
        number = 0
        while not self.vanished.is_set():
            number += 1
            state = WorkerState(
                self.name,
                self.incarnation,
                number,
                self.version,
                (self.device,),
                results=tuple(results.values()),
            )
            try:
                orders = self.client.sync(state, self.wait_s)
            except Superseded:
                self.superseded = True
                return
            except FarmError:
                self.vanished.wait(0.05)
                continue
            answered = {*orders.accepted, *(refusal.key for refusal in orders.refused)}
            results = {slot: r for slot, r in results.items() if slot[2] not in answered}
            self.refused += [refusal.reason for refusal in orders.refused]
            self.cancelled += orders.cancel
            for work in orders.work:
                if work.request.number in self.poison:
                    self.vanished.set()
                    break
                key = TrialKey(work.request.job, work.request.task, work.request.number)
                self.measured.append(key.number)
                results[work.lease, work.epoch, key] = Result(
                    work.lease, work.epoch, measured(work.request)
                )


def measured(request: TrialRequest) -> Trial:
    seconds = 1e-3 / (1 + request.number)
    return Trial(request.job, request.task, request.number, request.config, (seconds,))


@contextmanager
def _tracker(request: pytest.FixtureRequest, folder: Path) -> Iterator[Tracker]:
    """A tracker on a fresh database of the kind that is the fixture's parameter, with the module's
    ``OPTIONS``."""
    options = dict(getattr(request.module, "OPTIONS", {}))
    if request.param == "sqlite":
        running = Tracker(folder / "farm.db", options=options).start()
        yield running
        running.kill()
        return
    with request.getfixturevalue("postgres").database("latest") as url:
        running = Tracker(url, folder, options).start()
        yield running
        running.kill()


@pytest.fixture
def make_tracker() -> Callable[..., Tracker]:
    """A tracker that is not started yet; see ``Tracker``."""
    return Tracker


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Trackers are on SQLite; in modules that say ``DATABASES`` on each of those in turn."""
    marks = metafunc.definition.iter_markers("parametrize")
    chosen = {mark.args[0] for mark in marks}
    for name in {"tracker", "shared_tracker"} & set(metafunc.fixturenames) - chosen:
        kinds = getattr(metafunc.module, "DATABASES", ("sqlite",))
        scope = "module" if name == "shared_tracker" else "function"
        metafunc.parametrize(name, kinds, indirect=True, scope=scope)


@pytest.fixture
def tracker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Tracker]:
    """A tracker of its own for the test."""
    with _tracker(request, tmp_path) as running:
        yield running


@pytest.fixture(scope="module")
def shared_tracker(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Tracker]:
    with _tracker(request, tmp_path_factory.mktemp("farm")) as running:
        yield running


@pytest.fixture
def farm(shared_tracker: Tracker) -> Iterator[FarmClient]:
    """A client of the module's tracker."""
    with shared_tracker.client() as client:
        yield client


@pytest.fixture
def start_worker() -> Iterator[Callable[..., SimWorker]]:
    """Starts simulated workers, each with a client of its own, and ends them after the test."""
    workers: list[SimWorker] = []

    def start(
        tracker: Tracker, device: str = "d1", address: str = "", token: str = "", **fields: object
    ) -> SimWorker:
        client = FarmClient(address, token) if address else tracker.client(token)
        offered = Device(device, "sim", "Sim 1", "sim", "", {"name": device})
        fields.setdefault("name", f"worker of {device}")
        worker = SimWorker(client, offered, **fields)  # type: ignore[arg-type]
        workers.append(worker)
        return worker.start()

    yield start
    for worker in workers:
        worker.vanish()
        with suppress(FarmError):
            worker.client.close()


@pytest.fixture
def new_job() -> Callable[..., Job]:
    def make(name: str = "", **fields: object) -> Job:
        tasks = (JobTask(WORKLOAD, 2),)
        return Job(name or uuid.uuid4().hex, "sim", tasks, Budget(100), **fields)  # type: ignore[arg-type]

    return make


@pytest.fixture
def candidates() -> Callable[[str, range], list[TrialRequest]]:
    def make(job: str, numbers: range) -> list[TrialRequest]:
        return [
            TrialRequest(job, TASK, n, {"sketch": "s", "x": n}, TEXT, origin="random")
            for n in numbers
        ]

    return make
