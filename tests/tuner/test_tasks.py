"""A task's books: what is proposed again and what never."""

from __future__ import annotations

from dataclasses import replace

from tunefarm.compiler.ir import Function, TensorType, Var
from tunefarm.compiler.ops import call
from tunefarm.compiler.target import Target
from tunefarm.compiler.workload import Workload
from tunefarm.db.records import (
    DEFAULT_PROTOCOL,
    FINAL,
    FROM_MEMORY,
    Config,
    ErrorKind,
    JobTask,
    Trial,
    TrialRequest,
    WorkloadRecord,
)
from tunefarm.tuner.options import JobOptions
from tunefarm.tuner.search import STRATEGIES
from tunefarm.tuner.tasks import MOST_LOST, TaskRun, failures_of, plain, quarantined

TARGET = Target("llvm -mcpu=znver5")
RELU = Function(
    (x := Var("x", TensorType((64, 64), "float32")),),
    call("relu", x),
    {"primitive": True, "constants": ()},
)


def task(earlier: tuple[Trial, ...] = ()) -> TaskRun:
    made = Workload.from_function(RELU)
    record = WorkloadRecord(made.key, made.text)
    run = TaskRun("job", JobTask(record), TARGET, JobOptions(strategy="grid"))
    run.begin((), earlier, lambda _: (), 1)
    return run


def lost(request: TrialRequest) -> Trial:
    return Trial(
        request.job, request.task, request.number, request.config,
        error=ErrorKind.DEVICE_LOST, message="the helper died", origin=request.origin,
    )  # fmt: skip


def timed(request: TrialRequest, seconds: float, protocol: str) -> Trial:
    return Trial(
        request.job, request.task, request.number, request.config, (seconds,) * 3,
        device_model="EPYC", protocol=protocol, origin=request.origin,
    )  # fmt: skip


def configs(requests: list[TrialRequest]) -> list[str]:
    return [plain(request.config) for request in requests]


def test_a_config_lost_with_its_device_is_tried_again_but_not_for_ever() -> None:
    run = task()
    first = run.propose(2)[0]
    run.absorb([lost(first)])
    again = run.propose(2)[0]
    assert again.config == first.config  # once is the device's fault
    run.absorb([lost(again)])
    assert plain(first.config) not in configs(run.propose(10_000))


def test_the_next_job_does_not_try_it_either() -> None:
    run = task()
    first, second = run.propose(2)
    earlier = (lost(first), replace(lost(first), number=9), lost(second))
    after = configs(task(earlier).propose(10_000))
    assert plain(first.config) not in after
    assert plain(second.config) in after


def test_a_config_that_had_a_time_is_no_suspect() -> None:
    config: Config = {"sketch": "a", "tile": 1}
    dead = Trial("job", task().key, 1, config, error=ErrorKind.DEVICE_LOST)
    many = [replace(dead, number=n) for n in range(MOST_LOST)]
    assert quarantined(many) == {plain(config): config}
    assert quarantined(many[:-1]) == {}
    timed = Trial("other", dead.task, 1, config, times_s=(1.0,))
    assert quarantined([*many, timed]) == {}


def test_times_of_another_protocol_are_no_candidates() -> None:
    made = Workload.from_function(RELU)
    record = JobTask(WorkloadRecord(made.key, made.text), 1, FROM_MEMORY)
    run = TaskRun("job", record, TARGET, JobOptions(strategy="grid"))
    run.begin((), (), lambda _: (), 1)
    requests = [run.default_request(), *run.propose(2)]
    requests.append(run.final_request([requests[0].config], {}))
    assert {request.protocol for request in requests} == {FROM_MEMORY}

    cold = [timed(request, 1e-3, FROM_MEMORY) for request in requests[:2]]
    run.absorb([*cold, timed(requests[2], 1e-6, DEFAULT_PROTOCOL)])
    assert run.protocol == FROM_MEMORY
    assert {trial.number for trial in run.candidates("EPYC", 9)} == {0, 1}


def test_a_worker_that_does_not_know_the_protocol_is_taken_at_its_word() -> None:
    made = Workload.from_function(RELU)
    record = JobTask(WorkloadRecord(made.key, made.text), 1, FROM_MEMORY)
    run = TaskRun("job", record, TARGET, JobOptions(strategy="grid"))
    run.begin((), (), lambda _: (), 1)
    requests = [run.default_request(), *run.propose(2)]
    run.absorb([timed(request, 1e-3, DEFAULT_PROTOCOL) for request in requests])
    assert (run.asked, run.protocol) == (FROM_MEMORY, DEFAULT_PROTOCOL)
    assert len(run.candidates("EPYC", 9)) == 3


def test_a_sketch_without_knobs_has_its_default_alone() -> None:
    made = Workload.from_function(RELU)
    record = JobTask(WorkloadRecord(made.key, made.text))
    for strategy in STRATEGIES:
        run = TaskRun("job", record, Target("sim"), JobOptions(strategy=strategy))
        run.begin((), (), lambda _: (), 1)
        assert run.default_request().config == {"sketch": "plain"}
        assert run.propose(8) == []


def test_failures_are_told_in_words_but_for_those_of_the_environment() -> None:
    dead = lost(task().propose(1)[0])
    slow = replace(dead, error=ErrorKind.RUN_TIMEOUT, message="")
    wrong = replace(dead, error=ErrorKind.WRONG_ANSWER, message="3 of 4 elements")
    assert failures_of([dead, slow, wrong]) == ["run timeout", "wrong answer: 3 of 4 elements"]


def test_a_final_meets_all_of_its_configs() -> None:
    run = task()
    first, second = (request.config for request in run.propose(2))
    final = run.final_request([first, second], {"paired_blocks": 3.0})
    assert (final.config, final.against, final.origin) == (first, (second,), FINAL)
    assert final.budgets == {"paired_blocks": 3.0}
