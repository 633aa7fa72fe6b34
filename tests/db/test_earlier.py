"""Which earlier trials a budget counts: of the same compiler, plug-ins, model of device and
protocol."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tunefarm.db.earlier import ANY, count_earlier, machines_online
from tunefarm.db.records import DEFAULT_PROTOCOL, FROM_MEMORY, Device, TaskKey, Trial
from tunefarm.db.store import Store

PLAIN, TOY = TaskKey("plain", "sim"), TaskKey("toy", "sim")
PLUGIN = "toy-ops==0.1+abc"
HERE = ("0.1+c", "Sim 1")


def trials(task: TaskKey, count: int, version: str, job: str = "j", model: str = "Sim 1") -> list:
    config = {"sketch": "plain"}
    return [
        Trial(job, task, n, config, (1e-3,), device_model=model, compiler_version=version)
        for n in range(count)
    ]


@pytest.fixture
def filled(store: Store) -> Store:
    store.add_trials(trials(PLAIN, 3, "0.1+c"))
    store.add_trials(trials(PLAIN, 9, "0.1+old", "older"))
    store.add_trials(trials(PLAIN, 9, "0.1+c", "elsewhere", "Sim 2"))
    store.add_trials([replace(t, protocol=FROM_MEMORY) for t in trials(PLAIN, 2, "0.1+c", "m")])
    store.add_trials(trials(TOY, 4, f"0.1+c {PLUGIN}"))
    store.add_trials(trials(TOY, 9, "0.1+c", "without"))
    store.add_trials(trials(TOY, 9, "0.1+c toy-ops==0.1+old", "before"))
    return store


def test_each_task_counts_what_was_made_as_it_will_be(filled: Store) -> None:
    plain, toy = ((), DEFAULT_PROTOCOL), ((PLUGIN,), DEFAULT_PROTOCOL)
    assert count_earlier(filled, {PLAIN: plain, TOY: toy}, HERE) == 7
    assert count_earlier(filled, {PLAIN: plain, TOY: plain}, HERE) == 12
    assert count_earlier(filled, {PLAIN: plain, TOY: toy}, ANY) == 43
    assert count_earlier(filled, {PLAIN: ((), FROM_MEMORY), TOY: toy}, HERE) == 6
    assert count_earlier(filled, {}, HERE) == 0


def test_machines_are_those_that_may_get_the_job() -> None:
    wanted = "llvm -mcpu=znver5 -num-cores=2"
    fits = Device("a", "llvm", "EPYC", "llvm -mcpu=znver5 -num-cores=4", "w", compiler_version="1")
    assert machines_online([fits, replace(fits, model="Ryzen")], wanted) == {
        ("1", "EPYC"),
        ("1", "Ryzen"),
    }
    others = [replace(fits, state="offline"), replace(fits, target="llvm -mcpu=znver5")]
    assert machines_online(others, wanted) == {ANY}
