"""What all benchmarks share: turns, errors, ratios and means; and the operators they compare."""

from __future__ import annotations

import importlib
import sys
import time
from functools import partial
from pathlib import Path
from types import ModuleType

import numpy as np
import psutil
import pytest

import tunefarm
from tunefarm.peers.apart import LibraryFailed, apart
from tunefarm.peers.rows import Row
from tunefarm.peers.turns import Contender, in_turn, relative_error, seconds_of

BENCH = Path(__file__).parents[2] / "bench"


@pytest.fixture(scope="module")
def timing() -> ModuleType:
    return _load("timing")


@pytest.fixture(scope="module")
def workloads() -> ModuleType:
    return _load("workloads")


@pytest.fixture(scope="module")
def operators() -> ModuleType:
    return _load("operators")


def _load(name: str) -> ModuleType:
    sys.path.insert(0, str(BENCH))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(BENCH))


def test_contenders_take_turns_in_both_orders() -> None:
    turns: list[str] = []

    def contender(name: str, seconds: float) -> object:
        def call() -> None:
            if turns[-1:] != [name]:
                turns.append(name)
            time.sleep(seconds)

        return call

    calls = {"fast": contender("fast", 1e-3), "slow": contender("slow", 3e-2)}
    timers = {name: partial(seconds_of, call) for name, call in calls.items()}
    medians = in_turn(timers, repeats=4, minimum_s=0)
    assert turns == ["fast", "slow", "fast", "slow", "fast", "slow", "fast"]
    assert 1e-3 <= medians["fast"] < medians["slow"]


def test_libraries_take_turns_in_processes_of_their_own(
    operators: ModuleType, timing: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(BENCH))
    makers = (operators.make_ours, partial(operators.make_peer, "NumPy"))
    target, tiny = tunefarm.Target.host(2), operators.operator_at(-1)
    with apart(*makers) as (ours, numpy):
        contenders = ours.make(-1, 2, operators.our_configs(tiny, target, None))
        contenders |= numpy.make(-1, 2)
        assert list(contenders) == ["ours default", "NumPy"]
        assert max(timing.errors_of(contenders, tiny.reference()).values()) < 1e-6
        waiting = psutil.Process(numpy.process.pid)
        used = sum(waiting.cpu_times()[:2])
        medians = in_turn({"ours": contenders["ours default"].timer}, repeats=40)
        assert 0 < medians["ours"] < 0.1
        assert sum(waiting.cpu_times()[:2]) - used < 0.1  # of half a second: it did not spin
        with pytest.raises(LibraryFailed, match="KeyError: 'nobody'") as failed:
            contenders["NumPy"].timer.func("outputs", "nobody")
        assert "Traceback" in failed.value.__notes__[0]
        numpy.process.kill()
        with pytest.raises(LibraryFailed, match="died with exit code -9"):
            contenders["NumPy"].call()
    assert ours.process.exitcode == 0


def test_a_wrong_peer_is_left_out_and_a_wrong_kernel_of_ours_ends_the_run(
    timing: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    reference = np.linspace(-1, 1, 64)
    right = Contender(lambda: None, lambda: [reference.astype(np.float32)])
    outputs = {
        "wrong": reference * 1.01,
        "broken": np.where(reference > 0, np.nan, reference),
        "cut": reference[:-1],
    }
    for name, output in outputs.items():
        bad = Contender(lambda: None, lambda output=output: [output])
        errors = timing.errors_of({"ours": right, name: bad}, reference)
        assert list(errors) == ["ours"]
        assert 0 < errors["ours"] < 1e-6
        assert f"{name} differs from the reference" in capsys.readouterr().out
        with pytest.raises(SystemExit, match=f"ours {name} differs from the reference"):
            timing.errors_of({f"ours {name}": bad}, reference)


def test_errors_are_of_what_is_finite() -> None:
    want = np.array([1.0, -np.inf, np.nan, 4.0])
    assert relative_error(want, want) == 0
    assert relative_error(want + np.array([0, 0, 0, 0.5]), want) == 0.125
    assert relative_error(np.nan_to_num(want), want) == np.inf
    assert relative_error(np.array([1.0]), np.array([0.0])) == np.inf
    assert relative_error(np.zeros(0), np.zeros(0)) == 0


def test_ratios_are_to_the_fastest_peer_and_shares_to_the_peak() -> None:
    seconds = {"ours default": 2.0, "ours tuned": 1.0, "a": 3.0, "b": 1.5}
    row = Row("gemm", seconds, flops=300, peak=400.0)
    assert row.ratio("ours tuned") == 1.5
    assert row.ratio("ours default") == 0.75
    assert row.share("a") == 0.25
    assert Row("alone", {"ours default": 1.0}).ratio("ours default") is None


def test_a_mean_needs_every_row(timing: ModuleType) -> None:
    assert timing.geometric_mean([2.0, 8.0]) == pytest.approx(4.0)
    assert timing.geometric_mean([2.0, None]) is None
    assert timing.geometric_mean([]) is None


def test_small_operators_agree_with_onnxruntime(workloads: ModuleType) -> None:
    """The task, the ONNX node and the float64 reference of a row are the same computation."""
    import onnxruntime
    from tunefarm.compiler.evaluate import evaluate

    for operator in (
        workloads.matmul("product", (5, 7), (7, 3)),
        workloads.conv(9, 4, 6, 3, 2),
        workloads.conv(7, 8, 8, 3, 1, 8),
        workloads.softmax(4, 9),
        workloads.layer_norm(4, 9),
    ):
        session = onnxruntime.InferenceSession(operator.onnx_model().SerializeToString())
        (expected,) = session.run(None, operator.feeds())
        (ours,) = evaluate(operator.workload.function, operator.our_inputs)
        np.testing.assert_allclose(operator.canonical(ours), expected, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(operator.reference(), expected, rtol=1e-4, atol=1e-4)
