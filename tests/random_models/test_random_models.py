"""Random models, built for random processors with random configs, give what onnxruntime does.

``TUNEFARM_MODELS_SEED`` is the first seed of the long run: with it, one that failed fails again.
"""

from __future__ import annotations

import functools
import itertools
import os
import re
import time
import traceback
from collections.abc import Callable

import numpy as np
import pytest

from tests.random_models.beside import by_onnxruntime, differences, unlike
from tests.random_models.builds import choose_build
from tests.random_models.draft import Array, Draft, Unsuitable
from tests.random_models.draw import draw

SECONDS = float(os.environ.get("TUNEFARM_MODELS_S", "600"))
FIRST = int(os.environ.get("TUNEFARM_MODELS_SEED", time.time_ns() % 10**9))
pytestmark = pytest.mark.filterwarnings("ignore::tunefarm.compiler.errors.UnusedPrecisionWarning")


def test_a_seed_gives_the_same_model_and_build_whatever_was_drawn_before() -> None:
    model = draw(3).model()
    how = choose_build(3, model)
    draw(4)
    again = draw(3)
    assert again.model() == again.model() == model
    assert choose_build(3, model) == how


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda a: a * np.float32(1.001), "is off by 1.0e-03"),
        (lambda a: np.where(a == a.max(), np.float32(np.nan), a), "is off by inf"),
        (lambda a: a[:, :1], r"is float32\(2, 1\), float32\(2, 3\) in onnxruntime"),
        (lambda a: a.astype(np.float64), r"is float64\(2, 3\), float32"),
    ],
)
def test_results_that_are_wrong_are_found(change: Callable[[Array], Array], told: str) -> None:
    draft = Draft(0)
    draft.node("Add", draft.input(2, 3), draft.number(1))
    model = draft.model()
    right = by_onnxruntime(model, draft.inputs)
    assert not [*unlike(model, draft.inputs, right, loose=False)]
    wrong = {name: change(value) for name, value in right.items()}
    (found,) = unlike(model, draft.inputs, wrong, loose=False)
    assert re.search(told, found)


@pytest.mark.parametrize("seed", range(40))
def test_a_random_model_gives_what_onnxruntime_does(seed: int) -> None:
    try:
        assert not differences(seed)
    except Unsuitable as reason:
        pytest.skip(str(reason))


@pytest.mark.soak
def test_many_random_models_give_what_onnxruntime_does() -> None:
    failed = _failed_seeds()
    assert not failed, f"seeds {failed}"


@functools.cache  # once, though a test that fails is run again where the machine stood still
def _failed_seeds() -> list[int]:
    """Those of the seeds from the first one on that are reached in time, each told as it fails."""
    print(f"\nrandom models from seed {FIRST} on, for {SECONDS:.0f} s")
    until = time.monotonic() + SECONDS
    failed: list[int] = []
    unsuitable = 0
    for seed in itertools.count(FIRST):
        if time.monotonic() > until:
            break
        print(f"\r{seed} ", end="", flush=True)  # the last one if the process dies of it
        try:
            found = differences(seed)
        except Unsuitable:
            unsuitable += 1
            continue
        except Exception as error:
            found = [_told(error)]
        if found:
            failed.append(seed)
            print(*found, sep="\n  ")
    print(f"\r{seed - FIRST} models, {unsuitable} of them unsuitable, {len(failed)} failed")
    return failed


def _told(error: Exception) -> str:
    """The error and where it was raised, without the whole way there."""
    where = traceback.extract_tb(error.__traceback__)[-1]
    notes = "; ".join(getattr(error, "__notes__", ()))
    return f"{notes}: {type(error).__name__}: {error} ({where.filename}:{where.lineno})"
