"""A line of the cache goes from one core to another and back."""

from __future__ import annotations

import math
import os

import pytest
from tunefarm.worker import exchange

CORES = sorted(os.sched_getaffinity(0))


def test_a_core_alone_exchanges_nothing() -> None:
    assert exchange.exchange_s(CORES[:1]) == 0.0


@pytest.mark.skipif(len(CORES) < 2, reason="needs two processors")
def test_two_cores_answer_within_a_microsecond_or_two() -> None:
    least = min(exchange.exchange_s(CORES[:2]) for _ in range(20))
    assert 10e-9 < least < 5e-6


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
