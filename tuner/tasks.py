"""One task of a running job: its space and search, what it has submitted and what came back.

A task learns in rounds: it absorbs the trials of a round when all are there, in the order of their
numbers. What it proposes next follows from the rounds absorbed, so a process that takes the job
over resumes each round that was submitted before, and then stands where the first one stood.
"""

from __future__ import annotations

import json
import logging
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray
from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.space import config_space, plugins_of
from tunefarm.compiler.space.config import ConfigSpace, Population
from tunefarm.compiler.target import Target
from tunefarm.compiler.workload import Workload
from tunefarm.db.records import (
    FINAL,
    FROM_MEMORY,
    Config,
    ErrorKind,
    JobTask,
    TaskKey,
    Trial,
    TrialKey,
    TrialRequest,
    protocol_of,
)
from tunefarm.tuner.cost_model import Samples
from tunefarm.tuner.finals import finalists
from tunefarm.tuner.options import JobOptions
from tunefarm.tuner.scheduler import TaskState
from tunefarm.tuner.search import Guidance, Ledger, Search, make_search
from tunefarm.tuner.warm_start import (
    ENVIRONMENT_ERRORS,
    Past,
    hints,
    measured,
    samples_of,
    signature_of,
    similar,
)

_log = logging.getLogger(__name__)
MOST_LOST = 2
"""How often a config may be lost with its device before it is blamed."""


@dataclass(slots=True)
class TaskRun:
    """The state of one task. ``earlier`` are successful and failed trials of other jobs; ``asked``
    is the protocol that its trials are to be timed by."""

    job: str
    task: JobTask
    target: Target
    options: JobOptions
    key: TaskKey = field(init=False)
    asked: str = field(init=False)
    space: ConfigSpace = field(init=False)
    plugins: tuple[str, ...] = field(init=False)
    signature: NDArray[np.float32] = field(init=False)
    state: TaskState = field(init=False)
    ledger: Ledger = field(init=False)
    search: Search = field(init=False)
    trials: dict[int, Trial] = field(init=False, default_factory=dict)
    earlier: list[Trial] = field(init=False, default_factory=list)
    _submitted: set[int] = field(init=False, default_factory=set)
    _finals: dict[int, str] = field(init=False, default_factory=dict)
    _seed: tuple[int, ...] = field(init=False, default=())
    _next: int = field(init=False, default=1)

    def __post_init__(self) -> None:
        workload = Workload.from_text(self.task.workload.text)
        self.key = TaskKey(self.task.workload.key, self.target.text)
        self.asked = protocol_of(self.target.text, self.task.protocol)
        self.space = config_space(workload, self.target, self.task.protocol == FROM_MEMORY)
        self.plugins = plugins_of(workload, self.target)
        self.signature = signature_of(self.space, self.target)
        family = ",".join(sorted(s.sketch for s in self.space.sketches))
        self.state = TaskState(float(self.task.weight), float(workload.flops), family)

    def begin(
        self,
        submitted: Iterable[Trial | TrialRequest],
        earlier: Iterable[Trial],
        past: Callable[[TaskRun], Sequence[Past]],
        threads: int,
    ) -> None:
        """Take over what is known: what this job submitted before, and other jobs' trials.

        ``past`` gives, at any time, what other tasks have taught.
        """
        for one in submitted:
            if one.origin == FINAL:
                self._finals[one.number] = plain(one.config)
            elif one.number:
                self._submitted.add(one.number)
        self.earlier = list(earlier)
        rows, seconds = measured(self.space, self.earlier)
        task = zlib.crc32(self.key.workload.encode())
        self._seed = (self.options.seed, task, len(self.earlier))
        self.ledger = Ledger(self.space, self.target, np.random.default_rng(self._seed))
        self.ledger.record(rows, seconds)
        for config in quarantined(self.earlier).values():
            row = self._row(config)
            if row is not None:
                self.ledger.claim(row)
        if self.earlier:
            self.state.record([t.fastest_s for t in self.earlier], failures_of(self.earlier))
        guidance = Guidance(
            self.options.model,
            self.options.seed,
            threads,
            transfer=lambda: self._transfer(past(self)),
            hints=lambda: hints(self.space, similar(self.space, self.signature, past(self))),
        )
        self.search = make_search(self.options.strategy, self.ledger, guidance)

    def _transfer(self, past: Sequence[Past]) -> tuple[Samples, ...]:
        near = similar(self.space, self.signature, past)
        return tuple(samples_of(p, self.target) for p in near)

    @property
    def default_trial(self) -> Trial | None:
        return self.trials.get(0)

    @property
    def protocol(self) -> str:
        """What its trials are timed by: what is asked, or what a worker of an older release, which
        does not know that, timed its default by."""
        first = self.default_trial
        return first.protocol if first is not None and first.ok else self.asked

    @property
    def counted(self) -> int:
        """Trials that count against the job's budget: absorbed or under way, and those of earlier
        jobs."""
        own = sum(t.origin != FINAL for t in self.trials.values())
        return len(self.earlier) + own + self.state.under_way

    @property
    def is_searched(self) -> bool:
        """Whether a config beside the default was tried, or there is none left to try."""
        default = plain(self.space.default)
        tried = (*self.trials.values(), *self.earlier)
        if any(t.origin != FINAL and plain(t.config) != default for t in tried):
            return True
        return self.space.size == 1 or self.state.exhausted

    @property
    def is_final(self) -> bool:
        """Whether a final of the task was submitted: then its candidates are complete."""
        return bool(self._finals)

    @property
    def best_s(self) -> float:
        return self.ledger.best_seconds

    def as_past(self) -> Past:
        """What this task can teach others."""
        rows, seconds = self.ledger.rows, self.ledger.seconds
        return Past(self.key.workload, self.space, rows, seconds, self.signature)

    def default_request(self) -> TrialRequest:
        """Trial 0: the default config."""
        self.ledger.claim(self.space.encode(self.space.default)[None, :])
        return self._request(0, self.space.default, "default")

    def resume(self, count: int) -> list[TrialKey]:
        """The candidates of the next round, if it was submitted before: ``count`` at most."""
        first = self._next
        while self._next in self._submitted and self._next < first + count:
            self._submitted.remove(self.take_number())
        return [TrialKey(self.job, self.key, number) for number in range(first, self._next)]

    def strays(self) -> list[TrialKey]:
        """All that was submitted before and is not resumed, as one round."""
        numbers = sorted(self._submitted)
        self._submitted.clear()
        self._next = max(self._next, 1 + max(numbers, default=0))
        return [TrialKey(self.job, self.key, number) for number in numbers]

    def follow(self, configs: Sequence[Config]) -> None:
        """Take a round that was submitted before as if it had been proposed here."""
        rows = [row for row in map(self._row, configs) if row is not None]
        self.search.follow(np.concatenate([self.ledger.rows[:0], *rows]))

    def propose(self, count: int) -> list[TrialRequest]:
        """The next candidates; none marks the task as exhausted."""
        self.ledger.rng = np.random.default_rng((*self._seed, self._next))
        proposal = self.search.propose(count)
        self.state.exhausted = len(proposal) == 0
        predicted = [None] * len(proposal) if proposal.predicted is None else proposal.predicted
        requests = []
        for row, origin, score in zip(proposal.rows, proposal.origins, predicted, strict=True):
            config = self.space.decode(row)
            number = self.take_number()
            score = None if score is None else float(score)
            requests.append(self._request(number, config, origin, score))
        return requests

    def final_request(
        self, configs: Sequence[Config], budgets: Mapping[str, float]
    ) -> TrialRequest:
        """A paired final of ``configs``, timed interleaved; one that was submitted before keeps
        its number."""
        number = self.take_number()
        while self._finals.get(number, plain(configs[0])) != plain(configs[0]):
            number = self.take_number()
        request = self._request(number, configs[0], FINAL)
        return replace(request, against=tuple(configs[1:]), budgets=budgets)

    def absorb(self, trials: Sequence[Trial]) -> None:
        """Learn from the trials of a round, in order; finals only enter the books."""
        self.trials.update((t.number, t) for t in trials)
        news = [t for t in trials if t.origin != FINAL]
        for trial in news:
            row = self._row(trial.config)
            if row is None or trial.error not in ENVIRONMENT_ERRORS:
                continue
            if plain(trial.config) in quarantined((*self.earlier, *self.trials.values())):
                _log.warning("%s is proposed no more: %s", plain(trial.config), trial.message)
            else:
                self.search.forget(row)
        rows, seconds = measured(self.space, news)
        if len(rows):
            self.search.observe(rows, seconds)
        if news:
            self.state.record([t.fastest_s for t in news], failures_of(news))

    def take_number(self) -> int:
        """Take the number of the next trial."""
        self._next += 1
        return self._next - 1

    def candidates(self, device_model: str, count: int) -> list[Trial]:
        """The fastest trials on this device model with distinct configs, fastest first."""
        known = [
            t
            for t in (*self.trials.values(), *self.earlier)
            if t.ok
            and t.device_model == device_model
            and t.protocol == self.protocol
            and self._row(t.config) is not None
        ]
        chosen = finalists([t.fastest_s for t in known], [plain(t.config) for t in known], count)
        return [known[i] for i in chosen]

    def fits(self, config: Config) -> bool:
        """Whether a config of a record is one of the present space."""
        return self._row(config) is not None

    def _row(self, config: Config) -> Population | None:
        try:
            return self.space.encode(config)[None, :]
        except ScheduleError:
            return None

    def _request(
        self, number: int, config: Config, origin: str, predicted: float | None = None
    ) -> TrialRequest:
        best_s = self.best_s
        return TrialRequest(
            job=self.job,
            task=self.key,
            number=number,
            config=config,
            workload_text=self.task.workload.text,
            predicted=predicted,
            origin=origin,
            budgets={"incumbent_s": best_s} if np.isfinite(best_s) and number else {},
            plugins=self.plugins,
            protocol=self.task.protocol,
        )


def plain(config: Config) -> str:
    """A config as canonical text, to compare by."""
    return json.dumps(dict(config), sort_keys=True)


def quarantined(trials: Iterable[Trial]) -> dict[str, Config]:
    """Configs, by their texts, that were lost with their device ``MOST_LOST`` times and never had
    a time: whatever the cause, they are not tried again."""
    known = list(trials)
    lost = Counter(plain(t.config) for t in known if t.error is ErrorKind.DEVICE_LOST)
    suspects = {config for config, times in lost.items() if times >= MOST_LOST}
    if not suspects:
        return {}
    suspects -= {plain(t.config) for t in known if t.ok}
    return {text: t.config for t in known if (text := plain(t.config)) in suspects}


def failures_of(trials: Iterable[Trial]) -> list[str]:
    """Why trials failed, each in its own words; the environment's failures do not count."""
    return [
        t.error.because(t.message)
        for t in trials
        if t.error is not None and t.error not in ENVIRONMENT_ERRORS
    ]
