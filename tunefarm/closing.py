"""The closing step of a tuning: the best of a task meets its rivals in the whole model.

The best schedules of the subgraphs do not always add up to the best model: what a kernel leaves in
the caches, or wants from memory, its neighbours feel (TenSet, 2021). So whole runs of the model are
timed with the bests of its heaviest tasks and, in turn, with rivals in their place: first all
defaults at once, since what each costs may be less than the noise, then each default, then each
second best. A rival with which the model is faster by more than the noise takes the place of the
best, in the records too, and the next one meets the model as it is then.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from tunefarm.compiler.errors import TunefarmError
from tunefarm.compiler.target import Target
from tunefarm.db.records import (
    Best,
    BestKey,
    Config,
    DeviceRequest,
    Final,
    Found,
    History,
    Match,
    Promotion,
    Trial,
    TrialKey,
    Verdict,
    model_digest,
)
from tunefarm.texts import duration

if TYPE_CHECKING:
    from tunefarm.compiler.dispatch import Decision
    from tunefarm.compiler.ir import IRModule
    from tunefarm.compiler.runtime.module import Module
    from tunefarm.compiler.workload import Task
    from tunefarm.proto.client import FarmClient
    from tunefarm.tuner.finals import Comparison

SECONDS = 20.0
SHARE = 0.1  # of the seconds of a tuning
TASKS = 6
NEAR = 1.05  # a second best that meets the best alone takes no longer than this times its time
NOISE = 0.01  # of whole runs, at least
MODEL_BYTES = 2 << 30  # weights and memory of the builds that are there at once
BUILDS = 4  # two with the bests, two with a rival
MIN_ROUNDS, MAX_ROUNDS = 4, 50  # of two pairs each; six pairs are the fewest that can decide
REPEAT_S = 5e-4  # shorter runs are timed several at a time
LEASE_S = 3.0


class Records(Protocol):
    """A farm or a database: what is known, and where a final is stored."""

    def best(self, keys: Iterable[BestKey]) -> Mapping[BestKey, Sequence[Found]]: ...
    def history(
        self, target: str = "", cursor: int = 0, *, workloads: Sequence[str] = ()
    ) -> History: ...
    def promote(self, final: Final) -> Promotion: ...


@dataclass(frozen=True, slots=True)
class Rival:
    """A task's promoted best, and a stored trial of it that may be better in the whole model."""

    best: Best
    challenger: Trial
    is_default: bool


@dataclass(frozen=True, slots=True)
class Closing:
    """What came of a closing step: how many bests ``met`` a rival, which were ``replaced``, and
    the seconds of a whole run before and after."""

    met: int
    replaced: tuple[BestKey, ...]
    before_s: float
    after_s: float

    def summary(self) -> str:
        """``4 bests met their rivals in the whole model (11.5 ms a run): all stand``."""
        if not self.met:
            return "no best met a rival in the whole model in time"
        bests = "1 best met its rivals" if self.met == 1 else f"{self.met} bests met their rivals"
        text = f"{bests} in the whole model ({duration(self.before_s)} a run): "
        if not self.replaced:
            return text + ("it stands" if self.met == 1 else "all stand")
        count = "1 was" if len(self.replaced) == 1 else f"{len(self.replaced)} were"
        return text + f"{count} replaced, then {duration(self.after_s)}"


def close_on_farm(
    client: FarmClient,
    module: IRModule,
    target: Target,
    seconds: float = SECONDS,
    say: Callable[[str], None] | None = None,
) -> Closing | None:
    """``close`` on the device that this machine offers to the farm, leased meanwhile.

    None also if the farm has no device here. TunefarmError if it is busy or the model too large.
    """
    from tunefarm.worker.device import machine_id

    here = {"machine": machine_id()}
    devices = [d for d in client.devices() if d.target == target.text and d.state != "offline"]
    mine = [d for d in devices if here.items() <= d.attributes.items()]
    if not mine:
        return None
    request = DeviceRequest(target.text, mine[0].model, here)
    noise = max(NOISE, mine[0].noise)
    return close(client, module, target, seconds, noise, lambda: _leased(client, request), say)


def close(
    records: Records,
    module: IRModule,
    target: Target,
    seconds: float = SECONDS,
    noise: float = NOISE,
    device: Callable[[], AbstractContextManager[object]] = nullcontext,
    say: Callable[[str], None] | None = None,
) -> Closing | None:
    """Let the bests of a model's heaviest tasks meet their rivals in whole runs on this machine.

    The verdicts are stored as they come. ``noise`` is a fraction; within ``device()`` nobody else
    measures; ``say`` hears when it begins. None if no promoted best differs from its default, if
    all met their rivals in this model before, or if ``seconds`` do not suffice. TunefarmError if
    the model is too large.
    """
    from tunefarm.api import extract_tasks
    from tunefarm.compiler.dispatch import History as BuildHistory

    begin = time.monotonic()
    tasks = extract_tasks(module, target)
    known = _known(records, tasks, target)
    name = model_name(tasks)
    decisions = BuildHistory(_Answers(known), "the records").lookup(
        [task.workload for task in tasks], target
    )
    rivals = _rivals(records, _contested(tasks, decisions, name), begin + seconds / 4)
    if not rivals or not _compiled(decisions, begin + seconds / 2):
        return None
    with device():
        model = _WholeModel(module, target, known, noise, begin + seconds)
        model.build_standing()
        meetings = _meetings(rivals)[: model.affordable()]
        if not meetings:
            return None
        if say is not None:
            say(f"timing the bests in the whole model, {model.left_s:.0f} s at most")
        return _meet_all(records, model, meetings, name)


def model_name(tasks: Iterable[Task]) -> str:
    """What a model is called in verdicts: a digest of its tasks and how often each runs."""
    return model_digest((task.workload.key, task.weight) for task in tasks)


@contextmanager
def _leased(client: FarmClient, request: DeviceRequest) -> Iterator[None]:
    """Hold a lease of the device that is asked for; TunefarmError if another job has it."""
    from tunefarm.proto.errors import FarmError

    lease = client.acquire(request, client="closing", wait_s=LEASE_S)
    if lease is None:
        raise TunefarmError("another job has the device of this machine")
    try:
        with client.keep_lease(lease):
            yield
    finally:
        with suppress(FarmError):
            client.release(lease)


# --- who meets ----------------------------------------------------------------------------------


def _known(
    records: Records, tasks: Sequence[Task], target: Target
) -> dict[BestKey, Sequence[Found]]:
    from tunefarm.compiler.host import model_of

    model = model_of(target)
    return dict(records.best([BestKey.of_today(t.workload.key, target.text, model) for t in tasks]))


def _contested(
    tasks: Sequence[Task], decisions: Sequence[Decision], name: str
) -> dict[BestKey, tuple[Best, Config]]:
    """The promoted bests that a build uses and that are not their defaults, with these: of the
    tasks with the largest share of a run, without those that met a rival in this model before."""
    from tunefarm.compiler.dispatch import Status
    from tunefarm.compiler.space import config_space

    chosen = []
    for task, decision in zip(tasks, decisions, strict=True):
        if decision.status is not Status.EXACT or decision.found is None:
            continue
        best, default = decision.found.best, config_space(task.workload, task.target).default
        if best.promoted and best.model != name and dict(decision.config) != dict(default):
            chosen.append((task.weight * best.latency_s, best, default))
    chosen.sort(key=lambda entry: -entry[0])
    return {best.key: (best, default) for _, best, default in chosen[:TASKS]}


def _rivals(
    records: Records,
    contested: Mapping[BestKey, tuple[Best, Config]],
    until: float,
) -> list[Rival]:
    """The defaults of these bests, then their second bests, as stored trials."""
    defaults: dict[BestKey, Trial] = {}
    seconds: dict[BestKey, Trial] = {}
    for trial in _past(records, [best for best, _ in contested.values()], until):
        key = _key_of(trial)
        best, default = contested[key]
        if dict(trial.config) == dict(default):
            defaults.setdefault(key, trial)
        elif _is_near(trial, best) and trial.median_s < _time_of(seconds.get(key)):
            seconds[key] = trial
    firsts = [Rival(b, defaults[k], True) for k, (b, _) in contested.items() if k in defaults]
    return firsts + [Rival(b, seconds[k], False) for k, (b, _) in contested.items() if k in seconds]


def _meetings(rivals: Sequence[Rival]) -> list[tuple[Rival, ...]]:
    """Who meets the model together: all defaults, if there are several, then each rival."""
    defaults = tuple(rival for rival in rivals if rival.is_default)
    one_by_one: list[tuple[Rival, ...]] = [(rival,) for rival in rivals]
    return [defaults, *one_by_one] if len(defaults) > 1 else one_by_one


def _past(records: Records, bests: Sequence[Best], until: float) -> Iterator[Trial]:
    """Good trials of the keys and spaces of these bests, newest first."""
    spaces = {(best.key, best.trial.space_fingerprint) for best in bests}
    workloads = sorted({best.key.workload for best in bests})
    cursor, more = 0, bool(bests)
    while more and time.monotonic() < until:
        page = records.history(bests[0].key.target, cursor, workloads=workloads)
        yield from (t for t in page.trials if t.ok and (_key_of(t), t.space_fingerprint) in spaces)
        cursor, more = page.cursor, page.more


def _is_near(trial: Trial, best: Best) -> bool:
    """Whether a trial is of other code that is about as fast alone, made by the same compiler."""
    mine, other = best.trial, trial
    same_code = bool(mine.code_hash) and mine.code_hash == other.code_hash
    return (
        not same_code
        and dict(mine.config) != dict(other.config)
        and mine.compiler_version == other.compiler_version
        and other.median_s <= NEAR * mine.median_s
    )


def _time_of(trial: Trial | None) -> float:
    return float("inf") if trial is None else trial.median_s


def _key_of(trial: Trial) -> BestKey:
    from tunefarm.db.lookup import best_key_of

    return best_key_of(trial)


@dataclass(frozen=True, slots=True)
class _Answers:
    """A source of records that was asked before."""

    found: Mapping[BestKey, Sequence[Found]]

    def best(self, keys: Iterable[BestKey]) -> Mapping[BestKey, Sequence[Found]]:
        return {key: self.found.get(key, ()) for key in keys}


# --- how they meet ------------------------------------------------------------------------------


def _compiled(decisions: Iterable[Decision], until: float) -> bool:
    """Compile the kernels of a build into the cache; False if that does not end in time."""
    from tunefarm.compiler.build import build_kernel

    for decision in decisions:
        if time.monotonic() >= until:
            return False
        build_kernel(decision.workload, decision.target, decision.config)
    return True


def _meet_all(
    records: Records, model: _WholeModel, meetings: Sequence[tuple[Rival, ...]], name: str
) -> Closing:
    met: set[BestKey] = set()
    replaced: list[BestKey] = []
    gain = 1.0
    for place, rivals in enumerate(meetings):
        keys = [rival.best.key for rival in rivals]
        if not set(keys).isdisjoint(replaced) or not model.affordable():
            continue
        outcome = model.meet(rivals, model.left_s / (len(meetings) - place))
        if outcome is None or (rivals[1:] and outcome.verdict is not Verdict.BETTER):
            continue  # those that do not win together meet the model one by one
        met.update(keys)
        stored = [rival.best.key for rival in rivals if _store(records, rival, outcome, name)]
        replaced += stored
        gain *= outcome.speedup if stored else 1.0
    return Closing(len(met), tuple(replaced), model.run_s, model.run_s / gain)


def _store(records: Records, rival: Rival, outcome: Comparison, name: str) -> bool:
    """Store the verdict; whether the rival stands now. A second best that lost leaves no trace."""
    if not rival.is_default and outcome.verdict is not Verdict.BETTER:
        return False
    final = Final(
        rival.best.key,
        _trial_key(rival.challenger),
        _trial_key(rival.best.trial),
        outcome.verdict,
        outcome.speedup,
        1.0 if rival.is_default else None,
        name,
    )
    return records.promote(final).promoted


def _trial_key(trial: Trial) -> TrialKey:
    return TrialKey(trial.job, trial.task, trial.number)


@dataclass(slots=True)
class _WholeModel:
    """A model built with the bests, twice: what the two seem to differ by is noise."""

    module: IRModule
    target: Target
    known: dict[BestKey, Sequence[Found]]
    noise: float
    deadline: float
    standing: list[Module] = field(default_factory=list)
    run_s: float = 0.0
    build_s: float = 0.0

    @property
    def left_s(self) -> float:
        """Seconds until the deadline."""
        return self.deadline - time.monotonic()

    def build_standing(self) -> None:
        """Build both, and time a run; TunefarmError if the builds of a meeting have no room."""
        self.standing = [self._build()]
        plan = self.standing[0].plan
        room = BUILDS * (plan.weight_bytes + plan.arena_bytes)
        if room > MODEL_BYTES:
            raise TunefarmError(
                f"{BUILDS} builds of the model take {room / 2**30:.1f} GiB, of which the closing "
                f"step may use {MODEL_BYTES / 2**30:.0f}"
            )
        self.standing.append(self._build())
        self.run_s = self.standing[0].time_evaluator().median

    def affordable(self) -> int:
        """How many meetings the time left is enough for."""
        runs = MIN_ROUNDS * (len(self.standing) + 1) * 2 * 2  # there and back, each warmed by one
        return max(0, int(self.left_s / (self.build_s + runs * max(self.run_s, REPEAT_S))))

    def meet(self, rivals: Sequence[Rival], seconds: float) -> Comparison | None:
        """Compare the model with rivals' configs in it; a win has to be repeated by another
        build, as where code and weights lie is luck. None if the time did not suffice."""
        until = time.monotonic() + seconds
        first = self._build(rivals)
        outcome = self._compare(first, until)
        if outcome is None or outcome.verdict is not Verdict.BETTER:
            return outcome
        until = time.monotonic() + seconds
        second = self._build(rivals)
        outcome = self._compare(second, until)
        if outcome is not None and outcome.verdict is Verdict.BETTER:
            self.standing = [first, second]
            self.known |= _answers(rivals)
        return outcome

    def _build(self, rivals: Sequence[Rival] = ()) -> Module:
        from tunefarm import api
        from tunefarm.compiler.dispatch import History as BuildHistory

        begin = time.monotonic()
        with BuildHistory(_Answers(self.known | _answers(rivals)), "the records"):
            built = api.build(self.module, self.target)
        self.build_s = time.monotonic() - begin
        return built

    def _compare(self, challenger: Module, until: float) -> Comparison | None:
        rows = _timed([*self.standing, challenger], until, self.deadline)
        return judge(rows, self.noise) if len(rows[0]) >= 2 * MIN_ROUNDS else None


def _answers(rivals: Iterable[Rival]) -> dict[BestKey, Sequence[Found]]:
    """What the records would say if these rivals stood."""
    return {
        r.best.key: (Found(Best(r.best.key, r.challenger, promoted=True), Match.EXACT),)
        for r in rivals
    }


def _timed(models: Sequence[Module], until: float, deadline: float) -> list[list[float]]:
    """Seconds of runs of each model, there and back again (ABBA): until the time is over and
    there are enough to decide, or until the deadline."""
    inputs = models[0].example_inputs()
    rows: list[list[float]] = [[] for _ in models]
    order = [*range(len(models)), *reversed(range(len(models)))]
    for done in range(MAX_ROUNDS):
        if time.monotonic() >= (until if done >= MIN_ROUNDS else deadline):
            break
        for i in order:
            timing = models[i].time_evaluator(inputs, repeat=1, min_repeat_ms=1e3 * REPEAT_S)
            rows[i].append(timing.median)
    return rows


def judge(rows: Sequence[Sequence[float]], noise: float) -> Comparison:
    """Compare the last of three rows of paired times in seconds with the others, which are of
    builds of the same code: it has to win over both by more than these may differ by."""
    from tunefarm.tuner.finals import compare

    one, other, challenger = rows
    twins = compare(other, one, 0.0)
    floor = max(noise, twins.high - 1, 1 / twins.low - 1)
    outcomes = [compare(challenger, row, floor) for row in (one, other)]
    return min(outcomes, key=lambda o: (o.verdict is Verdict.BETTER, o.speedup))
