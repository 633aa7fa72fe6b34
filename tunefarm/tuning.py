"""``tune``: a job on a running farm, or on one that lives as long as the call."""

from __future__ import annotations

import contextlib
import shlex
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tunefarm.checks import (
    check_budget,
    check_device,
    check_search,
    check_tasks,
    count_trials,
    earlier_trials,
    raised_budget,
    tell_waiting,
    this_machine,
)
from tunefarm.compiler.errors import TunefarmError
from tunefarm.compiler.space import plugins_of
from tunefarm.compiler.target import Target
from tunefarm.compiler.workload import Task
from tunefarm.db.records import (
    OWNED,
    UNNAMED,
    Budget,
    Job,
    JobState,
    JobUpdate,
    plugin_conditions,
)
from tunefarm.interrupts import ignoring_interrupts, interrupted_here, remembering_interrupts
from tunefarm.noting import note_at, note_in, records_of
from tunefarm.outcome import Outcome, outcome
from tunefarm.owners import own_mark
from tunefarm.updates import ALL, Idle, done, gain_text

if TYPE_CHECKING:
    from tunefarm.closing import Closing
    from tunefarm.compiler.ir import IRModule
    from tunefarm.proto.client import FarmClient

IDLE_S = 15.0
"""How long after its time a job that does not move is left alone."""
NOTICEABLE = 0.1
"""The share of this machine from which on what others take of it hides small gains."""
Watcher = Callable[[JobUpdate], None]
Say = Callable[[str], None]
_Drawing = tuple[Watcher | None, Say | None, Callable[[Outcome | None], None]]


@dataclass(frozen=True, slots=True)
class Tuned:
    """What a ``tune`` call ended with. ``earlier`` trials were there before it; ``closing`` is
    there if bests met their rivals in the whole model, and ``outcome`` unless there was nothing to
    do: what a build gets now. ``others_share`` is the part of this machine that other processes
    took, None where the farm was not the call's own."""

    job: Job | None
    last: JobUpdate | None
    earlier: int
    closing: Closing | None = None
    outcome: Outcome | None = None
    others_share: float | None = None

    def __repr__(self) -> str:
        """One line: what it measured, and how much faster the tasks are."""
        if self.job is None or self.last is None or self.outcome is None:
            return f"Tuned(nothing to do, earlier={self.earlier})"
        told = [self.outcome.counts, gain_text(self.outcome.rows)]
        text = "; ".join(filter(None, told))
        return f"Tuned({text}; earlier={self.earlier}, job={self.job.id}, {self.last.job.state})"

    def _repr_html_(self) -> str:
        from tunefarm.notebook import page
        from tunefarm.trials import outcome_table

        if self.job is None or self.last is None or self.outcome is None:
            return page("Nothing to do", {"trials of before": self.earlier})
        facts = {
            "job": self.job.id,
            "state": self.last.job.state,
            "trials": self.outcome.counts,
            "all tasks": gain_text(self.outcome.rows).removeprefix(ALL),
            "whole model": self.closing.summary() if self.closing is not None else "",
            "neighbours": self.disturbance,
        }
        return page("Tuned", facts, outcome_table(self.outcome))

    @property
    def trials(self) -> int:
        """Candidates that this job measured, failed ones too; finals are none."""
        return 0 if self.outcome is None else self.outcome.trials

    @property
    def disturbance(self) -> str:
        """One sentence on what other processes took of this machine; empty if it was little."""
        if self.others_share is None or self.others_share < NOTICEABLE:
            return ""
        return (
            f"other processes took {100 * self.others_share:.0f}% of this machine meanwhile: what "
            "finals found faster holds, but they may have missed small gains; tune with more "
            "trials when it is quiet"
        )


@interrupted_here("stopped; every finished trial is kept")
def tune(
    tasks: Sequence[Task],
    *,
    db: str | None = None,
    tracker: str | None = None,
    trials: int = 1000,
    seconds: float | None = None,
    search: str = "xgb-genetic",
    seed: int = 0,
    watch: Watcher | None = None,
    token: str = "",
    module: IRModule | None = None,
    say: Say | None = None,
    device: str = "",
    model_name: str = "",
    progress: bool = True,
) -> Tuned:
    """Tune tasks of one target until the budget is spent, and return when the job is over.

    ``trials`` counts over all tasks, and earlier trials of the same tasks in the database count;
    each task takes one at least, for its default. ``seconds`` is wall-clock time. With ``tracker``
    (HOST:PORT) the job runs on that farm; else a tracker, a worker and a tuner are started on this
    machine over the database ``db`` (a URL or a path; by default the one in the user's data folder)
    and stopped at the end.

    With ``module``, whose tasks these are, the job ends with the closing step: up to a tenth of
    the time, a minute at most, goes into runs of the whole model that may replace a best (see
    ``tunefarm.closing``); ``say`` hears a line when it begins.

    ``device`` selects by their tags the devices that may measure it, for instance
    ``"arch>=sm_90 host!=lab3"`` (see ``tunefarm.tracker.selector``).

    Meanwhile it draws what ``tunefarm tune`` does, on the standard error stream: a live table in a
    terminal or a notebook, else a line now and then. A function ``watch`` gets each update instead;
    without ``progress`` nothing is drawn.

    With ``model_name``, or with ``module``, the database notes that these are the tasks of a model,
    and the dashboard has a page for it.

    KeyboardInterrupt cancels the job and keeps every trial. Raises TunefarmError if ``db`` and
    ``tracker`` are both given, if the tasks have different targets or one that this machine cannot
    measure for an embedded farm, or if the job fails.
    """
    from tunefarm.api import default_database
    from tunefarm.peers.turns import Neighbours

    if db is not None and tracker is not None:
        raise TunefarmError("give db (an embedded farm) or tracker (a running one), not both")
    check_tasks(tasks)
    check_budget(trials, seconds)
    trials = raised_budget(trials, tasks)
    check_search(search, seed)
    check_device(device)
    target = _target_of(tasks)
    database = db or default_database()
    name = model_name or (UNNAMED if module is not None else "")
    if tracker is None:
        earlier = earlier_trials(database, tasks)
        if earlier >= trials:
            if name:
                note_in(database, name, tasks)
            return Tuned(None, None, earlier)
    begin, neighbours = time.monotonic(), Neighbours()
    job_s = seconds
    if seconds is not None and module is not None:
        job_s = seconds - _closing_s(seconds)
    farm, drawing = _farm(database, tracker, token, target), _drawing(watch, say, progress)
    with farm as (client, is_own), drawing as (watch, say, conclude):
        earlier = count_trials(client, tasks, this_machine(target) if is_own else None)
        if earlier >= trials:
            if name:
                note_at(client, name, tasks)
            return Tuned(None, None, earlier)
        job = client.submit_job(
            make_job(
                tasks, trials, job_s, search, seed,
                earlier=earlier, owned=tracker is None, device=device, model_name=name,
            )
        )  # fmt: skip
        until = None if seconds is None else begin + seconds
        how_to_go_on = (
            contextlib.nullcontext() if is_own else _telling_how_to_go_on(job.id, tracker)
        )
        with how_to_go_on, _cancelled_by_interrupts(client, job.id):
            if not is_own:
                tell_waiting(client.devices(), target, job)
            last = _follow(client, job.id, watch, until)
        closing = None
        if module is not None and last.job.state is JobState.SUCCEEDED:
            closing_s = _closing_s(seconds or time.monotonic() - begin)
            closing = _close(client, module, target, closing_s, say)
        found = outcome(client, last, tasks)
        conclude(found)
        tuned = Tuned(last.job, last, earlier, closing, found)
    return replace(tuned, others_share=neighbours.share()) if is_own else tuned


@contextlib.contextmanager
def _drawing(watch: Watcher | None, say: Say | None, progress: bool) -> Iterator[_Drawing]:
    """Who gets a job's updates, lines and outcome: the caller, or a console."""
    if watch is not None or not progress:
        yield watch, say, lambda _: None
        return
    from rich.console import Console

    from tunefarm.progress import showing

    console = Console(stderr=True)
    with showing(console) as show:
        yield show, say or console.print, show.conclude


@contextlib.contextmanager
def _telling_how_to_go_on(job: str, tracker: str | None) -> Iterator[None]:
    """Add to the error of a tracker that went away what becomes of the job."""
    from tunefarm.proto.errors import TrackerUnavailable

    try:
        yield
    except TrackerUnavailable as error:
        where = f" --tracker {shlex.quote(tracker)}" if tracker else ""
        raise TrackerUnavailable(
            f"{error}; the job goes on without this command: `tunefarm watch {job[:8]}{where}`"
        ) from error


def _follow(client: FarmClient, job: str, watch: Watcher | None, until: float | None) -> JobUpdate:
    """Watch a job until it is over; it is cancelled where it does not move although the time
    ``until`` has passed. TunefarmError if it fails, or ends so without a trial."""
    last, idle = None, Idle()
    with remembering_interrupts() as interrupted:
        for last in client.watch(job, wait_s=1.0):
            if interrupted:
                raise KeyboardInterrupt
            if watch is not None:
                watch(last)
            idle.note(last)
            if until is not None and time.monotonic() > until and idle.seconds > IDLE_S:
                why = f"the time was up, and no trial ended for {idle.seconds:.0f} s"
                why += _cancel(client, job, why)
                if not done(last):
                    raise TunefarmError(f"nothing was tuned: {why}")
                warnings.warn(why, stacklevel=2)
                break
    assert last is not None
    if last.job.state is JobState.FAILED:
        raise TunefarmError(f"the tuning job failed: {last.job.message}")
    return last


@contextlib.contextmanager
def _cancelled_by_interrupts(client: FarmClient, job: str) -> Iterator[None]:
    """Cancel the job on KeyboardInterrupt, which says so if that could not be done now."""
    try:
        yield
    except KeyboardInterrupt:
        with ignoring_interrupts():
            left = _cancel(client, job, why := "stopped from the keyboard")
        if not left:
            raise
        warnings.warn(f"{why}{left}", stacklevel=2)
        raise KeyboardInterrupt(f"{why}{left}") from None


def _cancel(client: FarmClient, job: str, why: str) -> str:
    """Cancel the job; a farm that cannot do so now does not keep the command from ending. Returns
    what is then to be added to ``why``."""
    from tunefarm.proto.errors import StorageFailed, TrackerUnavailable

    try:
        client.cancel(job, why)
    except (StorageFailed, TrackerUnavailable) as error:
        return f"; the job is ended by the next `tunefarm tune` ({error})"
    return ""


def _closing_s(seconds: float) -> float:
    """The part of the time of a tuning, in seconds, that the closing step may take."""
    from tunefarm.closing import SECONDS, SHARE

    return min(SECONDS, SHARE * seconds)


def _close(
    client: FarmClient,
    module: IRModule,
    target: Target,
    seconds: float,
    say: Say | None,
) -> Closing | None:
    """The closing step; what is in its way is a warning, since the tuning itself is done."""
    from tunefarm.closing import close_on_farm
    from tunefarm.proto.errors import FarmError

    try:
        return close_on_farm(client, module, target, seconds, say)
    except (TunefarmError, FarmError, OSError, MemoryError) as error:
        reason = str(error) or "out of memory"
        warnings.warn(f"the closing step was left out: {reason}", stacklevel=3)
        return None


@contextlib.contextmanager
def _farm(
    database: str, tracker: str | None, token: str, target: Target
) -> Iterator[tuple[FarmClient, bool]]:
    """A client, and whether its farm is this call's own."""
    if tracker is not None:
        from tunefarm.farm import connect

        with connect(tracker, token) as client:
            yield client, False
        return
    from tunefarm.embedded import EmbeddedFarm

    with EmbeddedFarm(database, target.text) as farm:
        yield farm.client, farm.is_own


def make_job(
    tasks: Sequence[Task],
    trials: int,
    seconds: float | None = None,
    search: str = "xgb-genetic",
    seed: int = 0,
    priority: int = 0,
    earlier: int = 0,
    owned: bool = False,
    device: str = "",
    model_name: str = "",
) -> Job:
    """The job that tunes these tasks; TunefarmError if they have several targets.

    The tuner counts earlier trials of the tasks against ``trials``; ``earlier`` of them are told
    to whoever watches. An ``owned`` job ends with the command that made it. ``device`` selects
    devices; the plug-ins that the tasks are made with join it. ``model_name`` is what people call
    the model whose tasks these are, if they are all those of one.
    """
    needed = {plugin for t in tasks for plugin in plugins_of(t.workload, t.target)}
    return Job(
        "",
        _target_of(tasks).text,
        tuple(records_of(tasks)),
        Budget(trials, seconds),
        {
            "strategy": search,
            "seed": str(seed),
            "earlier": str(earlier),
            **({OWNED: own_mark()} if owned else {}),
        },
        priority=priority,
        selector=f"{device} {plugin_conditions(sorted(needed))}".strip(),
        model_name=model_name,
    )  # fmt: skip


def _target_of(tasks: Sequence[Task]) -> Target:
    """The one target of the tasks; TunefarmError if they have several."""
    targets = sorted({t.target.text for t in tasks})
    if len(targets) != 1:
        raise TunefarmError(f"a job has one target, these tasks have {', '.join(targets)}")
    return tasks[0].target
