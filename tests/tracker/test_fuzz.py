"""Nonsense on the wire: random bytes, and valid requests of every method, mutated."""

from __future__ import annotations

import math
import random
import socket
import sqlite3
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import psutil
import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from tunefarm.db.records import DEFAULT_PROTOCOL, DeviceRequest, Job, JobState, TrialRequest
from tunefarm.proto import farm_pb2
from tunefarm.proto.client import FarmClient
from tunefarm.proto.protocol import PROTOCOL

from tests.patience import collect_all

NewJob = Callable[..., Job]
Candidates = Callable[[str, range], list[TrialRequest]]
StartWorker = Callable[..., Any]

UNDER_WAY = 32
"""Calls at a time."""
CALL_S = 3.0
"""How long a call may wait; those that made themselves a long poll are cut then."""
METHODS = [
    (f"/{service.full_name}/{method.name}", method.input_type)
    for service in farm_pb2.DESCRIPTOR.services_by_name.values()
    for method in service.methods
]
NASTY = 0.02
"""How often a value is one that breaks things."""
OURS = ("UNKNOWN", "INTERNAL")
"""Statuses of what nobody foresaw."""


@dataclass
class Words:
    """Values of fields that mean something to the tracker, by the field's name."""

    rng: random.Random
    known: dict[str, list[str | int]] = field(default_factory=dict)

    def text(self, name: str) -> str:
        known = [value for value in self.known.get(name, ()) if isinstance(value, str)]
        if known and self.rng.random() < 0.8:
            return self.rng.choice(known)
        if self.rng.random() < NASTY:
            return self.rng.choice(("\0", "t" * 5000, "🙂" * 2000, "\x1b[2J", "'; DROP TABLE jobs"))
        alphabet = self.rng.choice(("abc", "é漢🙂", '=!<>*|" ,', "0123456789abcdef"))
        return "".join(self.rng.choices(alphabet, k=self.rng.randrange(9)))

    def whole(self, name: str) -> int:
        known = [value for value in self.known.get(name, ()) if isinstance(value, int)]
        if known and self.rng.random() < 0.8:
            return self.rng.choice(known)
        if self.rng.random() < NASTY:
            return self.rng.choice((-1, 2**31 - 1, -(2**31), 2**31, 2**63 - 1, -(2**63)))
        return self.rng.choice((0, 1, 7, 1000))

    def real(self) -> float:
        if self.rng.random() < NASTY:
            return self.rng.choice((-1.0, 1e300, 1e-300, math.nan, math.inf, -math.inf))
        return self.rng.choice((0.0, 0.001, 0.1))


def message(kind: Descriptor, words: Words, depth: int = 0) -> Message:
    """A message with most of its fields set."""
    made = GetMessageClass(kind)()
    for one in kind.fields:
        if words.rng.random() < (0.85 if depth < 5 else 0.2):
            _set(made, one, words, depth)
    return made


def _set(made: Message, one: FieldDescriptor, words: Words, depth: int) -> None:
    target = getattr(made, one.name)
    is_map = one.message_type is not None and one.message_type.GetOptions().map_entry
    if is_map:
        value = one.message_type.fields_by_name["value"]
        for _ in range(words.rng.randrange(3)):
            key = words.text(f"{one.name} key")
            if value.message_type is not None:
                target[key].CopyFrom(message(value.message_type, words, depth + 1))
            else:
                target[key] = _scalar(value, words, f"{one.name} value")
    elif one.is_repeated:
        for _ in range(words.rng.randrange(3)):
            if one.message_type is not None:
                target.add().CopyFrom(message(one.message_type, words, depth + 1))
            else:
                target.append(_scalar(one, words, one.name))
    elif one.message_type is not None:
        target.CopyFrom(message(one.message_type, words, depth + 1))
    else:
        setattr(made, one.name, _scalar(one, words, one.name))


def _scalar(one: FieldDescriptor, words: Words, name: str) -> Any:
    match one.cpp_type:
        case FieldDescriptor.CPPTYPE_STRING:
            return words.text(name)
        case FieldDescriptor.CPPTYPE_DOUBLE:
            return words.real()
        case FieldDescriptor.CPPTYPE_BOOL:
            return words.rng.random() < 0.5
        case FieldDescriptor.CPPTYPE_ENUM:
            numbers = [*one.enum_type.values_by_number]
            return words.rng.choice(numbers) if words.rng.random() > NASTY else 99
        case _:
            return words.whole(name)


def mutated(content: bytes, rng: random.Random) -> bytes:
    """The bytes with some of them changed, left out, doubled or moved."""
    data = bytearray(content)
    for _ in range(rng.choice((0, 0, 0, 1, 2, 8))):
        at = rng.randrange(len(data) + 1)
        match rng.randrange(5):
            case 0 if at < len(data):
                data[at] ^= 1 << rng.randrange(8)
            case 1:
                del data[at : at + rng.randrange(1, 9)]
            case 2:
                data[at:at] = rng.randbytes(rng.randrange(1, 9))
            case 3:
                data[at:at] = data[at : at + rng.randrange(1, 64)]
            case _:
                data[at : at + 8] = struct.pack("<d", rng.choice((math.nan, math.inf, -1e308)))
    return bytes(data)


class Fuzzer:
    """Sends messages to a tracker, some at a time, and counts how they were answered."""

    def __init__(self, tracker: Any, words: Words) -> None:
        self._rng = words.rng
        self._words = words
        self._address = tracker.address
        self._channel = grpc.insecure_channel(tracker.address)
        self._header = (("authorization", f"Bearer {tracker.token}"),)
        self._room = threading.Semaphore(UNDER_WAY)
        self.answers: Counter[str] = Counter()
        self.unforeseen: list[tuple[str, str, str]] = []

    def send(self, number: int) -> None:
        """That many messages; returns when all are answered."""
        for _ in range(number):
            if self._rng.random() < 0.01:
                self._scribble()
                continue
            name, kind = self._rng.choice(METHODS)
            content = self._rng.randbytes(self._rng.randrange(200))
            if self._rng.random() < 0.9:
                content = mutated(message(kind, self._words).SerializeToString(), self._rng)
            self._call(name, content)
        for _ in range(UNDER_WAY):
            self._room.acquire()
        self._room.release(UNDER_WAY)

    def close(self) -> None:
        self._channel.close()

    def _call(self, name: str, content: bytes) -> None:
        self._room.acquire()
        method = self._channel.unary_unary(name)
        call = method.future(content, timeout=CALL_S, metadata=self._header)

        def done(answered: Any) -> None:
            self._room.release()
            code = answered.code().name
            self.answers[code] += 1
            if code in OURS:
                self.unforeseen.append((name, content.hex(), answered.details()))

        call.add_done_callback(done)

    def _scribble(self) -> None:
        """Bytes that are not even a connection of gRPC's."""
        host, _, port = self._address.rpartition(":")
        with socket.create_connection((host, int(port)), 10) as connection:
            begin = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" if self._rng.random() < 0.5 else b""
            connection.sendall(begin + self._rng.randbytes(self._rng.randrange(1, 400)))
        self.answers["bytes"] += 1


def known_words(farm: FarmClient, job: Job, rng: random.Random) -> Words:
    """Names that the tracker knows, for fields of these names."""
    device = farm.devices()[0]
    workload = job.tasks[0].workload
    jobs = [farm.submit_job(Job("", "sim", job.tasks, job.budget)).id for _ in range(4)]
    return Words(
        rng,
        {
            "job": [*jobs, ""],
            "id": [*jobs, device.id, "fresh"],
            "target": ["sim", "llvm -num-cores=2"],
            "workload": [workload.key],
            "key": [workload.key],
            "text": [workload.text],
            "device": [device.id],
            "worker": [device.worker, "w-fuzz"],
            "incarnation": ["i-fuzz", "i-other"],
            "compiler_version": ["0.1"],
            "number": [0, 1, 2, 3],
            "trials": [1, 10],
            "epoch": [1, 2],
            "claim_epoch": [0, 1, 2],
            "limit": [0, 1, 10],
            "capacity": [0, 1, 4],
            "selector": ["", "kind=sim", "name=fuzzed"],
            "devices": ["", "kind=sim"],
            "protocol": [DEFAULT_PROTOCOL, PROTOCOL],
            "name": [device.id, device.worker, "anna"],
            "digest": ["0" * 64, "f" * 64],
            "workloads key": [workload.key],
            "workloads value": [workload.text],
        },
    )


def memory_mb(process: psutil.Process) -> float:
    return float(process.memory_info().rss) / 2**20


def check_database(path: Path) -> None:
    """What SQLite itself, and the farm's promises, say of the file."""
    with sqlite3.connect(path) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
        live = (
            "SELECT device FROM leases WHERE ended_at IS NULL GROUP BY device HAVING count(*) > 1"
        )
        assert connection.execute(live).fetchall() == []
        doubled = (
            "SELECT 1 FROM trials GROUP BY job, workload_id, target_id, number HAVING count(*) > 1"
        )
        assert connection.execute(doubled).fetchall() == []
        states = {str(state) for state in JobState}
        assert {row[0] for row in connection.execute("SELECT state FROM jobs")} <= states
    connection.close()


def measure(farm: FarmClient, job: Job, requests: list[TrialRequest]) -> None:
    """An ordinary job, from its submission to its end."""
    farm.submit_job(job)
    claimed = farm.claim_job(tuner="t", job=job.id, wait_s=20)
    assert claimed is not None
    wanted = DeviceRequest("sim", attributes={"name": "ordinary"}, priority=2**30)
    lease = farm.acquire(wanted, client="t", job=claimed, wait_s=30)
    assert lease is not None
    with farm.keep_lease(lease), farm.keep_job(claimed):
        farm.submit(lease, requests)
        numbers = collect_all(farm, job.id, len(requests))
    assert sorted(numbers) == [request.number for request in requests]
    farm.finish_job(claimed, JobState.SUCCEEDED)


@pytest.mark.parametrize(
    ("messages", "warm_up"),
    [
        pytest.param(600, 200, id="short"),
        pytest.param(100_000, 10_000, id="long", marks=pytest.mark.soak),
    ],
)
def test_nonsense_does_no_harm(
    tmp_path: Path,
    start_worker: StartWorker,
    new_job: NewJob,
    candidates: Candidates,
    messages: int,
    warm_up: int,
) -> None:
    from tests.tracker.conftest import Tracker

    log = tmp_path / "tracker.log"
    tracker = Tracker(tmp_path / "farm.db", log=log).start()
    try:
        start_worker(tracker, "fuzzed")
        with tracker.client() as farm:
            while not farm.devices():
                time.sleep(0.05)
            words = known_words(farm, new_job(), random.Random(messages))
        process = psutil.Process(tracker.process.pid)
        fuzzer = Fuzzer(tracker, words)
        fuzzer.send(warm_up)
        before = memory_mb(process)
        started = time.monotonic()
        fuzzer.send(messages - warm_up)
        seconds = time.monotonic() - started
        growth = memory_mb(process) - before
        fuzzer.close()
        crashes = int(tracker.process.poll() is not None)
        print(
            f"\n{messages} fuzzed messages in {seconds:.0f} s: {crashes} crashes, memory "
            f"{before:.0f} MB and {growth:+.1f} MB, {len(fuzzer.unforeseen)} not foreseen; "
            f"answers {dict(fuzzer.answers.most_common())}"
        )
        for found in fuzzer.unforeseen[:5]:
            print(*found)
        assert crashes == 0
        assert growth < 50
        assert fuzzer.unforeseen == []
        start_worker(tracker, "ordinary")
        with tracker.client() as farm:
            job = new_job()
            measure(farm, job, candidates(job.id, range(20)))
        tracker.stop()
        check_database(tmp_path / "farm.db")
        assert "Traceback" not in log.read_text()
        tracker.start()
        with tracker.client() as farm:
            assert farm.job(job.id).state is JobState.SUCCEEDED
    finally:
        tracker.kill()
