"""Several jobs in one chart: the time of all their tasks, or of one that they share, as each job
brought it down."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tunefarm.dashboard.datasets import Cell, Dataset, dataset
from tunefarm.dashboard.queries.followed import Steps
from tunefarm.dashboard.queries.jobs import JobLine, TaskLine

MOST = 8
"""So many jobs are told apart by their colours."""


@dataclass(frozen=True, slots=True)
class Course:
    """A job with the tasks that are looked at, and the steps of all its tasks."""

    job: JobLine
    tasks: tuple[TaskLine, ...]
    steps: Steps

    @property
    def weights(self) -> dict[str, int]:
        return {task.workload: task.weight for task in self.tasks}


def shared(all_tasks: Sequence[Sequence[TaskLine]]) -> tuple[TaskLine, ...]:
    """The tasks that all jobs have, as the first has them, those of the most time first."""
    common = set.intersection(*({task.workload for task in tasks} for tasks in all_tasks))
    found = [task for task in all_tasks[0] if task.workload in common]
    return tuple(sorted(found, key=lambda task: -(task.time_s or 0.0)))


def in_one_chart(courses: Sequence[Course]) -> Dataset:
    """Each candidate that made the whole of a job's tasks faster, and as the last row of a job
    where it stands.

    ``latency_s`` is the sum of the tasks by their weights, each at its default until a candidate
    is faster; tasks without any time are left out. Sums are compared if the jobs have the same
    tasks, and else speeds over the defaults: the note ``measure`` says which.
    """
    alike = all(course.weights == courses[0].weights for course in courses)
    return dataset(
        "curves",
        ("id", "job", "trial", "at_s", "latency_s", "speedup"),
        [row for course in courses for row in _rows(course)],
        {"measure": "latency_s" if alike else "speedup"},
    )


def _rows(course: Course) -> Iterator[tuple[Cell, ...]]:
    job, weights = course.job, {task.workload_id: task.weight for task in course.tasks}
    first = {task.workload_id: task.default_s for task in course.tasks if task.default_s}
    steps = [step for step in course.steps.rows if step.workload_id in weights]
    for step in steps:
        first.setdefault(step.workload_id, step.median_s)
    if not first:
        return
    before = sum(weights[id_] * seconds for id_, seconds in first.items())
    best, total = dict(first), before
    begin = steps[0] if steps else None
    for step in steps:
        gained = weights[step.workload_id] * (best[step.workload_id] - step.median_s)
        if gained > 0:
            best[step.workload_id] = step.median_s
            total -= gained
        if gained > 0 or step is begin:
            at_s = round(step.created_at - job.created_at, 3)
            yield step.id, job.id[:8], step.place, at_s, total, round(before / total, 5)
    end_s = round(max(0.0, job.updated_at - job.created_at), 3)
    yield None, job.id[:8], job.done, end_s, total, round(before / total, 5)
