"""What no kernel of a GPU exceeds, by its data sheet: multiprocessors, highest clock, operations.

Source: NVIDIA's architecture whitepapers (Turing, A100, GA102, Ada, H100, Blackwell): dense
operations of a multiprocessor in a clock, two for a multiply-add. A time below what they allow was
not the time of that work.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tunefarm.compiler.target import Target

# float32 by its own units; 16-bit floats by tensor cores (bytes twice that, TF32 half).
_PER_CLOCK: Mapping[int, tuple[int, int]] = {
    75: (128, 1024),
    80: (128, 2048),
    86: (256, 1024),
    89: (256, 2048),
    90: (256, 4096),
    100: (256, 8192),
    120: (256, 2048),
}
_BYTES_PER_CLOCK = 128  # between a multiprocessor and its first-level cache


def limits(
    properties: Mapping[str, Any], target: Target, params: Sequence[tuple[Sequence[int], str]]
) -> dict[str, float]:
    """Operations and bytes a second, by ``measure.impossible``'s names, for code with these
    parameters; none where the clock is not known."""
    clocks = float(properties["clock_hz"]) * properties["multiprocessors"]
    if not clocks:
        return {}
    plain, half = _PER_CLOCK[target.gpu.number]
    sizes = {dtype for _, dtype in params}
    if sizes & {"int8", "uint8"}:
        most = 2 * half
    elif sizes & {"float16", "bfloat16"}:
        most = half
    else:
        most = half // 2 if target.rounds_to_tf32 else plain
    return {"flops_n": clocks * max(most, plain), "bandwidth_l1_n": clocks * _BYTES_PER_CLOCK}
