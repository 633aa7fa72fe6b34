"""What clients of a farm were told, held against each other and against its database."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from tunefarm.db.records import Job, JobState

from tests.system.storm import PROBES, Storm

Line = dict[str, Any]


def read_history(storm: Storm) -> list[Line]:
    """What all clients wrote down, in the order in which they knew it; a line that a kill has cut
    was not known."""
    found: list[Line] = []
    for probe in PROBES:
        for text in (storm.folder / f"{probe}.history").read_text().splitlines():
            with suppress(ValueError):
                found.append({"who": probe, **json.loads(text)})
    return sorted(found, key=lambda line: line["known"])


def check_leases(history: Sequence[Line]) -> tuple[int, int]:
    """How many grants there were, and how many late writes were refused.

    Epochs of a device rise from grant to grant; a write is not taken that was asked for when the
    device's next grant was known already.
    """
    granted = [line for line in history if line["what"] == "granted"]
    for device, lines in _by(granted, "device").items():
        epochs = {line["lease"]: line["epoch"] for line in lines}
        assert len(set(epochs.values())) == len(epochs), f"{device} was lent twice in an epoch"
        for one in lines:
            for other in lines:
                if one["known"] < other["asked"]:
                    assert one["epoch"] < other["epoch"], (one, other)
    for line in history:
        if line["what"] == "submitted":
            later = [
                g for g in granted
                if g["device"] == line["device"] and g["epoch"] > line["epoch"]
                and g["known"] < line["asked"]
            ]  # fmt: skip
            assert not later, f"a stale write was taken: {line} after {later[0]}"
    return len(granted), sum(line["what"] == "refused" for line in history)


def check_terms(storm: Storm, history: Sequence[Line]) -> None:
    """No lease expired before the term of its last renewal was over."""
    reasons = dict(storm.rows("SELECT id, ended_reason FROM leases"))
    granted = [line for line in history if line["what"] == "granted"]
    for device, lines in _by(granted, "device").items():
        for one in lines:
            if "expired" not in reasons[one["lease"]]:
                continue
            renewals = [r for r in history if r["what"] == "renewed" and r["lease"] == one["lease"]]
            until = max(line["asked"] for line in (one, *renewals)) + one["term_s"]
            early = [g for g in lines if g["epoch"] > one["epoch"] and g["known"] < until]
            assert not early, f"{device} was lent again before the term was over: {one}, {early[0]}"


def check_trials(storm: Storm, history: Sequence[Line]) -> int:
    """How many candidates were acknowledged: each is there once, and none that was told differs."""
    stored = {(job, n): _times(times) for job, n, times in storm.rows(
        "SELECT job, number, times_s FROM trials WHERE job LIKE 'probe-%'")}  # fmt: skip
    waiting = set(storm.rows("SELECT job, number FROM requests"))
    acknowledged = 0
    for line in history:
        job = f"probe-{line['who']}"
        if line["what"] == "collected":
            assert stored[job, line["number"]] == line["times"], line
        if line["what"] == "submitted":
            for number in line["numbers"]:
                key = (job, number)
                assert (key in stored) + (key in waiting) == 1, f"{key} is lost or doubled"
                acknowledged += 1
    return acknowledged


def check_jobs(storm: Storm, jobs: Sequence[Job]) -> None:
    """Each job succeeded, with its budget spent once."""
    counts = dict(storm.rows(
        "SELECT job, count(*) FROM trials WHERE origin <> 'final' GROUP BY job"))  # fmt: skip
    states = {id_: (state, message) for id_, state, message in storm.rows(
        "SELECT id, state, message FROM jobs")}  # fmt: skip
    for job in jobs:
        assert states[job.id] == (str(JobState.SUCCEEDED), ""), storm.logs()
        assert counts[job.id] == job.budget.trials


def _times(stored: Any) -> Any:
    """The times of a row: SQLite gives them as text."""
    return json.loads(stored) if isinstance(stored, str) else stored


def _by(lines: Sequence[Line], name: str) -> dict[str, list[Line]]:
    found: dict[str, list[Line]] = defaultdict(list)
    for line in lines:
        found[line[name]].append(line)
    return found
