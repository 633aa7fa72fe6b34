"""A farm of real processes and what troubles them, on SQLite with one tracker or on PostgreSQL with
two."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from psycopg import OperationalError, connect
from sqlalchemy import text
from tunefarm.db.dialect import driver_place, parse_url, reader_engine
from tunefarm.proto.client import FarmClient
from tunefarm.proto.errors import FarmError
from tunefarm.proto.rendezvous import read_rendezvous, write_rendezvous

from tests.system.disks import full
from tests.system.wire import Wire

LIMIT_S = 180.0
TERM_S = 3.0
TARGET = "sim -failures=10 -trial-ms=10"
SKETCH = Path(__file__).parents[1] / "tuner" / "sim_sketch.py"
PROBES = ("anna", "bert", "cleo")
HELPERS = ("left", "right", "tuner", "twin")

# The wall clock of a process goes as far ahead as a file says. Its monotonic clock is left alone:
# that is what the system promises.
_CLOCK = """
import sys, time
from pathlib import Path
def _skewed(real=time.time, file=Path(sys.argv.pop(1))):
    try:
        return real() + float(file.read_text() or 0)
    except (OSError, ValueError):
        return real()
time.time = _skewed
"""
_COMMAND = f"""{_CLOCK}
import runpy
runpy.run_path(sys.argv.pop(1))
from tunefarm.cli import main
main()
"""
# A client that leases devices, measures on them, and now and then goes silent and wakes up late.
# Each line that it writes is something that it was told, with when it asked and when it knew.
_PROBE = f"""{_CLOCK}
import json, random, uuid
from tunefarm.db.records import DeviceRequest, TaskKey, TrialRequest
from tunefarm.proto.client import FarmClient
from tunefarm.proto.errors import FarmError, LeaseLost
file, name, target, workload, out = sys.argv[1:]
text = Path(workload).read_text()
key = Path(workload).stem
dice = random.Random(name)
told = open(out, "a", buffering=1)
number = 0

def note(what, asked, **fields):
    line = dict(what=what, asked=asked, known=time.monotonic(), **fields)
    told.write(json.dumps(line) + chr(10))

def submit(client, lease, count):
    global number
    numbers = list(range(number, number + count))
    number += count
    requests = [
        TrialRequest("probe-" + name, TaskKey(key, target), n, {{"sketch": "sim", "n": n}}, text)
        for n in numbers
    ]
    asked = time.monotonic()
    try:
        client.submit(lease, requests)
    except LeaseLost:
        note("refused", asked, lease=lease.id, epoch=lease.epoch, device=lease.device)
        return False
    note("submitted", asked, lease=lease.id, epoch=lease.epoch, device=lease.device,
         numbers=numbers)
    return True

def hold(client, lease, asked):
    note("granted", asked, lease=lease.id, epoch=lease.epoch, device=lease.device,
         term_s=lease.term_s)
    cursor, until = 0, time.monotonic() + dice.uniform(0.3, 4.0)
    while time.monotonic() < until:
        if not submit(client, lease, dice.randint(1, 3)):
            return
        time.sleep(dice.uniform(0.05, 0.4))
        asked = time.monotonic()
        lease = client.renew(lease)
        note("renewed", asked, lease=lease.id)
        found = client.collect("probe-" + name, cursor)
        cursor = found.cursor
        for trial in found.trials:
            note("collected", asked, number=trial.number, times=trial.times_s)
    if dice.random() < 0.4:  # asleep for longer than its term, then it goes on as if awake
        time.sleep(lease.term_s * dice.uniform(0.9, 2.5))
        submit(client, lease, 1)
        return
    asked = time.monotonic()
    note("releasing", asked, lease=lease.id)
    client.release(lease)

with FarmClient.from_rendezvous(Path(file), connect_s=600.0, patience_s=20.0) as client:
    while True:
        request_id, asked = uuid.uuid4().hex, time.monotonic()
        try:
            lease = client.acquire(
                DeviceRequest(target), client=name, request_id=request_id, wait_s=2.0
            )
            if lease is not None:
                hold(client, lease, asked)
        except LeaseLost:
            pass
        except FarmError as error:
            note("failed", asked, error=str(error))
            time.sleep(0.3)
"""


@dataclass
class Storm:
    """The processes of a farm, what troubles them, and how often each trouble came.

    Everybody comes to the trackers through proxies, some to one and some to another.
    """

    folder: Path
    workload: Path
    dice: random.Random
    trackers: tuple[str, ...] = ("tracker",)
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    faults: Counter[str] = field(default_factory=Counter)
    wires: dict[str, Wire] = field(init=False)

    def __post_init__(self) -> None:
        self.wires = {name: Wire(self._port_of(name)) for name in self.trackers}

    @property
    def database(self) -> str:
        raise NotImplementedError

    @property
    def servers(self) -> tuple[str, ...]:
        return (*self.trackers, *HELPERS)

    @property
    def through(self) -> Path:
        """The file by which one comes to the first tracker, through its proxy."""
        return self._proxy(self.trackers[0])

    def _own(self, tracker: str) -> Path:
        """The file that the tracker writes."""
        return self.folder / f"{tracker}.json"

    def _proxy(self, tracker: str) -> Path:
        """The file by which others come, through the proxy."""
        return self.folder / f"{tracker}.proxy.json"

    def _port_of(self, tracker: str) -> Callable[[], int]:
        return lambda: read_rendezvous(self._own(tracker)).port

    def start(self, role: str) -> None:
        others = (*HELPERS, *PROBES)
        number = others.index(role) if role in others else 0
        proxy = self._proxy(self.trackers[number % len(self.trackers)])
        place = ["--rendezvous", str(proxy)]
        arguments = {
            "left": ["worker", "--name", "left", "--target", TARGET, "--target", TARGET, *place],
            "right": ["worker", "--name", "right", "--target", f"{TARGET} -seed=0", *place],
            "tuner": ["tuner", *place],
            "twin": ["tuner", *place],
        }
        for tracker in self.trackers:
            arguments[tracker] = [
                "tracker", "--db", self.database, "--rendezvous", str(self._own(tracker)),
                "--lease-term-s", str(TERM_S), "--idle-trials", "0",
            ]  # fmt: skip
        clock = str(self.folder / f"{role}.clock")
        if role in arguments:
            command = ["-c", _COMMAND, clock, str(SKETCH), *arguments[role]]
        else:
            out = self.folder / f"{role}.history"
            command = ["-c", _PROBE, clock, *map(str, [proxy, role, TARGET, self.workload, out])]
        home = {"TUNEFARM_HOME": str(self.folder), "OMP_NUM_THREADS": "1"}
        with (self.folder / f"{role}.log").open("ab") as log:
            self.processes[role] = subprocess.Popen(
                [sys.executable, *command], env={**os.environ, **home}, stdout=log, stderr=log
            )

    def begin(self) -> None:
        for tracker in self.trackers:
            self.start(tracker)
            own = self._own(tracker)
            wait_for(lambda own=own: self._answers(own), self)
            found = replace(read_rendezvous(own), address=self.wires[tracker].place, pid=0)
            write_rendezvous(self._proxy(tracker), found)
        for role in (*HELPERS, *PROBES):
            self.start(role)

    def _answers(self, file: Path) -> bool:
        with suppress(FarmError), FarmClient.from_rendezvous(file) as client:
            return client.info().started_at > 0
        return False

    def revive(self) -> None:
        """Start what has ended."""
        for role, process in list(self.processes.items()):
            if process.poll() is not None:
                self.start(role)

    def close(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait()
        for wire in self.wires.values():
            wire.close()

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        engine = reader_engine(parse_url(self.database))
        try:
            with engine.connect() as connection:
                return [tuple(row) for row in connection.execute(text(query))]
        finally:
            engine.dispose()

    def logs(self) -> str:
        found = sorted(self.folder.glob("*.log"))
        return "\n".join(f"--- {path.name}\n{path.read_text()[-3000:]}" for path in found)

    # --- troubles -------------------------------------------------------------------------------

    def kinds(self) -> dict[str, Callable[[], None]]:
        return {
            "SIGKILL": self._kill, "SIGSTOP": self._freeze, "dropped": self._drop,
            "delayed": self._delay, "half-open": self._half_open, "clock": self._jump,
        }  # fmt: skip

    def trouble(self) -> None:
        """One or two troubles at a time, begun and ended."""
        kinds = self.kinds()
        chosen = self.dice.sample(sorted(kinds), self.dice.randint(1, 2))
        with ThreadPoolExecutor(len(chosen)) as pool:
            acts = [pool.submit(kinds[name]) for name in chosen]
        for act in acts:
            act.result()
        self.faults.update(chosen)
        self.revive()

    def _kill(self) -> None:
        roles = (*self.servers, *self.trackers, *PROBES)
        for role in self.dice.sample(roles, self.dice.randint(1, 2)):
            self.processes[role].kill()
            self.processes[role].wait()
        time.sleep(self.dice.choice((0.0, 0.0, 0.5, TERM_S)))

    def _freeze(self) -> None:
        role = self.dice.choice((*self.servers, *PROBES))
        self.processes[role].send_signal(signal.SIGSTOP)
        time.sleep(self.dice.uniform(0.2, 2.5) * TERM_S)
        self.processes[role].send_signal(signal.SIGCONT)

    def _wire(self) -> Wire:
        return self.wires[self.dice.choice(self.trackers)]

    def _drop(self) -> None:
        wire = self._wire()
        wire.refuses = True
        wire.cut()
        time.sleep(self.dice.choice((0.0, 0.5, 1.5)) * TERM_S)
        wire.refuses = False

    def _delay(self) -> None:
        wire = self._wire()
        wire.delay_s = self.dice.uniform(0.05, 1.0)
        time.sleep(self.dice.uniform(0.5, 2.0) * TERM_S)
        wire.delay_s = 0.0

    def _half_open(self) -> None:
        self._wire().half_open()
        time.sleep(self.dice.uniform(0.0, 2.0) * TERM_S)

    def _jump(self) -> None:
        role = self.dice.choice((*self.servers, *PROBES))
        self._set_clock(role, self.dice.choice((-86400, -60, -5, 5, 60, 86400)))
        time.sleep(self.dice.uniform(0.2, 1.5) * TERM_S)
        if self.dice.random() < 0.5:
            self._set_clock(role, 0)

    def _set_clock(self, role: str, ahead_s: float) -> None:
        (self.folder / f"{role}.clock").write_text(str(ahead_s))


@dataclass
class SqliteStorm(Storm):
    """One tracker, on a disk that is full at times."""

    disk: Path = Path()

    @property
    def database(self) -> str:
        return str(self.disk / "farm.db")

    def kinds(self) -> dict[str, Callable[[], None]]:
        return super().kinds() | {"disk": self._fill}

    def _fill(self) -> None:
        """The disk has no room for the tracker's database for a while."""
        with full(self.disk, self.processes["tracker"].pid):
            time.sleep(self.dice.uniform(0.3, 1.5) * TERM_S)


_SKEW = """
CREATE TABLE skew AS SELECT 0.0::float AS seconds;
CREATE FUNCTION clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE AS
'SELECT pg_catalog.clock_timestamp() + make_interval(secs => (SELECT seconds FROM skew))';
"""


@dataclass
class PostgresStorm(Storm):
    """Two trackers on a ``server`` that is killed at times, and whose clock jumps."""

    trackers: tuple[str, ...] = ("tracker", "other")
    server: Any = None

    @property
    def database(self) -> str:
        return str(self.server.url("latest"))

    def begin(self) -> None:
        """Begin, with a clock of the database that goes as far ahead as a row says."""
        self.server.run("ALTER DATABASE latest SET search_path = public, pg_catalog")
        self._do(_SKEW)
        super().begin()

    def kinds(self) -> dict[str, Callable[[], None]]:
        return super().kinds() | {"server": self._kill_server, "server's clock": self._jump_there}

    def revive(self) -> None:
        self.server.start()
        super().revive()

    def _kill_server(self) -> None:
        self.server.kill()
        time.sleep(self.dice.choice((0.0, 0.5, TERM_S)))

    def _jump_there(self) -> None:
        """The database's clock is set, for good or for a while; not while its server is dead."""
        with suppress(OperationalError):
            self._do(f"UPDATE skew SET seconds = {self.dice.choice((-86400, -60, 60, 86400))}")
            time.sleep(self.dice.uniform(0.2, 1.5) * TERM_S)
            if self.dice.random() < 0.5:
                self._do("UPDATE skew SET seconds = 0")

    def _do(self, statements: str) -> None:
        with connect(driver_place(self.database), autocommit=True) as connection:
            connection.execute(statements)


def wait_for(condition: Callable[[], object], storm: Storm) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline, storm.logs()
        time.sleep(0.05)
