"""Leases over streams: what holds for calls holds there too, and many of them go at one time."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import grpc
import pytest
from tunefarm.db.records import Device, DeviceRequest, Role, Token, WorkerState
from tunefarm.proto import farm_pb2, farm_pb2_grpc, records_pb2
from tunefarm.proto.client import FarmClient
from tunefarm.proto.errors import (
    FarmError,
    Forbidden,
    InvalidRequest,
    LeaseLost,
    TokenRefused,
)
from tunefarm.proto.tokens import digest_of, new_secret
from tunefarm.tracker.lease_stream import MAX_UNDER_WAY

DATABASES = ("sqlite", "postgresql")
PATIENCE_S = 60.0


def on(device: str) -> DeviceRequest:
    return DeviceRequest("sim", attributes={"name": device})


@pytest.fixture(scope="module")
def shared_tracker(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Any]:
    """With terms that are long on a busy machine too: no lease ends but by what a test does."""
    from tests.tracker.conftest import Tracker

    folder = tmp_path_factory.mktemp("farm")
    with ExitStack() as rest:
        options: dict[str, object] = {"lease_term_s": 60.0}
        if request.param == "sqlite":
            running = Tracker(folder / "farm.db", options=options)
        else:
            url = rest.enter_context(request.getfixturevalue("postgres").database("latest"))
            running = Tracker(url, folder, options)
        yield running.start()
        running.kill()


@pytest.fixture
def devices(shared_tracker: Any) -> Iterator[list[str]]:
    """Eight devices of a worker that lives as long as the test."""
    name = uuid.uuid4().hex[:8]
    names = [f"{name}-{n}" for n in range(8)]
    offered = tuple(Device(n, "sim", "Sim 1", "sim", name, {"name": n}) for n in names)
    is_over = threading.Event()

    def live(number: int = 0) -> None:
        while not is_over.is_set():
            number += 1
            try:
                worker.sync(WorkerState(name, "i", number, "1", offered), 0.2)
            except FarmError:
                is_over.wait(0.1)  # as a worker does

    with shared_tracker.client() as worker:
        thread = threading.Thread(target=live)
        thread.start()
        yield names
        is_over.set()
        thread.join()


@pytest.fixture(params=["stream", "calls"])
def client(request: pytest.FixtureRequest, shared_tracker: Any) -> Iterator[FarmClient]:
    """A client that asks over a stream, and one as before there were any."""
    with shared_tracker.client() as made:
        if request.param == "calls":
            made._leases = made._farm
        yield made


class Talk:
    """A stream, call by call, with none of the client's knowledge."""

    def __init__(self, tracker: Any, token: str = "") -> None:
        self._channel = grpc.insecure_channel(tracker.address)
        self._said: list[Any] = []
        self._more = threading.Semaphore(0)
        stub: Any = farm_pb2_grpc.FarmStub(self._channel)  # type: ignore[no-untyped-call]
        header = (("authorization", f"Bearer {token or tracker.token}"),)
        self.call = stub.Leases(self._frames(), metadata=header, timeout=PATIENCE_S)

    def __enter__(self) -> Talk:
        return self

    def __exit__(self, *_: object) -> None:
        self._channel.close()
        self._more.release()

    def say(self, *calls: farm_pb2.LeaseCall) -> None:
        """All of them in one frame."""
        self._said.append(farm_pb2.LeaseCalls(calls=calls))
        self._more.release()

    def be_silent(self) -> None:
        """Nothing more is said."""
        self._more.release()

    def answers(self, number: int) -> dict[int, farm_pb2.LeaseAnswer]:
        """The next answers, by the numbers of their calls."""
        found: dict[int, farm_pb2.LeaseAnswer] = {}
        while len(found) < number:
            found |= {answer.number: answer for answer in next(self.call).answers}
        return found

    def _frames(self) -> Iterator[farm_pb2.LeaseCalls]:
        while self._more.acquire() and self._said:
            yield self._said.pop(0)


def acquiring(number: int, device: str, wait_s: float = 0.0, **fields: Any) -> farm_pb2.LeaseCall:
    request = records_pb2.DeviceRequest(target="sim", attributes={"name": device})
    acquire = farm_pb2.AcquireRequest(
        **({"request_id": uuid.uuid4().hex, "request": request, "wait_s": wait_s} | fields)
    )
    return farm_pb2.LeaseCall(number=number, acquire=acquire)


# --- both ways ----------------------------------------------------------------------------------


def test_a_lease_from_its_grant_to_its_end(client: FarmClient, devices: list[str]) -> None:
    lease = client.acquire(on(devices[0]), client="c", request_id="r1", wait_s=PATIENCE_S)
    assert lease is not None
    assert lease.device == devices[0]
    again = client.acquire(on(devices[0]), client="c", request_id="r1", wait_s=PATIENCE_S)
    assert again is not None
    assert (again.id, again.epoch) == (lease.id, lease.epoch), "a repeated request has its lease"
    assert client.acquire(on(devices[0]), client="other", wait_s=0.1) is None
    assert client.renew(lease).deadline >= lease.deadline
    client.release(lease)
    client.release(lease)
    with pytest.raises(LeaseLost, match="has ended: released"):
        client.renew(lease)
    next_one = client.acquire(on(devices[0]), client="c", wait_s=PATIENCE_S)
    assert next_one is not None
    assert next_one.epoch == lease.epoch + 1
    client.release(next_one)


def test_a_wish_that_makes_no_sense_is_refused(client: FarmClient) -> None:
    with pytest.raises(InvalidRequest, match="and a target"):
        client.acquire(DeviceRequest(""), client="c")
    with pytest.raises(InvalidRequest, match=r"DeviceRequest\.selector has 5000 characters"):
        client.acquire(DeviceRequest("sim", selector="x" * 5000), client="c")
    with pytest.raises(InvalidRequest, match=r"the request of Acquire has 1000.. bytes; 65536 are"):
        client.acquire(DeviceRequest("sim", selector="x" * 100_000), client="c")


def test_many_threads_of_a_client_at_once(client: FarmClient, devices: list[str]) -> None:
    """Never two leases of one device at a time, and none is forgotten."""
    held: set[str] = set()
    cycles = 12

    def run(_: int) -> int:
        for _ in range(cycles):
            request = DeviceRequest("sim", selector=f"worker={devices[0][:8]}")
            lease = client.acquire(request, client="c", wait_s=PATIENCE_S)
            assert lease is not None
            assert lease.device not in held
            held.add(lease.device)
            assert client.renew(lease).id == lease.id
            held.remove(lease.device)
            client.release(lease)
        return cycles

    with ThreadPoolExecutor(16) as threads:
        assert sum(threads.map(run, range(16))) == 16 * cycles
    live = {lease.device for lease in client.leases()}
    assert not live & set(devices)


# --- the stream alone ---------------------------------------------------------------------------


def test_nothing_waits_behind_a_request_that_waits(shared_tracker: Any, devices: list[str]) -> None:
    with Talk(shared_tracker) as talk:
        talk.say(acquiring(1, devices[0], PATIENCE_S))
        lease = talk.answers(1)[1].acquire.lease
        named = {"lease": lease.id, "epoch": lease.epoch}
        talk.say(
            acquiring(7, devices[0], PATIENCE_S),
            farm_pb2.LeaseCall(number=3, renew=farm_pb2.RenewRequest(**named)),
        )
        assert talk.answers(1)[3].renew.lease.epoch == lease.epoch
        talk.say(farm_pb2.LeaseCall(number=4, release=farm_pb2.ReleaseRequest(**named)))
        found = talk.answers(2)
        assert found[4].HasField("release")
        assert found[7].acquire.lease.epoch == lease.epoch + 1
        talk.say(acquiring(8, "none", 0.2))
        talk.be_silent()
        assert talk.answers(1)[8].acquire.position >= 1, "what was said last is answered too"
        assert list(talk.call) == []
        assert talk.call.code() is grpc.StatusCode.OK


def test_each_call_is_refused_by_itself(shared_tracker: Any, devices: list[str]) -> None:
    with Talk(shared_tracker) as talk:
        talk.say(
            acquiring(1, devices[1], client="c" * 5000),
            acquiring(2, devices[1], client="c" * (65 << 10)),
            acquiring(3, "a\0b"),
            acquiring(4, devices[1], job="none", claim_epoch=1),
            farm_pb2.LeaseCall(number=5, renew=farm_pb2.RenewRequest(lease="none", epoch=1)),
            farm_pb2.LeaseCall(number=6),
            acquiring(7, devices[1], PATIENCE_S),
        )
        found = talk.answers(7)
        assert found[7].acquire.lease.device == devices[1]
        for number, reason, sentence in (
            (1, "INVALID_REQUEST", "AcquireRequest.client has 5000 characters"),
            (2, "INVALID_REQUEST", "the request of Acquire has 66"),
            (3, "INVALID_REQUEST", "has a character NUL"),
            (4, "NOT_FOUND", "no job none"),
            (5, "LEASE_LOST", "there is no lease none"),
            (6, "INTERNAL", "too old for this"),
        ):
            assert found[number].failure.reason == reason, found[number]
            assert sentence in found[number].failure.message


def test_nonsense_ends_a_stream(shared_tracker: Any) -> None:
    with grpc.insecure_channel(shared_tracker.address) as channel:
        method = channel.stream_stream("/tunefarm.v1.Farm/Leases")
        header = (("authorization", f"Bearer {shared_tracker.token}"),)
        many = farm_pb2.LeaseCalls(calls=[farm_pb2.LeaseCall()] * 10_001).SerializeToString()
        for content, sentence in (
            (b"\xff" * 40, "the request of Leases is no message of tunefarm's"),
            (many, "LeaseCalls.calls has 10001 items; 10000 are allowed"),
        ):
            call = method(iter([content]), metadata=header, timeout=PATIENCE_S)
            with pytest.raises(grpc.RpcError) as caught:
                next(call)
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert caught.value.details() == sentence


def test_so_many_requests_of_a_stream_may_wait(shared_tracker: Any) -> None:
    with Talk(shared_tracker) as talk:
        talk.say(*(acquiring(n, "none", PATIENCE_S) for n in range(1, MAX_UNDER_WAY + 4)))
        found = talk.answers(3)
        assert sorted(found) == [MAX_UNDER_WAY + n for n in (1, 2, 3)]
        assert {answer.failure.reason for answer in found.values()} == {"OVERLOADED"}
        talk.say(farm_pb2.LeaseCall(number=1, renew=farm_pb2.RenewRequest(lease="l", epoch=1)))
        assert talk.answers(1)[1].failure.reason == "LEASE_LOST", "renewals are not kept out"


def test_who_leaves_gets_nothing(shared_tracker: Any, devices: list[str]) -> None:
    """A device goes to who waits for it, not to who waited first and has gone."""
    with shared_tracker.client() as other:
        held = other.acquire(on(devices[2]), client="holder", wait_s=PATIENCE_S)
        assert held is not None
        with Talk(shared_tracker) as talk:
            talk.say(acquiring(1, devices[2], PATIENCE_S), acquiring(2, "none", 0.0))
            assert 2 in talk.answers(1)
        other.release(held)
        lease = other.acquire(on(devices[2]), client="stays", wait_s=PATIENCE_S)
        assert lease is not None
        assert (lease.client, lease.epoch) == ("stays", held.epoch + 1)
        other.release(lease)


def test_a_stream_is_its_callers(shared_tracker: Any, devices: list[str]) -> None:
    """Owner, role and the end of the token count for each call, as everywhere."""
    secrets = {}
    with shared_tracker.client() as admin:
        for name, role in (("anna", Role.CLIENT), ("bob", Role.CLIENT), ("w9", Role.WORKER)):
            secrets[name] = new_secret()
            token = Token(digest_of(secrets[name]), f"{name}-{devices[0]}", role)
            admin.create_token(token, actor="root")
        with (
            shared_tracker.client(secrets["anna"]) as anna,
            shared_tracker.client(secrets["bob"]) as bob,
            shared_tracker.client(secrets["w9"]) as worker,
        ):
            lease = anna.acquire(on(devices[3]), client="a", wait_s=PATIENCE_S)
            assert lease is not None
            with pytest.raises(Forbidden, match="belongs to anna"):
                bob.release(lease)
            with pytest.raises(Forbidden, match="Leases is for admin or client or tuner"):
                worker.renew(lease)
            with ThreadPoolExecutor(1) as threads:
                waiting = threads.submit(
                    anna.acquire, on(devices[3]), client="a", wait_s=PATIENCE_S
                )
                assert anna.renew(lease).epoch == lease.epoch
                admin.revoke_token(f"anna-{devices[0]}", actor="root", reason="left")
                with pytest.raises(TokenRefused, match="was revoked"):
                    waiting.result(PATIENCE_S)
            with pytest.raises(TokenRefused, match="was revoked"):
                anna.renew(lease)
        admin.release(lease)


@pytest.mark.parametrize("tracker", ["sqlite"], indirect=True)
def test_an_open_stream_holds_no_tracker_up_and_outlives_it(
    tracker: Any, start_worker: Callable[..., Any]
) -> None:
    start_worker(tracker, "d1")

    def stopped_s() -> float:
        began = time.monotonic()
        assert tracker.stop() == (0, "")
        return time.monotonic() - began

    def with_stream_s() -> float:
        with tracker.client() as farm:
            lease = farm.acquire(on("d1"), client="c", wait_s=PATIENCE_S)
            assert lease is not None
            took_s = stopped_s()
            tracker.start()
            assert farm.renew(lease).epoch == lease.epoch
            farm.release(lease)
        return took_s

    def idle_s() -> float:
        with tracker.client() as farm:
            farm.info()
            took_s = stopped_s()
        tracker.start()
        return took_s

    # A busy machine may hold any one try up for longer.
    assert any(with_stream_s() < idle_s() + 1.5 for _ in range(3)), "it waits 2 s for open calls"
