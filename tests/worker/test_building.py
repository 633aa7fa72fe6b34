"""Candidates of a task are built in company, and each fails by itself."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tunefarm.db.records import Config, ErrorKind, TaskKey, TrialRequest
from tunefarm.worker.backend import Built
from tunefarm.worker.building import BuildPool, Order, build
from tunefarm.worker.cores import CoreLock
from tunefarm.worker.measure import TrialFailed

SECONDS = 20.0


@dataclass
class Scripted:
    """A builder that notes what it is asked for: candidates of kind "bad" have no code, those of
    kind "shy" none in company, and with a "deadly" one nobody has."""

    asked: list[list[int]] = field(default_factory=list)

    def start(self) -> None:
        pass

    kill = close = start

    def build(
        self, workload: str, target: str, config: Mapping[str, int | str], *_: object
    ) -> Built:
        self.asked.append([int(config["n"])])
        if config["kind"] in ("bad", "deadly"):
            raise TrialFailed(ErrorKind.BUILD_ERROR, f"{config['n']} has no code")
        return Built(str(config["n"]).encode())

    def build_together(
        self, workload: str, target: str, configs: Sequence[Mapping[str, int | str]], *_: object
    ) -> list[Built | None]:
        self.asked.append([int(config["n"]) for config in configs])
        kinds = [config["kind"] for config in configs]
        if "deadly" in kinds:
            raise TrialFailed(ErrorKind.DEVICE_LOST, "no child")
        return [
            Built(str(config["n"]).encode()) if kind == "good" else None
            for config, kind in zip(configs, kinds, strict=True)
        ]


def order(number: int, kind: str = "good", task: str = "w", is_dropped: bool = False) -> Order:
    config: Config = {"n": number, "kind": kind}
    request = TrialRequest("job", TaskKey(task, "llvm"), number, config, task)
    return Order(request, config, lambda _: is_dropped)


def test_what_has_no_code_in_company_is_built_alone() -> None:
    builder = Scripted()
    kinds = ["good", "shy", "bad", "good"]
    outcomes = build([order(n, kind) for n, kind in enumerate(kinds)], builder)
    assert builder.asked == [[0, 1, 2, 3], [1], [2]]
    assert [o.built.code if o.built else None for o in outcomes] == [b"0", b"1", None, b"3"]
    assert outcomes[2].failure is not None
    assert outcomes[2].failure.message == "2 has no code"
    assert all(outcome.seconds > 0 for outcome in outcomes)


def test_a_company_that_fails_is_built_one_by_one() -> None:
    builder = Scripted()
    outcomes = build([order(0), order(1, "deadly"), order(2)], builder)
    assert builder.asked == [[0, 1, 2], [0], [1], [2]]
    assert [outcome.failure is None for outcome in outcomes] == [True, False, True]


def test_a_dropped_candidate_is_not_built_in_company_either() -> None:
    builder = Scripted()
    outcomes = build([order(0), order(1, is_dropped=True), order(2)], builder)
    assert builder.asked == [[0, 2]]
    assert outcomes[1].failure is not None
    assert outcomes[1].failure.kind is ErrorKind.LEASE_LOST


def test_a_builder_takes_some_of_one_task_at_a_time() -> None:
    builder = Scripted()
    lock = CoreLock((min(os.sched_getaffinity(0)),))
    pool = BuildPool([(lock, [builder])], together=4)
    try:
        with lock.held(alone=True):
            tasks = ["a"] * 6 + ["b"] * 2
            futures = pool.order(*(order(n, task=task) for n, task in enumerate(tasks)))
            other = pool.submit(lambda one: one)
            last = pool.order(order(8, task="b"))
        codes = [future.result(SECONDS).code().code for future in (*futures, *last)]
        assert codes == [str(n).encode() for n in range(9)]
        assert other.result(SECONDS) is builder
    finally:
        pool.close()
    assert builder.asked == [[0, 1, 2, 3], [4, 5], [6, 7], [8]]
