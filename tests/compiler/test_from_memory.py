"""Which tasks are timed with weights from memory, and which records their builds use."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tunefarm.compiler.decisions import Decision, Status
from tunefarm.compiler.dispatch import apply_history_best
from tunefarm.compiler.extract import extract_tasks
from tunefarm.compiler.from_memory import (
    LARGE_BYTES,
    counts_of,
    read_from_memory,
    timing_text,
    weight_bytes,
)
from tunefarm.compiler.host import device_model
from tunefarm.compiler.ir import Constant, Function, IRModule, TensorType, Var
from tunefarm.compiler.ops import call
from tunefarm.compiler.space import config_space
from tunefarm.compiler.target import Target
from tunefarm.compiler.workload import Task, Workload
from tunefarm.db.records import DEFAULT_PROTOCOL, FROM_MEMORY, TaskKey, Trial, protocol_of
from tunefarm.db.store import Store

TARGET = Target("llvm -mcpu=znver4 -num-cores=2")
BYTES_OF_A_CALL = 512 * 512 * 4


def product(n: int, k: int = 512, constant: bool = True) -> Workload:
    a, b = Var("a", TensorType((64, k), "float32")), Var("b", TensorType((k, n), "float32"))
    attrs = {"primitive": True, "constants": (1,) if constant else ()}
    return Workload.from_function(Function((a, b), call("matmul", a, b), attrs))


def test_the_rule_asks_for_large_weights_of_large_models() -> None:
    large, small, moving = product(512), product(127), product(512, constant=False)
    assert weight_bytes(large) == BYTES_OF_A_CALL
    assert weight_bytes(small) < LARGE_BYTES
    assert weight_bytes(moving) == 0
    kept = 3 * TARGET.l3_bytes // 4 // BYTES_OF_A_CALL
    assert not read_from_memory({large: kept}, TARGET)
    assert read_from_memory({large: kept, small: 1, moving: 1}, TARGET) == {large}
    assert read_from_memory({product(128): kept * 5}, TARGET) == {product(128)}
    for other in ("cuda -arch=sm_80", "sim"):
        assert not read_from_memory({large: 1000}, Target(other))


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
    cached, large = (extract_tasks(chain(n, 1024), TARGET) for n in (6, 7))
    assert [(t.weight, t.from_memory) for t in cached] == [(6, False)]
    assert [(t.weight, t.from_memory) for t in large] == [(7, True)]
    assert cached[0].workload == large[0].workload
    assert counts_of(large) == {large[0].workload: 7}


def test_a_tune_says_how_tasks_are_timed() -> None:
    task = Task(product(512), TARGET)
    cold = replace(task, from_memory=True)
    assert timing_text([task]) == ""
    assert timing_text([cold, task]).startswith("1 of 2 tasks is timed with weights from memory")
    assert timing_text([cold, cold]).startswith("2 of 2 tasks are timed")


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
