"""Which tasks find their weights in memory, and which defaults and records their builds use."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tunefarm.compiler.build import choose_configs
from tunefarm.compiler.decisions import Decision, Status
from tunefarm.compiler.dispatch import Untuned, apply_history_best
from tunefarm.compiler.extract import extract_tasks
from tunefarm.compiler.from_memory import (
    LARGE_BYTES,
    counts_of,
    packed_bytes,
    read_from_memory,
    timing_text,
    weight_bytes,
)
from tunefarm.compiler.host import device_model
from tunefarm.compiler.ir import Constant, Function, IRModule, TensorType, Var
from tunefarm.compiler.ops import call
from tunefarm.compiler.space import config_space
from tunefarm.compiler.space.product_cycles import weight_rates
from tunefarm.compiler.target import Target
from tunefarm.compiler.workload import Task, Workload
from tunefarm.db.records import (
    DEFAULT_PROTOCOL,
    FROM_MEMORY,
    BestKey,
    Final,
    JobTask,
    TaskKey,
    Trial,
    TrialKey,
    Verdict,
    WorkloadRecord,
    asked_protocol,
    protocol_of,
)
from tunefarm.db.store import Store
from tunefarm.tuner.options import JobOptions
from tunefarm.tuner.tasks import TaskRun

TARGET = Target("llvm -mcpu=znver4 -num-cores=2")
BYTES_OF_A_CALL = 512 * 512 * 4


def product(n: int, k: int = 512, constant: bool = True, rows: int = 64) -> Workload:
    a, b = Var("a", TensorType((rows, k), "float32")), Var("b", TensorType((k, n), "float32"))
    attrs = {"primitive": True, "constants": (1,) if constant else ()}
    return Workload.from_function(Function((a, b), call("matmul", a, b), attrs))


def test_the_rule_asks_for_large_weights_of_large_models() -> None:
    large, small, moving = product(512), product(127), product(512, constant=False)
    assert weight_bytes(large) == BYTES_OF_A_CALL
    assert weight_bytes(small) < LARGE_BYTES
    assert weight_bytes(moving) == 0
    assert TARGET.kept_bytes == 3 * TARGET.l3_bytes // 4
    kept = TARGET.kept_bytes // packed_bytes(large, TARGET)
    assert not read_from_memory({large: kept}, TARGET)
    assert read_from_memory({large: kept + 1, small: 1, moving: 1}, TARGET) == {large}
    assert read_from_memory({product(128): 100}, TARGET) == {product(128)}
    for other in ("cuda -arch=sm_80", "sim"):
        assert not read_from_memory({large: 1000}, Target(other))


def test_weights_count_as_kernels_have_them() -> None:
    large, small = product(512), product(127)
    assert config_space(large, TARGET).default["sketch"] == "strassen_2"
    assert packed_bytes(large, TARGET) == BYTES_OF_A_CALL * 49 // 16
    assert packed_bytes(small, TARGET) == weight_bytes(small)
    kept = TARGET.kept_bytes // BYTES_OF_A_CALL
    assert read_from_memory({large: kept}, TARGET) == {large}
    assert not read_from_memory({large: kept}, Target(f"{TARGET} -precision=strict"))


def test_of_other_protocols_the_target_decides() -> None:
    assert protocol_of(TARGET.text) == protocol_of(TARGET.text, "") == DEFAULT_PROTOCOL
    assert protocol_of(TARGET.text, FROM_MEMORY) == FROM_MEMORY


def chain(layers: int, width: int) -> IRModule:
    x = Var("x", TensorType((64, width), "float32"))
    body = x
    for seed in range(layers):
        drawn = np.random.default_rng(seed).standard_normal((width, width)).astype(np.float32)
        body = call("relu", call("matmul", body, Constant(drawn)))
    return IRModule({"main": Function((x,), body)})


def test_tasks_of_a_model_say_where_their_weights_are() -> None:
    cached, large = (extract_tasks(chain(n, 1024), TARGET) for n in (1, 7))
    assert [(t.weight, t.from_memory) for t in cached] == [(1, False)]
    assert [(t.weight, t.from_memory) for t in large] == [(7, True)]
    assert cached[0].workload == large[0].workload
    assert counts_of(large) == {large[0].workload: 7}


def test_a_tune_says_how_tasks_are_timed() -> None:
    task = Task(product(512), TARGET)
    cold = replace(task, from_memory=True)
    assert timing_text([task]) == ""
    assert timing_text([cold, task]).startswith("1 of 2 tasks is timed with weights from memory")
    assert timing_text([cold, cold]).startswith("2 of 2 tasks are timed")


# --- defaults -----------------------------------------------------------------------------------

DENSE = product(768, 768, rows=128)


@pytest.mark.parametrize(("from_memory", "sketch"), [(False, "strassen_2"), (True, "strassen")])
def test_trials_and_builds_take_the_default_for_where_weights_are(
    from_memory: bool, sketch: str
) -> None:
    """Two levels take 0.91 × the time with weights from the caches, from memory 1.04 to 1.2 ×."""
    default = config_space(DENSE, TARGET, from_memory).default
    assert default["sketch"] == sketch
    runs = 100 if from_memory else 1
    with apply_history_best([], starter=False) as history:
        (found,) = history.lookup([DENSE], TARGET, {DENSE: runs})
    assert (found.status, found.config) == (Status.DEFAULT, default)
    assert choose_configs({DENSE: runs}, TARGET) == {DENSE: default}
    heard: list[Untuned] = []
    with apply_history_best([], starter=False, report_to=lambda _: heard.extend) as history:
        history.lookup([DENSE], TARGET, {DENSE: runs})
    assert heard == [Untuned(DENSE, TARGET, runs, from_memory)]
    record = WorkloadRecord(DENSE.key, DENSE.text)
    asked = JobTask(record, protocol=asked_protocol(from_memory))
    run = TaskRun("job", asked, TARGET, JobOptions(strategy="grid"))
    run.begin((), (), lambda _: (), 1)
    assert run.default_request().config == default


def test_nothing_but_defaults_hangs_on_where_weights_are() -> None:
    cached, memory = (config_space(DENSE, TARGET, way) for way in (False, True))
    assert cached.fingerprint == memory.fingerprint
    assert {s.sketch: s.knobs for s in cached.sketches} == {
        s.sketch: s.knobs for s in memory.sketches
    }
    row = cached.encode(cached.default)[None, :]
    assert memory.valid(row).all()
    assert cached.decode(row[0]) == memory.decode(memory.encode(cached.default))


def test_kernels_of_more_weights_than_caches_keep_count_them_from_memory() -> None:
    memory = replace(TARGET, weights_in_memory=True)
    few, many = (np.array([n]) for n in (TARGET.kept_bytes, TARGET.kept_bytes + 1))
    cached, streamed = TARGET.cached_stream_bytes, TARGET.stream_bytes
    assert cached > streamed
    assert weight_rates(few, TARGET) == (cached, cached)
    assert weight_rates(many, TARGET) == (streamed, streamed)
    assert weight_rates(few, memory) == (streamed, cached)
    assert weight_rates(many, memory) == (streamed, streamed)
    mesh = Target("llvm -mcpu=emeraldrapids -num-cores=1")
    assert weight_rates(few, mesh) == (mesh.cached_stream_bytes, mesh.reread_stream_bytes)
    assert mesh.cached_stream_bytes == 1.5 * mesh.reread_stream_bytes


# --- what builds use ----------------------------------------------------------------------------


def records(protocol: str, rows: int, gain: float = 2.0) -> list[Trial]:
    task = product(512)
    space = config_space(task, TARGET)
    other = {**space.default, "rw": rows}
    return [
        Trial(
            "job", TaskKey(task.key, TARGET.text), number, config, (seconds,) * 3,
            device_model=device_model(2), protocol=protocol,
            space_fingerprint=space.fingerprint, created_at=1.0,
        )
        for number, config, seconds in ((0, space.default, 1e-3), (1, other, 1e-3 / gain))
    ]  # fmt: skip


def look_up(source: object, runs: int) -> Decision:
    with apply_history_best(source, starter=False) as history:  # type: ignore[arg-type]
        (found,) = history.lookup([product(512)], TARGET, {product(512): runs})
    return found


CACHED, LARGE = 1, 100
WARM, COLD = records(DEFAULT_PROTOCOL, 3), records(FROM_MEMORY, 5)


@pytest.mark.parametrize("kind", ["records", "database"])
def test_a_build_uses_what_was_timed_as_its_model_runs(tmp_path: Path, kind: str) -> None:
    source: object = [*WARM, *COLD]
    if kind == "database":
        source = str(tmp_path / "both.db")
        with Store.open(str(source)) as store:
            store.add_trials([*WARM, *(replace(t, job="cold") for t in COLD)])
    assert look_up(source, CACHED).config["rw"] == 3
    assert look_up(source, LARGE).config["rw"] == 5
    assert "timed with" not in look_up(source, LARGE).reason + look_up(source, CACHED).reason


def test_where_there_is_no_such_record_another_is_better_than_none() -> None:
    old = look_up(WARM, LARGE)
    assert (old.status, old.config["rw"]) == (Status.EXACT, 3)
    assert ", timed with weights from the caches" in old.reason
    elsewhere = look_up(COLD, CACHED)
    assert (elsewhere.status, elsewhere.config["rw"]) == (Status.EXACT, 5)
    assert ", timed with weights from memory" in elsewhere.reason


def test_what_is_closer_comes_first_whatever_it_was_timed_by() -> None:
    far = [replace(t, device_model="another machine") for t in COLD]
    assert look_up([*far, *WARM], LARGE).config["rw"] == 3
    near = [replace(t, device_model="another machine") for t in WARM]
    assert look_up([*near, *COLD], LARGE).config["rw"] == 5


def test_a_default_confirmed_elsewhere_stands_for_the_default_here(tmp_path: Path) -> None:
    """What won with weights from the caches was the default there: it is no gain over another."""
    warm, cold = (config_space(DENSE, TARGET, way).default for way in (False, True))
    key = BestKey(DENSE.key, TARGET.text, device_model(2))
    won = TrialKey("job", TaskKey(DENSE.key, TARGET.text), 0)
    trial = Trial(
        "job", won.task, 0, warm, (1e-3,) * 3, device_model=device_model(2),
        space_fingerprint=config_space(DENSE, TARGET).fingerprint, created_at=1.0,
    )  # fmt: skip
    database = str(tmp_path / "records.db")
    with Store.open(database) as store:
        store.add_workloads([WorkloadRecord(DENSE.key, DENSE.text)])
        store.add_trials([trial])
        store.promote("r", Final(key, won, None, Verdict.SAME, speedup_over_default=1.0))
    with apply_history_best(database, starter=False) as history:
        (here,) = history.lookup([DENSE], TARGET, {DENSE: 1})
        (elsewhere,) = history.lookup([DENSE], TARGET, {DENSE: 100})
    assert (here.status, here.config) == (Status.CONFIRMED, warm)
    assert (elsewhere.status, elsewhere.config) == (Status.CONFIRMED, cold)
    assert "weights from the caches, the default itself" in elsewhere.reason
