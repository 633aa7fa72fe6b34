"""A line of the cache goes from one core to another and back."""

from __future__ import annotations

import math
import os

import pytest
from tunefarm.compiler.target import Target
from tunefarm.worker import exchange

CORES = sorted(os.sched_getaffinity(0))


def test_a_core_alone_exchanges_nothing() -> None:
    assert exchange.exchange_s(CORES[:1]) == 0.0


@pytest.mark.skipif(len(CORES) < 2, reason="needs two processors")
def test_two_cores_answer_within_a_microsecond_or_two() -> None:
    least = min(exchange.exchange_s(CORES[:2]) for _ in range(20))
    assert 10e-9 < least < 5e-6


@pytest.mark.parametrize(
    ("mcpu", "far_s"), [("znver3", exchange.FAR_S), ("emeraldrapids", exchange.MESH_FAR_S)]
)
def test_a_mesh_takes_longer_between_cores_that_share_a_cache(
    monkeypatch: pytest.MonkeyPatch, mcpu: str, far_s: float
) -> None:
    monkeypatch.setattr(Target, "host", lambda: Target(f"llvm -mcpu={mcpu}"))
    assert exchange.far_s() == far_s


def test_threads_that_share_a_processor_are_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "_MOST_LOOKS", 1000)
    exchange._trips.cache_clear()
    try:
        assert exchange.exchange_s([CORES[0], CORES[0]]) == math.inf
    finally:
        exchange._trips.cache_clear()


def test_threads_of_the_caller_stay_where_they_were() -> None:
    exchange.exchange_s(CORES[:2])
    assert sorted(os.sched_getaffinity(0)) == CORES
