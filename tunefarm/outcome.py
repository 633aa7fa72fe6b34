"""What a job has come to: the records that a build uses of its tasks, as paired finals saw them.

The lowest time that a search has seen is no promise: it was chosen for being low, and the default
was timed at another moment. A final times both side by side, and its record is what a build gets.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from tunefarm.db.records import BestKey, Collected, Found, Job, JobUpdate, Progress, TaskKey, Trial
from tunefarm.texts import counted

if TYPE_CHECKING:
    from tunefarm.compiler.decisions import Decision
    from tunefarm.compiler.workload import Task

_PAGE = 1000


class Trials(Protocol):
    """A farm or a database, asked for the trials of a job and the best of each key."""

    def collect(self, job: str, cursor: int = 0, *, limit: int) -> Collected: ...
    def best(self, keys: Iterable[BestKey]) -> Mapping[BestKey, Sequence[Found]]: ...


@dataclass(frozen=True, slots=True)
class Outcome:
    """A row a task of the job, with the ``statuses`` that a build tells of them.

    ``best_s`` of a row is the time of the record in use, ``default_s`` that of the default beside
    it; ``ok`` and ``failed`` count candidates, and ``finals`` the paired finals of all tasks.
    Defaults stay in use of ``kept`` tasks after finals of this job, of ``unrivalled`` ones as no
    trial of a candidate was faster, and of ``untried`` ones as they alone were timed.
    """

    rows: tuple[Progress, ...]
    statuses: tuple[str, ...]
    finals: int
    kept: int = 0
    unrivalled: int = 0
    untried: int = 0

    @property
    def trials(self) -> int:
        """Candidates that this job measured, failed ones too."""
        return sum(row.ok + row.failed for row in self.rows)

    @property
    def remark(self) -> str:
        """Why tasks gained nothing in finals although trials were faster; empty if all gained."""
        if not self.kept:
            return ""
        return (
            f"{_keep_defaults(self.kept)}: timed side by side in the finals, no candidate was "
            "faster by more than the noise, however fast its fastest trial was"
        )

    @property
    def shortages(self) -> list[str]:
        """How many tasks came to no final, and why."""
        told = []
        if self.unrivalled:
            told.append(
                f"{_keep_defaults(self.unrivalled)} without a final: no trial of a candidate was "
                "faster"
            )
        if self.untried:
            default, them = ("default", "it") if self.untried == 1 else ("defaults", "them")
            told.append(
                f"{counted(self.untried, 'task')} had no candidates timed, only the {default}: "
                f"more trials would search {them}"
            )
        return told

    def sentences(self, update: JobUpdate) -> list[str]:
        """What is to be said below the table of tasks of a job that is over."""
        from tunefarm.updates import errors_text, gain_text

        failed = errors_text(update.errors)
        failed = f"failed: {failed} (`tunefarm records list --failed`)" if failed else ""
        sums = "; ".join(filter(None, [self.counts, gain_text(self.rows), failed]))
        return list(filter(None, [sums, update.job.message, self.remark, *self.shortages]))

    @property
    def counts(self) -> str:
        """``16 trials + 1 final``."""
        text = counted(self.trials, "trial")
        return f"{text} + {counted(self.finals, 'final')}" if self.finals else text


def outcome(source: Trials, update: JobUpdate, tasks: Sequence[Task]) -> Outcome:
    """The outcome of a job that is over; ``tasks`` are its tasks."""
    trials = list(trials_of(source, update.job.id))
    model = next((t.device_model for t in trials if t.device_model), "")
    decisions = _decisions(source, tasks, model)
    counts = Counter((t.task, t.ok) for t in trials if not is_final(t))
    rows = [
        replace(
            settled(row, decisions.get(row.task)),
            ok=counts[row.task, True],
            failed=counts[row.task, False],
        )
        for row in update.progress
    ]
    held = {t.task for t in trials if is_final(t) and t.ok}
    statuses = [str(decisions[r.task].status) if r.task in decisions else "" for r in rows]
    why = Counter(
        _why_default(decisions[row.task], row, row.task in held)
        for row in rows
        if row.task in decisions
    )
    return Outcome(
        tuple(rows),
        tuple(statuses),
        sum(map(is_final, trials)),
        why["kept"],
        why["unrivalled"],
        why["untried"],
    )


def _why_default(decision: Decision, row: Progress, had_final: bool) -> str:
    """Which count of an ``Outcome`` a task is in whose default stays in use; empty for others, and
    where this job did not decide: in the whole model another record was slower."""
    if str(decision.status) == "default":
        return "untried" if (row.ok, row.failed) == (1, 0) else ""
    if str(decision.status) != "confirmed" or (decision.found and decision.found.best.model):
        return ""
    if had_final:
        return "kept"
    return "unrivalled" if row.ok + row.failed > 1 else ""


def _keep_defaults(count: int) -> str:
    return "1 task keeps its default" if count == 1 else f"{count} tasks keep their defaults"


def tasks_of(job: Job) -> list[Task]:
    """The tasks of a stored job; TunefarmError for a workload that this version cannot read."""
    from tunefarm.compiler.target import Target
    from tunefarm.compiler.workload import Task, Workload
    from tunefarm.db.records import FROM_MEMORY

    target = Target(job.target)
    return [
        Task(
            Workload.from_text(t.workload.text),
            target,
            t.weight,
            from_memory=t.protocol == FROM_MEMORY,
        )
        for t in job.tasks
    ]


def is_final(trial: Trial) -> bool:
    """Whether a trial is a paired final, which no budget counts."""
    from tunefarm.db.records import FINAL

    return trial.origin == FINAL


def settled(row: Progress, decision: Decision | None) -> Progress:
    """A task with the times of what a build uses: a record's, and the default's that was timed in
    pairs with it; without a record, the default's alone."""
    if decision is None:
        return row
    if decision.found is None or not decision.settled:
        return replace(row, best_s=row.default_s)
    best = decision.found.best
    latency_s, ratio = best.latency_s, best.speedup_over_default
    return replace(row, best_s=latency_s, default_s=latency_s * ratio if ratio else None)


def trials_of(source: Trials, job: str) -> Iterator[Trial]:
    """All trials of a job in the order in which they were stored."""
    cursor = 0
    while True:
        page = source.collect(job, cursor, limit=_PAGE)
        yield from page.trials
        cursor = page.cursor
        if len(page.trials) < _PAGE:
            return


def _decisions(source: Trials, tasks: Iterable[Task], device_model: str) -> dict[TaskKey, Decision]:
    """What a build on a device of this model would use for each task."""
    from tunefarm.compiler.decisions import decide, keys_of
    from tunefarm.db.lookup import merged

    wanted = [(t, keys_of(t.workload.key, t.target, device_model, t.from_memory)) for t in tasks]
    found = source.best([key for _, keys in wanted for key in keys])
    return {
        TaskKey(task.workload.key, task.target.text): decide(
            task.workload,
            task.target,
            merged(found.get(key, ()) for key in keys),
            from_memory=task.from_memory,
        )
        for task, keys in wanted
    }
