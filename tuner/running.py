"""One job from its claim to its end: defaults, rounds, finals; resumable at any point.

Everything that matters is in the database, and each step follows from what was acknowledged before
it. A tuner that takes over walks the same rounds, with the trials that are there or under way in
place of proposals, and goes on where the other was.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from tunefarm.compiler.errors import TunefarmError
from tunefarm.compiler.space import config_space
from tunefarm.compiler.space.config import ConfigSpace
from tunefarm.compiler.target import Target
from tunefarm.compiler.version import version_with
from tunefarm.compiler.workload import Workload
from tunefarm.db.records import (
    FINAL,
    FROM_MEMORY,
    Job,
    JobState,
    TaskKey,
    Trial,
    TrialKey,
    TrialRequest,
)
from tunefarm.tuner.contest import hold_finals
from tunefarm.tuner.measuring import Bench, Stopped
from tunefarm.tuner.options import JobOptions, TunerOptions
from tunefarm.tuner.places import aside
from tunefarm.tuner.pulse import Pulse
from tunefarm.tuner.scheduler import SchedulerOptions, next_task, round_size, unspent_text
from tunefarm.tuner.tasks import TaskRun
from tunefarm.tuner.warm_start import Past, past_tasks

if TYPE_CHECKING:
    from tunefarm.proto.client import FarmClient
    from tunefarm.proto.keepalive import Keepalive

__all__ = ["JobRun", "Stopped", "active_seconds"]

_log = logging.getLogger(__name__)
_HISTORY_TRIALS = 4000
_PAGE = 1000
_IDLE_S = 30.0
_FINAL_S = 1.0
FINALS_SHARE = 0.25
"""Of the time of the search, that finals may take to look again at what is open."""
AHEAD = 1
"""Rounds that are planned while one is measured, if that does not disturb it. They know less, and
a device that never waits measures more."""


@dataclass(frozen=True, slots=True)
class Round:
    """Candidates of one task that were submitted together; they took so long to propose."""

    task: TaskRun
    keys: list[TrialKey]
    proposed_s: float


class JobRun:
    """A claimed job. ``run`` returns its final state and a message."""

    def __init__(
        self,
        client: FarmClient,
        job: Job,
        options: TunerOptions,
        claim: Keepalive[Job],
        stopped: threading.Event,
        pulse: Pulse,
    ) -> None:
        self._client = client
        self._job = job
        self._tuner = options
        self._options = JobOptions.of(job.options)
        self._target = Target(job.target)
        self._tasks = [TaskRun(job.id, t, self._target, self._options) for t in job.tasks]
        self._by_key = {task.key: task for task in self._tasks}
        model = self._options.device_model
        self._bench = Bench(client, job, options.identity, model, claim, stopped, pulse)
        self._past: tuple[Past, ...] = ()
        self._deadline = float("inf")

    def run(self) -> tuple[JobState, str]:
        """Measure until the budget is spent or no task is open, then hold the finals."""
        began = time.monotonic()
        try:
            submitted = self._bench.take_over()
            self._bench.acquire()
            self._begin(submitted)
            self._measure_defaults()
            with aside(self._bench.device) as is_aside:
                self._search(AHEAD if is_aside else 0)
            left = 0 if self._is_late() else self._left()
            unspent = unspent_text(left, self._job.budget.trials, [t.state for t in self._tasks])
            deadline = self._finals_deadline(time.monotonic() - began)
            hold_finals(self._client, self._bench, self._tasks, self._options.finalists, deadline)
            return self._verdict(unspent)
        finally:
            self._bench.close()

    # --- what is known at the start -------------------------------------------------------------

    def _begin(self, submitted: Sequence[Trial | TrialRequest]) -> None:
        by_task: dict[TaskKey, list[Trial | TrialRequest]] = defaultdict(list)
        for one in submitted:
            by_task[one.task].append(one)
        earlier, foreign = self._earlier_trials()
        if self._options.warm_start:
            self._past = (*self._foreign_past(foreign), *self._history())
        for task in self._tasks:
            task.begin(by_task[task.key], earlier[task.key], self._past_of, self._tuner.threads)
        if self._job.budget.seconds is not None:
            spent_s = active_seconds([t.created_at for t in submitted if isinstance(t, Trial)])
            self._deadline = time.monotonic() + self._job.budget.seconds - spent_s
        if submitted:
            _log.info("job %s: goes on after %d trials", self._job.id, len(submitted))

    def _earlier_trials(self) -> tuple[dict[TaskKey, list[Trial]], list[Trial]]:
        """Trials of the same tasks on the same device model in other jobs: those of the device's
        compiler version and the task's plug-ins by task, timed as they are now, and others.

        What another compiler made, or another protocol timed, is no measurement of this one: it
        counts neither for the best, nor against the budget, nor for an early stop. It only warms
        the search up, as trials of a similar task do.
        """
        own: dict[TaskKey, list[Trial]] = defaultdict(list)
        foreign: list[Trial] = []
        keys = [task.key.workload for task in self._tasks]
        device = self._bench.device
        versions = {t.key: version_with(device.compiler_version, t.plugins) for t in self._tasks}
        for trial in self._pages(keys, limit=None):
            if trial.origin == FINAL or trial.device_model not in (device.model, ""):
                continue
            is_today = trial.protocol == self._by_key[trial.task].asked
            if is_today and trial.compiler_version in (versions[trial.task], ""):
                own[trial.task].append(trial)
            else:
                foreign.append(trial)
        return own, foreign

    def _foreign_past(self, trials: Sequence[Trial]) -> tuple[Past, ...]:
        spaces = {task.key.workload: task.space for task in self._tasks}
        return past_tasks(trials, lambda key, _: spaces.get(key), self._target)

    def _history(self) -> tuple[Past, ...]:
        """Past tasks of the same target other than this job's, for samples and hints."""
        own = {task.key.workload for task in self._tasks}
        texts: dict[str, str] = {}
        trials = [
            t
            for t in self._pages([], _HISTORY_TRIALS, texts)
            if t.task.workload not in own and t.origin != FINAL
        ]

        def space_of(key: str, protocol: str) -> ConfigSpace | None:
            return _space_of(texts.get(key, ""), self._target, protocol == FROM_MEMORY)

        return past_tasks(trials, space_of, self._target)

    def _pages(
        self, workloads: Sequence[str], limit: int | None, texts: dict[str, str] | None = None
    ) -> Iterable[Trial]:
        """Stored trials of other jobs on this target from before this job's, newest first."""
        cursor, count = self._bench.began_at, 0
        while limit is None or count < limit:
            page = self._client.history(self._target.text, cursor, workloads=workloads, limit=_PAGE)
            cursor, count = page.cursor, count + len(page.trials)
            if texts is not None:
                texts.update(page.workloads)
            yield from (t for t in page.trials if t.job != self._job.id)
            if not page.more:
                return

    def _past_of(self, task: TaskRun) -> Sequence[Past]:
        """What other tasks teach: those of the database, and of this job so far."""
        if not self._options.warm_start:
            return ()
        others = (t for t in self._tasks if t is not task and t.best_s < float("inf"))
        return (*self._past, *(t.as_past() for t in others))

    # --- measuring ------------------------------------------------------------------------------

    def _measure_defaults(self) -> None:
        """Trial 0 of every task, the most important tasks first."""
        tasks = sorted(self._tasks, key=lambda t: -t.state.weight * t.state.flops)
        if self._left() <= 0:
            tasks = [t for t in tasks if not t.earlier]
        for trial in self._bench.measure([t.default_request() for t in tasks]):
            self._by_key[trial.task].absorb([trial])

    def _search(self, ahead: int) -> None:
        """Round after round; ``ahead`` of them are planned before the one under way is known, so
        that the device never waits for candidates."""
        rounds: deque[Round] = deque()
        while True:
            planned = self._plan()
            rounds.extend(planned)
            if not rounds:
                return
            most = ahead if planned else len(rounds) - 1
            while len(rounds) > most:
                self._absorb(rounds.popleft())

    def _plan(self) -> list[Round]:
        """Submit the next candidates of one task; nothing if none are left to submit."""
        while True:
            task = self._next_task()
            if task is not None and (again := task.resume(self._size(task))):
                return [self._resumed(task, again)]
            strays = [(task, keys) for task in self._tasks if (keys := task.strays())]
            if strays:  # submitted by a tuner that planned otherwise: another release, or place
                return [self._resumed(task, keys) for task, keys in strays]
            if task is None or any(t.is_final for t in self._tasks) or self._is_late():
                return []
            if proposed := self._proposed(task):
                return [proposed]

    def _resumed(self, task: TaskRun, keys: list[TrialKey]) -> Round:
        task.follow(self._bench.configs(keys))
        task.state.under_way += len(keys)
        return Round(task, keys, 0.0)

    def _proposed(self, task: TaskRun) -> Round | None:
        """A round of new candidates; None if the space has no more."""
        started = time.monotonic()
        requests = task.propose(self._size(task))
        proposed_s = time.monotonic() - started
        if not requests:
            return None
        task.state.under_way += len(requests)
        return Round(task, self._bench.submit(requests), proposed_s)

    def _absorb(self, one: Round) -> None:
        """Wait for a round's results, and learn from all of them at once."""
        started = time.monotonic()
        trials = self._bench.results(one.keys)
        one.task.state.under_way -= len(one.keys)
        one.task.absorb(trials)
        self._tell(one, time.monotonic() - started)

    def _next_task(self) -> TaskRun | None:
        """The task whose turn it is; None when the budget is spent or no task is open."""
        left = self._left()
        first = min(self._options.first_trials, max(1, left // len(self._tasks)))
        options = SchedulerOptions(first, self._options.patience)
        while left > 0:
            index = next_task([task.state for task in self._tasks], options)
            if index is None:
                return None
            task = self._tasks[index]
            if not task.ledger.is_exhausted:
                return task
            task.state.exhausted = True
        return None

    def _size(self, task: TaskRun) -> int:
        return round_size(task.state.trials, self._left())

    def _is_late(self) -> bool:
        return time.monotonic() > self._deadline - self._final_s()

    def _left(self) -> int:
        return self._job.budget.trials - sum(task.counted for task in self._tasks)

    def _final_s(self) -> float:
        """Seconds to keep for the finals, a fifth of the budget at most."""
        if self._job.budget.seconds is None:
            return 0.0
        return min(_FINAL_S * len(self._tasks), self._job.budget.seconds / 5)

    def _finals_deadline(self, searched_s: float) -> float:
        """When finals stop looking again, on the monotonic clock."""
        most_s = max(_FINAL_S * len(self._tasks), FINALS_SHARE * searched_s)
        return min(self._deadline, time.monotonic() + most_s)

    def _tell(self, one: Round, waited_s: float) -> None:
        _log.info(
            "task=%s trials=%d round=%d best_us=%.3g propose_s=%.2f wait_s=%.2f left=%d",
            one.task.key.workload[:8],
            one.task.state.trials,
            len(one.keys),
            one.task.best_s * 1e6,
            one.proposed_s,
            waited_s,
            self._left(),
        )

    # --- the end --------------------------------------------------------------------------------

    def _verdict(self, unspent: str) -> tuple[JobState, str]:
        """Failed if no task has a time; else succeeded, with the causes of those that have none,
        or with why trials were left over."""
        dead = [t for t in self._tasks if t.best_s == float("inf")]
        if not dead:
            return JobState.SUCCEEDED, unspent
        causes = dict.fromkeys(t.state.stopped or _first_failure(t) for t in dead)
        message = f"{len(dead)} of {len(self._tasks)} tasks have no time: {'; '.join(causes)}"
        state = JobState.FAILED if len(dead) == len(self._tasks) else JobState.SUCCEEDED
        return state, message


def active_seconds(created_at: Iterable[float]) -> float:
    """Seconds in which trials were stored, pauses of more than half a minute left out."""
    times = sorted(t for t in created_at if t > 0)
    return sum(min(b - a, _IDLE_S) for a, b in pairwise(times))


def _first_failure(task: TaskRun) -> str:
    for trial in task.trials.values():
        if trial.error is not None:
            return trial.error.because(trial.message)
    return "nothing was measured"


def _space_of(text: str, target: Target, from_memory: bool) -> ConfigSpace | None:
    """The present space of a stored workload, its default that of weights ``from_memory`` or not;
    None if this version cannot build it."""
    if not text:
        return None
    try:
        return config_space(Workload.from_text(text), target, from_memory)
    except TunefarmError:
        return None
