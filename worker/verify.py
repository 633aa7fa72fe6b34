"""Whether a candidate's answer is right, decided outside the process that gave it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from tunefarm.worker.backend import Array, Problem
from tunefarm.worker.wire import Blob

_BLOCK = 1 << 14


def check_answer(problem: Problem, answers: Sequence[Blob]) -> str | None:
    """None if every element is within its bound, NaN and infinities agreeing; else one sentence.

    ``answers`` are the bytes of each output.
    """
    if len(answers) != len(problem.outputs):
        return f"the kernel gave {len(answers)} outputs; expected: {len(problem.outputs)}"
    for index, (answer, expected, bound) in enumerate(
        zip(answers, problem.outputs, problem.bounds, strict=True)
    ):
        if memoryview(answer).nbytes != expected.nbytes:
            got = memoryview(answer).nbytes
            return f"output {index} has {got} bytes; expected: {expected.nbytes}"
        given = np.frombuffer(answer, expected.dtype).reshape(expected.shape)
        wrong = wrong_elements(given, expected, bound)
        if wrong is not None:
            return _describe(index, given, expected, bound, wrong)
    return None


def wrong_elements(given: Array, expected: Array, bound: Array) -> Array | None:
    """A mask of the elements that are wrong, or None if none is."""
    if not _is_float(expected):
        exact = given.view(np.uint8) if given.dtype == np.bool_ else given
        wanted = expected.view(np.uint8) if expected.dtype == np.bool_ else expected
        wrong = exact != wanted
        if wrong.any() and bound.any():
            wrong = np.abs(exact.astype(np.float64) - wanted.astype(np.float64)) > bound
        return wrong if wrong.any() else None
    if _all_close(given.reshape(-1), expected.reshape(-1), bound.reshape(-1)):
        return None
    wide = np.float32 if expected.dtype.itemsize < 4 else expected.dtype
    given, expected = given.astype(wide), expected.astype(wide)
    with np.errstate(all="ignore"):
        right = (np.abs(given - expected) <= bound) & np.isfinite(given) | (given == expected)
    right |= np.isnan(given) & np.isnan(expected)
    return None if right.all() else ~right


def _all_close(given: Array, expected: Array, bound: Array) -> bool:
    """Whether all elements are finite and within their bounds; block by block, in the cache."""
    wide = np.float32 if expected.dtype.itemsize < 4 else expected.dtype
    error = np.empty(_BLOCK, wide)
    with np.errstate(all="ignore"):
        for start in range(0, len(given), _BLOCK):
            block = slice(start, start + _BLOCK)
            difference = error[: len(given[block])]
            np.subtract(given[block], expected[block], out=difference, dtype=wide)
            np.abs(difference, out=difference)
            if not (difference <= bound[block]).all():
                return False
    return True


def _is_float(array: Array) -> bool:
    return array.dtype.kind not in "iub"


def _describe(index: int, given: Array, expected: Array, bound: Array, wrong: Array) -> str:
    where = tuple(int(i) for i in np.argwhere(wrong)[0])
    if not where:
        got, want, allowed = given[()], expected[()], bound[()]
    else:
        got, want, allowed = given[where], expected[where], bound[where]
    return (
        f"{int(wrong.sum())} of {wrong.size} elements of output {index} are wrong; first at "
        f"{list(where)}: got {got}, expected {want}, allowed error {float(allowed):.3g}"
    )
