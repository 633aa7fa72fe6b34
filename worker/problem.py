"""Posing a workload: inputs drawn from its domains, the reference answer, the error allowed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from tunefarm.compiler.accuracy import (
    NEAR_SHARE,
    ROUNDED_POWERS,
    SUM_OF_HALVES,
    error_bounds,
    is_near,
    rounds_numbers,
    rounds_powers,
    sums_halves,
)
from tunefarm.compiler.dtypes import smallest_of
from tunefarm.compiler.ir import Call, post_order
from tunefarm.compiler.target import Target
from tunefarm.compiler.workload import Workload, random_inputs, reference_outputs
from tunefarm.worker.backend import Array, Problem

# Relative to |a|·|b|: sums of thousands of terms in any order, polynomials, Winograd transforms.
_TOLERANCE = {"float64": 1e-12, "float32": 3e-5, "float16": 5e-3, "bfloat16": 4e-2}
_FLOOR = 0.05
# What operators may cost beyond that.
_LEAST = ((sums_halves, SUM_OF_HALVES), (rounds_powers, ROUNDED_POWERS), (is_near, NEAR_SHARE))
# The same where operands of float32 keep ten bits of fraction (GPUs), or 16 bits (AMX): 2^-15,
# which may be several times as much of a magnitude that the function clips.
_ROUNDED = {"cuda": 2.5e-3, "llvm": 3e-4}


def pose(text: str, seed: int) -> Problem:
    """The problem of a workload's text; equal seeds give equal values."""
    workload = Workload.from_text(text)
    return pose_with(workload, random_inputs(workload, np.random.default_rng(seed)))


def pose_with(workload: Workload, inputs: Sequence[Array]) -> Problem:
    """The problem of a workload on operands."""
    outputs = reference_outputs(workload, inputs)
    magnitudes = reference_outputs(workload, [_magnitude(array) for array in inputs])
    calls = [e for e in post_order(workload.function.body) if isinstance(e, Call)]
    least = max((share for costs, share in _LEAST if any(map(costs, calls))), default=0.0)
    bounds = [error_bound(r, m, least) for r, m in zip(outputs, magnitudes, strict=True)]
    if rounds_numbers(workload.function):
        quanta = error_bounds(workload.function, inputs)
        bounds = [np.maximum(b, q.astype(np.float32)) for b, q in zip(bounds, quanta, strict=True)]
    constant = tuple(i in workload.constants for i in range(len(inputs)))
    return Problem(tuple(inputs), constant, tuple(outputs), tuple(bounds))


def judged_as(problem: Problem, target: Target) -> Problem:
    """The problem with the error that code of a target may make, which may round its operands."""
    tolerance = _ROUNDED.get(target.kind) if target.rounds_to_tf32 else None
    if tolerance is None:
        return problem
    factor = tolerance / _TOLERANCE["float32"]
    bounds = tuple(
        bound * factor if output.dtype.name == "float32" else bound
        for output, bound in zip(problem.outputs, problem.bounds, strict=True)
    )
    return replace(problem, bounds=bounds)


def error_bound(reference: Array, magnitude: Array, least: float = 0.0) -> Array:
    """The absolute error allowed for each element; 0 for whole numbers, which are exact unless
    their kernel rounds to them.

    tol(dtype) · max(|r|, |a|·|b|, a floor of 5% of the root mean square of r), where |a|·|b| is
    the reference of the inputs' magnitudes: what rounding can cost where terms cancel; but no less
    than the dtype's smallest number, as float16's are 6e-8 apart below 6e-5. ``least`` is a
    tolerance that goes before the dtype's where it is larger.
    """
    tolerance = _TOLERANCE.get(reference.dtype.name)
    if tolerance is None:
        return np.zeros(reference.shape, np.float32)
    size = np.asarray(np.abs(reference.astype(np.float64)))  # a single number, too
    other = np.asarray(np.abs(magnitude.astype(np.float64)))
    size[~np.isfinite(size)] = 0.0
    other[~np.isfinite(other)] = 0.0
    floor = _FLOOR * float(np.sqrt(np.mean(size * size))) if size.size else 0.0
    bound: Array = max(tolerance, least) * np.maximum(np.maximum(size, other), floor)
    bound = np.maximum(bound, smallest_of(reference.dtype.name))
    return np.minimum(bound, np.finfo(np.float32).max).astype(np.float32)


def _magnitude(array: Array) -> Array:
    return array if array.dtype.kind in "bu" else np.abs(array)
