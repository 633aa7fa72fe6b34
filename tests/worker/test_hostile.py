"""Every hostile candidate is contained within its budget and named by its exact error."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

import pytest
from tunefarm.db.records import ErrorKind, TaskKey, Trial, TrialRequest
from tunefarm.proto.awake import awake_s
from tunefarm.worker.device import DeviceOptions, OpenDevice, open_device
from tunefarm.worker.process import sweep_scratch

BUDGET_S = 1.0
"""What those get that have to be stopped; all others may be as slow as a loaded machine."""
AMPLE_S = 30.0


def measure(
    device: OpenDevice,
    *configs: Mapping[str, int | str],
    build_s: float = AMPLE_S,
    run_s: float = AMPLE_S,
    target: str = "hostile -num-cores=1",
) -> list[Trial]:
    budgets = {"build_s": build_s, "run_s": run_s, "trial_s": 2 * AMPLE_S}
    requests = [
        TrialRequest("job", TaskKey("w", target), n, config, "double", budgets=budgets)
        for n, config in enumerate(configs)
    ]
    trials: list[Trial] = []
    device.measure(requests, lambda _, trial: trials.append(trial), lambda _: False)
    return trials


@pytest.mark.parametrize(
    "config, kind, message",
    [
        ({"kernel": "loop"}, ErrorKind.RUN_TIMEOUT, "one run was over its budget"),
        ({"kernel": "ignore_sigterm"}, ErrorKind.RUN_TIMEOUT, "one run was over its budget"),
        ({"kernel": "fork_bomb"}, ErrorKind.RUN_TIMEOUT, "one run was over its budget"),
        ({"kernel": "fill_scratch"}, ErrorKind.RUN_TIMEOUT, "one run was over its budget"),
        ({"kernel": "flood_stderr"}, ErrorKind.RUN_TIMEOUT, "one run was over its budget"),
        ({"kernel": "eat_memory"}, ErrorKind.OUT_OF_MEMORY, "512 MiB"),
        ({"kernel": "segfault"}, ErrorKind.RUN_CRASH, "signal 11"),
        ({"kernel": "write_inputs"}, ErrorKind.RUN_CRASH, "signal 11"),
        ({"kernel": "abort"}, ErrorKind.RUN_CRASH, "signal 6"),
        ({"kernel": "kill_itself"}, ErrorKind.RUN_CRASH, "signal 9"),
        ({"kernel": "exit"}, ErrorKind.RUN_CRASH, "status 0 without an answer"),
        ({"kernel": "close_everything"}, ErrorKind.RUN_CRASH, "closed its end"),
        ({"kernel": "wrong"}, ErrorKind.WRONG_ANSWER, "1024 of 1024 elements"),
        ({"kernel": "empty"}, ErrorKind.WRONG_ANSWER, "got nan"),
        ({"kernel": "lazy"}, ErrorKind.WRONG_ANSWER, "got nan"),
        ({"kernel": "babble"}, ErrorKind.RUN_ERROR, "the process sent a header"),
        ({"kernel": "forge"}, ErrorKind.RUN_ERROR, "the answer to another request"),
        ({"kernel": "nest"}, ErrorKind.RUN_ERROR, "a header that is not JSON"),
        ({"kernel": "none"}, ErrorKind.INSTANTIATION, "no kernel 'none'"),
        ({"kernel": "honest", "operations": 10**15}, ErrorKind.RUN_ERROR, "faster than"),
        ({"kernel": "honest", "build": "hang"}, ErrorKind.BUILD_TIMEOUT, "over its budget"),
        ({"kernel": "honest", "build": "abort"}, ErrorKind.BUILD_ERROR, "signal 6"),
        ({"kernel": "honest", "build": "raise"}, ErrorKind.BUILD_ERROR, "no code today"),
        ({"kernel": "honest", "build": "eat_memory"}, ErrorKind.OUT_OF_MEMORY, "memory"),
    ],
)
def test_a_bad_candidate_is_named_and_the_next_one_measured(
    hostile: OpenDevice, config: dict[str, int | str], kind: ErrorKind, message: str
) -> None:
    start = awake_s()
    assert measure(hostile, {"kernel": "honest"})[0].ok
    honest_s = awake_s() - start
    build_s = BUDGET_S if kind is ErrorKind.BUILD_TIMEOUT else AMPLE_S
    run_s = BUDGET_S if kind is ErrorKind.RUN_TIMEOUT else AMPLE_S
    (bad,) = measure(hostile, config, build_s=build_s, run_s=run_s)
    if "timeout" in kind:
        assert awake_s() - start < 3 * honest_s + BUDGET_S + 10
    assert bad.error is kind, bad
    assert message in bad.message
    assert not bad.times_s
    (good,) = measure(hostile, {"kernel": "honest"})
    assert good.ok, good.message


@pytest.mark.parametrize(
    "kernel",
    [
        "kill_parent",
        "kill_everyone",
        "fork",
        "daemon",
        "socket",
        "write_home",
        "write_scratch",
        "shared_memory",
        "timers",
        "signals",
        "others",
        "machine",
    ],
)
def test_a_kernel_reaches_nothing_but_its_own_memory(hostile: OpenDevice, kernel: str) -> None:
    (trial,) = measure(hostile, {"kernel": kernel})
    assert trial.ok, trial.message  # every call is refused, and the answer is right
    assert not Path("/tmp/tunefarm-hostile").exists()


def test_a_kernel_reads_no_secret(hostile: OpenDevice, tmp_path: Path) -> None:
    secret = tmp_path / "token"
    secret.write_text("farm's secret")
    places = [secret, "/etc/shadow", Path.home(), f"/proc/{os.getpid()}/environ",
              f"/proc/{os.getpid()}/mem", "/proc/self/environ"]  # fmt: skip
    for place in places:
        (trial,) = measure(hostile, {"kernel": f"read:{place}"})
        assert trial.ok, (place, trial.message)


def test_a_child_gets_no_secret_of_its_environment(
    hostile: OpenDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TUNEFARM_TOKEN", "farm's secret")
    measure(hostile, {"kernel": "segfault"}, {"kernel": "honest"})  # a runner of now
    children = [p for p in Path("/proc").iterdir() if p.name.isdigit() and _is_ours(int(p.name))]
    assert children
    for child in children:
        assert b"secret" not in (child / "environ").read_bytes()
        assert b"secret" not in (child / "cmdline").read_bytes()


@pytest.mark.parametrize(
    "says, kind, message",
    [
        ("no time", ErrorKind.RUN_ERROR, "the runner claims 1e-09 s where"),
        ("nan", ErrorKind.RUN_ERROR, "the runner claims nan s"),
        ("words", ErrorKind.RUN_ERROR, "the runner claims 'fast' s"),
        ("twice", ErrorKind.RUN_ERROR, "the process sent"),
        ("device lost", ErrorKind.RUN_ERROR, "\N{REPLACEMENT CHARACTER}"),
        ("an error of no kind", ErrorKind.RUN_ERROR, ""),
        ("mail", ErrorKind.RUN_ERROR, "a header of"),
        ("a thread", ErrorKind.RUN_ERROR, "can't start new thread"),
    ],
)
def test_a_kernel_that_speaks_for_its_runner_is_not_believed(
    hostile: OpenDevice, says: str, kind: ErrorKind, message: str
) -> None:
    (bad,) = measure(hostile, {"kernel": f"python:{says}"})
    assert bad.error is kind, bad
    assert message in bad.message
    assert len(bad.message) <= 2000
    assert "\0" not in bad.message.encode().decode()  # no lone surrogate either
    (good,) = measure(hostile, {"kernel": "honest"})
    assert good.ok, good.message


def test_what_a_kernel_leaves_on_the_socket_is_not_the_next_ones_answer(
    hostile: OpenDevice,
) -> None:
    trials = measure(hostile, {"kernel": "python:twice at the end"}, {"kernel": "wrong"})
    assert trials[1].error is ErrorKind.WRONG_ANSWER, trials[1]
    (good,) = measure(hostile, {"kernel": "honest"})
    assert good.ok, good.message


def test_the_last_words_of_a_crash_are_kept(hostile: OpenDevice) -> None:
    (trial,) = measure(hostile, {"kernel": "honest", "build": "abort"})
    assert "LLVM ERROR: cannot select" in trial.stderr_tail


def test_a_batch_keeps_its_order_and_its_phases(hostile: OpenDevice) -> None:
    kernels = ["honest", "segfault", "honest", "wrong", "honest"]
    trials = measure(hostile, *({"kernel": k} for k in kernels))
    assert [t.number for t in trials] == list(range(5))
    assert [t.ok for t in trials] == [True, False, True, False, True]
    assert set(trials[0].phases_s) == {"build", "check", "run"}
    assert len(trials[0].times_s) >= 3


def test_what_fails_in_company_fails_by_itself(hostile: OpenDevice) -> None:
    """The first is built alone, the others in two companies: one dies, one lacks a candidate."""
    builds = ["", "", "abort", "", "", "", "raise", ""]
    trials = measure(
        hostile, *({"kernel": "honest", **({"build": b} if b else {})} for b in builds)
    )
    assert [t.number for t in trials] == list(range(len(builds)))
    assert [t.ok for t in trials] == [not b for b in builds]
    assert [t.message for t in trials if "no code today" in t.message] == [trials[6].message]
    assert "LLVM ERROR: cannot select" in trials[2].stderr_tail
    assert all(t.phases_s["build"] > 0 for t in trials)


def test_the_device_leaves_nothing_behind(plugins: Path, hostile: OpenDevice) -> None:
    measure(hostile, {"kernel": "segfault"}, {"kernel": "honest"})
    zombies = [pid for pid in os.listdir("/proc") if pid.isdigit() and _is_our_zombie(int(pid))]
    assert not zombies


def _is_ours(pid: int) -> bool:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return False
    return fields[0] != "Z" and int(fields[1]) == os.getpid()


def _is_our_zombie(pid: int) -> bool:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return False
    return fields[0] == "Z" and int(fields[1]) == os.getpid()


def test_confined_children_know_the_settings_of_their_user(plugins: Path, tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text("[settings]\nverify = true\n")
    environment = {"PYTHONPATH": str(plugins), "TUNEFARM_CONFIG": str(config)}
    options = DeviceOptions("hostile -num-cores=1", build_processes=1, environment=environment)
    device = open_device(options)
    try:
        (trial,) = measure(device, {"kernel": "honest"})
    finally:
        device.close()
    assert trial.ok, trial


def test_scratch_of_a_dead_worker_is_swept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    dead, living = tmp_path / "tunefarm-999999999-a", tmp_path / f"tunefarm-{os.getpid()}-a"
    for path in (dead, living):
        path.mkdir()
    sweep_scratch()
    assert living.exists()
    assert not dead.exists()


def test_a_runner_with_a_driver_of_gpus_may_not_do_more_than_that(plugins: Path) -> None:
    target = "hostile-gpu -num-cores=1"
    device = open_device(
        DeviceOptions(
            target,
            build_processes=1,
            memory_bytes=512 << 20,
            environment={"PYTHONPATH": str(plugins)},
            max_drift=0,
        )
    )
    try:
        if "landlock" not in device.device.attributes["sandbox"]:
            pytest.skip("this kernel has no Landlock, which tells a driver's files from others")
        refused = ("kill_parent", "daemon", "socket", "write_home", "write_scratch", "signals",
                   "others", "machine", "read:/etc/passwd")  # fmt: skip
        trials = measure(device, *({"kernel": kernel} for kernel in refused), target=target)
        told = {str(t.config["kernel"]): t.message for t in trials if not t.ok}
        assert (told, len(trials)) == ({}, len(refused))
        stopped = {
            "eat_memory": ErrorKind.OUT_OF_MEMORY,
            "thread_bomb": ErrorKind.RUN_TIMEOUT,
            "fork": ErrorKind.RUN_CRASH,  # its threads may start, and run on one stack
        }
        for kernel, kind in stopped.items():
            run_s = BUDGET_S if kind is ErrorKind.RUN_TIMEOUT else AMPLE_S
            (trial,) = measure(device, {"kernel": kernel}, run_s=run_s, target=target)
            assert trial.error is kind
    finally:
        device.close()
