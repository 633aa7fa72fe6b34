"""Leases over a stream, from the client's side: trackers that are too old, silent, or gone."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent import futures
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc
import pytest
from tunefarm.db.records import DeviceRequest, Lease
from tunefarm.proto import client as client_module
from tunefarm.proto import connection, farm_pb2, farm_pb2_grpc, records_pb2
from tunefarm.proto.awake import awake_s
from tunefarm.proto.client import FarmClient
from tunefarm.proto.errors import FarmError, LeaseLost, TrackerUnavailable
from tunefarm.proto.lease_line import MAX_BYTES

from tests.ports import own_port

SIM = DeviceRequest("sim")
LEASE = Lease("l1", "d1", "c", 1, 10.0)
Answer = Callable[[farm_pb2.LeaseCall], farm_pb2.LeaseAnswer | None]


def renewed(call: farm_pb2.LeaseCall) -> farm_pb2.LeaseAnswer:
    """The lease that a call asks to renew."""
    lease = records_pb2.Lease(id=call.renew.lease, epoch=call.renew.epoch)
    return farm_pb2.LeaseAnswer(number=call.number, renew=farm_pb2.RenewReply(lease=lease))


class Scripted(farm_pb2_grpc.FarmServicer):
    """A tracker that answers each call on a stream as it is told to, and those that come alone."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.streams = 0
        self.frames: list[int] = []
        self.alone: list[str] = []

    def Leases(self, frames: Any, _: Any) -> Iterator[farm_pb2.LeaseAnswers]:
        self.streams += 1
        for frame in frames:
            self.frames.append(len(frame.calls))
            found = [self.answer(call) for call in frame.calls]
            yield farm_pb2.LeaseAnswers(answers=[one for one in found if one is not None])

    def Acquire(self, request: farm_pb2.AcquireRequest, _: Any) -> farm_pb2.AcquireReply:
        self.alone.append("Acquire")
        return farm_pb2.AcquireReply(lease=records_pb2.Lease(id="alone"))

    def Renew(self, request: farm_pb2.RenewRequest, _: Any) -> farm_pb2.RenewReply:
        self.alone.append("Renew")
        return farm_pb2.RenewReply(lease=records_pb2.Lease(id=request.lease))


class Older(grpc.GenericRpcHandler):  # type: ignore[misc]
    """A release that has no streams."""

    def __init__(self, tracker: Scripted) -> None:
        self._methods = {
            f"/tunefarm.v1.Farm/{name}": grpc.unary_unary_rpc_method_handler(
                getattr(tracker, name),
                request_deserializer=request.FromString,
                response_serializer=lambda reply: reply.SerializeToString(),
            )
            for name, request in (
                ("Acquire", farm_pb2.AcquireRequest),
                ("Renew", farm_pb2.RenewRequest),
            )
        }

    def service(self, details: Any) -> Any:
        return self._methods.get(details.method)


@contextmanager
def serving(tracker: Scripted, port: int = 0, is_older: bool = False) -> Iterator[int]:
    """The port at which it listens."""
    server = grpc.server(futures.ThreadPoolExecutor(8), options=[("grpc.so_reuseport", 0)])
    if is_older:
        server.add_generic_rpc_handlers((Older(tracker),))
    else:
        farm_pb2_grpc.add_FarmServicer_to_server(tracker, server)  # type: ignore[no-untyped-call]
    bound = server.add_insecure_port(f"127.0.0.1:{port}")
    server.start()
    yield bound
    server.stop(None).wait()


def test_one_stream_for_all_threads() -> None:
    tracker = Scripted(renewed)
    with (
        serving(tracker) as port,
        FarmClient(f"127.0.0.1:{port}") as farm,
        ThreadPoolExecutor(8) as threads,
    ):
        found = list(threads.map(lambda _: farm.renew(LEASE).id, range(200)))
    assert found == ["l1"] * 200
    assert tracker.streams == 1
    assert sum(tracker.frames) == 200
    assert tracker.alone == []


def test_a_tracker_without_streams_is_called() -> None:
    tracker = Scripted(renewed)
    with serving(tracker, is_older=True) as port, FarmClient(f"127.0.0.1:{port}") as farm:
        lease = farm.acquire(SIM, client="c")
        assert lease is not None
        assert lease.id == "alone"
        assert farm.renew(LEASE).id == "l1"
        with pytest.raises(FarmError, match="is too old for this; upgrade it"):
            farm.release(LEASE)
    assert tracker.alone == ["Acquire", "Renew"]


def test_what_is_long_goes_alone() -> None:
    tracker = Scripted(renewed)
    with serving(tracker) as port, FarmClient(f"127.0.0.1:{port}") as farm:
        assert farm.renew(LEASE).id == "l1"
        assert farm.acquire(DeviceRequest("sim", selector="x" * MAX_BYTES), client="c") is not None
    assert tracker.alone == ["Acquire"]


def test_errors_come_back_as_they_are() -> None:
    def fail(call: farm_pb2.LeaseCall) -> farm_pb2.LeaseAnswer:
        reason = "LEASE_LOST" if call.renew.lease == "l1" else "OF_THE_FUTURE"
        failure = farm_pb2.Failure(reason=reason, message="it has ended")
        return farm_pb2.LeaseAnswer(number=call.number, failure=failure)

    with serving(Scripted(fail)) as port, FarmClient(f"127.0.0.1:{port}") as farm:
        with pytest.raises(LeaseLost, match=r"^it has ended$"):
            farm.renew(LEASE)
        with pytest.raises(FarmError, match=r"^it has ended$"):
            farm.release(LEASE)


def test_a_stream_that_ends_is_opened_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tracker is killed and comes back: what waited is asked again, nobody is told."""
    waits = threading.Event()

    def be_silent(_: farm_pb2.LeaseCall) -> None:
        waits.set()

    monkeypatch.setattr(connection, "FIRST_PAUSE_S", 0.05)
    first, second = Scripted(renewed), Scripted(renewed)
    with ThreadPoolExecutor(1) as threads:
        with serving(first, own_port()) as port:
            farm = FarmClient(f"127.0.0.1:{port}")
            assert farm.renew(LEASE).id == "l1"
            first.answer = be_silent
            answer = threads.submit(farm.renew, LEASE)
            assert waits.wait(60)
        with serving(second, port):
            assert answer.result(60).id == "l1"
            assert farm.renew(LEASE).id == "l1"
    farm.close()
    assert second.streams == 1


def test_what_was_given_up_is_not_heard_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tracker that stood still must not do what its caller has asked another for."""
    monkeypatch.setattr(connection, "CALL_S", 0.5)
    monkeypatch.setattr(client_module, "CALL_S", 0.5)
    goes_on, ended = threading.Event(), threading.Event()

    class Frozen(Scripted):
        def Leases(self, frames: Any, context: Any) -> Iterator[farm_pb2.LeaseAnswers]:
            context.add_callback(ended.set)
            goes_on.wait(60)
            yield from super().Leases(frames, context)

    tracker = Frozen(renewed)
    with serving(tracker) as port, FarmClient(f"127.0.0.1:{port}", connect_s=0.1) as farm:
        began = awake_s()
        with pytest.raises(TrackerUnavailable, match="did not answer within"):
            farm.renew(LEASE)
        assert awake_s() - began < 30
        assert ended.wait(60), "the stream is cancelled with the call"
        goes_on.set()
        monkeypatch.setattr(connection, "CALL_S", 60.0)
        monkeypatch.setattr(client_module, "CALL_S", 60.0)
        assert farm.renew(LEASE).id == "l1", "the next call opens another"


def test_a_process_with_an_open_stream_ends() -> None:
    """Though it closes nothing."""
    import subprocess
    import sys

    code = """
import sys
from tunefarm.db.records import Lease
from tunefarm.proto.client import FarmClient
farm = FarmClient(sys.argv[1])
print(farm.renew(Lease("l1", "d1", "c", 1, 10.0)).id)
"""
    with serving(Scripted(renewed)) as port:
        done = subprocess.run(
            [sys.executable, "-c", code, f"127.0.0.1:{port}"],
            capture_output=True,
            text=True,
            timeout=60,
        )
    assert (done.returncode, done.stdout, done.stderr) == (0, "l1\n", "")
