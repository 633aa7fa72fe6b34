"""Releases that are neighbours work together; others refuse in one sentence, whichever is older."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest
from tunefarm.db.records import DeviceRequest, ErrorKind, Job
from tunefarm.proto import client as client_module
from tunefarm.proto import farm_pb2, farm_pb2_grpc, records_pb2
from tunefarm.proto.client import FarmClient
from tunefarm.proto.errors import FarmError, ProtocolMismatch
from tunefarm.proto.protocol import PROTOCOL, check_protocol

_OTHER = """
import json, sys
from tunefarm.proto import protocol
protocol.PROTOCOL = int(sys.argv[1])
from tunefarm.tracker import servicers
from tunefarm.tracker.options import TrackerOptions
from tunefarm.tracker.server import main_serve
if sys.argv[2] == "unaware":  # as before there were protocols: it looks at none, and says none
    servicers.check_protocol = lambda *_: None
main_serve(TrackerOptions(sys.argv[3]))
"""


@pytest.fixture
def other_tracker(tmp_path) -> Iterator[Callable[..., str]]:
    """Starts a tracker of another release; returns its rendezvous file."""
    running = []

    def start(protocol: int, how: str = "aware") -> str:
        database = tmp_path / "other.db"
        command = [sys.executable, "-c", _OTHER, str(protocol), how, str(database)]
        running.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        assert running[-1].stdout.readline().startswith("tracker listening on ")
        return f"{database}.tracker.json"

    yield start
    for process in running:
        process.kill()
        process.communicate()


def stub_of(tracker, service: str = "Worker"):
    """A caller without any of the client's knowledge, and what opens the tracker to it."""
    channel = grpc.insecure_channel(tracker.address)
    return getattr(farm_pb2_grpc, f"{service}Stub")(channel), (
        ("authorization", f"Bearer {tracker.token}"),
    )


def sync(number: int = 1, **fields: object) -> farm_pb2.SyncRequest:
    device = records_pb2.Device(id="old", kind="sim", model="Sim", target="sim")
    return farm_pb2.SyncRequest(
        worker="old", incarnation="i", number=number, compiler_version="0.1", capacity=4,
        devices=[device], **fields,
    )  # fmt: skip


def test_an_older_workers_results_are_stored(
    shared_tracker, farm: FarmClient, new_job: Callable[..., Job], candidates
) -> None:
    """A worker of the release before there were protocols; and one thing it says is newer."""
    stub, token = stub_of(shared_tracker)
    assert stub.Sync(sync(), metadata=token).protocol == PROTOCOL
    job = farm.submit_job(new_job())
    claimed = farm.claim_job(tuner="t", job=job.id)
    assert claimed is not None
    lease = farm.acquire(DeviceRequest("sim"), client="t", job=claimed, wait_s=60)
    assert lease is not None
    farm.submit(lease, candidates(job.id, range(2)))
    work = stub.Sync(sync(2, wait_s=10.0), metadata=token).work
    results = [
        farm_pb2.Result(
            lease=one.lease,
            epoch=one.epoch,
            trial=records_pb2.Trial(
                job=job.id,
                task=one.request.task,
                number=one.request.number,
                error=99 if one.request.number else 0,
                times_s=[] if one.request.number else [1e-3],
            ),
        )
        for one in work
    ]
    assert len(results) == 2
    newer = sync(3, results=results).SerializeToString() + b"\xfa\x7f\x03new"  # field 2047
    reply = stub.Sync(farm_pb2.SyncRequest.FromString(newer), metadata=token)
    assert len(reply.accepted) == 2
    found = farm.collect(job.id).trials
    assert [(t.number, t.error) for t in found] == [(0, None), (1, ErrorKind.RUN_ERROR)]


@pytest.mark.parametrize(("distance", "works"), [(-1, True), (1, True), (2, False)])
def test_a_tracker_serves_its_neighbours(shared_tracker, distance: int, works: bool) -> None:
    for service, call in (
        ("Worker", lambda stub, **how: stub.Sync(sync(protocol=PROTOCOL + distance), **how)),
        ("Farm", lambda stub, **how: stub.Info(
            farm_pb2.InfoRequest(protocol=PROTOCOL + distance), **how)),
    ):  # fmt: skip
        stub, token = stub_of(shared_tracker, service)
        if works:
            assert call(stub, metadata=token).protocol == PROTOCOL
            continue
        with pytest.raises(grpc.RpcError) as caught:
            call(stub, metadata=token)
        assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        name = "worker" if service == "Worker" else "client"
        assert caught.value.details() == (
            f"this {name} speaks protocol {PROTOCOL + 2}, the tracker protocol {PROTOCOL}, and "
            "only neighbours understand each other; upgrade the tracker"
        )


@pytest.mark.parametrize(
    "arguments", [("worker", "--target", "sim"), ("tuner",), ("jobs",)], ids=lambda a: a[0]
)
def test_every_process_that_is_too_old_says_so(
    other_tracker: Callable[..., str], arguments: tuple[str, ...]
) -> None:
    place = other_tracker(PROTOCOL + 2)
    command = [sys.executable, "-m", "tunefarm", *arguments, "--tracker", place]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    name = "worker" if arguments[0] == "worker" else "client"
    sentence = f"this {name} speaks protocol {PROTOCOL}, the tracker protocol {PROTOCOL + 2}"
    assert done.returncode == 2
    (told,) = [line for line in done.stderr.splitlines() if line.startswith("tunefarm: ")]
    assert told.startswith(f"tunefarm: {sentence}")
    assert told.endswith(f"upgrade the {name}")


def test_a_tracker_that_knows_no_protocols_is_seen_through(
    other_tracker: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Path(other_tracker(0, "unaware"))
    with FarmClient.from_rendezvous(place) as client:
        assert client.info().protocol == 0  # the release before this one
        monkeypatch.setattr(client_module, "PROTOCOL", 2)
        with pytest.raises(ProtocolMismatch, match="upgrade the tracker"):
            client.info()


def test_what_an_older_tracker_cannot_do_is_one_sentence(shared_tracker, farm: FarmClient) -> None:
    channel = grpc.insecure_channel(shared_tracker.address)
    unheard = channel.unary_unary("/tunefarm.v1.Farm/Unheard")
    with pytest.raises(FarmError, match="is too old for this; upgrade it"):
        farm._call(unheard, b"")


def test_neighbours() -> None:
    check_protocol(3, 2, "client")
    check_protocol(2, 3, "client")
    for caller, tracker, older in ((1, 3, "client"), (3, 1, "tracker")):
        with pytest.raises(ProtocolMismatch, match=f"upgrade the {older}$"):
            check_protocol(caller, tracker, "client")
