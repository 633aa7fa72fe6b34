"""How far two cores are from one another: how long a line of the cache goes there and back.

Cores that share a cache answer within 150 nanoseconds, over the mesh of an Emerald Rapids within
310; those of other sockets or dies take 200 to 600. The host of a virtual machine moves processors
from one to the other within seconds: on a Zen 3 of two cores a run of ResNet-50 then takes 1.08 ×
the time.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from ctypes import CFUNCTYPE, c_int64, c_void_p
from functools import cache

from tunefarm.worker.native import NOW, Linked, Native, assemble, clock_address

FAR_S, MESH_FAR_S = 200e-9, 400e-9  # from here on cores have no cache in common
_TRIPS, _WARM_TRIPS = 1000, 100  # 0.15 to 0.6 ms
_LOOKS = 3  # an interrupt makes one of them longer, and nothing makes one shorter
_MOST_LOOKS = 100_000_000  # a tenth of a second; two threads that share a processor take seconds
_LINE_BYTES = 128  # of two lines, as processors fetch them in pairs


def far_s() -> float:
    """Seconds from which on cores of this machine are taken to have no cache in common."""
    from tunefarm.compiler.target import Target

    return MESH_FAR_S if Target.host().has_mesh else FAR_S


def exchange_s(cores: Sequence[int]) -> float:
    """Seconds for a line to go from the first of these processors to another and back, of all
    others the one that takes longest; 0 for a single one, infinity where one did not answer."""
    first, *others = cores
    return max((_between(first, other) for other in others), default=0.0)


def _between(first: int, second: int) -> float:
    return min(_look(first, second) for _ in range(_LOOKS))


def _look(first: int, second: int) -> float:
    import numpy as np

    lines = np.zeros(3 * _LINE_BYTES, np.uint8)
    start = lines.ctypes.data + -lines.ctypes.data % _LINE_BYTES
    places = (start, start + _LINE_BYTES)
    function = _trips().function

    def run(leads: bool) -> int:
        os.sched_setaffinity(0, {first if leads else second})
        own, other = places if leads else reversed(places)
        return int(function(own, other, int(leads), _WARM_TRIPS, _TRIPS, clock_address()))

    with ThreadPoolExecutor(2) as threads:
        told, answered = threads.map(run, (True, False))
    return told / (_TRIPS * 1e9) if min(told, answered) >= 0 else float("inf")


@cache
def _trips() -> Native:
    linked = Linked(assemble(_trips_text(), ""), "tunefarm_trips")
    number, pointer = c_int64, c_void_p
    prototype = CFUNCTYPE(number, pointer, pointer, number, number, number, pointer)
    return Native(linked, prototype(linked.address))


def _trips_text() -> str:
    """``trips(own, other, leads, warm, count, clock) -> nanoseconds`` of ``count`` trips behind
    ``warm`` others. Trip i: who leads writes i to its own line, the other answers with i on its.
    A negative number if the other keeps silent.
    """
    return f"""{NOW}
define i64 @tunefarm_trips(ptr %own, ptr %other, i64 %leads, i64 %warm, i64 %count, ptr %clock) {{
entry:
  %first = icmp ne i64 %leads, 0
  %last = add i64 %warm, %count
  br label %trip
trip:
  %i = phi i64 [ 1, %entry ], [ %following, %next ]
  %from = phi i64 [ 0, %entry ], [ %since, %next ]
  %spent = phi i64 [ 0, %entry ], [ %looks, %next ]
  br i1 %first, label %lead, label %wait
lead:
  store atomic i64 %i, ptr %own release, align 8
  br label %wait
wait:
  %looks = phi i64 [ %spent, %trip ], [ %spent, %lead ], [ %looked, %again ]
  %seen = load atomic i64, ptr %other acquire, align 8
  %there = icmp sge i64 %seen, %i
  br i1 %there, label %came, label %again
again:
  %looked = add i64 %looks, 1
  %patient = icmp slt i64 %looked, {_MOST_LOOKS}
  br i1 %patient, label %wait, label %silent
came:
  br i1 %first, label %counted, label %answer
answer:
  store atomic i64 %i, ptr %own release, align 8
  br label %counted
counted:
  %is.warm = icmp eq i64 %i, %warm
  br i1 %is.warm, label %begin, label %next
begin:
  %begun = call i64 @now(ptr %clock)
  br label %next
next:
  %since = phi i64 [ %from, %counted ], [ %begun, %begin ]
  %following = add i64 %i, 1
  %more = icmp slt i64 %i, %last
  br i1 %more, label %trip, label %finish
finish:
  %ended = call i64 @now(ptr %clock)
  %taken = sub i64 %ended, %since
  ret i64 %taken
silent:
  ret i64 -1
}}
"""
