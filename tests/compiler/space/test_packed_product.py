"""Products with weights of a few bits by products of bytes: as exact as multiply-adds of float32,
whatever the shape."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sketch_harness import Array, configs, executed, features_of_valid, interpreted, verify
from tunefarm.compiler.codegen.llvm import emit_llvm
from tunefarm.compiler.codegen.llvm_compile import assembly
from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.evaluate import evaluate
from tunefarm.compiler.ir import Function, TensorType, Var
from tunefarm.compiler.ops import call
from tunefarm.compiler.ops.packed import (
    LARGEST,
    dequantized,
    pack_quanta,
    regroup_quanta,
    terms_of_group,
    unpack_quanta,
)
from tunefarm.compiler.space import ConfigSpace, config_space, packed_product, schedule_workload
from tunefarm.compiler.target import Target
from tunefarm.compiler.tir.transform.lower import lower
from tunefarm.compiler.workload import Workload, random_inputs

TARGETS = {
    "icelake-server": "avx512vnni", "alderlake": "avxvnni", "haswell": "avx2",
    "skylake-avx512": "avx512bw", "icelake-server -precision=strict": "avx512vnni",
}  # fmt: skip
RUNS = {
    Target(f"llvm -mcpu={words} -num-cores=2"): "execute"
    if Target.host().has(needed)
    else "interpret"
    for words, needed in TARGETS.items()
}
TARGET, WITH_BYTES = next(iter(RUNS)), list(RUNS)[:2]
bounded = settings(max_examples=20, deadline=None, derandomize=True, database=None)


def product(
    m: int,
    k: int,
    n: int,
    bits: int,
    block: int,
    zeros: str = "",
    residual: bool = False,
    count: int = 3,
) -> Function:
    """A product with zero points of a dtype, or the middle of what the bits can say."""
    blocks = -(-k // block)
    types = [((m, k), "float32"), ((-(-k // terms_of_group(bits)), n, 4), "uint8")]
    types += [((blocks, n), "float32"), *[((blocks, n), zeros)] * bool(zeros)]
    weights = range(1, len(types))
    types += [((n,), "float32"), ((m, n), "float32")] * residual
    params = tuple(Var(f"p{i}", TensorType(*t)) for i, t in enumerate(types))
    middle = 0.0 if zeros else 2.0 ** (bits - 1)
    first = 3 + bool(zeros)
    body = call("packed_matmul", *params[:first], bits=bits, block=block, zero=middle, bytes=count)
    for operand in params[first:]:
        body = call("add", body, operand)
    body = call("relu", body) if residual else body
    return Function(params, body, {"primitive": True, "constants": tuple(weights)})


def space_of(function: Function, target: Target = TARGET) -> ConfigSpace:
    space = packed_product.space(function, target)
    assert space is not None
    return ConfigSpace((space,))


def result_of(function: Function, arrays: list[Array], target: Target = TARGET) -> Array:
    """By the default config."""
    workload = Workload.from_function(function)
    default = config_space(workload, target).default
    assert default["sketch"] == "packed_product"
    program = lower(schedule_workload(workload, target, default), checked=True)
    made = np.full(workload.output_types[0].shape, 77, np.float32)
    if RUNS[target] == "execute":
        executed(program, target, arrays, [made])
    else:
        interpreted(program, arrays, [made])
    return made


def draw(function: Function, rng: np.random.Generator) -> list[Array]:
    return random_inputs(Workload.from_function(function), rng)


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("depth", [1, 7, 16, 45])
def test_packing_keeps_all_numbers(bits: int, depth: int) -> None:
    numbers = np.random.default_rng(depth).integers(0, 2**bits, (depth, 5)).astype(np.uint8)
    packed = pack_quanta(numbers, bits)
    assert packed.shape == (-(-depth // terms_of_group(bits)), 5, 4)
    np.testing.assert_array_equal(unpack_quanta(packed, bits, depth), numbers)
    planes = 8 // bits
    whole = np.zeros((5, -(-depth // planes) * planes), np.uint8)
    whole[:, :depth] = numbers.T
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    rows = np.bitwise_or.reduce(whole.reshape(5, -1, planes) << shifts, axis=2, dtype=np.uint8)
    np.testing.assert_array_equal(regroup_quanta(rows, bits), packed)


@bounded
@given(
    st.sampled_from([2, 4, 8]), st.integers(1, 19), st.integers(2, 90),
    st.one_of(
        st.tuples(st.integers(1, 70), st.just(128)),
        st.tuples(st.sampled_from([32, 96, 160]), st.sampled_from([16, 32])),
    ),
    st.sampled_from(["", "uint8", "float32"]), st.booleans(), st.sampled_from([3, 3, 2, 1]),
    st.sampled_from([*RUNS]), st.integers(0, 9999),
)  # fmt: skip
def test_random_shapes(
    bits: int, m: int, n: int, depth: tuple[int, int], zeros: str, residual: bool, count: int,
    target: Target, seed: int,
) -> None:  # fmt: skip
    """Of one block with terms beyond its last group, and of several."""
    function = product(m, depth[0], n, bits, depth[1], zeros, residual, count)
    rng = np.random.default_rng(seed)
    arrays = draw(function, rng)
    for config in configs(space_of(function, target), rng, 2):
        verify(function, target, config, arrays, RUNS[target])


@pytest.mark.parametrize(("count", "digits"), [(1, 7), (2, 15), (3, 22)])
def test_fewer_bytes_round_rows_alone(count: int, digits: int) -> None:
    """Off by half a step of each block's largest number, and no more."""
    function = product(5, 128, 48, 4, 32, "uint8", count=count)
    arrays = draw(function, np.random.default_rng(count))
    made, (wanted,) = result_of(function, arrays), evaluate(function, arrays)
    weights = np.abs(dequantized(arrays, function.body.attrs))  # type: ignore[union-attr]
    off = np.abs(made - wanted)
    tops = np.abs(arrays[0]).reshape(5, 4, 32).max(-1).repeat(32, 1)
    rounding = 1e-6 * (np.abs(arrays[0]) @ weights)
    assert (off <= 2.0 ** -(digits + 1) * 1.01 * (tops @ weights) + rounding).all()
    assert off.max() > 2.0 ** -(digits + 8) * np.abs(wanted).max() or count == 3


@pytest.mark.parametrize(("bits", "block"), [(4, 32), (4, 1024), (8, 1024), (2, 16)])
@pytest.mark.parametrize("spread", [0.0, 2.0])
def test_errors_are_those_of_float32(bits: int, block: int, spread: float) -> None:
    """Beside sums of float64; also of rows whose numbers have very different sizes."""
    function = product(3, 1024, 64, bits, block, "uint8")
    rng = np.random.default_rng(bits)
    arrays = draw(function, rng)
    arrays[0] = (arrays[0] * np.exp(spread * rng.standard_normal((3, 1024)))).astype(np.float32)
    weights = dequantized([a.astype(np.float64) if a.dtype == np.float32 else a for a in arrays],
                          function.body.attrs)  # type: ignore[union-attr]  # fmt: skip
    exact = arrays[0].astype(np.float64) @ weights.astype(np.float64)
    size = np.abs(arrays[0]).astype(np.float64) @ np.abs(weights).astype(np.float64)
    ours = np.abs(result_of(function, arrays) - exact) / size
    (floats,) = evaluate(function, arrays)
    assert ours.max() < 2e-6
    assert np.sqrt(np.mean(ours**2)) < 4 * np.sqrt(np.mean((np.abs(floats - exact) / size) ** 2))


@pytest.mark.parametrize("target", RUNS, ids=str)
@pytest.mark.parametrize("zeros", ["", "uint8"])
def test_zero_points_are_taken_off_without_loss(target: Target, zeros: str) -> None:
    """Of a large number that all weights ignore nothing is left: sums of floats do not see it, and
    in bytes it makes the steps of its block, half of one for each term."""
    function = product(2, 64, 64, 8, 64, zeros)
    arrays = draw(function, np.random.default_rng(8))
    arrays[1][0, :, 0] = arrays[3][0] if zeros else 128
    arrays[0][:, 0] = 1e4
    made, (wanted,) = result_of(function, arrays, target), evaluate(function, arrays)
    weights = np.abs(dequantized(arrays, function.body.attrs))  # type: ignore[union-attr]
    step = 0.0 if target not in WITH_BYTES else 1e4 / LARGEST[3]
    exact = 1e-6 * (np.abs(arrays[0][:, 1:]) @ weights[1:])
    assert (np.abs(made - wanted) <= step / 2 * weights.sum(0) + exact).all()


def test_rows_of_zeros_small_numbers_and_what_is_no_number() -> None:
    function = product(6, 64, 32, 4, 32)
    arrays = draw(function, np.random.default_rng(3))
    x = arrays[0]
    x[0], x[1], x[2, 5], x[3, 40], x[4] = 0, x[1] * 1e-35, np.inf, np.nan, x[4] * 1e25
    made = result_of(function, arrays)
    (wanted,) = evaluate(function, arrays)
    assert not made[0].any()
    assert np.abs(made[1]).max() < 1e-30
    assert not np.isfinite(made[2:4]).any()
    np.testing.assert_allclose(made[4:], wanted[4:], rtol=1e-4, atol=1e-5 * np.abs(x[5]).max())


@pytest.mark.parametrize("target", WITH_BYTES, ids=str)
def test_weights_are_masked_and_multiplied_as_bytes(target: Target) -> None:
    """One load of weights serves all rows and parts, and each plane is one instruction."""
    workload = Workload.from_function(product(2, 256, 64, 4, 32))
    config = {
        **config_space(workload, target).default,
        "rh": 2,
        "nv": 1,
        "nb": 1,
        "ku": 1,
        "prefetch": 0,
    }
    text = emit_llvm(lower(schedule_workload(workload, target, config)), target).text
    code = assembly(text, target)
    (inner,) = (part for part in code.split("\n.LBB") if part.count("vpdpbusd") == 12)
    assert len(re.findall(r"vpand|vgf2p8affineqb", inner)) == 2
    sums, _, behind = inner.rpartition("vpdpbusd")
    assert len(re.findall(r"vmovdqu\S*\s+\S*\(", sums)) == 1
    assert "vcvtdq2ps" not in sums
    assert len(re.findall(r"vbroadcastss\s+%xmm", behind)) == 0


@pytest.mark.parametrize("target", list(RUNS)[2:], ids=str)
def test_weights_become_floats_in_registers(target: Target) -> None:
    """One load of four neighbours serves all rows and planes, and each of a vector is converted."""
    workload = Workload.from_function(product(2, 256, 64, 4, 32))
    knobs = {"rh": 2, "nv": 1, "nb": 1, "ku": 1, "prefetch": 0}
    config = {**config_space(workload, target).default, **knobs}
    text = emit_llvm(lower(schedule_workload(workload, target, config)), target).text
    loops = (part.partition("\tjl")[0] for part in assembly(text, target).split("\n.LBB"))
    (inner,) = (loop for loop in loops if loop.count("vfmadd") == 16)
    assert inner.count("vpmovzxbd") == 4
    assert inner.count("vcvtdq2ps") + inner.count("vcvtudq2ps") == 8


@pytest.mark.parametrize("cpu", ["apple-m1", "sifive-x280"])
def test_the_interpreter_agrees_on_other_processors(cpu: str) -> None:
    triple = "aarch64-linux-gnu" if cpu == "apple-m1" else "riscv64-linux-gnu"
    target = Target(f"llvm -mtriple={triple} -mcpu={cpu}")
    function = product(3, 64, 21, 4, 32, "uint8", True)
    arrays = draw(function, np.random.default_rng(2))
    verify(function, target, space_of(function, target).default, arrays, "interpret")


@pytest.mark.parametrize("n", [17, 48, 100])
def test_blocks_have_no_more_panels_than_there_are(n: int) -> None:
    """A loop of one iteration in a block of several would index registers by a variable."""
    workload = Workload.from_function(product(2, 32, n, 4, 32))
    for config in configs(space_of(workload.function), np.random.default_rng(n), 40):
        emit_llvm(lower(schedule_workload(workload, TARGET, config)), TARGET)


def test_who_declines() -> None:
    function = product(3, 64, 32, 4, 32)
    config = space_of(function).default
    assert packed_product.space(function, Target("cuda -arch=sm_90a")) is None
    odd = product(3, 60, 32, 4, 20)  # of blocks of no whole groups
    assert packed_product.space(odd, TARGET) is None
    with pytest.raises(ScheduleError, match="no product with weights of a few bits"):
        schedule_workload(Workload.from_function(odd), TARGET, config)
    found: Any = config_space(Workload.from_function(odd), TARGET)
    rng = np.random.default_rng(0)
    verify(odd, TARGET, found.default, draw(odd, rng), "interpret")


def test_features_see_every_candidate() -> None:
    nest = features_of_valid(space_of(product(9, 160, 300, 4, 32)))
    assert (nest.operations >= 2 * 3 * 9 * 160 * 300 / 4).all()
    assert (nest.extra["cycles"] > 0).all()
