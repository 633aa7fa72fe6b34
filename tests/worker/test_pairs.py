"""Paired finals on this machine's processor: how often they are wrong, and what they find (soak).

Each call of a kernel of the kind ``repeats`` runs one of the compiler's kernels several times, so
that 103 runs against 100 are a true difference of 3%. A final is held as a job holds it: look
after look, until one of the two is surely faster, or surely not by more than the noise.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tunefarm.compiler.ir import Function, TensorType, Var
from tunefarm.compiler.ops import call
from tunefarm.compiler.space import config_space
from tunefarm.compiler.target import Target
from tunefarm.compiler.workload import Workload
from tunefarm.db.records import FINAL, TaskKey, Trial, TrialRequest, Verdict
from tunefarm.tuner.finals import LOOKS, ROUNDS, decide
from tunefarm.worker.device import DeviceOptions, OpenDevice, open_device

PAIRS = int(os.environ.get("TUNEFARM_SOAK_PAIRS", "60"))
TARGET = Target.host(1)
KIND = TARGET.text.replace("llvm", "repeats", 1)
NOISE = 0.01
RUNS, MORE = 34, 35
"""A call of 35 runs takes 2.9% longer than one of 34."""


def product() -> Workload:
    a = Var("a", TensorType((64, 256), "float32"))
    b = Var("b", TensorType((256, 256), "float32"))
    body = call("matmul", a, b)
    return Workload.from_function(Function((a, b), body, {"primitive": True, "constants": (1,)}))


def addition() -> Workload:
    a, b = (Var(name, TensorType((256, 256), "float32")) for name in "ab")
    body = call("add", a, b)
    return Workload.from_function(Function((a, b), body, {"primitive": True, "constants": ()}))


@pytest.fixture(scope="module")
def device(plugins: Path) -> Iterator[OpenDevice]:
    options = DeviceOptions(
        KIND, build_processes=1, environment={"PYTHONPATH": str(plugins)}, max_drift=0
    )
    opened = open_device(options)
    yield opened
    opened.close()


def look(device: OpenDevice, workload: Workload, runs: tuple[int, int], blocks: int) -> Trial:
    default = config_space(workload, TARGET).default
    config, other = ({**default, "runs": number} for number in runs)
    asked = TrialRequest(
        "job",
        TaskKey(workload.key, KIND),
        0,
        config,
        workload.text,
        origin=FINAL,
        against=(other,),
        budgets={"paired_blocks": blocks, "paired_rounds": ROUNDS},
    )
    trials: list[Trial] = []
    device.measure([asked], lambda _, trial: trials.append(trial), lambda _: False)
    assert trials[0].ok, trials[0].message
    return trials[0]


def final(device: OpenDevice, workload: Workload, runs: tuple[int, int]) -> set[int]:
    """Which of two configs of so many runs is found to be faster, as a final finds it: held with
    each as the challenger of the other, over the same repeats."""
    rows: list[tuple[float, ...]] = [(), ()]
    for number, one in enumerate(LOOKS):
        paired = look(device, workload, runs, one.blocks).paired_times_s
        rows = [row + more for row, more in zip(rows, paired, strict=True)]
        verdicts = [decide(rows, default, None, NOISE, number).verdict for default in (1, 0)]
        if Verdict.AMBIGUOUS not in verdicts:
            break
    return {row for row, verdict in enumerate(verdicts) if verdict is Verdict.BETTER}


@pytest.mark.soak
@pytest.mark.parametrize("workload", [product(), addition()], ids=["product", "addition"])
def test_equals_are_same_and_three_percent_are_found(
    device: OpenDevice, workload: Workload
) -> None:
    wrong, found, seconds = 0, 0, []
    for _ in range(PAIRS):
        start = time.monotonic()
        wrong += bool(final(device, workload, (RUNS, RUNS)))
        seconds.append(time.monotonic() - start)
        start = time.monotonic()
        found += final(device, workload, (RUNS, MORE)) == {0}
        seconds.append(time.monotonic() - start)
    print(
        f"\n{workload.summary}: A/A called different {wrong} of {PAIRS} "
        f"({100 * wrong / PAIRS:.1f}%), a true 3% found {found} of {PAIRS} "
        f"({100 * found / PAIRS:.1f}%); {statistics.median(seconds):.1f} s a pair, "
        f"{max(seconds):.1f} s at most"
    )
    assert wrong <= 0.05 * PAIRS
    assert found >= 0.9 * PAIRS
    assert statistics.median(seconds) <= 10
