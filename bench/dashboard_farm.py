"""A farm at work on a long job, with a dashboard: what ``dashboard_open.py`` looks at."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

import numpy as np
import onnx
import psutil
from onnx import TensorProto, helper, numpy_helper
from sqlalchemy import func, select
from tunefarm.compiler.target import Target
from tunefarm.db.models import TRIALS
from tunefarm.db.records import Budget, Job, JobTask, WorkloadRecord
from tunefarm.db.store import Store
from tunefarm.proto.client import FarmClient

import tunefarm

PRODUCTS = 8
SIMULATED = "sim -failures=2 -trial-ms=50"
SKETCH = Path(__file__).parents[1] / "tests" / "tuner" / "sim_sketch.py"
"""What the simulated device knows to schedule."""
COMMAND = """
import runpy, sys
runpy.run_path(sys.argv.pop(1))
from tunefarm.cli import main
main()
"""
READY_TRIALS = 50
START_S, END_S = 300.0, 60.0
"""How long the farm may take to be at work, and a process to end."""
T = TypeVar("T")


def model(path: Path) -> Path:
    """Products of different sizes."""
    sizes = list(pairwise(range(64, 64 + 16 * (PRODUCTS + 1), 16)))
    nodes = [helper.make_node("MatMul", [f"x{i}", f"w{i}"], [f"x{i + 1}"]) for i in range(PRODUCTS)]
    weights = [numpy_helper.from_array(np.ones(s, "float32"), f"w{i}") for i, s in enumerate(sizes)]
    graph = helper.make_graph(
        nodes, "net",
        [helper.make_tensor_value_info("x0", TensorProto.FLOAT, [64, 64])],
        [helper.make_tensor_value_info(f"x{PRODUCTS}", TensorProto.FLOAT, None)],
        weights,
    )  # fmt: skip
    opset = [helper.make_opsetid("", 18)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=10), path)
    return path


def job_of(path: Path, target: str) -> Job:
    """A job that never ends, as no task runs out of patience, and whose trials cost the same at all
    times, as the search does not learn."""
    tasks = tunefarm.extract_tasks(tunefarm.from_onnx(path), target)
    records = [
        JobTask(WorkloadRecord(w.key, w.text, w.summary, w.flops), task.weight)
        for task in tasks
        for w in [task.workload]
    ]
    options = {"patience": "0", "strategy": "random"}
    return Job("", target, tuple(records), Budget(1_000_000), options, model_name="net")


@dataclass(frozen=True)
class Role:
    """A process of the farm, and what it told."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path


@dataclass(frozen=True)
class Farm:
    """A farm at work: the address of its dashboard, the job, and its processes."""

    folder: Path
    roles: list[Role]
    address: str = ""
    job: str = ""

    def check(self) -> None:
        """End this program, and say why, if a process of the farm has ended by itself."""
        for role in self.roles:
            if role.process.poll() is not None:
                last = role.log.read_text().splitlines()[-5:]
                sys.exit("\n".join([f"the {role.name} ended by itself:", *last]))

    def within(self, seconds: float, condition: Callable[[], T]) -> T:
        """What the condition comes to once it is true; the program ends if that takes too long."""
        deadline = time.monotonic() + seconds
        while True:
            self.check()
            found = condition()
            if found:
                return found
            if time.monotonic() > deadline:
                sys.exit(f"the farm was not ready within {seconds:.0f} s")
            time.sleep(0.2)

    def told(self, pattern: str) -> str:
        """What the tracker told in this way; empty if it has not yet."""
        found = re.search(pattern, (self.folder / "tracker.log").read_text())
        return found[1] if found else ""

    def progress(self) -> tuple[int, float]:
        """How many trials are stored, and when the last of them ended."""
        query = select(func.count(), func.max(TRIALS.c.created_at))
        file = str(self.folder / "farm.db")
        with Store.open(file, readonly=True) as store, store.reading() as connection:
            count, last = connection.execute(query).one()
        return count, last or 0.0

    def processes(self) -> list[psutil.Process]:
        """All of them, with those that they started."""
        found = []
        for role in self.roles:
            with suppress(psutil.NoSuchProcess):
                own = psutil.Process(role.process.pid)
                found += [own, *own.children(recursive=True)]
        return found

    def dashboard(self) -> psutil.Process:
        """The process of the dashboard."""
        (found,) = (p for p in self.processes() if "tunefarm.dashboard.beside" in p.cmdline())
        return found


@contextmanager
def farm(folder: Path, *, is_simulated: bool) -> Iterator[Farm]:
    """A farm that has stored its first trials."""
    place = folder / "tracker.json"
    target = SIMULATED if is_simulated else Target.host().text
    device = ["--target", target] if is_simulated else ["--max-drift", "0"]
    commands = {
        "tracker": ["--db", str(folder / "farm.db"), "--dashboard-port", "0"],
        "worker": device,
        "tuner": [],
    }
    made = Farm(folder, [])
    with ExitStack() as ends:
        for name, options in commands.items():
            log = folder / f"{name}.log"
            words = [sys.executable, "-c", COMMAND, str(SKETCH), name, *options]
            with log.open("wb") as file:
                process = subprocess.Popen(
                    [*words, "--rendezvous", str(place)], stdout=file, stderr=file
                )
            ends.callback(end, process)
            made.roles.append(Role(name, process, log))
            made.within(START_S, place.exists)
        address = made.within(START_S, lambda: made.told(r"dashboard at (\S+)/"))
        with FarmClient.from_rendezvous(place, connect_s=30.0) as client:
            job = client.submit_job(job_of(model(folder / "net.onnx"), Target(target).text)).id
        made.within(START_S, lambda: made.progress()[0] >= READY_TRIALS)
        yield Farm(folder, made.roles, address, job)


def end(process: subprocess.Popen[bytes]) -> None:
    """End a process, gently at first."""
    process.terminate()
    try:
        process.wait(END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
