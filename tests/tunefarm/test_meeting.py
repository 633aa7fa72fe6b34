"""Races of whole models and who stands after them, on a machine with known effects and noise.

The builds are simulated: real ones, whose effects nobody knows, are in ``test_closing``.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pytest
from tunefarm.compiler.ir import IRModule
from tunefarm.compiler.target import Target
from tunefarm.db.records import Best, BestKey, TaskKey, Trial, Verdict

from tunefarm.meeting import Meeting, Rival
from tunefarm.whole_model import DOUBT, Answers, WholeModel, judge

TARGET = "llvm -mcpu=znver5 -num-cores=2"
SPREAD = 0.018  # of blocks of ResNet-18, two cores of a Zen 5


@dataclass(slots=True)
class Simulated(WholeModel):
    """A model that each rival makes faster by a known factor's log, timed with noise that has
    outliers, as a neighbour's work makes them."""

    gains: Mapping[BestKey, float] = field(default_factory=dict)
    random: random.Random = field(default_factory=random.Random)
    blocks: int = 0
    until: int = 10**9

    def block(self, challenger: Answers, opponent: Answers) -> float:
        self.blocks += 1
        if self.blocks >= self.until:
            self.deadline = 0.0
        self.run_s = 1e-3
        outlier = 3.0 if self.random.random() < 0.05 else 1.0
        noise = self.random.gauss(0.0, SPREAD * outlier)
        return noise + sum(
            g * ((key in challenger) - (key in opponent)) for key, g in self.gains.items()
        )


def key_of(task: int) -> BestKey:
    return BestKey(f"{task:02d}", TARGET, "Zen 5")


def simulated(gains: Sequence[float], seed: int, until: int = 10**9) -> Simulated:
    return Simulated(
        IRModule({}), Target(TARGET), {}, 0.01, time.monotonic() + 1e6, block_s=1e-9,
        gains={key_of(i): gain for i, gain in enumerate(gains)},
        random=random.Random(seed), until=until,
    )  # fmt: skip


def meeting(gains: Sequence[float], are_defaults: bool = True) -> Meeting:
    rivals = {}
    for i in range(len(gains)):
        key = key_of(i)
        best = Trial("job", TaskKey(key.workload, TARGET), 1, {"rw": 2}, (1e-3,))
        rival = Trial("job", TaskKey(key.workload, TARGET), 0, {"rw": 1}, (2e-3,))
        rivals[key] = Rival(Best(key, best, promoted=True), rival, are_defaults)
    return Meeting(rivals)


def held(gains: Sequence[float], seed: int, are_defaults: bool = True) -> Meeting:
    found = meeting(gains, are_defaults)
    found.hold(simulated(gains, seed))
    return found


def gain_of(found: Meeting, gains: Sequence[float]) -> float:
    return sum(gain for i, gain in enumerate(gains) if key_of(i) in found.winners)


def test_a_race_finds_four_percent_and_no_difference_between_twins() -> None:
    better, blocks = 0, 0
    for seed in range(100):
        model = simulated([0.04], seed)
        outcome = model.race(meeting([0.04]).answers([key_of(0)]), {}, 1e6)
        assert outcome is not None
        better += outcome.verdict is Verdict.BETTER
        blocks += model.blocks
    assert better >= 97
    assert blocks / 100 < 16

    wrong, same, blocks = 0, 0, 0
    for seed in range(100):
        model = simulated([0.0], seed)
        outcome = model.race(meeting([0.0]).answers([key_of(0)]), {}, 1e6)
        assert outcome is not None
        wrong += outcome.verdict is Verdict.BETTER
        same += outcome.verdict is Verdict.SAME
        blocks += model.blocks
    assert wrong <= 2
    assert same >= 90
    assert blocks / 100 < 20


def test_looks_share_what_may_be_wrong() -> None:
    blocks = [0.02, 0.021, 0.022, 0.023, 0.024, 0.025, 0.026, -0.001]
    assert judge(blocks, 0.01, 1.0).verdict is Verdict.BETTER
    assert judge(blocks, 0.01, 0.01 / DOUBT).verdict is Verdict.AMBIGUOUS
    assert judge(blocks, 0.03, 1.0).verdict is Verdict.SAME
    assert judge([0.0, 0.05] * 4, 0.01, 1.0).verdict is Verdict.AMBIGUOUS


def test_the_blamed_leave_and_bests_that_are_not_to_blame_stay() -> None:
    """Two cost 5% together, the others gain nothing or a little: as ResNet-18's on two cores."""
    gains = [-0.004, 0.0, 0.025, -0.002, 0.0, -0.003, 0.025, 0.0, -0.005, 0.0]
    right = 0
    for seed in range(20):
        found = held(gains, seed)
        right += {key_of(2), key_of(6)} <= found.winners
        assert gain_of(found, gains) > 0.03
        assert found.met == found.decided.keys() == found.rivals.keys()
        assert found.speedup == pytest.approx(math.exp(gain_of(found, gains)), rel=0.03)
    assert right >= 19


def test_one_rival_that_helps_gets_its_place_among_bests_that_win() -> None:
    gains = [-0.03, -0.02, 0.04, -0.02]
    for seed in range(5):
        found = held(gains, seed)
        assert key_of(2) in found.winners
        assert gain_of(found, gains) > 0
        assert found.decided[key_of(2)] > 1.01
        assert found.decided[key_of(0)] < 1
        assert found.speedup == pytest.approx(math.exp(gain_of(found, gains)), rel=0.03)


def test_bests_that_win_all_stand() -> None:
    gains = [-0.02] * 5
    for seed in range(5):
        found = held(gains, seed)
        assert not found.winners
        assert found.speedup == 1.0
        assert all(speedup < 0.97 for speedup in found.decided.values())


def test_second_bests_are_screened_before_any_race() -> None:
    gains = [0.0, 0.03, -0.03, -0.02]
    for seed in range(5):
        found = held(gains, seed, are_defaults=False)
        assert key_of(1) in found.winners
        assert not {key_of(2), key_of(3)} & found.winners


@pytest.mark.parametrize("until", [7, 11, 20, 30])
def test_a_meeting_that_runs_out_of_time_keeps_what_it_knows(until: int) -> None:
    gains = [0.05, 0.05, -0.01, -0.01]
    found, model = meeting(gains), simulated(gains, 0, until)
    found.hold(model)
    assert model.blocks <= until
    if until < 8:
        assert not found.met
    else:
        assert {key_of(0), key_of(1)} <= found.winners
    assert found.decided.keys() == found.met
