"""A client's stream of calls about leases: many under way at once, answered in frames of what is
known by then."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator

from tunefarm.proto.errors import FarmError, Overloaded
from tunefarm.proto.farm_pb2 import Failure, LeaseAnswer, LeaseAnswers, LeaseCall, LeaseCalls
from tunefarm.tracker import lending, limits, signals
from tunefarm.tracker.answers import REFUSALS, refusal
from tunefarm.tracker.callers import caller
from tunefarm.tracker.counts import timed
from tunefarm.tracker.leasing import Desk
from tunefarm.tracker.policy import POLICY, check_role
from tunefarm.tracker.signals import Bell

MAX_UNDER_WAY = 1024
"""Requests of one stream that may wait at a time: as many as a connection has calls. As many again
may renew and release, as nothing that waits may keep those out. When so many answers are unread, no
more is read of the caller."""
_TOO_MANY = Overloaded(f"{MAX_UNDER_WAY} requests of one stream wait already; ask again later")
_log = logging.getLogger(__name__)


class LeaseStream:
    """One stream, from its opening to its end. For each call on it holds what does for calls that
    come alone: who may make it, how long it may be, and what it is counted as."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._counts = desk.farm.counts
        self._under_way: set[asyncio.Task[None]] = set()
        self._known: list[LeaseAnswer] = []
        self._sent = asyncio.Event()
        self._is_over = False

    async def answers(self, frames: AsyncIterator[LeaseCalls]) -> AsyncIterator[LeaseAnswers]:
        """What is known, until all is said and answered or the tracker closes.

        InvalidRequest for a frame that is none, TokenRefused once the caller's token has ended.
        """
        with self._desk.farm.signals.listen(signals.CLOSING) as bell:
            # Never cancelled: gRPC would go on writing into what it reads to.
            reading = asyncio.create_task(self._read(frames, bell))
            reading.add_done_callback(lambda task: _heed(task, bell))
            try:
                while not self._is_done(reading):
                    await bell.wait()
                    bell.silence()
                    if self._known:
                        known, self._known = self._known, []
                        yield LeaseAnswers(answers=known)
                        self._sent.set()
            finally:
                self._is_over = True
                self._sent.set()
                for task in self._under_way:
                    task.cancel()

    def _is_done(self, reading: asyncio.Task[None]) -> bool:
        """Whether there is nothing left to say; what reading failed with, if it did."""
        if reading.done():
            reading.result()
        if self._under_way or self._known:
            return False
        return reading.done() or self._desk.farm.closing

    async def _read(self, frames: AsyncIterator[LeaseCalls], bell: Bell) -> None:
        """Begin what is asked, as it comes."""
        async for frame in frames:
            limits.check_count("LeaseCalls.calls", frame.calls)
            for call in frame.calls:
                self._begin(call, bell)
            while len(self._known) > MAX_UNDER_WAY and not self._is_over:
                self._sent.clear()
                await self._sent.wait()
            if self._is_over:
                return

    def _begin(self, call: LeaseCall, bell: Bell) -> None:
        def done(task: asyncio.Task[None]) -> None:
            self._under_way.discard(task)
            bell.ring()

        most = MAX_UNDER_WAY if call.HasField("acquire") else 2 * MAX_UNDER_WAY
        if len(self._under_way) >= most:
            self._refuse(call, _name_of(call), _TOO_MANY)
            return bell.ring()
        task = asyncio.create_task(self._carry_out(call))
        self._under_way.add(task)
        task.add_done_callback(done)

    async def _carry_out(self, call: LeaseCall) -> None:
        """Do as the call asks, and keep what is to be answered."""
        name = _name_of(call)
        try:
            with timed(self._counts.calls[name]):
                answer = await self._answer(call, name)
            self._known.append(answer)
        except REFUSALS as error:
            self._refuse(call, name, refusal(name, error, self._counts))
        except Exception:
            _log.exception("%s failed", name)
            self._refuse(call, name, FarmError("the tracker failed; its log says more"))

    async def _answer(self, call: LeaseCall, name: str) -> LeaseAnswer:
        """What the method says, if the caller may call it so."""
        rule = POLICY[f"/tunefarm.v1.Farm/{name}"]
        check_role(caller(), rule, name)
        limits.check_length(name, rule.max_bytes, call.ByteSize())
        limits.check(call)
        match call.WhichOneof("call"):
            case "acquire":
                got = await lending.acquire(self._desk, call.acquire)
                return LeaseAnswer(number=call.number, acquire=got)
            case "renew":
                renewed = await lending.renew(self._desk, call.renew)
                return LeaseAnswer(number=call.number, renew=renewed)
            case "release":
                released = await lending.release(self._desk, call.release)
                return LeaseAnswer(number=call.number, release=released)
            case _:
                raise FarmError("the tracker is too old for this; upgrade it")

    def _refuse(self, call: LeaseCall, name: str, error: FarmError) -> None:
        self._counts.errors[name, error.status] += 1
        failure = Failure(reason=error.reason, message=str(error))
        self._known.append(LeaseAnswer(number=call.number, failure=failure))


def _name_of(call: LeaseCall) -> str:
    """The method that a call would be if it came alone; that of the stream if it is none."""
    return (call.WhichOneof("call") or "leases").capitalize()


def _heed(reading: asyncio.Task[None], bell: Bell) -> None:
    """Let the end of reading be known; what it failed with is of interest while answers go out."""
    if not reading.cancelled():
        reading.exception()
    bell.ring()
