"""How long pages of the dashboard take over a large database.

python bench/dashboard.py [FILE] [--requests 20]

FILE is made by bench/dashboard_data.py; without it a million trials are made first. Every page is
asked for over HTTP from a server process of its own, each time about other rows; it prints median
and 95th percentile in milliseconds, and ends with 1 if one of the latter is above 300. The last
column is what a request takes of a processor, which means something on a busy machine too.
"""

from __future__ import annotations

import argparse
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import psutil
from dashboard_data import fill

LIMIT_MS = 300.0
Choice = Callable[[random.Random], str]


def pages(client: httpx.Client) -> dict[str, Choice]:
    """What is asked for, by name: an address of a row chosen at random."""
    jobs = [row["id"] for row in client.get("/api/v1/jobs?limit=500").json()["rows"]]
    tasks = [
        f"{row['workload'][:16]}/{row['target_id']}"
        for row in client.get("/api/v1/tasks?limit=500").json()["rows"]
    ]
    models = [
        f"{row['digest']}/{row['target_id']}"
        for row in client.get("/api/v1/models?limit=200").json()["rows"]
    ]
    devices = [row["id"] for row in client.get("/api/v1/devices").json()]
    cursors = [f"{time.time() - 86400 * day!r}~~" for day in range(1, 360)]
    largest, newest = jobs[0], client.get("/api/v1/trials?limit=1").json()["rows"][0]["id"]
    return {
        "/": lambda r: "/",
        "/jobs": lambda r: f"/jobs?cursor={r.choice(cursors)}",
        "/jobs, searched": lambda r: f"/jobs?q=matmul {8 * r.randrange(1, 20)}x",
        "/jobs/ID": lambda r: f"/jobs/{r.choice(jobs[1:])}",
        "/jobs/ID, the largest": lambda r: f"/jobs/{largest}",
        "/jobs/curves": lambda r: f"/jobs/curves?job={'&job='.join(r.sample(jobs, 8))}",
        "/jobs/curves, with the largest": lambda r: (
            f"/jobs/curves?job={largest}&job={r.choice(jobs[1:])}"
        ),
        "best-so-far, the largest": lambda r: f"/api/v1/jobs/{largest}/best-so-far",
        "points, the largest": lambda r: f"/api/v1/jobs/{largest}/points",
        "/models": lambda r: f"/models?cursor={time.time() - 86400 * r.randrange(360)!r}~~0",
        "/models, searched": lambda r: f"/models?q=net-{r.randrange(900)}",
        "/models/ID": lambda r: f"/models/{r.choice(models[1:])}",
        "/models/ID, the largest": lambda r: f"/models/{models[0]}",
        "its tasks": lambda r: f"/api/v1/models/{r.choice(models)}/tasks",
        "its roofline": lambda r: f"/api/v1/models/{r.choice(models)}/roofline",
        "/trials": lambda r: f"/trials?cursor={r.randrange(newest)}",
        "/trials, searched": lambda r: f"/trials?q=mb&outcome=ok&cursor={r.randrange(newest)}",
        "/trials, found nowhere": lambda r: f"/trials?q=nowhere&cursor={r.randrange(newest)}",
        "/trials/ID": lambda r: f"/trials/{r.randrange(1, newest)}",
        "/tasks": lambda r: f"/tasks?cursor={r.randrange(1, 400)}~1",
        "/tasks, searched": lambda r: f"/tasks?q=matmul {8 * r.randrange(1, 20)}x",
        "/tasks/KEY/TARGET": lambda r: f"/tasks/{r.choice(tasks)}",
        "its history": lambda r: f"/api/v1/tasks/{r.choice(tasks)}/history",
        "/compare/KEY": lambda r: f"/compare/{r.choice(tasks).partition('/')[0]}",
        "/devices": lambda r: "/devices",
        "/devices, 7 days": lambda r: "/devices?hours=168",
        "/devices/ID": lambda r: f"/devices/{r.choice(devices)}",
        "its drift": lambda r: f"/api/v1/devices/{r.choice(devices)}/drift",
        "/failures": lambda r: f"/failures?cursor={r.randrange(newest)}",
    }


def measure(
    client: httpx.Client, server: psutil.Process, choose: Choice, requests: int
) -> tuple[float, float, float]:
    """Median, 95th percentile and mean processor time of the requests in milliseconds."""
    chance = random.Random(0)
    before = sum(server.cpu_times()[:2])
    taken = []
    for _ in range(requests):
        path = choose(chance)
        start = time.perf_counter()
        client.get(path).raise_for_status()
        taken.append(1e3 * (time.perf_counter() - start))
    used = 1e3 * (sum(server.cpu_times()[:2]) - before) / requests
    taken.sort()
    return statistics.median(taken), taken[min(len(taken) - 1, int(0.95 * len(taken)))], used


def run(file: Path, requests: int) -> bool:
    """Print a line a page; whether all are below the limit."""
    command = [sys.executable, "-m", "tunefarm", "dashboard", "--db", str(file), "--port", "0"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        address = server.stdout.readline().split()[2]
        slow = []
        with httpx.Client(base_url=address, timeout=60) as client:
            process = psutil.Process(server.pid)
            print(f"{'page':28}{'median':>10}{'p95':>10}{'cpu':>10}   ms")
            for name, choose in pages(client).items():
                middle, high, used = measure(client, process, choose, requests)
                slow += [name] if high > LIMIT_MS else []
                print(f"{name:28}{middle:10.1f}{high:10.1f}{used:10.1f}", flush=True)
        print(f"above {LIMIT_MS:.0f} ms: {', '.join(slow) or 'none'}")
        return not slow
    finally:
        server.terminate()
        server.wait(20)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path, nargs="?")
    parser.add_argument("--requests", type=int, default=20)
    options = parser.parse_args()
    if options.file is not None:
        sys.exit(0 if run(options.file, options.requests) else 1)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "large.db"
        fill(file, 1_000_000, 10_000)
        sys.exit(0 if run(file, options.requests) else 1)


if __name__ == "__main__":
    main()
