"""Why a job gets no device, as a pure function."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from tunefarm.db.records import Budget, Cordon, Device, Job, JobState, Lease
from tunefarm.tracker.allocate import cordon_of
from tunefarm.tracker.farm import Farm
from tunefarm.tracker.options import TrackerOptions
from tunefarm.tracker.unmet import why_unmet, why_untuned

OLD = Device("cuda-1", "cuda", "A100", "cuda -arch=sm_80", "w1", {"host": "lab1"})
OLDER = Device("cuda-2", "cuda", "V100", "cuda -arch=sm_70", "w2", {"host": "lab2"})
CPU = Device("llvm-1", "llvm", "EPYC", "llvm -mcpu=znver5 -num-cores=2", "w1")
DEVICES = (OLD, OLDER, CPU)
FANS = Cordon("device", "cuda-1", False, "anna", "fans", 2.0)
MOVE = Cordon("worker", "w2", True, "ben", "", 3.0)


def job(target: str = "cuda", selector: str = "", **fields: object) -> Job:
    return Job("j", target, (), Budget(1), selector=selector, **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("wanted", "why"),
    [
        (job(), ""),
        (job(selector="arch>=sm_80 host!=lab2"), ""),
        (job("llvm -mcpu=znver5"), ""),
        (
            job("rocm"),
            "no registered device runs rocm; there are cuda -arch=sm_70, cuda -arch=sm_80, "
            "llvm -mcpu=znver5 -num-cores=2",
        ),
        (
            job(selector="arch>=sm_90"),
            "arch>=sm_90 does not hold for any of the 2 devices that run cuda: "
            "arch is sm_70, sm_80",
        ),
        (
            job("cuda -arch=sm_80", "host=lab9"),
            "host=lab9 does not hold for the registered device that runs cuda -arch=sm_80: "
            "host is lab1",
        ),
        (
            job(selector="hots=lab1"),
            "hots=lab1 does not hold for any of the 2 devices that run cuda: they have no tag "
            "hots, but arch, compiler, device, host, kind, model, worker",
        ),
        (
            job(selector="arch=sm_80 host=lab2"),
            "not all of arch=sm_80 host=lab2 hold together for any of the 2 devices that run cuda",
        ),
        (
            job(options={"device_model": "H200"}),
            "no registered device of model H200 may measure it; there are A100, V100",
        ),
        (
            job(compiler_version="2"),
            "its trials are made by compiler 2, the devices that may measure it have 1",
        ),
    ],
)
def test_the_reason_names_what_is_missing_and_what_there_is(wanted: Job, why: str) -> None:
    known = [replace(device, compiler_version="1") for device in DEVICES]
    assert why_unmet(wanted, known, ()) == why


def test_a_farm_without_devices_says_how_to_get_one() -> None:
    why = "no device is registered; `tunefarm worker` offers one"
    assert why_unmet(job(), (), ()) == why


def test_a_job_waits_for_the_cordons_of_all_its_devices() -> None:
    assert why_unmet(job(), DEVICES, (FANS,)) == ""
    assert why_unmet(job(), DEVICES, (FANS, MOVE)) == (
        "every device that may measure it is cordoned: cuda-1 (fans), cuda-2 (ben)"
    )
    assert why_unmet(job(selector="host=lab1"), DEVICES, (FANS,)) == (
        "every device that may measure it is cordoned: cuda-1 (fans)"
    )


def test_of_several_cordons_one_that_drains_goes_first() -> None:
    worker = Cordon("worker", "w1", True, "ben", "move", 9.0)
    assert cordon_of(OLD, (FANS, worker, MOVE)) == worker
    assert cordon_of(OLD, (FANS, replace(worker, drain=False))) == FANS
    assert cordon_of(CPU, (FANS, MOVE)) is None
    assert cordon_of(CPU, ()) is None


def test_a_job_of_a_plugin_says_where_it_is_to_be_installed() -> None:
    wanted = job("llvm", 'plugin.toy-ops="0.1+1f2e3d4c"')
    needed = "its tasks are made with plug-in toy-ops 0.1+1f2e3d4c, and the workers that run its"
    remedy = "; install the same there, and start them again"
    assert why_unmet(wanted, DEVICES, ()) == f"{needed} target do not have it{remedy}"
    other = replace(CPU, id="b", attributes={"plugin.toy-ops": "0.2+00000000"})
    told = why_unmet(wanted, (*DEVICES, other), ())
    assert told == f"{needed} target have 0.2+00000000{remedy}"
    same = replace(CPU, id="c", attributes={"plugin.toy-ops": "0.1+1f2e3d4c"})
    assert why_unmet(wanted, (*DEVICES, same), ()) == ""
    assert why_untuned(wanted, []) == ""
    assert why_untuned(wanted, [{"toy-ops==0.1+1f2e3d4c", "x==1+0"}, set()]) == ""
    assert "has toy-ops==0.1+1f2e3d4c, which its tasks" in why_untuned(wanted, [{"x==1+0"}])


@pytest.mark.parametrize("state", JobState)
def test_open_jobs_say_that_nothing_can_be_stored(state: JobState) -> None:
    full = "database farm.db cannot be used: the disk is full"
    database: Any = SimpleNamespace(trouble=full)
    farm = Farm(TrackerOptions("unused"), database)
    farm.devices = {CPU.id: CPU}
    farm.hold_lease(Lease("l", CPU.id, "t", 1, 60.0, job="j"))
    wanted = job(CPU.target, state=state)
    assert farm.told(wanted).unmet == (full if state in (JobState.QUEUED, JobState.RUNNING) else "")
    database.trouble = ""
    assert farm.told(wanted).unmet == ""
