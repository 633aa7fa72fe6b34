"""Code for every processor that a target may name, and none of it calls a library."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
import tir_harness as h
from tunefarm.compiler import te
from tunefarm.compiler.codegen.llvm import emit_llvm
from tunefarm.compiler.codegen.llvm_compile import assembly, features
from tunefarm.compiler.errors import BuildError
from tunefarm.compiler.processors import CPUS, ISAS
from tunefarm.compiler.runtime.cpu import required_features
from tunefarm.compiler.target import Target
from tunefarm.compiler.tir import schedule as s
from tunefarm.compiler.tir.ir import PrimFunc
from tunefarm.compiler.tir.transform.lower import lower

FUNCTIONS = ("exp", "log", "tanh", "erf", "pow", "fmod", "fma", "round", "floor", "ceil", "trunc",
             "sqrt", "rsqrt", "sin", "cos", "log1p_unit", "atan", "asinh")  # fmt: skip
ARITY = {"pow": 2, "fmod": 2, "fma": 3}
LEVELS = ("x86-64", "x86-64-v2", "x86-64-v3", "x86-64-v4", "znver5")


def elementwise(function: str, dtype: str, lanes: int) -> PrimFunc:
    x = te.placeholder((lanes * 2,), dtype, "x")
    args = ARITY.get(function, 1)
    y = te.compute(x.shape, lambda i: te.intrinsic(function, *[x[i]] * args) + x[i], name="y")
    program = te.create_prim_func([x, y])
    program, (_, lane) = s.split(program, s.loops_of(program, "y")[0], lanes)
    return lower(s.vectorize(program, lane))


def calls(program: PrimFunc, target: Target) -> set[str]:
    text = assembly(emit_llvm(program, target).text, target)
    return set(re.findall(r"\bcallq?\s+(\S+)", text))


@pytest.mark.parametrize("mcpu", LEVELS)
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_no_function_calls_a_library(dtype: str, mcpu: str) -> None:
    target = Target(f"llvm -mcpu={mcpu}")
    for function in FUNCTIONS:
        for lanes in (1, 8):
            assert calls(elementwise(function, dtype, lanes), target) == set(), function


@pytest.mark.parametrize("function", ["exp", "exp_shifted"])
def test_powers_of_two_are_looked_up_where_that_is_quick(function: str) -> None:
    for mcpu in ("znver4", "znver5", "x86-64-v4"):
        target = Target(f"llvm -mcpu={mcpu}")
        text = assembly(emit_llvm(elementwise(function, "float32", 16), target).text, target)
        assert bool(re.search(r"vperm[it]2ps", text)) == (mcpu == "znver4")


@pytest.mark.parametrize("mcpu", LEVELS)
def test_float16_is_converted_by_the_processor_or_refused(mcpu: str) -> None:
    target, program = Target(f"llvm -mcpu={mcpu}"), elementwise("exp", "float16", 8)
    if target.has_fma:
        assert calls(program, target) == set()
    else:
        with pytest.raises(BuildError, match=f"float16 has no code for {mcpu}; x86-64-v3 has it"):
            emit_llvm(program, target)


def test_a_product_added_on_is_fused_where_the_processor_does() -> None:
    a, b = te.placeholder((3, 5), name="a"), te.placeholder((5, 4), name="b")
    k = te.reduce_axis(5)
    c = te.compute((3, 4), lambda i, j: te.sum(a[i, k] * b[k, j], [k]), name="c")
    program = lower(te.create_prim_func([a, b, c]))
    for mcpu, fused in (("x86-64", False), ("x86-64-v3", True)):
        target = Target(f"llvm -mcpu={mcpu}")
        assert ("vfmadd" in assembly(emit_llvm(program, target).text, target)) is fused
    arrays = h.whole_numbers(program)
    h.same(h.compiled(program, arrays, Target("llvm -mcpu=x86-64")), [arrays[0] @ arrays[1]], "")


def test_llvm_knows_every_processor_of_a_target() -> None:
    """In a process of its own: LLVM aborts or complains at a name that it does not know."""
    triples = {isa.name: isa.spelled or "x86_64-linux-gnu" for isa in ISAS.values()}
    targets = [f"llvm -mtriple={triples[i]} -mcpu={c}" for i in ISAS for c in sorted(CPUS[i])]
    assert "llvm -mtriple=aarch64-linux-gnu -mcpu=neoverse-n1" in targets
    script = """
import sys
from tunefarm.compiler.codegen.llvm_compile import compile_llvm
from tunefarm.compiler.target import Target
for text in sys.argv[1:]:
    compile_llvm("define void @f() { ret void }", Target(text), cache=False)
"""
    child = subprocess.run(
        [sys.executable, "-c", script, *targets], capture_output=True, text=True, timeout=120
    )
    assert (child.returncode, child.stderr) == (0, "")


@pytest.mark.parametrize("cpu", ["znver1", "znver3", "znver4", "znver5"])
def test_code_for_amd_needs_nothing_that_it_alone_has(cpu: str) -> None:
    """With SSE4a LLVM shuffles so by INSERTQ, which is illegal on other makers' processors."""
    shuffle = """
    define void @shuffle(ptr %x, ptr %y) {
      %a = load <8 x i16>, ptr %x
      %b = load <8 x i16>, ptr %y
      %c = shufflevector <8 x i16> %a, <8 x i16> %b, <8 x i32>
        <i32 0, i32 8, i32 2, i32 3, i32 poison, i32 poison, i32 poison, i32 poison>
      store <8 x i16> %c, ptr %x
      ret void
    }
    """
    plain, asked = Target(f"llvm -mcpu={cpu}"), Target(f"llvm -mcpu={cpu} -mattr=+sse4a")
    assert "insertq" not in assembly(shuffle, plain)
    assert "insertq" in assembly(shuffle, asked)
    assert "sse4a" not in required_features(plain, features(plain))
    assert "sse4a" in required_features(asked, features(asked))
