"""A farm of real processes on the simulated device, each of which may be killed at any time."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tunefarm.compiler.ir import Function, TensorType, Var
from tunefarm.compiler.ops import call
from tunefarm.compiler.target import Target
from tunefarm.compiler.workload import Workload
from tunefarm.db.records import Budget, Job, JobTask, WorkloadRecord
from tunefarm.proto.client import FarmClient
from tunefarm.proto.errors import FarmError

from tests.patience import wait_for
from tests.ports import own_port

SKETCH = Path(__file__).parents[1] / "tuner" / "sim_sketch.py"
LIMIT_S = 120.0
_COMMAND = """
import runpy, sys
runpy.run_path(sys.argv.pop(1))
from tunefarm.cli import main
main()
"""
_CLIENT = """
import sys
from pathlib import Path
from tunefarm.proto import convert, records_pb2
from tunefarm.proto.client import FarmClient
job = convert.job_from_wire(records_pb2.Job.FromString(Path(sys.argv[1]).read_bytes()))
with FarmClient.from_rendezvous(Path(sys.argv[2]), connect_s=600.0, patience_s=600.0) as client:
    for update in client.watch(client.submit_job(job).id, wait_s=1.0):
        pass
"""


@dataclass
class Farm:
    """Tracker, worker, a twin of it with another device, tuner, and a client that submits ``job``
    and watches it, by role."""

    folder: Path
    target: str = "sim -failures=10 -trial-ms=10"
    tracker_options: tuple[str, ...] = ("--lease-term-s", "2")
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def database(self) -> Path:
        return self.folder / "farm.db"

    @property
    def rendezvous(self) -> Path:
        return self.folder / "farm.db.tracker.json"

    def start(self, role: str) -> None:
        """Start the process of a role, or start it again."""
        place = ["--rendezvous", str(self.rendezvous)]
        options = list(self.tracker_options)
        if not self.rendezvous.exists():
            options += ["--port", str(own_port())]
        arguments = {
            "tracker": ["tracker", "--db", str(self.database), *place, *options],
            "worker": ["worker", "--target", self.target, "--name", "worker", *place],
            "twin": ["worker", "--target", f"{self.target} -seed=0", "--name", "twin", *place],
            "tuner": ["tuner", *place],
        }
        if role == "client":
            command = ["-c", _CLIENT, str(self.folder / "job"), str(self.rendezvous)]
        else:
            command = ["-c", _COMMAND, str(SKETCH), *arguments[role]]
        home = {"TUNEFARM_HOME": str(self.folder), "OMP_NUM_THREADS": "1"}
        with (self.folder / f"{role}.log").open("ab") as log:
            self.processes[role] = subprocess.Popen(
                [sys.executable, *command], env={**os.environ, **home}, stdout=log, stderr=log
            )
        if role == "tracker":
            self.wait_until(self._answers, "the tracker to answer")

    def _answers(self) -> bool:
        with suppress(FarmError), self.client() as client:
            return client.info().started_at > 0
        return False

    def kill(self, role: str) -> None:
        self.processes[role].send_signal(signal.SIGKILL)
        self.processes[role].wait()

    def client(self) -> FarmClient:
        return FarmClient.from_rendezvous(self.rendezvous, connect_s=30.0)

    def submit(self, job: Job) -> None:
        """Have a client submit the job; it ends when the job is over."""
        from tunefarm.proto import convert

        (self.folder / "job").write_bytes(convert.job_to_wire(job).SerializeToString())
        self.start("client")

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        """What the database answers; nothing before there is one."""
        if not self.database.exists():
            return []
        connection = sqlite3.connect(f"file:{self.database}?mode=ro", uri=True)
        with closing(connection), suppress(sqlite3.OperationalError):
            return connection.execute(query).fetchall()
        return []

    def count_trials(self) -> int:
        return sum(n for (n,) in self.rows("SELECT count(*) FROM trials"))

    def wait_until(self, condition: Callable[[], object], what: str) -> None:
        wait_for(condition, lambda: f"{what}\n{self.logs()}", LIMIT_S)

    def logs(self) -> str:
        """The last lines of every process."""
        texts = [
            (path.name, path.read_text()[-2000:]) for path in sorted(self.folder.glob("*.log"))
        ]
        return "\n".join(f"--- {name}\n{text}" for name, text in texts)

    def close(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait()


@pytest.fixture
def new_farm(tmp_path: Path) -> Iterator[Callable[..., Farm]]:
    """Makes farms, each with a folder of its own; their processes end with the test."""
    farms: list[Farm] = []

    def make(name: str, **fields: Any) -> Farm:
        folder = tmp_path / name
        folder.mkdir()
        farms.append(Farm(folder, **fields))
        return farms[-1]

    yield make
    for farm in farms:
        farm.close()


@pytest.fixture
def sim_job() -> Callable[..., Job]:
    """A job of elementwise tasks of these shapes, the first with weight 1, the next with 2, …"""

    def make(
        name: str, target: str, trials: int, shapes: tuple[tuple[int, ...], ...], **options: str
    ) -> Job:
        records = [_workload(shape) for shape in shapes]
        tasks = tuple(JobTask(record, weight) for weight, record in enumerate(records, 1))
        return Job(name, Target(target).text, tasks, Budget(trials), options)

    return make


def _workload(shape: tuple[int, ...]) -> WorkloadRecord:
    x = Var("x", TensorType(shape, "float32"))
    function = Function((x,), call("relu", x), {"primitive": True, "constants": ()})
    made = Workload.from_function(function)
    return WorkloadRecord(made.key, made.text, made.summary, made.flops)
