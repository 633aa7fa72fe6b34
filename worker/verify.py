"""Whether a candidate's answer is right, decided outside the process that gave it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from tunefarm.worker.backend import Array, Problem
from tunefarm.worker.wire import Blob


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
        return wrong if wrong.any() else None
    if expected.dtype.itemsize < 4:
        given, expected = given.astype(np.float32), expected.astype(np.float32)
    with np.errstate(all="ignore"):
        right = np.abs(given - expected) <= bound
    if right.all():
        return None
    right = right & np.isfinite(given) | (given == expected)
    right |= np.isnan(given) & np.isnan(expected)
    return None if right.all() else ~right


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
