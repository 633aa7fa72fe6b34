"""Look-up while building: which record answers, and what happens when none can."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Mapping
from pathlib import Path

import pytest
from tunefarm.compiler.decisions import Status
from tunefarm.compiler.dispatch import HistoryError, apply_history_best, current_history
from tunefarm.compiler.host import device_model
from tunefarm.compiler.ir import Function, TensorType, Var
from tunefarm.compiler.ops import call
from tunefarm.compiler.space import config_space
from tunefarm.compiler.target import Target
from tunefarm.compiler.version import compiler_version
from tunefarm.compiler.workload import Workload
from tunefarm.db import jsonl
from tunefarm.db.records import (
    DEFAULT_PROTOCOL,
    BestKey,
    Final,
    TaskKey,
    Trial,
    TrialKey,
    Verdict,
    WorkloadRecord,
    protocol_of,
)
from tunefarm.db.store import Store

TARGET = Target("llvm -mcpu=znver5 -num-cores=2")
HASWELL = Target("llvm -mcpu=haswell -num-cores=2")


def workload(rows: int = 64) -> Workload:
    a = Var("a", TensorType((rows, 32), "float32"))
    b = Var("b", TensorType((32, 48), "float32"))
    attrs = {"primitive": True, "constants": (1,)}
    return Workload.from_function(Function((a, b), call("matmul", a, b), attrs))


def record(
    task: Workload,
    number: int,
    seconds: float,
    config: Mapping[str, int | str],
    target: Target = TARGET,
    model: str = "",
    fingerprint: str | None = None,
) -> Trial:
    return Trial(
        "job",
        TaskKey(task.key, target.text),
        number,
        config,
        (seconds,) * 3,
        device_model=model or device_model(target.num_cores),
        protocol=protocol_of(target.text),
        space_fingerprint=config_space(task, target).fingerprint
        if fingerprint is None
        else fingerprint,
        created_at=float(number),
    )


def tuned(task: Workload, **changes: object) -> list[Trial]:
    """A default that takes 2 ms and a better config that takes 1 ms."""
    default = config_space(task, TARGET).default
    other = {**default, "rw": 4}
    assert other != default
    return [
        record(task, 0, 2e-3, default, **changes),  # type: ignore[arg-type]
        record(task, 1, 1e-3, other, **changes),  # type: ignore[arg-type]
    ]


def decide(records: object, task: Workload, target: Target = TARGET, strict: bool = False):  # type: ignore[no-untyped-def]
    with apply_history_best(records, strict=strict) as history:  # type: ignore[arg-type]
        (decision,) = history.lookup([task], target)
    return decision


def test_a_record_of_this_device_is_exact() -> None:
    decision = decide(tuned(workload()), workload())
    assert decision.status is Status.EXACT
    assert decision.config["rw"] == 4
    assert "trial 1" in decision.reason


def test_a_record_of_another_device_serves_the_same_target() -> None:
    decision = decide(tuned(workload(), model="another machine"), workload())
    assert decision.status is Status.TARGET
    assert "another machine" in decision.reason


def test_another_number_of_cores_is_compatible() -> None:
    decision = decide(tuned(workload()), workload(), Target("llvm -mcpu=znver5 -num-cores=4"))
    assert decision.status is Status.COMPATIBLE
    assert f"another number of cores ({TARGET})" in decision.reason


def test_another_cpu_is_not() -> None:
    decision = decide(tuned(workload()), workload(), HASWELL)
    assert decision.status is Status.DEFAULT
    assert decision.found is None
    assert decision.reason == f"no record for {HASWELL}; the one for {TARGET} does not serve it"


def test_a_record_of_another_compiler_is_used_and_told() -> None:
    old = [dataclasses.replace(trial, compiler_version="0.1.0") for trial in tuned(workload())]
    decision = decide(old, workload())
    assert decision.status is Status.EXACT
    assert decision.reason.endswith(f"timed with compiler 0.1.0, this is {compiler_version()}")
    own = [dataclasses.replace(t, compiler_version=compiler_version()) for t in old]
    assert "compiler" not in decide(own, workload()).reason


def test_a_record_of_another_space_is_stale() -> None:
    decision = decide(tuned(workload(), fingerprint="of old"), workload())
    assert decision.status is Status.STALE
    assert decision.config == config_space(workload(), TARGET).default
    assert "tune again" in decision.reason


def test_a_record_within_the_noise_of_the_default_is_not_used() -> None:
    default = config_space(workload(), TARGET).default
    records = [
        record(workload(), 0, 1.00e-3, default),
        record(workload(), 1, 0.99e-3, {**default, "rw": 4}),
    ]
    decision = decide(records, workload())
    assert (decision.status, decision.why) == (Status.DEFAULT, "no gain yet")


def test_a_default_that_won_its_final_is_confirmed_not_tuned(tmp_path: Path) -> None:
    key = BestKey(workload().key, str(TARGET), device_model(TARGET.num_cores))
    default, other = tuned(workload())
    database = str(tmp_path / "records.db")
    with Store.open(database) as store:
        text = WorkloadRecord(workload().key, workload().text)
        store.add_workloads([text])
        store.add_trials([default, other])
        begun = decide(database, workload())
        won = TrialKey(default.job, default.task, 0)
        store.promote("r", Final(key, won, None, Verdict.SAME, speedup_over_default=1.0))
    with apply_history_best(database, strict=True) as history:
        (decision,) = history.lookup([workload()], TARGET)
    assert (begun.status, decision.status) == (Status.EXACT, Status.CONFIRMED)
    assert (decision.tuned, decision.settled) == (False, True)
    assert history.explain().startswith("confirmed ")
    assert "trial 0, the default itself" in history.explain()
    summary = history.summary("tunefarm tune model.onnx")
    assert summary.startswith("0 tuned, 1 confirmed, 0 default, 0 stale tasks")
    assert "tune the rest" not in summary
    more = Target("llvm -mcpu=znver5 -num-cores=4")
    elsewhere = decide(database, workload(), more)
    assert elsewhere.status is Status.DEFAULT
    assert elsewhere.config == config_space(workload(), more).default
    assert elsewhere.reason.endswith(
        f"for {TARGET} the default was the best, and this target has its own"
    )


@pytest.mark.parametrize("name", ["records.sqlite3", "records"])
def test_a_database_is_known_by_its_first_bytes(tmp_path: Path, name: str) -> None:
    with Store.open(str(tmp_path / name)) as store:
        store.add_workloads([WorkloadRecord(workload().key, workload().text)])
        store.add_trials(tuned(workload()))
    assert decide(tmp_path / name, workload()).status is Status.EXACT


def test_an_unknown_task_gets_its_default_and_is_reported() -> None:
    missed = []
    with apply_history_best(tuned(workload()), on_miss=missed.append) as history:
        (decision,) = history.lookup([workload(65)], TARGET)
    assert decision.status is Status.DEFAULT
    assert missed == [decision]
    assert "0 tuned, 0 confirmed, 1 default" in history.summary("tunefarm tune model.onnx")
    assert "tunefarm tune model.onnx" in history.summary("tunefarm tune model.onnx")


def test_strict_refuses_an_unknown_task() -> None:
    with pytest.raises(HistoryError, match="no tuned record of matmul"):
        decide(tuned(workload()), workload(65), strict=True)


def test_an_unreadable_source_is_one_warning(tmp_path: Path) -> None:
    missing = tmp_path / "none.jsonl"
    with pytest.warns(UserWarning, match=r"none\.jsonl cannot be used"):
        decision = decide(missing, workload())
    assert decision.status is Status.DEFAULT
    with pytest.raises(HistoryError, match=r"none\.jsonl cannot be used"):
        decide(missing, workload(), strict=True)


def test_a_corrupt_database_is_one_warning(tmp_path: Path) -> None:
    broken = tmp_path / "tunefarm.db"
    broken.write_bytes(b"this is no database" * 100)
    with pytest.warns(UserWarning, match="default configs are used"):
        assert decide(broken, workload()).status is Status.DEFAULT


def test_a_source_that_is_something_else_is_one_warning(tmp_path: Path) -> None:
    other = tmp_path / "model.onnx"
    other.write_bytes(b"\x08\x07\x12\x00pytorch\n" * 3)
    with pytest.warns(UserWarning, match=r"model\.onnx holds no records: line 1 .* is not JSON"):
        assert decide(other, workload()).status is Status.DEFAULT
    with pytest.raises(HistoryError, match=r"model\.onnx holds no records"):
        decide(other, workload(), strict=True)


def test_a_json_lines_file_is_a_source(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    with path.open("w") as stream:
        stream.writelines(f"{jsonl.dump(trial)}\n" for trial in tuned(workload()))
    assert decide(path, workload()).status is Status.EXACT
    with path.open("a") as stream:
        stream.write('nonsense\n{"tunefarm"')
    with pytest.warns(UserWarning, match=r"line \d+ of records\.jsonl is not JSON .*, and 1 other"):
        assert decide(path, workload()).status is Status.EXACT


def test_outside_of_any_history_all_is_default() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (decision,) = current_history().lookup([workload()], TARGET)
    assert decision.status is Status.DEFAULT


def test_histories_nest() -> None:
    with apply_history_best(tuned(workload())) as outer:
        with apply_history_best([]) as inner:
            assert current_history() is inner
        assert current_history() is outer


def ship(monkeypatch: pytest.MonkeyPatch, **changes: object) -> None:
    shipped = jsonl.Records(trials=tuned(workload(), **changes)).index()
    monkeypatch.setattr(jsonl, "starter_records", lambda: shipped)


def test_a_stale_shipped_record_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    ship(monkeypatch, fingerprint="of old")
    with apply_history_best([]) as history:
        (decision,) = history.lookup([workload()], TARGET)
    assert decision.status is Status.STALE
    assert decision.config == config_space(workload(), TARGET).default
    assert "ships with tunefarm was made by sketch space of old" in decision.reason
    assert history.explain().startswith("stale")
    summary = history.summary("tunefarm tune model.onnx")
    assert "1 stale tasks (" in summary
    assert decision.reason in summary


def test_a_config_that_is_no_longer_in_the_space_is_stale() -> None:
    records = [record(workload(), 1, 1e-3, {"sketch": "gone"}, fingerprint="")]
    decision = decide(records, workload())
    assert decision.status is Status.STALE
    assert "the record was made by other sketches (" in decision.reason


def test_a_config_that_another_number_of_cores_lacks_is_told() -> None:
    one = Target("llvm -mcpu=znver5 -num-cores=1")
    records = [record(workload(), 1, 1e-3, {"sketch": "of one core"}, one, fingerprint="")]
    decision = decide(records, workload())
    assert decision.status is Status.STALE
    assert f"the record was made for {one}, and {TARGET} has no such config (" in decision.reason


def test_an_own_stale_record_leaves_shipped_ones_on(monkeypatch: pytest.MonkeyPatch) -> None:
    ship(monkeypatch)
    decision = decide(tuned(workload(), fingerprint="of old"), workload())
    assert decision.status is Status.STARTER
    assert decision.config["rw"] == 4
    assert "your own record is stale, made by sketch space of old" in decision.reason


def test_a_broken_off_tuning_leaves_shipped_records_of_this_device_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun = [record(workload(), 0, 2e-3, config_space(workload(), TARGET).default)]
    ship(monkeypatch)
    assert decide(begun, workload()).status is Status.STARTER
    ship(monkeypatch, model="another machine")
    assert decide([], workload()).status is Status.STARTER
    assert decide(begun, workload()).status is Status.DEFAULT


def test_shipped_records_of_another_cpu_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    ship(monkeypatch)
    decision = decide([], workload(), HASWELL)
    assert decision.status is Status.DEFAULT
    assert decision.reason.endswith(f"the one that ships with tunefarm is for {TARGET}")


def test_shipped_records_answer_last_and_can_be_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    ship(monkeypatch)
    assert decide([], workload()).status is Status.STARTER
    assert decide(tuned(workload()), workload()).status is Status.EXACT
    with apply_history_best([], starter=False) as history:
        (decision,) = history.lookup([workload()], TARGET)
    assert decision.status is Status.DEFAULT


@pytest.mark.parametrize(
    ("driver", "model", "status"),
    [
        ("nvidia", "cuda/sm_80/NVIDIA A100", Status.TARGET),
        ("nvidia", "cuda/sm_80/emulated", Status.DEFAULT),
        ("emulated", "cuda/sm_80/emulated", Status.EXACT),
        ("emulated", "cuda/sm_80/NVIDIA A100", Status.DEFAULT),
    ],
)
def test_times_of_an_emulator_and_of_gpus_are_kept_apart(
    monkeypatch: pytest.MonkeyPatch, driver: str, model: str, status: Status
) -> None:
    monkeypatch.setenv("TUNEFARM_CUDA", driver)
    gpu, task = Target("cuda -arch=sm_80"), workload()
    default = config_space(task, gpu).default
    other = {**default, "stages": 1 if default["stages"] != 1 else 2}
    records = [
        record(task, number, 1e-3 * (2 - number), config, gpu, model)
        for number, config in enumerate((default, other))
    ]
    decision = decide(records, task, gpu)
    assert decision.status is status
    assert decision.config == (default if status is Status.DEFAULT else other)
    if status is Status.DEFAULT:
        assert decision.reason.endswith(
            f"but one of {model}: times of an emulator and of GPUs are kept apart"
        )


def test_what_an_earlier_protocol_timed_is_kept_and_not_used(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Trials of GPUs once carried the name of processors' protocol."""
    monkeypatch.setenv("TUNEFARM_CUDA", "emulated")
    gpu, task = Target("cuda -arch=sm_80"), workload()
    default = config_space(task, gpu).default
    other = {**default, "stages": 1 if default["stages"] != 1 else 2}
    new = record(task, 0, 3e-3, default, gpu, "cuda/sm_80/emulated")
    old = dataclasses.replace(
        record(task, 1, 1e-3, other, gpu, new.device_model), protocol=DEFAULT_PROTOCOL
    )
    assert decide([old], task, gpu).status is Status.DEFAULT
    with Store.open(str(tmp_path / "gpu.db")) as store:
        store.add_trials([new, old])
        kept = {t.protocol: t for t in store.trials_of("job").trials}
        assert kept[DEFAULT_PROTOCOL] == old
        key = BestKey.of_today(task.key, gpu.text, new.device_model)
        assert key.protocol == new.protocol != DEFAULT_PROTOCOL
        (found,) = store.best([key])[key]
        assert found.best.trial == new, "the slower one, which is timed as it would be now"
        former = dataclasses.replace(key, protocol=DEFAULT_PROTOCOL)
        (found,) = store.best([former])[former]
        assert found.best.trial == old
