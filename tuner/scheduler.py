"""Which task of a job is measured next: gradient descent on the model's latency.

The objective is Σ weight · best latency. A task's gradient estimates what one more trial buys:
from its recent slope, and from how far it stands behind what similar tasks reach (Zheng et al.,
"Ansor", 2020, section 6; α = 0.2, β = 2, window of 3 rounds).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

ALPHA = 0.2
BETA = 2.0
WINDOW = 3
ROUND = 16
"""Trials in which a task that stands far behind its family is expected to catch up."""
SAME_FAILURES = 16
"""A task whose first trials all fail with one message stops after so many of them."""


@dataclass(slots=True)
class TaskState:
    """What the scheduler knows of one task.

    ``flops`` are nominal operations, ``family`` names tasks whose throughput is comparable.
    ``best`` holds (trials measured, best seconds) after each round; infinite before a success.
    ``under_way`` counts trials that were proposed and are not recorded yet.
    """

    weight: float
    flops: float
    family: str
    best: list[tuple[int, float]] = field(default_factory=lambda: [(0, float("inf"))])
    last_gain: int = 0
    under_way: int = 0
    exhausted: bool = False
    stopped: str = ""
    _failures: int = 0
    _failure: str = ""
    _succeeded: bool = False

    @property
    def trials(self) -> int:
        return self.best[-1][0]

    @property
    def planned(self) -> int:
        """Trials measured, and those under way."""
        return self.trials + self.under_way

    @property
    def best_s(self) -> float:
        return self.best[-1][1]

    @property
    def open(self) -> bool:
        """Whether more trials can be spent here."""
        return not self.exhausted and not self.stopped

    def record(self, seconds: Sequence[float], failures: Sequence[str] = ()) -> None:
        """Add a round: seconds of its trials (infinite where failed), and why those failed."""
        before = self.best_s
        best = min([before, *seconds])
        self.best.append((self.trials + len(seconds), best))
        if best < 0.995 * before:
            self.last_gain = self.trials
        self._count_failures(len(failures) < len(seconds), failures)

    def _count_failures(self, any_success: bool, failures: Sequence[str]) -> None:
        self._succeeded = self._succeeded or any_success
        for message in failures:
            self._failures = self._failures + 1 if message == self._failure else 1
            self._failure = message
        if not self._succeeded and self._failures >= SAME_FAILURES:
            self.stopped = f"the first {self._failures} trials all failed: {self._failure}"


@dataclass(frozen=True, slots=True)
class SchedulerOptions:
    """``first_trials`` a task gets before gradients count. A task that brought no gain of half a
    percent in ``patience`` trials, and in half of all its trials, is left alone (0: never)."""

    first_trials: int = 8
    patience: int = 96


def next_task(tasks: Sequence[TaskState], options: SchedulerOptions) -> int | None:
    """The index of the task to measure next, or None when none is open.

    Every task comes to ``first_trials`` first, the least measured and then the heaviest one
    ahead; afterwards the steepest gradient wins. A task without any success counts as done with
    its warm-up, and gets a turn only when no other task is open.
    """
    open_tasks = [i for i, t in enumerate(tasks) if t.open and not _stale(t, options)]
    if not open_tasks:
        return None
    cold = [i for i in open_tasks if tasks[i].planned < options.first_trials]
    if cold:
        return min(cold, key=lambda i: (tasks[i].planned, -tasks[i].weight, i))
    return max(open_tasks, key=lambda i: (expected_gain(tasks, i), -i))


def expected_gain(tasks: Sequence[TaskState], index: int) -> float:
    """Seconds of the model's latency that one more trial is expected to save (non-negative)."""
    task = tasks[index]
    if task.best_s == float("inf"):
        return 0.0
    slope = _recent_slope(task)
    optimistic = task.best_s / max(task.trials, 1)
    if task.flops > 0:
        throughput = max(t.flops / t.best_s for t in tasks if t.family == task.family)
        optimistic = max(optimistic, (task.best_s - BETA * task.flops / throughput) / ROUND)
    return task.weight * (ALPHA * slope + (1 - ALPHA) * optimistic)


def _recent_slope(task: TaskState) -> float:
    """Seconds gained per trial over the last ``WINDOW`` rounds with a known time before them."""
    rounds = [r for r in task.best if r[1] < float("inf")][-WINDOW - 1 :]
    if len(rounds) < 2:
        return 0.0
    (first_trials, first_s), (last_trials, last_s) = rounds[0], rounds[-1]
    return (first_s - last_s) / max(last_trials - first_trials, 1)


def _stale(task: TaskState, options: SchedulerOptions) -> bool:
    waited = task.trials - task.last_gain
    return options.patience > 0 and waited >= max(options.patience, task.trials / 2)


def unspent_text(left: int, budget: int, tasks: Sequence[TaskState]) -> str:
    """Why a search ended with ``left`` trials of its budget; empty if none are left."""
    if left <= 0:
        return ""
    exhausted, flat = sum(t.exhausted for t in tasks), sum(t.open for t in tasks)
    whys = [f"{exhausted} have no further candidates"] if exhausted else []
    whys += [f"{flat} gained nothing for long"] if flat else []
    return f"{left} of {budget} trials were left over: of {len(tasks)} tasks {', '.join(whys)}"


def round_size(measured: int, left: int, smallest: int = 8, largest: int = 32) -> int:
    """Candidates of a task's next round: an eighth of those measured, within bounds and budget."""
    return max(0, min(left, max(smallest, min(largest, measured // 8))))
