"""Requests that hold too much, field by field, and over the wire."""

from __future__ import annotations

import math
from typing import Any

import grpc
import pytest
from google.protobuf import descriptor_pool
from google.protobuf.message import Message
from tunefarm.proto import farm_pb2 as farm
from tunefarm.proto import records_pb2 as pb
from tunefarm.proto.errors import InvalidRequest
from tunefarm.tracker import limits
from tunefarm.tracker.policy import BULK, POLICY, SMALL


def submission(**fields: Any) -> farm.SubmitRequest:
    """One candidate, as large as one may be."""
    values = {"x": pb.ConfigValue(number=2**62), "s": pb.ConfigValue(text="t" * limits.MAX_TEXT)}
    wanted = {
        "job": "j",
        "number": 2**31 - 1,
        "config": pb.Config(values=values),
        "predicted": math.nan,
        "budgets": {"run": 1.5},
    }
    request = pb.TrialRequest(**(wanted | fields))
    return farm.SubmitRequest(lease="l", requests=[request], workloads={"k": "w" * (1 << 20)})


@pytest.mark.parametrize(
    "message",
    [
        submission(),
        farm.InfoRequest(),
        farm.SubmitJobRequest(job=pb.Job(tasks=[pb.JobTask(workload=pb.Workload(flops=2**60))])),
        farm.WatchRequest(cursor=2**60, wait_s=5.0),
    ],
    ids=lambda m: type(m).__name__,
)
def test_what_is_allowed_passes(message: Message) -> None:
    limits.check(message)


@pytest.mark.parametrize(
    ("message", "sentence"),
    [
        (submission(job="j" * 4097), "TrialRequest.job has 4097 characters; 4096 are allowed"),
        (submission(job="a\0b"), "TrialRequest.job has a character NUL"),
        (submission(number=2**31), "TrialRequest.number is 2147483648; 2147483647 is the most"),
        (submission(number=-(2**40)), "TrialRequest.number is -1099511627776"),
        (submission(budgets={"run": math.inf}), "Budgets.value is inf; write a finite number"),
        (submission(budgets={"r" * 5000: 1.0}), "key has 5000 characters"),
        (submission(budgets={str(n): 1.0 for n in range(10_001)}), "budgets has 10001 items"),
        (submission(against=[pb.Config()] * 10_001), "against has 10001 items; 10000 are allowed"),
        (
            submission(against=[pb.Config(values={"x": pb.ConfigValue(text="t" * 5000)})]),
            "ConfigValue.text has 5000 characters",
        ),
        (farm.WatchRequest(wait_s=math.nan), "WatchRequest.wait_s is nan"),
        (farm.AcquireRequest(waited_s=-math.inf), "AcquireRequest.waited_s is -inf"),
        (
            farm.SubmitRequest(workloads={"k": "w" * (5 << 20)}),
            "value has 5242880 characters; 4194304 are allowed",
        ),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_what_is_too_much_is_named(message: Message, sentence: str) -> None:
    with pytest.raises(InvalidRequest, match=sentence):
        limits.check(message)


@pytest.mark.parametrize("name", sorted({*limits.LONG, *limits.GREAT, *limits.OPEN_ENDED}))
def test_exceptions_are_of_fields_that_exist(name: str) -> None:
    message, _, field = name.rpartition(".")
    assert field in descriptor_pool.Default().FindMessageTypeByName(message).fields_by_name


def call(tracker: Any, method: str, content: bytes, token: str | None = None, **how: Any) -> str:
    """What a raw call is answered with."""
    header = (("authorization", f"Bearer {tracker.token if token is None else token}"),)
    with grpc.insecure_channel(
        tracker.address, options=[("grpc.max_send_message_length", -1)]
    ) as channel:
        try:
            channel.unary_unary(method)(content, metadata=header, timeout=90, **how)
        except grpc.RpcError as error:
            return f"{error.code().name}: {error.details()}"
    return "OK"


@pytest.mark.parametrize("method", [name for name, rule in POLICY.items() if not rule.is_open])
def test_every_request_has_its_length(shared_tracker: Any, method: str) -> None:
    most = POLICY[method].max_bytes
    if "Reflection" in method:
        return
    told = call(shared_tracker, method, b"\x7a" + b"\xff" * most)
    assert told.startswith(f"INVALID_ARGUMENT: the request of {method.rpartition('/')[2]} has")
    assert f"bytes; {most} are allowed" in told
    assert "is no message of tunefarm's" in call(shared_tracker, method, b"\xff" * 40)


def test_what_is_longer_than_anything_is_not_received(shared_tracker: Any) -> None:
    told = call(shared_tracker, "/tunefarm.v1.Farm/Submit", b"\0" * (2 * BULK))
    assert told.startswith("RESOURCE_EXHAUSTED")


def test_strangers_are_refused_before_they_are_read(shared_tracker: Any) -> None:
    for method in ("/tunefarm.v1.Farm/Submit", "/tunefarm.v1.Farm/Nothing"):
        told = call(shared_tracker, method, b"\0" * (2 * BULK), token="guess")
        assert told.startswith(("UNAUTHENTICATED", "UNIMPLEMENTED")), told
    told = call(shared_tracker, "/grpc.health.v1.Health/Check", b"\0" * (SMALL + 1), token="guess")
    assert told.startswith("INVALID_ARGUMENT: the request of Check has")


def test_compressed_requests_are_not_unpacked(shared_tracker: Any) -> None:
    content = farm.SubmitRequest(lease="l" * (8 << 20)).SerializeToString()
    told = call(
        shared_tracker, "/tunefarm.v1.Farm/Submit", content, compression=grpc.Compression.Gzip
    )
    assert not told.startswith(("OK", "INVALID_ARGUMENT")), told


def test_a_refusal_quotes_no_more_than_fits(shared_tracker: Any) -> None:
    content = farm.GetJobRequest(job="🙂" * limits.MAX_TEXT).SerializeToString()
    told = call(shared_tracker, "/tunefarm.v1.Farm/GetJob", content)
    assert told.startswith("NOT_FOUND: there is no job 🙂")
    assert told.endswith("🙂…")
    assert 4 * len(told.encode()) < 7 * 1024, "gRPC drops headers of 8 KiB at random"
