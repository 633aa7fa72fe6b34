"""A farm in a storm: its processes are killed and frozen, its connections cut, delayed and left
half open, its clocks jump and its disk fills, while clients write down what they were promised.

Afterwards the history is checked: no device had two leases, no write of a lease that was over was
taken, and what was acknowledged is in the database, once.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import resource
import signal
import sqlite3
import subprocess
import sys
import threading
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from tunefarm.db.records import Job, JobState
from tunefarm.proto.client import FarmClient
from tunefarm.proto.errors import FarmError
from tunefarm.proto.rendezvous import read_rendezvous, write_rendezvous

SECONDS = float(os.environ.get("TUNEFARM_FAULT_S", "60"))
LIMIT_S = 180.0
TERM_S = 3.0
DISK_BYTES = 64 << 20
TARGET = "sim -failures=10 -trial-ms=10"
SKETCH = Path(__file__).parents[1] / "tuner" / "sim_sketch.py"
ROWS = (8, 16, 32)
PROBES = ("anna", "bert", "cleo")
SERVERS = ("tracker", "left", "right", "tuner", "twin")

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


# --- the network ---------------------------------------------------------------------------------


class Wire:
    """A TCP proxy before the tracker, in a thread of its own, whose faults are set from outside."""

    def __init__(self, port: Callable[[], int]) -> None:
        self._port = port
        self._loop = asyncio.new_event_loop()
        self._writers: set[asyncio.StreamWriter] = set()
        self._generation = 0
        self.refuses = False
        self.delay_s = 0.0
        self._mute: set[int] = set()
        started = threading.Event()
        self.place = ""
        self._thread = threading.Thread(target=self._run, args=(started,), daemon=True)
        self._thread.start()
        started.wait()

    def _run(self, started: threading.Event) -> None:
        async def serve() -> None:
            server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
            self.place = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
            started.set()

        self._loop.create_task(serve())
        self._loop.run_forever()

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def cut(self) -> None:
        """Reset all connections."""

        def abort() -> None:
            for writer in self._writers:
                writer.transport.abort()

        self._loop.call_soon_threadsafe(abort)

    def half_open(self) -> None:
        """Let all that is sent on the present connections vanish, for ever; they stay open."""
        self._mute.add(self._generation)
        self._generation += 1

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        generation = self._generation
        if self.refuses:
            writer.transport.abort()
            return
        try:
            up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self._port())
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, up_writer}
        with suppress(ConnectionError):
            await asyncio.gather(
                self._pump(reader, up_writer, generation), self._pump(up_reader, writer, generation)
            )
        for one in (writer, up_writer):
            self._writers.discard(one)
            one.transport.abort()

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, generation: int
    ) -> None:
        while data := await reader.read(1 << 16):
            if self.delay_s:
                await asyncio.sleep(random.uniform(0.0, self.delay_s))
            if generation in self._mute:
                continue
            writer.write(data)
            await writer.drain()
        writer.close()


# --- the farm ------------------------------------------------------------------------------------


@dataclass
class Storm:
    """The processes of a farm, what troubles them, and how often each trouble came."""

    folder: Path
    workload: Path
    dice: random.Random
    disk: Path
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    faults: Counter[str] = field(default_factory=Counter)
    wire: Wire = field(init=False)

    def __post_init__(self) -> None:
        self.wire = Wire(lambda: int(read_rendezvous(self.own).address.rpartition(":")[2]))

    @property
    def database(self) -> Path:
        return self.disk / "farm.db"

    @property
    def own(self) -> Path:
        """The file that the tracker writes."""
        return self.folder / "tracker.json"

    @property
    def through(self) -> Path:
        """The file by which others come, through the proxy."""
        return self.folder / "proxy.json"

    def start(self, role: str) -> None:
        place = ["--rendezvous", str(self.through)]
        arguments = {
            "tracker": ["tracker", "--db", str(self.database), "--rendezvous", str(self.own),
                        "--lease-term-s", str(TERM_S), "--idle-trials", "0"],
            "left": ["worker", "--name", "left", "--target", TARGET, "--target", TARGET, *place],
            "right": ["worker", "--name", "right", "--target", f"{TARGET} -seed=0", *place],
            "tuner": ["tuner", *place],
            "twin": ["tuner", *place],
        }  # fmt: skip
        clock = str(self.folder / f"{role}.clock")
        if role in arguments:
            command = ["-c", _COMMAND, clock, str(SKETCH), *arguments[role]]
        else:
            out = self.folder / f"{role}.history"
            words = [self.through, role, TARGET, self.workload, out]
            command = ["-c", _PROBE, clock, *map(str, words)]
        home = {"TUNEFARM_HOME": str(self.folder), "OMP_NUM_THREADS": "1"}
        with (self.folder / f"{role}.log").open("ab") as log:
            self.processes[role] = subprocess.Popen(
                [sys.executable, *command], env={**os.environ, **home}, stdout=log, stderr=log
            )

    def begin(self) -> None:
        self.start("tracker")
        wait_for(lambda: self._answers(self.own), self)
        found = read_rendezvous(self.own)
        write_rendezvous(self.through, replace(found, address=self.wire.place, pid=0))
        for role in (*SERVERS[1:], *PROBES):
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
        self.wire.close()

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        connection = sqlite3.connect(f"file:{self.database}?mode=ro", uri=True, timeout=LIMIT_S)
        with closing(connection):
            return connection.execute(query).fetchall()

    def logs(self) -> str:
        found = sorted(self.folder.glob("*.log"))
        return "\n".join(f"--- {path.name}\n{path.read_text()[-3000:]}" for path in found)

    # --- troubles -------------------------------------------------------------------------------

    def trouble(self) -> None:
        """One or two troubles at a time, begun and ended."""
        kinds = {
            "SIGKILL": self._kill, "SIGSTOP": self._freeze, "dropped": self._drop,
            "delayed": self._delay, "half-open": self._half_open, "clock": self._jump,
            "disk": self._fill,
        }  # fmt: skip
        chosen = self.dice.sample(sorted(kinds), self.dice.randint(1, 2))
        with ThreadPoolExecutor(len(chosen)) as pool:
            acts = [pool.submit(kinds[name]) for name in chosen]
        for act in acts:
            act.result()
        self.faults.update(chosen)
        self.revive()

    def _kill(self) -> None:
        for role in self.dice.sample((*SERVERS, *SERVERS[:1], *PROBES), self.dice.randint(1, 2)):
            self.processes[role].kill()
            self.processes[role].wait()
        time.sleep(self.dice.choice((0.0, 0.0, 0.5, TERM_S)))

    def _freeze(self) -> None:
        role = self.dice.choice((*SERVERS, *PROBES))
        self.processes[role].send_signal(signal.SIGSTOP)
        time.sleep(self.dice.uniform(0.2, 2.5) * TERM_S)
        self.processes[role].send_signal(signal.SIGCONT)

    def _drop(self) -> None:
        self.wire.refuses = True
        self.wire.cut()
        time.sleep(self.dice.choice((0.0, 0.5, 1.5)) * TERM_S)
        self.wire.refuses = False

    def _delay(self) -> None:
        self.wire.delay_s = self.dice.uniform(0.05, 1.0)
        time.sleep(self.dice.uniform(0.5, 2.0) * TERM_S)
        self.wire.delay_s = 0.0

    def _half_open(self) -> None:
        self.wire.half_open()
        time.sleep(self.dice.uniform(0.0, 2.0) * TERM_S)

    def _jump(self) -> None:
        role = self.dice.choice((*SERVERS, *PROBES))
        clock = self.folder / f"{role}.clock"
        clock.write_text(str(self.dice.choice((-86400, -60, -5, 5, 60, 86400))))
        time.sleep(self.dice.uniform(0.2, 1.5) * TERM_S)
        if self.dice.random() < 0.5:
            clock.write_text("0")

    def _fill(self) -> None:
        """The disk has no room for the tracker's database for a while."""
        with full(self.disk, self.processes["tracker"].pid):
            time.sleep(self.dice.uniform(0.3, 1.5) * TERM_S)


@contextmanager
def full(disk: Path, pid: int) -> Iterator[None]:
    """Leave no room: on a disk of our own by a large file, elsewhere by a limit of the process."""
    if os.path.ismount(disk):
        ballast = disk / "ballast"
        with suppress(OSError), ballast.open("wb", buffering=0) as file:
            while file.write(bytes(1 << 16)):
                pass
        try:
            yield
        finally:
            ballast.unlink()
        return
    soft, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (4096, hard))
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (soft, hard))


@contextmanager
def disk_of(folder: Path) -> Iterator[Path]:
    """A folder on a small disk of its own where we may mount one, else any folder."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(folder)]
    mounted = subprocess.run(mount, capture_output=True).returncode == 0
    try:
        yield folder
    finally:
        if mounted:
            subprocess.run(["umount", "--lazy", str(folder)], check=True)


def wait_for(condition: Callable[[], object], storm: Storm) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline, storm.logs()
        time.sleep(0.05)


# --- the history ---------------------------------------------------------------------------------

Line = dict[str, Any]


def read_history(storm: Storm) -> list[Line]:
    """What all clients wrote down, in the order in which they knew it; a line that a kill has cut
    was not known."""
    found: list[Line] = []
    for probe in PROBES:
        for text in (storm.folder / f"{probe}.history").read_text().splitlines():
            with suppress(ValueError):
                found.append({"who": probe, **json.loads(text)})
    return sorted(found, key=lambda line: line["known"])


def check_leases(history: Sequence[Line]) -> tuple[int, int]:
    """How many grants there were, and how many late writes were refused.

    Epochs of a device rise from grant to grant; a write is not taken that was asked for when the
    device's next grant was known already.
    """
    granted = [line for line in history if line["what"] == "granted"]
    for device, lines in _by(granted, "device").items():
        epochs = {line["lease"]: line["epoch"] for line in lines}
        assert len(set(epochs.values())) == len(epochs), f"{device} was lent twice in an epoch"
        for one in lines:
            for other in lines:
                if one["known"] < other["asked"]:
                    assert one["epoch"] < other["epoch"], (one, other)
    for line in history:
        if line["what"] == "submitted":
            later = [
                g for g in granted
                if g["device"] == line["device"] and g["epoch"] > line["epoch"]
                and g["known"] < line["asked"]
            ]  # fmt: skip
            assert not later, f"a stale write was taken: {line} after {later[0]}"
    return len(granted), sum(line["what"] == "refused" for line in history)


def check_terms(storm: Storm, history: Sequence[Line]) -> None:
    """No lease expired before the term of its last renewal was over."""
    reasons = dict(storm.rows("SELECT id, ended_reason FROM leases"))
    granted = [line for line in history if line["what"] == "granted"]
    for device, lines in _by(granted, "device").items():
        for one in lines:
            if "expired" not in reasons[one["lease"]]:
                continue
            renewals = [r for r in history if r["what"] == "renewed" and r["lease"] == one["lease"]]
            until = max(line["asked"] for line in (one, *renewals)) + one["term_s"]
            early = [g for g in lines if g["epoch"] > one["epoch"] and g["known"] < until]
            assert not early, f"{device} was lent again before the term was over: {one}, {early[0]}"


def check_trials(storm: Storm, history: Sequence[Line]) -> int:
    """How many candidates were acknowledged: each is there once, and none that was told differs."""
    stored = {(job, n): json.loads(times) for job, n, times in storm.rows(
        "SELECT job, number, times_s FROM trials WHERE job LIKE 'probe-%'")}  # fmt: skip
    waiting = set(storm.rows("SELECT job, number FROM requests"))
    acknowledged = 0
    for line in history:
        job = f"probe-{line['who']}"
        if line["what"] == "collected":
            assert stored[job, line["number"]] == line["times"], line
        if line["what"] == "submitted":
            for number in line["numbers"]:
                key = (job, number)
                assert (key in stored) + (key in waiting) == 1, f"{key} is lost or doubled"
                acknowledged += 1
    return acknowledged


def check_jobs(storm: Storm, jobs: Sequence[Job]) -> None:
    """Each job succeeded, with its budget spent once."""
    counts = dict(storm.rows(
        "SELECT job, count(*) FROM trials WHERE origin <> 'final' GROUP BY job"))  # fmt: skip
    states = {id_: (state, message) for id_, state, message in storm.rows(
        "SELECT id, state, message FROM jobs")}  # fmt: skip
    for job in jobs:
        assert states[job.id] == (str(JobState.SUCCEEDED), ""), storm.logs()
        assert counts[job.id] == job.budget.trials


def _by(lines: Sequence[Line], name: str) -> dict[str, list[Line]]:
    found: dict[str, list[Line]] = defaultdict(list)
    for line in lines:
        found[line[name]].append(line)
    return found


# --- the soak ------------------------------------------------------------------------------------


@pytest.mark.soak
def test_a_history_of_faults_holds(tmp_path: Path, sim_job: Callable[..., Job]) -> None:
    dice = random.Random(seed := int(os.environ.get("TUNEFARM_FAULT_SEED", time.time_ns() % 10**6)))
    probed = sim_job("", TARGET, 1, ((4, 4),)).tasks[0].workload
    workload = tmp_path / f"{probed.key}.json"
    workload.write_text(probed.text)
    jobs: list[Job] = []
    with ExitStack() as stack:
        storm = Storm(tmp_path, workload, dice, stack.enter_context(disk_of(tmp_path / "disk")))
        stack.callback(storm.close)
        storm.begin()
        until = time.monotonic() + SECONDS
        while time.monotonic() < until:
            if all(_is_over(storm, job) for job in jobs):
                shapes = tuple((rows, 2 + len(jobs)) for rows in ROWS)  # no earlier trials of them
                jobs.append(_submit(storm, sim_job(uuid.uuid4().hex, TARGET, 90, shapes)))
            storm.trouble()
            time.sleep(dice.uniform(0.0, 2.0))
        for probe in PROBES:
            storm.processes.pop(probe).kill()
        storm.revive()
        wait_for(lambda: all(_is_over(storm, job) for job in jobs), storm)
        history = read_history(storm)
        grants, refused = check_leases(history)
        check_terms(storm, history)
        acknowledged = check_trials(storm, history)
        check_jobs(storm, jobs)
    assert grants
    told = ", ".join(f"{count} {name}" for name, count in sorted(storm.faults.items()))
    print(
        f"\n{SECONDS:.0f} s of faults (seed {seed}: {told}): 0 double leases in {grants} grants, "
        f"0 stale writes taken and {refused} refused, {acknowledged} acknowledged candidates and "
        f"{len(jobs)} jobs kept, none lost or doubled"
    )


def _submit(storm: Storm, job: Job) -> Job:
    with FarmClient.from_rendezvous(storm.through, connect_s=LIMIT_S, patience_s=LIMIT_S) as client:
        return client.submit_job(job)


def _is_over(storm: Storm, job: Job) -> bool:
    states = storm.rows(f"SELECT state FROM jobs WHERE id = '{job.id}'")
    return bool(states) and states[0][0] not in ("queued", "running")
