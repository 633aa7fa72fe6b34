"""What open pages of the dashboard cost a running tune.

python bench/dashboard_open.py [--pairs 4] [--seconds 30]

A tracker with its dashboard, a worker and a tuner work on a job on this machine. In turn nobody
looks and two pages are open, the overview and the job's: they follow the events and fetch what a
browser would. It prints trials a second of both, the processor time that the dashboard took, and
errors of locks in any log.
"""

from __future__ import annotations

import argparse
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

import httpx
import numpy as np
import onnx
import psutil
from onnx import TensorProto, helper, numpy_helper
from tunefarm.db.store import Store

PART_S = {"/": 5.0, "/jobs": 3.0}
"""How often a page fetches its changing part at most (``hx-trigger`` in its template)."""
CHARTS_S = 10.0
CHARTS = ("best-so-far", "points", "roofline")
PRODUCTS = 24
START_S, END_S = 300.0, 60.0
"""How long the farm may take to be at work, and a process to end."""
T = TypeVar("T")
LOCKED = re.compile(r"locked|timed out waiting|deadlock", re.I)


def model(path: Path) -> Path:
    """Products of different sizes: more tasks than run out of patience meanwhile."""
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


@contextmanager
def farm(folder: Path) -> Iterator[tuple[str, str, list[Role]]]:
    """A farm at work on a job: the address of its dashboard, the job, and its processes."""
    place = folder / "tracker.json"
    command = [sys.executable, "-m", "tunefarm"]
    roles = {
        "tracker": ["--db", str(folder / "farm.db"), "--dashboard-port", "0"],
        "worker": ["--max-drift", "0"],
        "tuner": [],
    }
    with ExitStack() as ends:
        running = []
        for name, options in roles.items():
            log = ends.enter_context((folder / f"{name}.log").open("w"))
            words = [*command, name, *options, "--rendezvous", str(place)]
            process = subprocess.Popen(words, stdout=log, stderr=log)
            ends.callback(end, process)
            running.append(Role(name, process, folder / f"{name}.log"))
            within(START_S, running, place.exists)
        address = within(START_S, running, lambda: told(folder, r"dashboard at (\S+)/"))
        net = model(folder / "net.onnx")
        words = [*command, "submit", str(net), "--trials", "100000", "--tracker", str(place)]
        job = subprocess.run(words, check=True, capture_output=True, text=True).stdout.split()[-1]
        within(START_S, running, lambda: trials(folder) >= 50)
        yield address, job, running


@dataclass(frozen=True)
class Role:
    """A process of the farm, and what it told."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path


def check(running: list[Role]) -> None:
    """End this program, and say why, if a process of the farm has ended by itself."""
    for role in running:
        if role.process.poll() is not None:
            last = role.log.read_text().splitlines()[-5:]
            sys.exit("\n".join([f"the {role.name} ended by itself:", *last]))


def within(seconds: float, running: list[Role], condition: Callable[[], T]) -> T:
    """What the condition comes to once it is true; the program ends if that takes too long."""
    deadline = time.monotonic() + seconds
    while True:
        check(running)
        found = condition()
        if found:
            return found
        if time.monotonic() > deadline:
            sys.exit(f"the farm was not ready within {seconds:.0f} s")
        time.sleep(0.2)


def end(process: subprocess.Popen[bytes]) -> None:
    """End a process, gently at first."""
    process.terminate()
    try:
        process.wait(END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def told(folder: Path, pattern: str) -> str:
    """What the tracker told in this way; empty if it has not yet."""
    found = re.search(pattern, (folder / "tracker.log").read_text())
    return found[1] if found else ""


def trials(folder: Path) -> int:
    with Store.open(str(folder / "farm.db"), readonly=True) as store:
        return store.count_trials()


@contextmanager
def opened(address: str, job: str) -> Iterator[None]:
    """The two pages, as a browser has them open."""
    over = threading.Event()
    charts = [f"/api/v1/jobs/{job}/{name}" for name in CHARTS]
    pages = (("/", "/live/overview", []), (f"/jobs/{job}", f"/live/jobs/{job}", charts))
    viewers = [threading.Thread(target=view, args=(address, *page, over)) for page in pages]
    for viewer in viewers:
        viewer.start()
    try:
        yield
    finally:
        over.set()
        for viewer in viewers:
            viewer.join()


def view(address: str, page: str, live: str, charts: list[str], over: threading.Event) -> None:
    """Follow the events of a page until it is closed."""
    part_s = PART_S["/jobs" if page.startswith("/jobs") else page]
    part_at = charts_at = 0.0
    with httpx.Client(base_url=address, timeout=30) as client:
        for path in (page, *charts):
            client.get(path).raise_for_status()
        with client.stream("GET", live) as events:
            for line in events.iter_lines():
                if over.is_set():
                    return
                now = time.monotonic()
                if line == "event: change" and now - part_at >= part_s:
                    client.get(page, params={"part": "now"}).raise_for_status()
                    part_at = now
                if charts and line == "event: change" and now - charts_at >= CHARTS_S:
                    for path in charts:
                        client.get(path).raise_for_status()
                    charts_at = now


def measure(folder: Path, seconds: float, running: list[Role]) -> float:
    """Trials a second."""
    before, start = trials(folder), time.monotonic()
    time.sleep(seconds)
    check(running)
    return (trials(folder) - before) / (time.monotonic() - start)


def served(address: str) -> psutil.Process:
    """The process of the dashboard."""
    port = int(address.rpartition(":")[2])
    for process in psutil.Process().children(recursive=True):
        if "tunefarm.dashboard.beside" in process.cmdline():
            assert any(c.laddr.port == port for c in process.net_connections())
            return process
    raise AssertionError("no dashboard")


def run(folder: Path, pairs: int, seconds: float) -> bool:
    """Print what was measured; whether no log tells of a lock."""
    alone, looked_at, used_s = [], [], 0.0
    with farm(folder) as (address, job, running):
        process = served(address)
        for _ in range(pairs):
            alone.append(measure(folder, seconds, running))
            before = sum(process.cpu_times()[:2])
            with opened(address, job):
                looked_at.append(measure(folder, seconds, running))
            used_s += sum(process.cpu_times()[:2]) - before
            print(f"{alone[-1]:8.1f} {looked_at[-1]:8.1f} trials a second", flush=True)
    ratio = statistics.median(b / a for a, b in zip(alone, looked_at, strict=True))
    share = used_s / (pairs * seconds)
    print(f"with pages open {100 * (1 - ratio):.1f}% fewer trials (median of {pairs} pairs); the "
          f"dashboard took {100 * share:.1f}% of a core")  # fmt: skip
    lines = [line for log in folder.glob("*.log") for line in log.read_text().splitlines()]
    locks = [line for line in lines if LOCKED.search(line)]
    print(f"{len(locks)} errors of locks", *locks[:5], sep="\n  ")
    return not locks


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=30.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        sys.exit(0 if run(Path(folder), options.pairs, options.seconds) else 1)


if __name__ == "__main__":
    main()
