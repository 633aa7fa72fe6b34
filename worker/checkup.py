"""The check of a device: its peaks, its reference loop, and a fixed set of kernels.

The kernels go the way of every candidate. Their answers must be right, and each is timed against
itself as in a final: what the two seem to differ by is the device's noise.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tunefarm.worker.backend import Problem
from tunefarm.worker.budgets import Budgets
from tunefarm.worker.building import Candidate
from tunefarm.worker.calibration import Calibration
from tunefarm.worker.children import Gauge, RunnerChild
from tunefarm.worker.measure import Session, TrialFailed, time_paired

BLOCKS = 12
FINAL_BLOCKS = 27
"""Blocks of a final that is looked at twice, which the noise floor is of."""
_BEATS = 12
_TWO_SIDED = 1.96
BUDGETS = Budgets(build_s=60.0, paired_blocks=BLOCKS)
"""Of a fixed kernel; a machine that is busy is no worse a device."""


def check_device(
    gauge: Gauge,
    machine: Mapping[str, Any],
    beat: Callable[[], float],
    runner: RunnerChild,
    open_session: Callable[[Problem], Session],
    kernels: Mapping[str, Candidate],
    rng: random.Random,
) -> Calibration:
    """Check a device on whose cores nothing else runs; TrialFailed if it cannot be measured.

    ``kernels`` are of the fixed set, by their names, and are timed in the sessions of
    ``open_session`` with ``runner``; without any the noise of the reference loop counts.
    """
    answer = gauge.ask("peaks", **machine)
    noises, trial_noises = [float(answer["noise"])], [float(answer["noise"])]
    wrong = ""
    for name, candidate in kernels.items():
        try:
            built, problem = candidate.builds[0].result().code(), candidate.posed()
            rows = time_paired(open_session(problem), (built, built), BUDGETS, rng)
        except TrialFailed as failed:
            runner.discard()
            wrong = wrong or f"{name}: {failed.kind.because(failed.message)}"
            continue
        blocks = np.log(np.asarray(rows)).reshape(2, BLOCKS, -1)
        noises.append(final_noise(blocks))
        trial_noises.append(trial_noise(blocks))
    measured = slice(1, None) if len(noises) > 1 else slice(None)
    return Calibration(
        peaks=dict(answer["peaks"]),
        noise=max(noises[measured]),
        trial_noise=max(trial_noises[measured]),
        reference_s=float(np.quantile([beat() for _ in range(_BEATS)], 0.25)),
        at=time.time(),
        wrong=wrong,
    )


def final_noise(blocks: NDArray[np.float64]) -> float:
    """What finals of equal kernels stay under in 95 of 100, as a fraction.

    ``blocks`` are logarithms of seconds of the two, by block and round. The spread of the blocks'
    median ratios (by their median deviation, so that a disturbed block is one of many) is that of
    the pseudomedian of n blocks times √n, or nearly.
    """
    ratios = np.median(blocks[1] - blocks[0], axis=1)
    spread = 1.4826 * np.median(np.abs(ratios))
    return float(np.expm1(_TWO_SIDED * spread / np.sqrt(FINAL_BLOCKS)))


def trial_noise(blocks: NDArray[np.float64]) -> float:
    """What two trials of one kernel stay under in 95 of 100, each loaded afresh, as a fraction."""
    medians = np.median(blocks, axis=2)
    apart = [abs(a - b) for row in medians for a, b in combinations(row, 2)]
    return float(np.expm1(np.quantile(apart, 0.95)))
