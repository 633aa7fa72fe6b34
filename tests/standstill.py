"""What the machine's own pauses must not decide: a test that failed while it stood still is run
again."""

from __future__ import annotations

import threading
import time
from contextlib import suppress

import pytest
from _pytest.runner import runtestprotocol

LOOK_S = 0.05
STILL_S = 0.25
"""From this on a pause counts: the shortest waits of tests are for twice as long."""
RUNS = 3
"""Of one test at most, each of the failed ones with a pause in it."""


class Standstill:
    """A plugin of pytest that watches the clock from a thread of its own, once it is started."""

    def __init__(self) -> None:
        self.ended_at = float("-inf")

    def start(self) -> Standstill:
        threading.Thread(target=self._watch, name="standstill", daemon=True).start()
        return self

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool:
        tell = item.ihook
        tell.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        for run in range(1, RUNS + 1):
            began = time.monotonic()
            reports = runtestprotocol(item, log=False, nextitem=nextitem)
            if _passed(reports) or run == RUNS:
                break
            time.sleep(2 * LOOK_S)  # the thread sees what has just ended
            if self.ended_at < began:
                break
            item.warn(pytest.PytestWarning("it failed while the machine stood still: run again"))
            _put_away(item)
        for report in reports:
            tell.pytest_runtest_logreport(report=report)
        tell.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        return True

    def _watch(self) -> None:
        last = time.monotonic()
        while True:
            time.sleep(LOOK_S)
            now = time.monotonic()
            if now - last > STILL_S:
                self.ended_at = now
            last = now


def _passed(reports: list[pytest.TestReport]) -> bool:
    return not any(report.failed for report in reports)


def _put_away(item: pytest.Item) -> None:
    """End the fixtures of all scopes, which may have suffered as well: they are made again."""
    with suppress(Exception):
        item.session._setupstate.teardown_exact(None)
