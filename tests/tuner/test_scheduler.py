"""The task scheduler: warm-up, gradients, early stops, and what it earns on a whole job."""

from __future__ import annotations

import math

import numpy as np
import pytest
from tunefarm.tuner.scheduler import (
    SAME_FAILURES,
    SchedulerOptions,
    TaskState,
    expected_gain,
    next_task,
    round_size,
    unspent_text,
)


def task(weight=1.0, flops=1e9, family="conv", rounds=()) -> TaskState:
    state = TaskState(weight, flops, family)
    for seconds in rounds:
        state.record([seconds] * 8)
    return state


OPTIONS = SchedulerOptions()


def test_warm_up_visits_all_and_the_heaviest_first():
    tasks = [task(1), task(5), task(3)]
    order = []
    while all(t.trials < 8 for t in tasks) or any(t.trials < 8 for t in tasks):
        index = next_task(tasks, OPTIONS)
        order.append(index)
        tasks[index].record([1.0] * 4)
    assert order == [1, 2, 0, 1, 2, 0]


def test_weight_and_latency_attract_trials():
    light, heavy = task(1, rounds=[1e-3]), task(10, rounds=[1e-3])
    assert next_task([light, heavy], OPTIONS) == 1
    assert expected_gain([light, heavy], 1) == pytest.approx(10 * expected_gain([light, heavy], 0))
    assert next_task([task(rounds=[1e-3]), task(flops=1e10, rounds=[1e-2])], OPTIONS) == 1


def test_a_task_that_improves_is_preferred_to_one_that_does_not():
    improving, flat = task(rounds=[4.0, 3.0, 2.0]), task(rounds=[2.0, 2.0, 2.0])
    assert next_task([flat, improving], OPTIONS) == 1


def test_a_task_far_behind_its_family_is_preferred():
    good, bad = task(rounds=[1e-3] * 6), task(rounds=[1e-2] * 6)
    alone = task(rounds=[1e-2] * 6, family="softmax")
    assert expected_gain([good, bad], 1) > 2 * expected_gain([good, alone], 1)


def test_a_task_without_operations_has_a_finite_gain():
    assert math.isfinite(expected_gain([task(flops=0, rounds=[1e-5])], 0))


def test_identical_first_failures_stop_the_task_with_the_cause():
    state = task()
    state.record([math.inf] * 8, ["no such instruction"] * 8)
    assert state.open
    state.record([math.inf] * 8, ["no such instruction"] * 8)
    assert not state.open
    assert state.stopped == f"the first {SAME_FAILURES} trials all failed: no such instruction"
    assert next_task([state], OPTIONS) is None


def test_different_or_later_failures_do_not_stop_it():
    mixed, later = task(), task()
    mixed.record([math.inf] * 32, ["a", "b"] * 16)
    later.record([1.0])
    later.record([math.inf] * 32, ["crash"] * 32)
    assert mixed.open
    assert later.open


def test_a_task_without_gain_is_left_alone():
    options = SchedulerOptions(patience=32)
    stale, fresh = task(100, rounds=[1.0] * 6), task(1, rounds=[2.0, 1.0])
    assert next_task([stale, fresh], options) == 1
    assert next_task([stale], options) is None
    assert next_task([stale], SchedulerOptions(patience=0)) == 0
    stale.record([0.5])
    assert next_task([stale, fresh], options) == 0


def test_exhausted_tasks_are_passed_over():
    done = task(100, rounds=[1.0])
    done.exhausted = True
    assert next_task([done, task(1, rounds=[1.0])], OPTIONS) == 1
    assert next_task([done], OPTIONS) is None


def test_what_is_left_of_a_budget_is_explained():
    done = task()
    done.exhausted = True
    assert unspent_text(0, 300, [done]) == ""
    assert unspent_text(9, 300, [done]) == (
        "9 of 300 trials were left over: of 1 tasks 1 have no further candidates"
    )
    assert unspent_text(123, 300, [done, task(), task()]).endswith(
        "of 3 tasks 1 have no further candidates, 2 gained nothing for long"
    )


def test_rounds_grow_with_the_data_and_end_with_the_budget():
    sizes = [round_size(n, 1000) for n in (0, 64, 128, 200, 10_000)]
    assert sizes == [8, 8, 16, 25, 32]
    assert round_size(500, 3) == 3
    assert round_size(500, 0) == 0


def test_it_beats_round_robin_on_a_model():
    """Tasks that improve as 1 + a/√trials; the sum of weighted latencies after equal trials."""
    rng = np.random.default_rng(0)
    ideal = 10.0 ** rng.uniform(-5, -2, 12)
    weight, slack = rng.integers(1, 10, 12), rng.uniform(0.2, 4, 12)

    def latency(i, trials):
        return ideal[i] * (1 + slack[i] / np.sqrt(max(trials, 1)))

    def total(tasks):
        return sum(w * t.best_s for w, t in zip(weight, tasks, strict=True))

    def run(choose):
        tasks = [TaskState(float(weight[i]), ideal[i] * 1e11, "f") for i in range(12)]
        for step in range(80):
            index = choose(tasks, step)
            tasks[index].record([latency(index, tasks[index].trials + 8)] * 8)
        return total(tasks)

    ours = run(lambda tasks, _: next_task(tasks, SchedulerOptions(patience=0)))
    round_robin = run(lambda _, step: step % 12)
    best = sum(weight * ideal)
    assert ours - best < 0.8 * (round_robin - best)
