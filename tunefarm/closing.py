"""The closing step of a tuning: the bests of tasks meet their rivals in the whole model.

The best schedules of the subgraphs do not always add up to the best model: what a kernel leaves in
the caches, or wants from memory, its neighbours feel (TenSet, 2021). So whole runs of the model are
timed with all bests, and with all defaults in their place. If the model is faster with these by
more than the noise, they stand. Then it is screened which of the two each task should have, and
the mixture takes the place of what stands if the model is faster with it; so do second bests.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
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
    Promotion,
    Trial,
    Verdict,
    model_digest,
)
from tunefarm.meeting import Meeting, Rival
from tunefarm.texts import duration
from tunefarm.whole_model import MIN_BLOCKS, Asked, WholeModel

if TYPE_CHECKING:
    from tunefarm.compiler.decisions import Decision
    from tunefarm.compiler.ir import IRModule
    from tunefarm.compiler.workload import Task
    from tunefarm.proto.client import FarmClient

SECONDS = 60.0
SHARE = 0.1  # of the seconds of a tuning
NEAR = 1.05  # a second best that meets the best alone takes no longer than this times its time
NOISE = 0.01  # of whole runs, at least
LEASE_S = 3.0
_UNREAD, _UNCOMPILED = "no rival was found", "not all kernels to be timed were compiled"


class Records(Protocol):
    """A farm or a database: what is known, and where a final is stored."""

    def best(self, keys: Iterable[BestKey]) -> Mapping[BestKey, Sequence[Found]]: ...
    def history(
        self, target: str = "", cursor: int = 0, *, workloads: Sequence[str] = ()
    ) -> History: ...
    def promote(self, final: Final) -> Promotion: ...


@dataclass(frozen=True, slots=True)
class Closing:
    """What came of a closing step: how many bests ``met`` a rival, how many of these are still
    ``undecided``, which were ``replaced``, and the seconds of a whole run before and after."""

    met: int
    replaced: tuple[BestKey, ...]
    before_s: float
    after_s: float
    undecided: int = 0

    def summary(self) -> str:
        """``4 bests met their rivals in the whole model (11.5 ms a run): all stand``."""
        if not self.met:
            return "no best met a rival in the whole model in time"
        bests = "1 best met its rivals" if self.met == 1 else f"{self.met} bests met their rivals"
        text = f"{bests} in the whole model ({duration(self.before_s)} a run): "
        if self.replaced:
            count = "1 was" if len(self.replaced) == 1 else f"{len(self.replaced)} were"
            text += f"{count} replaced, then {duration(self.after_s)}"
        else:
            text += "it stands" if self.met == 1 else "all stand"
        if self.undecided:
            text += f"; the time did not suffice to tell what {self.undecided} cost or gain"
        return text


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
    from tunefarm.db.earlier import fitting
    from tunefarm.tuner.finals import MOST_NOISE
    from tunefarm.worker.device import machine_id

    here = {"machine": machine_id()}
    devices = fitting(client.devices(), target.text)
    mine = [d for d in devices if here.items() <= d.attributes.items()]
    if not mine:
        return None
    request = DeviceRequest(target.text, mine[0].model, here)
    noise = min(max(NOISE, mine[0].noise), MOST_NOISE)
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
    """Let the bests of a model's tasks meet their rivals in whole runs on this machine.

    The verdicts are stored as they come. ``noise`` is a fraction; within ``device()`` nobody else
    measures; ``say`` hears when it begins, or what time is missing. None if no promoted best
    differs from its default, if all met their rivals in this model before, or if ``seconds`` do
    not suffice. TunefarmError if the model is too large.
    """
    from tunefarm.api import extract_tasks
    from tunefarm.compiler.dispatch import History as BuildHistory
    from tunefarm.compiler.from_memory import counts_of

    begin = time.monotonic()
    tasks = extract_tasks(module, target)
    known = _known(records, tasks, target)
    name = model_name(tasks)
    decisions = BuildHistory(Asked(known), "the records").lookup(
        [task.workload for task in tasks], target, counts_of(tasks)
    )
    contested = _contested(tasks, decisions, name)
    stages = _rivals(records, contested, begin + seconds / 4)
    if any(stages):
        missed = "" if _compiled(decisions, stages, begin + seconds / 2) else _UNCOMPILED
    else:
        missed = _UNREAD if contested and time.monotonic() >= begin + seconds / 4 else ""
    if missed and say is not None:
        say(
            f"the closing step was left out: {missed} after {time.monotonic() - begin:.1f} s of "
            f"its {seconds:.1f} s, a tenth of the tuning's time at most"
        )
    if missed or not any(stages):
        return None
    with device():
        model = WholeModel(module, target, known, noise, begin + seconds)
        model.check_room()
        is_enough = model.blocks_left() >= MIN_BLOCKS
        if say is not None and is_enough:
            say(f"timing the bests in the whole model, {model.left_s:.0f} s at most")
        elif say is not None:
            need_s, left_s = MIN_BLOCKS * model.block_s, max(model.left_s, 0.0)
            say(
                f"the closing step was left out: it needs {need_s:.1f} s, and takes at most a "
                f"tenth of the tuning's time ({seconds:.1f} s, of which {left_s:.1f} s are left)"
            )
        return _meet(records, model, stages, name) if is_enough else None


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
    from tunefarm.compiler.decisions import keys_of
    from tunefarm.compiler.host import model_of

    model = model_of(target)
    keys = [keys_of(t.workload.key, target, model, t.from_memory) for t in tasks]
    return dict(records.best([key for mine in keys for key in mine]))


def _contested(
    tasks: Sequence[Task], decisions: Sequence[Decision], name: str
) -> dict[BestKey, tuple[Best, Config]]:
    """The promoted bests that a build uses and that are not their defaults, with these: the largest
    share of a run first, without those that met a rival in this model before."""
    from tunefarm.compiler.decisions import Status
    from tunefarm.compiler.space import config_space

    chosen = []
    for task, decision in zip(tasks, decisions, strict=True):
        if decision.status is not Status.EXACT or decision.found is None:
            continue
        best = decision.found.best
        default = config_space(task.workload, task.target, task.from_memory).default
        if best.promoted and best.model != name and dict(decision.config) != dict(default):
            chosen.append((task.weight * best.latency_s, best, default))
    chosen.sort(key=lambda entry: -entry[0])
    return {best.key: (best, default) for _, best, default in chosen}


def _rivals(
    records: Records,
    contested: Mapping[BestKey, tuple[Best, Config]],
    until: float,
) -> list[dict[BestKey, Rival]]:
    """The defaults of these bests, and their second bests, as stored trials."""
    defaults: dict[BestKey, Trial] = {}
    seconds: dict[BestKey, Trial] = {}
    for trial in _past(records, [best for best, _ in contested.values()], until):
        key = _key_of(trial)
        best, default = contested[key]
        if dict(trial.config) == dict(default):
            defaults.setdefault(key, trial)
        elif _is_near(trial, best) and trial.median_s < _time_of(seconds.get(key)):
            seconds[key] = trial
    return [
        {k: Rival(b, found[k], found is defaults) for k, (b, _) in contested.items() if k in found}
        for found in (defaults, seconds)
    ]


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


# --- how they meet ------------------------------------------------------------------------------


def _compiled(
    decisions: Iterable[Decision], stages: Iterable[Mapping[BestKey, Rival]], until: float
) -> bool:
    """Compile the kernels of all builds into the cache; False if that does not end in time."""
    from tunefarm.compiler.build import build_kernel

    for decision in decisions:
        key = decision.workload.key
        rivals = [r.challenger.config for s in stages for k, r in s.items() if k.workload == key]
        for config in (decision.config, *rivals):
            if time.monotonic() >= until:
                return False
            build_kernel(decision.workload, decision.target, config)
    return True


def _meet(
    records: Records, model: WholeModel, stages: Iterable[Mapping[BestKey, Rival]], name: str
) -> Closing:
    """Let the bests meet one set of rivals after the other; what is decided is stored even if a
    stage is interrupted."""
    met: set[BestKey] = set()
    decided: set[BestKey] = set()
    replaced: list[BestKey] = []
    before_s, gain = model.run_s, 1.0
    for rivals in stages:
        meeting = Meeting({k: r for k, r in rivals.items() if k not in replaced})
        try:
            meeting.hold(model)
        finally:
            replaced += _store(records, meeting, name)
        before_s = before_s if met else meeting.before_s or before_s
        met |= meeting.met
        decided |= meeting.decided.keys()
        gain *= meeting.speedup
        model.known = {**model.known, **meeting.answers(meeting.winners)}
    return Closing(len(met), tuple(replaced), before_s, before_s / gain, len(met - decided))


def _store(records: Records, meeting: Meeting, name: str) -> list[BestKey]:
    """Store what is decided, the heaviest first; the keys whose rivals stand now. A second best
    that lost leaves no trace."""
    stored = []
    for key, rival in meeting.rivals.items():
        has_won = key in meeting.winners
        if key not in meeting.decided or not (has_won or rival.is_default):
            continue
        final = Final(
            key,
            rival.challenger.key,
            rival.best.trial.key,
            Verdict.BETTER if has_won else Verdict.SAME,
            meeting.decided[key],
            1.0 if rival.is_default else None,
            name,
        )
        if records.promote(final).promoted:
            stored.append(key)
    return stored
