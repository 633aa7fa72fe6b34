"""The measurement of loaded candidates, by the protocol of their target (``protocol_of``).

Outputs are poisoned, one call is made and its answer checked; that first call's time is thrown
away. Then repeats are taken, each of enough calls to last ``Pace.repeat_s``, until they have lasted
``Pace.target_s`` together; the outputs, poisoned before the repeats, are checked again at the end.
Activations stay where the last call left them (warm); constants are taken from copies in turn, so
that they come from beyond the second-level cache (cold), as in a model whose weights exceed it, or
from memory, where the request says that the model's weights exceed the third level too.
Others disturb a repeat by taking time, never by giving it: repeats go on until the fastest has been
met twice, and what seems hopeless is timed again before it is abandoned.

The parent drives every repeat: it holds the reference answer, which the child never sees, and
compares the time that the child claims with its own clock, less what both waited for a processor.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from tunefarm.db.records import ErrorKind
from tunefarm.worker.backend import Built, Problem
from tunefarm.worker.budgets import ABANDON, ABANDON_REPEATS, Budgets
from tunefarm.worker.process import Child, ChildDied, Death
from tunefarm.worker.queued import queued_s
from tunefarm.worker.verify import check_answer
from tunefarm.worker.wire import Blob, Frame, plain_text

AGREE = 1.05
"""How much slower a repeat may be that meets the fastest again."""
PATIENCE = 3
"""Times ``target_s`` after which the fastest counts although it was met once."""
_QUICK_S = 0.02
_GROWTH = 1.618
_ROOFLINE_SLACK = 1.1
_CLOCK_SLACK_S = 0.01
_LONG_S = _CLOCK_SLACK_S / 4  # of a first call: later ones may take a few times as long
_CLOCK_TRIES = 10
_LOAD_S = 10.0
_MESSAGE_CHARACTERS = 2000
_CHILD_KINDS = {
    ErrorKind.INSTANTIATION,
    ErrorKind.OUT_OF_MEMORY,
    ErrorKind.BUILD_ERROR,
    ErrorKind.RUN_ERROR,
    ErrorKind.RUN_CRASH,
}


@dataclass(frozen=True, slots=True)
class Pace:
    """How long is timed: seconds of a repeat, of all of them, and of a repeat of a final; how many
    repeats, and calls of one, there may be. With ``pauses`` repeats take time beside what they
    claim, and their claims are held to what passed from above alone."""

    repeat_s: float = 0.003
    target_s: float = 0.02
    paired_repeat_s: float = 0.002
    min_repeats: int = 3
    max_repeats: int = 20
    most_calls: int = 10_000_000
    pauses: bool = False


class TrialFailed(Exception):
    """A candidate that has no time, and why."""

    def __init__(self, kind: ErrorKind, message: str, stderr_tail: str = "") -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.stderr_tail = stderr_tail


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds a call of each repeat, and the seconds spent checking and timing."""

    times_s: tuple[float, ...]
    check_s: float
    run_s: float
    abandoned: bool = False


class Session:
    """One trial's conversation with the runner; every call is bounded by its budgets, the time in
    which this process itself stood still left out."""

    def __init__(
        self, runner: Child, problem: Problem, budgets: Budgets, pace: Pace | None = None
    ) -> None:
        self._runner = runner
        self._problem = problem
        self._budgets = budgets
        self.pace = pace or Pace()
        self._deadline = time.monotonic() + budgets.trial_s - runner.stood_still_s
        self._checked: dict[int, tuple[memoryview, ...]] = {}
        self._first_s: dict[int, float] = {}  # of each slot's first call

    def load(self, slot: int, built: Built) -> None:
        """Put a candidate into a slot; slot 0 empties all others first."""
        header = {"op": "load", "slot": slot, "metadata": dict(built.metadata)}
        self._call(header, (built.code,), limit_s=max(_LOAD_S, self._budgets.run_s))

    def check(self, slot: int) -> float:
        """Call once over poisoned outputs and check the answer; the seconds of that call."""
        frame, seconds = self._repeat(slot, 1, poison=True, outputs=True)
        self._verify(frame)
        self._checked[slot], self._first_s[slot] = frame.blobs, seconds
        return seconds

    def verify_last(self, slot: int) -> None:
        """Check what the timed calls left in the outputs."""
        frame, _ = self._repeat(slot, 0, poison=False, outputs=True)
        if not _same_bytes(frame.blobs, self._checked.get(slot, ())):
            self._verify(frame)

    def repeat(
        self, slot: int, number: int, *, discard: bool = False, poison: bool = False
    ) -> float:
        """Seconds a call of one repeat of ``number`` calls; ``discard`` makes one more first: by
        itself if it is long, as what passed beside the claimed time would look like a lie."""
        if discard and self._first_s.get(slot, 0.0) >= _LONG_S:
            self._repeat(slot, 1, poison=poison, outputs=False)
            discard = False
        return self._repeat(slot, number, discard, poison=poison, outputs=False)[1] / number

    def _repeat(
        self, slot: int, number: int, discard: bool = False, *, poison: bool, outputs: bool
    ) -> tuple[Frame, float]:
        header = {
            "op": "repeat",
            "slot": slot,
            "number": number,
            "discard": discard,
            "poison": poison,
            "outputs": outputs,
        }
        limit = self._problem.output_bytes if outputs else 0
        for _ in range(_CLOCK_TRIES):
            queued, start = self._queued_s(), time.monotonic()
            frame = self._call(header, limit_s=self._budgets.run_s, reply_limit_bytes=limit)
            elapsed = time.monotonic() - start
            queued = self._queued_s() - queued
            claimed = frame.header.get("seconds")
            if not isinstance(claimed, float) or not 0 <= claimed <= elapsed:
                break
            # Short of what passed here is a lie, unless both waited for a processor that others
            # had, or a pause of the machine: then try again.
            if poison or outputs or self.pace.pauses:
                return frame, claimed
            if elapsed - claimed - queued <= max(_CLOCK_SLACK_S, elapsed / 2):
                return frame, claimed
        raise TrialFailed(
            ErrorKind.RUN_ERROR, f"the runner claims {claimed!r} s where {elapsed:.3g} s passed"
        )

    def _queued_s(self) -> float:
        """What the runner and this thread waited for a processor so far."""
        return queued_s(self._runner.pid) + queued_s()

    def _call(
        self,
        header: Mapping[str, object],
        blobs: Sequence[Blob] = (),
        *,
        limit_s: float,
        reply_limit_bytes: int = 0,
    ) -> Frame:
        remaining = self._deadline + self._runner.stood_still_s - time.monotonic()
        timeout_s = max(min(limit_s, remaining), 0.001)
        try:
            frame = self._runner.call(
                header, blobs, timeout_s=timeout_s, reply_limit_bytes=reply_limit_bytes
            )
        except ChildDied as died:
            raise run_failure(died, whole_trial=remaining < limit_s) from None
        raise_reported(frame, self._runner, ErrorKind.RUN_ERROR)
        return frame

    def _verify(self, frame: Frame) -> None:
        wrong = check_answer(self._problem, frame.blobs)
        if wrong is not None:
            raise TrialFailed(ErrorKind.WRONG_ANSWER, wrong)


def time_one(session: Session, slot: int, budgets: Budgets) -> Times:
    """Check and time the candidate in ``slot``; TrialFailed if it has no time."""
    start = time.monotonic()
    first_s = session.check(slot)
    checked = time.monotonic()
    number, seconds = calibrate(session, slot, session.pace.repeat_s, first_s)
    times = [seconds]
    limit_s = budgets.incumbent_s * ABANDON
    while not _hopeless(times, limit_s) and not _enough(times, number, session.pace):
        times.append(session.repeat(slot, number))
    timed = time.monotonic()
    abandoned = _hopeless(times, limit_s)
    if not abandoned:
        session.verify_last(slot)
    check_s = checked - start + time.monotonic() - timed
    return Times(tuple(times), check_s, timed - checked, abandoned)


def calibrate(session: Session, slot: int, repeat_s: float, first_s: float) -> tuple[int, float]:
    """How many calls last ``repeat_s``, and the seconds a call of a repeat of so many.

    A quick kernel is called once more before, which wakes the pool's threads and warms the
    activations. While a repeat is too short, number = max(target / observed + 1, 1.618 × number),
    ``Pace.most_calls`` at most: what tells less time than ten million do is no kernel's.
    """
    number, most = 1, session.pace.most_calls
    quick = first_s < _QUICK_S
    seconds = session.repeat(slot, number, discard=quick, poison=True)
    while seconds * number < repeat_s and first_s < repeat_s and number < most:
        observed = max(seconds, 1e-9)
        number = min(math.ceil(max(repeat_s / observed + 1, _GROWTH * number)), most)
        seconds = session.repeat(slot, number)
    return number, seconds


def time_paired(
    session: Session, candidates: Sequence[Built], budgets: Budgets, rng: random.Random
) -> tuple[tuple[float, ...], ...]:
    """Seconds a call of several right candidates, timed interleaved: a row of repeats for each.

    ``paired_blocks`` times all are loaded afresh, in an order drawn anew: where code and operands
    lie makes the same kernel faster or slower by percents, and that must be nobody's luck. A block
    is ``paired_rounds`` rounds A B C, C B A, …, in which every repeat is of equally many calls,
    after one that is not timed and brings the operands back into the caches.
    """
    rows: list[list[float]] = [[] for _ in candidates]
    number = 0
    for _ in range(int(budgets.paired_blocks)):
        order = rng.sample(range(len(candidates)), len(candidates))
        first_s = [_place(session, slot, candidates[index]) for slot, index in enumerate(order)]
        if not number:
            repeat_s = session.pace.paired_repeat_s
            counts = [calibrate(session, s, repeat_s, t)[0] for s, t in enumerate(first_s)]
            number = max(counts)
        for turn in range(int(budgets.paired_rounds)):
            for slot in range(len(order)) if turn % 2 == 0 else reversed(range(len(order))):
                rows[order[slot]].append(session.repeat(slot, number, discard=True))
    for slot in range(len(candidates)):
        session.verify_last(slot)
    return tuple(map(tuple, rows))


def _place(session: Session, slot: int, built: Built) -> float:
    """Load a candidate and check its answer; the seconds of its first call."""
    session.load(slot, built)
    return session.check(slot)


def impossible(seconds: float, built: Built, peaks: Mapping[str, float]) -> str | None:
    """Why the work that the program executes cannot be done in ``seconds``; None if it can."""
    limits = (
        (built.operations, peaks.get("flops_n", 0.0), "operations", "FLOP/s"),
        (built.traffic_bytes, peaks.get("bandwidth_l1_n", 0.0), "bytes", "bytes/s"),
    )
    for amount, peak, what, unit in limits:
        if peak > 0 and amount / peak > seconds * _ROOFLINE_SLACK:
            return (
                f"{seconds:.3g} s for {amount:.4g} {what} is faster than this device can be "
                f"({peak:.4g} {unit} measured); the kernel does not do its work"
            )
    return None


def run_failure(died: ChildDied, *, whole_trial: bool = False) -> TrialFailed:
    """The error of a trial whose runner died."""
    match died.death:
        case Death.TIMEOUT:
            what = "the whole trial" if whole_trial else "one run"
            message = f"{what} was over its budget: {died.message}"
            return TrialFailed(ErrorKind.RUN_TIMEOUT, message, died.stderr_tail)
        case Death.MEMORY:
            return TrialFailed(ErrorKind.OUT_OF_MEMORY, died.message, died.stderr_tail)
        case Death.CRASH:
            return TrialFailed(ErrorKind.RUN_CRASH, died.message, died.stderr_tail)
        case Death.PROTOCOL:
            return TrialFailed(ErrorKind.RUN_ERROR, died.message, died.stderr_tail)


def raise_reported(frame: Frame, child: Child, default: ErrorKind) -> None:
    """TrialFailed if the child answered with an error: of the kinds that a child can know, since
    what it ran may speak for it."""
    kind = frame.header.get("error")
    if kind is None:
        return
    message = plain_text(frame.header.get("message", ""), _MESSAGE_CHARACTERS)
    told = ErrorKind(kind) if isinstance(kind, str) and kind in _CHILD_KINDS else default
    raise TrialFailed(told, message, child.stderr_tail())


def _same_bytes(a: Sequence[memoryview], b: Sequence[memoryview]) -> bool:
    """Whether two answers are equal bit for bit, which kernels' answers mostly are."""
    if len(a) != len(b) or any(x.nbytes != y.nbytes for x, y in zip(a, b, strict=True)):
        return False
    return all(
        np.array_equal(np.frombuffer(x, np.uint8), np.frombuffer(y, np.uint8))
        for x, y in zip(a, b, strict=True)
    )


def _hopeless(times: Sequence[float], limit_s: float) -> bool:
    """Whether several repeats say that a candidate is slower than the limit; 0 is no limit."""
    return 0 < limit_s < min(times) and len(times) >= ABANDON_REPEATS


def _enough(times: Sequence[float], number: int, pace: Pace) -> bool:
    if len(times) >= pace.max_repeats:
        return True
    spent_s = sum(times) * number
    if len(times) < pace.min_repeats or spent_s < pace.target_s:
        return False
    is_met_twice = sum(t <= AGREE * min(times) for t in times) > 1
    return is_met_twice or spent_s >= PATIENCE * pace.target_s
