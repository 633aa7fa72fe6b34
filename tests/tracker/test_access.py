"""Every method × every credential, and what a token's owner and scope allow."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import grpc
import pytest
from google.protobuf import descriptor_pool
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from tunefarm.db.records import Device, DeviceRequest, Job, Role, Token, TrialRequest, WorkerState
from tunefarm.proto.awake import awake_s
from tunefarm.proto.client import FarmClient
from tunefarm.proto.errors import Forbidden, InvalidRequest, LeaseLost, NotFound, TokenRefused
from tunefarm.proto.tokens import digest_of, new_secret

from tests.patience import wait_for

NewJob = Callable[..., Job]
Candidates = Callable[[str, range], list[TrialRequest]]
StartWorker = Callable[..., Any]

WORKER, CLIENT, TUNER = "worker admin own", "client tuner admin own", "tuner admin own"
ADMIN, ANY = "admin own", "worker client tuner admin own"
OPEN = "none garbage bare unknown expired revoked worker client tuner admin own"
ALLOWED = {
    "tunefarm.v1.Worker": {"Sync": WORKER},
    "tunefarm.v1.Farm": {
        "Info": ANY,
        **dict.fromkeys(("Acquire", "Renew", "Release", "Leases"), CLIENT),
        **dict.fromkeys(("Submit", "Collect", "Pending"), CLIENT),
        **dict.fromkeys(("SubmitJob", "Cancel", "RetryJob", "GetJob", "ListJobs", "Watch"), CLIENT),
        "NoteJob": CLIENT,
        **dict.fromkeys(("ClaimJob", "RenewJob", "ReleaseJob", "FinishJob"), TUNER),
        **dict.fromkeys(("Best", "Promote", "History", "TaskStats", "CountTrials"), CLIENT),
        **dict.fromkeys(("Devices", "LeaseHistory", "ReportMisses", "Misses"), CLIENT),
        "NoteModel": CLIENT,
        **dict.fromkeys(("Cordon", "Uncordon", "CheckDevice", "Revoke", "Audit"), ADMIN),
    },
    "tunefarm.v1.Tokens": dict.fromkeys(("CreateToken", "ListTokens", "RevokeToken"), ADMIN),
    "grpc.health.v1.Health": {"Check": OPEN, "List": OPEN, "Watch": OPEN},
    "grpc.reflection.v1alpha.ServerReflection": {"ServerReflectionInfo": ADMIN},
}
"""Who may call what: written a second time, so that a change of the policy is one of the tests."""
WAYS_IN = (
    "none",
    "garbage",
    "bare",
    "unknown",
    "expired",
    "revoked",
    *(str(role) for role in Role),
    "own",
)
DENIALS = {grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED}


def issue(tracker: Any, name: str, role: Role, **fields: Any) -> str:
    """A token's secret, made by the tracker's own administrator."""
    secret = new_secret()
    with tracker.client() as admin:
        admin.create_token(Token(digest_of(secret), name, role, **fields), actor="root@lab")
    return secret


@pytest.fixture
def enter(shared_tracker: Any) -> Iterator[Callable[..., FarmClient]]:
    """Makes a token and a client that has it."""
    clients: list[FarmClient] = []

    def make(name: str, role: Role = Role.CLIENT, **fields: Any) -> FarmClient:
        secret = issue(shared_tracker, name, role, **fields)
        clients.append(FarmClient(shared_tracker.address, secret))
        return clients[-1]

    yield make
    for client in clients:
        client.close()


@pytest.fixture(scope="module")
def headers(shared_tracker: Any) -> dict[str, str | None]:
    """The ``authorization`` of each way in."""
    secrets = {str(role): issue(shared_tracker, f"a-{role}", role) for role in Role}
    secrets["expired"] = issue(shared_tracker, "late", Role.ADMIN, expires_at=time.time() + 0.5)
    secrets["revoked"] = issue(shared_tracker, "gone", Role.ADMIN)
    with shared_tracker.client() as admin:
        admin.revoke_token("gone", actor="root@lab")
    secrets["unknown"] = new_secret()
    secrets["own"] = shared_tracker.token
    time.sleep(0.6)
    return {
        "none": None,
        "garbage": "Basic YW5uYTpzZWNyZXQ=",
        "bare": "Bearer",
        **{name: f"Bearer {secret}" for name, secret in secrets.items()},
    }


def served(tracker: Any) -> dict[str, list[str]]:
    """The methods of each service that the tracker has, as it says itself."""
    with grpc.insecure_channel(tracker.address) as channel:
        stub: Any = reflection_pb2_grpc.ServerReflectionStub(channel)
        ask = reflection_pb2.ServerReflectionRequest(list_services="")
        token = (("authorization", f"Bearer {tracker.token}"),)
        (answer,) = stub.ServerReflectionInfo(iter([ask]), timeout=60, metadata=token)
    pool = descriptor_pool.Default()
    names = [service.name for service in answer.list_services_response.service]
    names.append(health_pb2.DESCRIPTOR.services_by_name["Health"].full_name)
    return {
        name: [method.name for method in pool.FindServiceByName(name).methods] for name in names
    }


def outcome(channel: Any, method: str, header: str | None, content: bytes = b"") -> Any:
    """The status of a call; a stream is left after its first word."""
    metadata = () if header is None else (("authorization", header),)
    call = channel.stream_stream(method)(iter([content]), timeout=60, metadata=metadata)
    try:
        next(call)
    except grpc.RpcError as error:
        return error.code()
    except StopIteration:
        pass
    call.cancel()
    return grpc.StatusCode.OK


def test_every_method_has_a_line(shared_tracker: Any) -> None:
    told = {service: sorted(methods) for service, methods in ALLOWED.items()}
    assert told == {
        service: sorted(methods) for service, methods in served(shared_tracker).items()
    }, "give a new method its line in tracker/policy.py, and here"


@pytest.mark.parametrize("way", WAYS_IN)
def test_who_may_call_what(shared_tracker: Any, headers: dict[str, str | None], way: str) -> None:
    known = way in {*map(str, Role), "own"}
    wrong = []
    with grpc.insecure_channel(shared_tracker.address) as channel:
        for service, methods in ALLOWED.items():
            for method, ways in methods.items():
                code = outcome(channel, f"/{service}/{method}", headers[way])
                refused = grpc.StatusCode.PERMISSION_DENIED
                if not known:
                    refused = grpc.StatusCode.UNAUTHENTICATED
                is_right = code not in DENIALS if way in ways.split() else code is refused
                if not is_right:
                    wrong.append((method, code))
    assert wrong == []


@pytest.mark.parametrize("method", ["/tunefarm.v1.Farm/Nothing", "/no.such.Service/Call"])
def test_what_does_not_exist_is_nobodys(shared_tracker: Any, method: str) -> None:
    header = f"Bearer {shared_tracker.token}"
    with grpc.insecure_channel(shared_tracker.address) as channel:
        assert outcome(channel, method, header) is grpc.StatusCode.UNIMPLEMENTED


def test_refusals_say_what_to_do(shared_tracker: Any, headers: dict[str, str | None]) -> None:
    for way, sentence in (
        ("none", r"no token; name the tracker by the file .*--tracker FILE.* TUNEFARM_TOKEN or "),
        ("unknown", r"refuses the token; name the tracker by the file .*--token-file FILE"),
        ("expired", r"token late \([0-9a-f]{8}\) expired at 20.* UTC; ask for another"),
        ("revoked", r"token gone \([0-9a-f]{8}\) was revoked at 20.* UTC; ask for another"),
    ):
        secret = (headers[way] or "").removeprefix("Bearer ")
        with (
            FarmClient(shared_tracker.address, secret) as client,
            pytest.raises(TokenRefused, match=sentence),
        ):
            client.info()
    secret = (headers["client"] or "").removeprefix("Bearer ")
    with (
        FarmClient(shared_tracker.address, secret) as client,
        pytest.raises(Forbidden, match="Audit is for admin, and token a-client has role client"),
    ):
        client.audit()


# --- the end of a token -------------------------------------------------------------------------


def long_poll(
    client: FarmClient, job: str, wait_s: float
) -> tuple[threading.Thread, list[Exception]]:
    """A call that waits for news, in a thread; what it raises."""
    raised: list[Exception] = []

    def wait() -> None:
        try:
            client.collect(job, wait_s=wait_s)
        except Exception as error:
            raised.append(error)

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    return thread, raised


def test_revoking_and_expiry_cut_calls_under_way(
    shared_tracker: Any, farm: FarmClient, new_job: NewJob, enter: Callable[..., FarmClient]
) -> None:
    job = farm.submit_job(new_job())
    soon = enter("soon", expires_at=time.time() + 3)
    late = enter("leaver")
    polls = [long_poll(client, job.id, 40) for client in (soon, late)]
    kept, unhurt = long_poll(enter("stayer"), job.id, 5)
    time.sleep(0.5)
    started = awake_s()
    (ended,) = farm.revoke_token("leaver", actor="root@lab", reason="left")
    with pytest.raises(TokenRefused, match="was revoked"):
        late.info()
    for (thread, raised), why in zip(polls, ("expired at", "was revoked at"), strict=True):
        thread.join(90)
        assert awake_s() - started < 20
        assert [type(error) for error in raised] == [TokenRefused]
        assert why in str(raised[0])
    assert ended.revoked_at is not None
    farm.cancel(job.id)
    kept.join(90)
    assert unhurt == []


def test_tokens_outlive_the_tracker(tracker: Any) -> None:
    kept, gone = issue(tracker, "kept", Role.CLIENT), issue(tracker, "gone", Role.CLIENT)
    with tracker.client() as admin:
        admin.revoke_token("gone", actor="root@lab")
    tracker.kill()
    tracker.start()
    with FarmClient(tracker.address, kept) as client:
        assert client.info().lease_term_s > 0
    with FarmClient(tracker.address, gone) as client, pytest.raises(TokenRefused):
        client.info()


# --- what belongs to whom -----------------------------------------------------------------------


def test_a_client_ends_its_own_jobs_only(
    farm: FarmClient, new_job: NewJob, enter: Callable[..., FarmClient]
) -> None:
    anna, bob = enter("anna"), enter("bob")
    job = anna.submit_job(new_job())
    assert (job.owner, bob.job(job.id).owner) == ("anna", "anna")
    with pytest.raises(Forbidden, match=f"job {job.id} belongs to anna, and client bob may"):
        bob.cancel(job.id)
    with pytest.raises(Forbidden, match="belongs to anna"):
        bob.acquire(DeviceRequest("sim"), client="b", job=job, wait_s=0)
    with pytest.raises(NotFound):
        bob.cancel("none")
    assert str(enter("anna").cancel(job.id).state) == "cancelled"
    theirs = farm.submit_job(new_job())
    with pytest.raises(Forbidden, match="belongs to the farm itself"):
        anna.cancel(theirs.id)
    farm.cancel(theirs.id)


def test_a_lease_is_its_holders(
    shared_tracker: Any,
    farm: FarmClient,
    start_worker: StartWorker,
    candidates: Candidates,
    enter: Callable[..., FarmClient],
) -> None:
    start_worker(shared_tracker, "owned")
    anna, bob, tuner = enter("anna"), enter("bob"), enter("t1", Role.TUNER)
    wanted = DeviceRequest("sim", attributes={"name": "owned"})
    lease = anna.acquire(wanted, client="anna@pc", wait_s=60)
    assert lease is not None
    assert (lease.owner, lease.client) == ("anna", "anna (anna@pc)")
    for stranger in (bob, tuner):
        for use in (
            lambda one: one.renew(lease),
            lambda one: one.release(lease),
            lambda one: one.submit(lease, candidates("j", range(1))),
        ):
            with pytest.raises(Forbidden, match=r"belongs to anna \(anna@pc\), not to"):
                use(stranger)
    assert anna.renew(lease).epoch == lease.epoch
    farm.release(lease)
    with pytest.raises(LeaseLost):
        anna.renew(lease)


def test_candidates_are_for_ones_own_jobs(
    shared_tracker: Any,
    start_worker: StartWorker,
    new_job: NewJob,
    candidates: Candidates,
    enter: Callable[..., FarmClient],
) -> None:
    start_worker(shared_tracker, "lent")
    anna, bob = enter("anna"), enter("bob")
    job = anna.submit_job(new_job())
    lease = bob.acquire(DeviceRequest("sim", attributes={"name": "lent"}), client="b", wait_s=60)
    assert lease is not None
    with pytest.raises(Forbidden, match=f"job {job.id} belongs to anna"):
        bob.submit(lease, candidates(job.id, range(1)))
    bob.submit(lease, candidates("closing of bob", range(1)))
    bob.release(lease)
    anna.cancel(job.id)


def test_a_workload_is_what_its_key_says(farm: FarmClient, new_job: NewJob) -> None:
    job = new_job()
    (task,) = job.tasks
    forged = replace(job, tasks=(replace(task, workload=replace(task.workload, text="other")),))
    with pytest.raises(InvalidRequest, match="is not the SHA-256 of the text sent with it"):
        farm.submit_job(forged)


def test_the_audit_trail_names_the_token(
    shared_tracker: Any, farm: FarmClient, start_worker: StartWorker, enter: Callable[..., Any]
) -> None:
    worker = start_worker(shared_tracker, "audited")
    wait_for(lambda: "audited" in {device.id for device in farm.devices()})
    boss = enter("boss", Role.ADMIN)
    cordon, _, _ = boss.cordon("audited", actor="someone@else", reason="fans")
    boss.uncordon("audited", actor="someone@else")
    events = farm.audit("audited")
    assert cordon.actor == "boss (someone@else)"
    assert {event.actor for event in events} == {"boss (someone@else)"}
    (made,) = [t for t in farm.tokens() if t.name == "boss"]
    (event,) = farm.audit(made.id)
    assert (event.actor, event.action) == ("root@lab", "create token")
    assert event.reason == "boss, admin"
    worker.vanish()


# --- scopes -------------------------------------------------------------------------------------


def test_a_client_gets_the_devices_of_its_scope(
    shared_tracker: Any, start_worker: StartWorker, new_job: NewJob, enter: Callable[..., Any]
) -> None:
    start_worker(shared_tracker, "scope-1")
    start_worker(shared_tracker, "scope-2")
    anna = enter("anna", devices="name=scope-2")
    lease = anna.acquire(DeviceRequest("sim"), client="a", wait_s=60)
    assert lease.device == "scope-2"
    anna.release(lease)
    other = DeviceRequest("sim", selector="name=scope-1")
    assert anna.acquire(other, client="a", wait_s=0.3) is None
    job = anna.submit_job(new_job(selector="kind=sim"))
    assert job.selector == "kind=sim name=scope-2"
    anna.cancel(job.id)


def test_a_priority_may_be_too_high(new_job: NewJob, enter: Callable[..., FarmClient]) -> None:
    anna = enter("anna", max_priority=5)
    job = anna.submit_job(new_job(priority=5))
    anna.cancel(job.id)
    sentence = "anna may ask for a priority of 5 at most, not 6"
    with pytest.raises(Forbidden, match=sentence):
        anna.submit_job(new_job(priority=6))
    with pytest.raises(Forbidden, match=sentence):
        anna.acquire(DeviceRequest("sim", priority=6), client="a", wait_s=0)


def sync(client: FarmClient, worker: str, *devices: str, incarnation: str = "i") -> None:
    offered = tuple(Device(name, "sim", "Sim 1", "sim", "", {"rack": name[-1]}) for name in devices)
    client.sync(WorkerState(worker, f"{worker} {incarnation}", 1, "0.1", offered), 0.0)


def test_a_worker_offers_the_devices_of_its_scope(enter: Callable[..., FarmClient]) -> None:
    lab3 = enter("lab3", Role.WORKER, devices="worker=lab3-* rack=3")
    sync(lab3, "lab3-a", "dev-3")
    with pytest.raises(Forbidden, match="device dev-4 of worker lab3-a is none of them"):
        sync(lab3, "lab3-a", "dev-3", "dev-4")
    with pytest.raises(Forbidden, match="token lab3 is for devices with worker=lab3"):
        sync(lab3, "lab4-a", "dev-3")
    with pytest.raises(Forbidden, match="worker lab4-a offers no device"):
        sync(lab3, "lab4-a")


def test_a_worker_speaks_for_itself_only(
    farm: FarmClient, enter: Callable[..., FarmClient]
) -> None:
    sync(enter("lab5", Role.WORKER), "w5", "dev-5")
    sync(enter("lab5", Role.WORKER), "w5", "dev-5", incarnation="next")
    with pytest.raises(Forbidden, match="worker w5 belongs to token lab5, not to lab6; name this"):
        sync(enter("lab6", Role.WORKER), "w5", "dev-5", incarnation="thief")
    sync(farm, "w5", "dev-5", incarnation="by the administrator")


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"name": "a b"}, "is no name of a token"),
        ({"devices": "rack="}, "lacks its value"),
        ({"digest": "12"}, "64 hexadecimal digits"),
    ],
)
def test_what_is_no_token_is_refused(
    farm: FarmClient, change: dict[str, str], sentence: str
) -> None:
    token = replace(Token(digest_of(new_secret()), "anna", Role.CLIENT), **change)
    with pytest.raises(Exception, match=sentence):
        farm.create_token(token, actor="root@lab")
