"""``tunefarm devices`` and ``leases`` on a running farm, and ``--device`` of jobs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path

import pytest
from tunefarm.db.records import Budget, DeviceRequest, Job, JobTask, Lease, WorkloadRecord
from tunefarm.proto.client import FarmClient

from tunefarm.cli.app import run
from tunefarm.cli.devices import actor
from tunefarm.farm import connect

TARGET = "sim -trial-ms=1"
Command = Callable[..., list[str]]


def start(*arguments: str) -> subprocess.Popen[str]:
    """A process of the farm that has said that it is ready."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tunefarm", *arguments], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline(), arguments
    return process


@pytest.fixture(scope="module")
def tracker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The rendezvous file of a farm whose worker ``lab-1`` offers two devices in rack 3."""
    folder = tmp_path_factory.mktemp("farm")
    database, rendezvous = str(folder / "farm.db"), str(folder / "farm.tracker.json")
    os.environ["TUNEFARM_HOME"] = str(folder / "home")
    running = [start("tracker", "--db", database, "--rendezvous", rendezvous)]
    targets = ["--target", TARGET, "--target", TARGET]
    tags = ["--name", "lab-1", "--tag", "rack=3"]
    running.append(start("worker", "--rendezvous", rendezvous, *targets, *tags))
    yield rendezvous
    for process in reversed(running):
        process.kill()
        process.communicate()


@pytest.fixture
def farm(tracker: str) -> Iterator[FarmClient]:
    with connect(tracker) as client:
        yield client
        for lease in client.leases():
            client.release(lease)
        client.uncordon("lab-1", actor="test")


@pytest.fixture
def command(tracker: str, capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs a command on the farm; the lines that it wrote."""

    def call(*arguments: str, code: int = 0) -> list[str]:
        assert run([*arguments, "--tracker", tracker]) == code
        shown = capsys.readouterr()
        return (shown.out if code == 0 else shown.err).splitlines()

    return call


def leased(farm: FarmClient, selector: str = "") -> Lease:
    lease = farm.acquire(DeviceRequest("sim", selector=selector), client="tuner-7", wait_s=60)
    assert lease is not None
    return lease


def test_devices_are_cordoned_by_name_and_listed_so(farm: FarmClient, command: Command) -> None:
    first, second = sorted(d.id for d in farm.devices())
    said = command("devices", "cordon", first, "--reason", "new fans")
    assert said == [f"cordoned device {first}"]
    head, _, *rows = command("devices")
    assert re.search(r"device +state +target .* host +why", head)
    assert f"new fans, by {actor()}" in rows[0]
    assert [row.split("  ")[1].strip() for row in rows] == ["idle, cordoned", "idle"]
    assert command("devices", "uncordon", first) == [f"{first} is idle"]
    lease = leased(farm)
    said = command("devices", "cordon", "lab-1")
    assert said == ["cordoned worker lab-1", f"tuner-7 holds {lease.device} and goes on"]
    still = command("devices", "uncordon", second)
    assert still == [f"{second} is still cordoned: by {actor()}"]
    history = command("devices", "history", "lab-1")
    assert re.search(r"cordon +worker lab-1", history[2])
    assert len(command("devices", "history")) == 5, "that of a device without a cordon was nothing"
    assert "there is no device or worker 'mars'" in command("devices", "cordon", "mars", code=2)[0]


def test_a_drain_waits_for_the_leases(farm: FarmClient, command: Command) -> None:
    lease = leased(farm)
    with farm.keep_lease(lease) as kept:
        begun = command("devices", "drain", "lab-1", "--reason", "move", "--no-wait")
        assert begun == [f"asked tuner-7 for {lease.device}", "draining worker lab-1"]

        def give_back() -> None:
            while not kept.latest.recall:
                time.sleep(0.05)
            farm.release(lease)

        yielding = threading.Thread(target=give_back)
        yielding.start()
        assert command("devices", "drain", "lab-1")[-1] == "drained worker lab-1"
        yielding.join()
    stubborn_is_over = command("devices", "drain", "lab-1", "--minutes", "0")
    assert stubborn_is_over == ["drained worker lab-1"]


def test_leases_are_listed_and_revoked_for_a_reason(farm: FarmClient, command: Command) -> None:
    assert command("leases") == ["nobody holds a device now"]
    lease = leased(farm)
    head, _, row = command("leases")
    assert head.split() == ["lease", "device", "holder", "epoch", "since", "held"]
    assert row.split()[:3] == [lease.id[:8], lease.device, "tuner-7"]
    assert command("leases", "--device", "none") == ["nobody holds a device now"]
    assert command("leases", "revoke", lease.id[:8], "--reason", "it hangs") == [
        f"revoked {lease.id[:8]}: tuner-7 held {lease.device}"
    ]
    newest = command("leases", "--history", "--limit", "1")[2]
    assert newest.endswith(f"revoked by {actor()}: it hangs")
    again = command("leases", "revoke", lease.id, "--reason", "it hangs", code=2)
    assert again == [
        f"tunefarm: lease {lease.id} has ended already: revoked by {actor()}: it hangs"
    ]
    assert "reason" in command("leases", "revoke", lease.id, code=2)[0]


def test_tags_of_a_worker_are_selected(farm: FarmClient) -> None:
    assert leased(farm, "rack>=3 host=* worker=lab-1").device in {d.id for d in farm.devices()}
    assert farm.acquire(DeviceRequest("sim", selector="rack=4"), client="c", wait_s=0.1) is None


@pytest.mark.parametrize(
    ("tag", "sentence"),
    [
        ("rack", "--tag 'rack' is not of the form NAME=VALUE"),
        ("3=rack", "is not of the form NAME=VALUE"),
        ("rack=", "is not of the form NAME=VALUE"),
        ("kind=cuda", "kind is told by the farm itself; choose another name than device, kind"),
    ],
)
def test_what_is_no_tag_is_refused(
    tag: str, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["worker", "--tag", tag]) == 2
    assert sentence in capsys.readouterr().err


def test_a_job_that_no_device_satisfies_says_so(
    farm: FarmClient, command: Command, tracker: str
) -> None:
    task = JobTask(WorkloadRecord(sha256(b"text").hexdigest(), "text"))
    job = farm.submit_job(Job("", TARGET, (task,), Budget(1), selector="rack=4"))
    why = f"rack=4 does not hold for any of the 2 devices that run {TARGET}: rack is 3"
    assert job.unmet == why
    assert command("jobs")[2].endswith(f"rack=4   {why}")
    database = str(Path(tracker).with_name("farm.db"))
    farm.cancel(job.id, "not needed")
    assert not command("jobs")[2].endswith(why)
    assert Path(database).exists()


@pytest.mark.parametrize("name", ["submit", "tune"])
def test_what_selects_no_device_is_refused_at_once(
    model: str, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([name, model, "--device", "kind=llvm fast"]) == 2
    sentence = "tunefarm: 'fast' is no condition; a device is selected by NAME=VALUE, with =, !="
    assert capsys.readouterr().err.startswith(sentence)


def test_a_device_is_checked_at_once_and_says_what_was_found(
    farm: FarmClient, command: Command
) -> None:
    first, second = sorted(d.id for d in farm.devices())
    before = time.time()
    (line,) = command("devices", "check", first)
    assert line == f"{first} is well: 100 GFLOP/s, noise 0.2%, 0.2% between trials"
    assert {d.id: d.health.checked_at >= before for d in farm.devices()}[first]
    lines = command("devices", "lift", "lab-1", "--reason", "another power limit")
    assert [text.split(":")[0] for text in lines] == [f"{first} is well", f"{second} is well"]
    events = command("devices", "history", "lab-1")
    assert any("lift" in text and "another power limit" in text for text in events)


def test_nothing_is_lifted_without_a_reason(farm: FarmClient, command: Command) -> None:
    lines = command("devices", "lift", "lab-1", "--reason", "", code=2)
    assert "a quarantine is lifted for a reason, which is kept" in "".join(lines)
