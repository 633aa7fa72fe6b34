"""What attention by dot products is: an instruction, and the functions that it serves."""

from __future__ import annotations

from functools import lru_cache

from tunefarm.compiler.ir import Function
from tunefarm.compiler.space.attention_parts.program import Form
from tunefarm.compiler.space.attention_parts.program import form_of as form_in_parts
from tunefarm.compiler.space.dot.gain import FMA_CYCLES, issue_cycles
from tunefarm.compiler.space.float_parts.forms import ONE
from tunefarm.compiler.target import Target
from tunefarm.compiler.tir.tensor_intrinsics import find_tensor_intrinsic

INSTRUCTION = "x86.vdpbf16ps.512"
LANES, TERMS = 16, 2


@lru_cache(maxsize=128)
def form_of(function: Function, target: Target) -> Form | None:
    """An attention that rounds the operands of both products to bfloat16, on a target that
    multiplies them in vectors as fast as float32; None for another function or target."""
    instruction = find_tensor_intrinsic(INSTRUCTION)
    if target.kind != "llvm" or target.strict or not target.has(instruction.feature):
        return None
    if issue_cycles(instruction, target) > FMA_CYCLES:
        return None
    form = form_in_parts(function, target)
    return form if form is not None and form.parts is ONE else None
