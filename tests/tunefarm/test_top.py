"""``tunefarm farm top``: what it shows at any width, and on a live farm."""

from __future__ import annotations

import hashlib
import io
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from rich.cells import cell_len
from rich.console import Console
from tunefarm.db.records import (
    Budget,
    Device,
    FarmInfo,
    Job,
    JobState,
    JobTask,
    JobUpdate,
    Lease,
    Progress,
    TaskKey,
    Trial,
    WorkloadRecord,
)

from tunefarm.cli.app import run
from tunefarm.farm import connect
from tunefarm.progress import Following
from tunefarm.top import (
    NEWEST,
    WINDOW_S,
    Gain,
    Look,
    Watch,
    headlines,
    job_columns,
    rates,
    shown,
    span,
)

NOW = 1e9
TARGET = "llvm -mcpu=emeraldrapids -num-cores=2"
TASK = TaskKey("f" * 64, TARGET)
LEASE = Lease("l1", "dev-1", "tuner-on-lab3", 3, 10.0, job="a1b2c3d4e5", granted_at=NOW - 65)
JOB = Job(
    "a1b2c3d4e5", TARGET, (), Budget(640), state=JobState.RUNNING, priority=2, created_at=NOW - 4000
)
LOOK = Look(
    at=NOW,
    info=FarmInfo("0.1.0", "/data/farm.db", 10.0, 10.0, NOW - 200_000),
    devices=(
        Device("dev-3", "llvm", "Xeon", TARGET, "lab-2", state="offline"),
        Device("dev-2", "llvm", "Xeon", TARGET, "lab-1", state="idle", cordon="cordoned",
               cordon_reason="new fans, by anna@lab1"),
        Device("dev-1", "llvm", "Xeon", TARGET, "lab-1", state="leased"),
    ),
    leases=(LEASE,),
    jobs=(
        JobUpdate(JOB, (Progress(TASK, "gemm 64", 9, 1, 90, 10, 5, 1e-3, 2e-3),), {}, 1),
        JobUpdate(
            replace(JOB, id="ffff0000", state=JobState.QUEUED, unmet="no registered device runs"),
            (), {}, 1,
        ),
    ),
    queued=1,
    newest=tuple(
        Trial("a1b2c3d4e5", TASK, n, {}, (1e-3,), device="dev-1", created_at=NOW - n - 0.5)
        for n in range(40)
    ),
    gains=(Gain("a1b2c3d4e5", "gemm 64", 1e-3, 2e-3, NOW - 3),),
)  # fmt: skip


def lines(look: Look, width: int, height: int | None = None) -> list[str]:
    out = Console(file=io.StringIO(), width=width)
    out.print(shown(look, width, height))
    assert isinstance(out.file, io.StringIO)
    return [line.rstrip() for line in out.file.getvalue().splitlines()]


@pytest.mark.parametrize("width", [40, 60, 80, 100, 140, 200])
def test_it_fits_any_width_and_names_the_essential(width: int) -> None:
    picture = lines(LOOK, width)
    assert max(map(cell_len, picture)) <= width
    rows = {line.split()[0]: line for line in picture if line}
    assert rows["dev-1"].split()[:3] == ["dev-1", "leased", "1.0"]
    assert [name for name in rows if name.startswith("dev-")] == ["dev-1", "dev-2", "dev-3"]
    assert "running" in rows["a1b2c3d4"]
    if width >= 80:
        assert "100/640" in rows["a1b2c3d4"]
        assert "2.00x" in rows["a1b2c3d4"]
        assert "1:05" in rows["dev-1"]
        assert "no registered" in rows["ffff0000"]
        assert "new fans" in rows["dev-2"]
        assert rows["gemm"].split() == [
            "gemm",
            "64",
            "1.00",
            "ms",
            "2.00x",
            "a1b2c3d4",
            "0:03",
            "ago",
        ]


def test_a_job_without_a_trial_says_what_it_does() -> None:
    granted = replace(JOB, compiler_version="0.1")
    begun = JobUpdate(granted, (Progress(TASK, "gemm 64", 9, 1, pending=1),), {}, 1)
    for width, words in ((80, "building and timing its"), (140, "its first candidates")):
        picture = lines(replace(LOOK, jobs=(begun,)), width)
        assert any(words in line for line in picture), picture


def test_the_head_counts_everything() -> None:
    assert headlines(LOOK) == [
        "/data/farm.db, tracker 0.1.0 up 2 d 7 h",
        "3 devices: 1 leased, 1 idle, 1 offline, 1 cordoned",
        "1 job running, 1 queued; 5 candidates under way, 1.0 trials/s",
    ]


def test_the_head_tells_a_quarantine_from_a_cordon() -> None:
    cordons = ("quarantined", "cordoned", "quarantined", "")
    devices = tuple(replace(LOOK.devices[1], id=f"d{n}", cordon=c) for n, c in enumerate(cordons))
    head = headlines(replace(LOOK, devices=devices))
    assert head[1] == "4 devices: 4 idle, 1 cordoned, 2 quarantined"


def test_a_jobs_trials_are_those_that_watch_counts() -> None:
    job = replace(JOB, budget=Budget(700), options={"earlier": "350"})
    update = JobUpdate(job, (Progress(TASK, "gemm 64", 9, 1, 260, 10, 5, 1e-3, 2e-3),), {}, 1)
    following = Following()
    following.note(update)
    assert "620/700 trials" in following.headline()
    trials = next(c for c in job_columns(replace(LOOK, jobs=(update,)), None) if c.name == "trials")
    assert trials.cells == ["620/700"]


def test_many_rows_are_cut_to_the_terminal() -> None:
    crowd = replace(LOOK, devices=LOOK.devices * 40, jobs=LOOK.jobs * 40, gains=LOOK.gains * 40)
    assert len(lines(crowd, 100, 30)) <= 30


def test_an_empty_farm() -> None:
    empty = replace(LOOK, devices=(), leases=(), jobs=(), queued=0, newest=(), gains=())
    picture = lines(empty, 80)
    assert "no worker ever offered a device" in picture
    assert "no job runs or waits" in picture


def test_rates_of_slow_and_of_fast_devices() -> None:
    slow = [replace(LOOK.newest[0], created_at=NOW - 5)]
    assert rates(slow, NOW) == {"dev-1": pytest.approx(1 / WINDOW_S)}
    fast = [replace(LOOK.newest[0], created_at=NOW - n / 100) for n in range(NEWEST)]
    assert rates(fast, NOW)["dev-1"] == pytest.approx(100, rel=0.02)
    assert rates([], NOW) == {}


def test_spans() -> None:
    seconds = (5, 3599, 3600, 47 * 3600, 200_000)
    assert [span(s) for s in seconds] == ["0:05", "59:59", "1 h 00 min", "47 h 00 min", "2 d 7 h"]


@pytest.fixture
def tracker(home: Path, tmp_path: Path) -> Iterator[str]:
    command = [sys.executable, "-m", "tunefarm", "tracker", "--db", str(tmp_path / "farm.db")]
    process = subprocess.Popen(
        [*command, "--log-level", "error"], stdout=subprocess.PIPE, text=True, env=dict(os.environ)
    )
    assert process.stdout is not None
    assert process.stdout.readline().startswith("tracker listening")
    yield str(tmp_path / "farm.db.tracker.json")
    process.kill()
    process.communicate()


def test_a_live_farm_is_printed_once(tracker: str, capsys: pytest.CaptureFixture[str]) -> None:
    record = WorkloadRecord(hashlib.sha256(b"text").hexdigest(), "text", "gemm 64", 10)
    with connect(tracker) as client:
        job = client.submit_job(Job("", "sim", (JobTask(record, 1),), Budget(7), priority=4))
        watch = Watch(client)
        assert watch.look().jobs[0].job.id == job.id
        assert abs(watch.look().at - time.time()) < 60
    assert run(["farm", "top", "--once", "--tracker", tracker]) == 0
    told = capsys.readouterr().out.splitlines()
    assert told[0].startswith(f"{tracker.removesuffix('.tracker.json')}, tracker ")
    assert told[1:3] == [
        "0 devices",
        "0 jobs running, 1 queued; 0 candidates under way, 0.0 trials/s",
    ]
    row = next(line for line in told if line.startswith(job.id[:8]))
    assert row.split()[1:5] == ["queued", "4", "0/7", "1"]
    assert all(line == line.rstrip() for line in told)
