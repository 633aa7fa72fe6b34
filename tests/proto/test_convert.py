"""Every record survives the wire, byte for byte, and what no record can hold is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tunefarm.db import records as rec
from tunefarm.proto import convert, farm_pb2
from tunefarm.proto import records_pb2 as pb

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
whole = st.integers(-(2**63), 2**63 - 1)
real = st.floats(allow_nan=False)
reals = st.lists(real, max_size=4).map(tuple)
config = st.dictionaries(text, whole | text, max_size=4)
texts = st.dictionaries(text, text, max_size=3)
numbers = st.dictionaries(text, real, max_size=3)
task = st.builds(rec.TaskKey, text, text)
trial_key = st.builds(rec.TrialKey, text, task, whole)
best_key = st.builds(rec.BestKey, text, text, text, text)
workload = st.builds(rec.WorkloadRecord, text, text, text, whole)
trial = st.builds(
    rec.Trial,
    text,
    task,
    whole,
    config,
    reals,
    st.none() | st.sampled_from(rec.ErrorKind),
    text,
    text,
    text,
    text,
    numbers,
    text,
    text,
    text,
    text,
    st.none() | real,
    text,
    numbers,
    st.lists(reals, max_size=3).map(tuple),
    real,
)
job = st.builds(
    rec.Job,
    text,
    text,
    st.lists(st.builds(rec.JobTask, workload, whole, text), max_size=3).map(tuple),
    st.builds(rec.Budget, whole, st.none() | real),
    texts,
    st.sampled_from(rec.JobState),
    whole,
    text,
    text,
    whole,
    real,
    real,
    real,
    text,
    text,
    text,
    text,
    text,
    text,
)
miss = st.builds(rec.Miss, workload, text, whole, real, real, whole, real, text)
device = st.builds(
    rec.Device, text, text, text, text, text, texts, numbers, real, whole, text, text, text, text
)
lease = st.builds(
    rec.Lease, text, text, text, whole, real, real, text, text, real, st.none() | real, text, text
)
token = st.builds(
    rec.Token,
    text,
    text,
    st.sampled_from(rec.Role),
    text,
    st.none() | whole,
    real,
    text,
    st.none() | real,
    st.none() | real,
)
best = st.builds(
    rec.Best,
    best_key,
    trial,
    st.booleans(),
    st.none() | st.sampled_from(rec.Verdict),
    st.none() | real,
    text,
    st.none() | real,
    st.none() | real,
)
final = st.builds(
    rec.Final,
    best_key,
    trial_key,
    st.none() | trial_key,
    st.sampled_from(rec.Verdict),
    st.none() | real,
    st.none() | real,
    text,
    st.none() | real,
)
progress = st.builds(
    rec.Progress,
    task,
    text,
    whole,
    whole,
    whole,
    whole,
    whole,
    st.none() | real,
    st.none() | real,
)
held = st.builds(rec.Held, trial_key, text, whole)
found = st.builds(rec.Found, best, st.sampled_from(rec.Match))
request = st.builds(
    rec.TrialRequest,
    text,
    task,
    whole,
    config,
    text,
    st.none() | real,
    text,
    st.lists(config, max_size=2).map(tuple),
    numbers,
    st.lists(text, max_size=2).map(tuple),
    text,
)
worker_state = st.builds(
    rec.WorkerState,
    text,
    text,
    whole,
    text,
    st.lists(device, max_size=2).map(tuple),
    st.lists(held, max_size=2).map(tuple),
    st.lists(st.builds(rec.Result, text, whole, trial), max_size=2).map(tuple),
    whole,
)

PAIRS: dict[str, tuple[Any, Callable[[Any], Any], Callable[[Any], Any]]] = {
    "trial_key": (trial_key, convert.trial_key_to_wire, convert.trial_key_from_wire),
    "best_key": (best_key, convert.best_key_to_wire, convert.best_key_from_wire),
    "workload": (workload, convert.workload_to_wire, convert.workload_from_wire),
    "job_task": (
        st.builds(rec.JobTask, workload, whole, text),
        convert.job_task_to_wire,
        convert.job_task_from_wire,
    ),
    "job": (job, convert.job_to_wire, convert.job_from_wire),
    "miss": (miss, convert.miss_to_wire, convert.miss_from_wire),
    "device": (device, convert.device_to_wire, convert.device_from_wire),
    "device_request": (
        st.builds(rec.DeviceRequest, text, text, texts, whole, text, text),
        convert.device_request_to_wire,
        convert.device_request_from_wire,
    ),
    "lease": (lease, convert.lease_to_wire, convert.lease_from_wire),
    "token": (token, convert.token_to_wire, convert.token_from_wire),
    "cordon": (
        st.builds(rec.Cordon, text, text, st.booleans(), text, text, real, st.none() | real),
        convert.cordon_to_wire,
        convert.cordon_from_wire,
    ),
    "audit_event": (
        st.builds(rec.AuditEvent, real, text, text, text, text),
        convert.audit_event_to_wire,
        convert.audit_event_from_wire,
    ),
    "trial": (trial, convert.trial_to_wire, convert.trial_from_wire),
    "best": (best, convert.best_to_wire, convert.best_from_wire),
    "found": (found, convert.found_to_wire, convert.found_from_wire),
    "final": (final, convert.final_to_wire, convert.final_from_wire),
    "progress": (progress, convert.progress_to_wire, convert.progress_from_wire),
    "held": (held, convert.held_to_wire, convert.held_from_wire),
}


@pytest.mark.parametrize("name", PAIRS)
@given(data=st.data())
def test_a_record_survives_the_wire(name: str, data: st.DataObject) -> None:
    strategy, to_wire, from_wire = PAIRS[name]
    record = data.draw(strategy)
    wire = to_wire(record)
    again = type(wire).FromString(wire.SerializeToString(deterministic=True))
    assert from_wire(again) == record


@given(request)
def test_a_request_travels_apart_from_its_workloads_text(wanted: rec.TrialRequest) -> None:
    wire = convert.request_to_wire(wanted)
    assert convert.request_from_wire(wire, convert.texts_of([wanted])) == wanted


@given(worker_state, real)
def test_a_workers_state_survives_the_wire(state: rec.WorkerState, wait_s: float) -> None:
    wire = convert.worker_state_to_wire(state, wait_s)
    again = farm_pb2.SyncRequest.FromString(wire.SerializeToString())
    assert convert.worker_state_from_wire(again) == state
    assert again.wait_s == wait_s


@given(
    st.lists(request, max_size=3, unique_by=lambda r: r.task.workload),
    st.lists(held, max_size=2).map(tuple),
    st.lists(trial_key, max_size=2).map(tuple),
    st.lists(st.builds(rec.Refusal, trial_key, text), max_size=2).map(tuple),
)
def test_orders_survive_the_wire(
    requests: list[rec.TrialRequest],
    cancel: tuple[rec.Held, ...],
    accepted: tuple[rec.TrialKey, ...],
    refused: tuple[rec.Refusal, ...],
) -> None:
    work = tuple(rec.Work("d", "l", 3, wanted) for wanted in requests)
    orders = rec.WorkerOrders(work, cancel, accepted, refused, 10.0)
    wire = convert.orders_to_wire(orders)
    again = farm_pb2.SyncReply.FromString(wire.SerializeToString())
    assert convert.orders_from_wire(again) == orders


def test_every_enumeration_value_has_a_name_on_the_wire() -> None:
    for error in rec.ErrorKind:
        assert convert.error_from_wire(pb.ErrorKind.Value(convert.error_to_wire(error))) is error
    for state in rec.JobState:
        assert convert.state_from_wire(pb.JobState.Value(convert.state_to_wire(state))) is state
    assert convert.error_from_wire(0) is None
    assert convert.error_from_wire(99) is rec.ErrorKind.RUN_ERROR, "a newer worker's"


def test_raw_bytes_in_a_message_do_not_stop_it() -> None:
    failed = rec.Trial(
        "j", rec.TaskKey("w", "t"), 0, {}, stderr_tail=b"\xff!".decode(errors="surrogateescape")
    )
    assert convert.trial_from_wire(convert.trial_to_wire(failed)).stderr_tail == "?!"


@pytest.mark.parametrize(
    ("refuse", "sentence"),
    [
        (lambda: convert.verdict_from_wire(99), "99 is no verdict known here; a newer version"),
        (lambda: convert.state_from_wire(0), "names no job state"),
        (lambda: convert.match_from_wire(0), "names no match"),
        (lambda: convert.final_from_wire(pb.Final()), "names no verdict"),
        (
            lambda: convert.config_from_wire(pb.Config(values={"tile": pb.ConfigValue()})),
            "knob 'tile' of a config has no value",
        ),
        (
            lambda: convert.request_from_wire(pb.TrialRequest(), {}),
            "lacks the text of workload",
        ),
    ],
)
def test_what_no_record_can_hold_is_refused(refuse: Callable[[], object], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        refuse()
