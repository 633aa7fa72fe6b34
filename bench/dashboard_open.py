"""What open pages of the dashboard cost a running tune.

python bench/dashboard_open.py [--simulated] [--pairs 12] [--seconds 8] [--save FILE]

A tracker with its dashboard, a worker and a tuner work on a job on this machine. In turn nobody
looks and two pages are open, the overview and the job's: they follow the events and fetch what a
browser would, as its tabs that are hidden and shown again. It prints trials a second of both, the
processor time of the dashboard, of the farm and of those who look, and errors of locks in any log.

The search is random, so that a trial costs the same at all times. --simulated takes a device whose
trials take 50 ms each, whatever else runs: what the dashboard adds to what is between them is all
that can differ. --save FILE keeps the pairs there, and prints what those of all runs come to.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import re
import socket
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit

import psutil
from dashboard_farm import Farm, farm
from scipy.stats import t as student

CHARTS_S = 10.0
"""How often a page fetches its charts and tables (``SLOW_MS`` of ``live.js``)."""
CHARTS = ("best-so-far", "points", "roofline")
LOCKED = re.compile(r"locked|timed out waiting|deadlock", re.I)
MARK = re.compile(rb'data-seen="([^"]*)"')


class Tab:
    """A page in a browser, which follows its events while it is shown."""

    def __init__(self, address: str, page: str, live: str, charts: list[str]) -> None:
        self._host = urlsplit(address).netloc
        self._page, self._live, self._charts = page, live, charts
        self._newest = dict.fromkeys(charts, (0, 0))
        self._shown_s = self._slow_at = 0.0
        self.answers = 0
        self._stream = HTTPConnection(self._host, timeout=30)
        found = MARK.search(self._get(page))
        self._seen = found[1].decode() if found else ""
        self._get_charts()

    def _get(self, path: str) -> bytes:
        wire = HTTPConnection(self._host, timeout=30)
        wire.request("GET", path)
        answer = wire.getresponse()
        body = answer.read()
        wire.close()
        if answer.status != 200:
            raise RuntimeError(f"{path} answered {answer.status}")
        self.answers += 1
        return body

    def _get_charts(self) -> None:
        """What came since for those that grow, as ``charts.js`` asks."""
        for path in self._charts:
            after, step = self._newest[path]
            data = json.loads(self._get(f"{path}?after={after}&step={step}" if after else path))
            ids = data["columns"].get("id") or [after]
            self._newest[path] = (ids[-1], data["notes"].get("step", 0))
        if self._charts:
            self._get(f"{self._page}?part=tables")

    def hide(self) -> None:
        """End ``show``."""
        if self._stream.sock is not None:
            self._stream.sock.shutdown(socket.SHUT_RDWR)

    def show(self) -> None:
        """Follow the page until it is hidden."""
        began = time.monotonic() - self._shown_s
        self._stream = HTTPConnection(self._host, timeout=30)
        self._stream.request("GET", f"{self._live}?seen={self._seen}")
        events = self._stream.getresponse()
        while read := events.readline():
            line = read.decode().strip()
            if line.startswith("id: "):
                self._seen = line[4:]
            if line != "event: change":
                continue
            self._get(f"{self._page}?part=now")
            self._shown_s = time.monotonic() - began
            if self._shown_s - self._slow_at >= CHARTS_S:
                self._get_charts()
                self._slow_at = self._shown_s
        self._shown_s = time.monotonic() - began
        self._stream.close()


@contextmanager
def shown(tabs: list[Tab]) -> Iterator[None]:
    viewers = [threading.Thread(target=tab.show, daemon=True) for tab in tabs]
    for viewer in viewers:
        viewer.start()
    try:
        yield
    finally:
        for tab, viewer in zip(tabs, viewers, strict=True):
            tab.hide()
            viewer.join()


@dataclass(frozen=True)
class Window:
    """Some seconds of a tune: trials, and processor time of those who took part."""

    seconds: float
    trials: int
    trials_s: float
    dashboard_s: float
    farm_s: float
    viewers_s: float

    @property
    def rate(self) -> float:
        """Trials a second, from the end of one to the end of another."""
        return self.trials / self.trials_s

    def share(self, used_s: float) -> float:
        return 100 * used_s / self.seconds


def used_s(processes: list[psutil.Process]) -> float:
    """Processor time of the processes, and of those that they started and that have ended."""
    total = 0.0
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            total += sum(process.cpu_times()[:4])
    return total


def measure(tune: Farm, dashboard: psutil.Process, seconds: float) -> Window:
    def now() -> tuple[float, ...]:
        others = [one for one in tune.processes() if one.pid != dashboard.pid]
        used = used_s([dashboard]), used_s(others), time.process_time()
        return time.monotonic(), *tune.progress(), *used

    before = now()
    time.sleep(seconds)
    tune.check()
    spent = [after - first for after, first in zip(now(), before, strict=True)]
    return Window(spent[0], int(spent[1]), *spent[2:])


Pair = tuple[Window, Window]
"""Alone, and looked at."""


def pairs_of(tune: Farm, count: int, seconds: float) -> list[Pair]:
    """Pairs of windows beside each other, either first by chance."""
    chance = random.Random(0)
    dashboard = tune.dashboard()
    tabs = [
        Tab(tune.address, "/", "/live/overview", []),
        Tab(tune.address, f"/jobs/{tune.job}", f"/live/jobs/{tune.job}",
            [f"/api/v1/jobs/{tune.job}/{name}" for name in CHARTS]),
    ]  # fmt: skip
    made = []
    for _ in range(count):
        found = {}
        for is_open in chance.sample((False, True), 2):
            if is_open:
                with shown(tabs):
                    found[True] = measure(tune, dashboard, seconds)
                time.sleep(1.0)  # what was asked for last is answered
            else:
                found[False] = measure(tune, dashboard, seconds)
        made.append((found[False], found[True]))
        print(f"{found[False].rate:8.2f} {found[True].rate:8.2f} trials a second", flush=True)
    print(f"{sum(tab.answers for tab in tabs)} answers to the pages")
    return made


def tell(pairs: list[Pair]) -> None:
    """What the pairs come to: the mean with its 95% confidence interval."""
    logs = [math.log(looked_at.rate / alone.rate) for alone, looked_at in pairs]
    middle = statistics.fmean(logs)
    off = 0.0
    if len(logs) > 1:
        off = student.ppf(0.975, len(logs) - 1) * statistics.stdev(logs) / math.sqrt(len(logs))
    low, high = (100 * -math.expm1(middle + sign * off) for sign in (1, -1))
    print(f"with pages open {100 * -math.expm1(middle):.2f}% fewer trials a second, 95% sure "
          f"{low:.2f} to {high:.2f}% ({len(pairs)} pairs)")  # fmt: skip
    for name, index in (("nobody looks", 0), ("pages open", 1)):
        windows = [pair[index] for pair in pairs]
        whole = [statistics.fmean(each) for each in zip(*(
            (w.share(w.dashboard_s), w.share(w.viewers_s), 1e3 * w.farm_s / w.trials)
            for w in windows
        ), strict=True)]  # fmt: skip
        print(f"{name:>12}: dashboard {whole[0]:.2f}% of a core, who looks {whole[1]:.2f}%, the "
              f"farm {whole[2]:.1f} ms of a processor a trial")  # fmt: skip


def kept(path: Path | None, pairs: list[Pair]) -> list[Pair]:
    """The pairs with those of earlier runs in the file."""
    if path is None:
        return pairs
    with path.open("a") as file:
        for pair in pairs:
            file.write(json.dumps([asdict(window) for window in pair]) + "\n")
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return [(Window(**alone), Window(**looked_at)) for alone, looked_at in rows]


def run(folder: Path, options: argparse.Namespace) -> bool:
    """Print what was measured; whether no log tells of a lock."""
    with farm(folder, is_simulated=options.simulated) as tune:
        made = pairs_of(tune, options.pairs, options.seconds)
    tell(kept(options.save, made))
    lines = [line for log in folder.glob("*.log") for line in log.read_text().splitlines()]
    locks = [line for line in lines if LOCKED.search(line)]
    print(f"{len(locks)} errors of locks", *locks[:5], sep="\n  ")
    return not locks


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--simulated", action="store_true")
    parser.add_argument("--pairs", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--save", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        sys.exit(0 if run(Path(folder), options) else 1)


if __name__ == "__main__":
    main()
