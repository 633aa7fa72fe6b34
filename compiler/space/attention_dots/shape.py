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


def has_instruction(target: Target) -> bool:
    """Whether a target multiplies bfloat16 in vectors as fast as float32, and may."""
    instruction = find_tensor_intrinsic(INSTRUCTION)
    may = target.kind == "llvm" and not target.strict and target.has(instruction.feature)
    return may and issue_cycles(instruction, target) <= FMA_CYCLES


@lru_cache(maxsize=128)
def form_of(function: Function, target: Target) -> Form | None:
    """An attention that rounds the operands of both products to bfloat16, on a target that
    multiplies them in vectors as fast as float32; None for another function or target."""
    form = form_in_parts(function, target) if has_instruction(target) else None
    return form if form is not None and form.parts is ONE else None
