"""Attention in one kernel: odd lengths, masks, layouts, tiles and stages against float64."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from emulation import run_program
from gpu_harness import (
    ARCHS,
    HOPPER,
    Array,
    assembled,
    emitted,
    function_of,
    inputs_of,
    lowered,
    needs_ptxas,
)
from numpy.typing import NDArray
from tunefarm.compiler.dtypes import numpy_dtype
from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.extract import extract_tasks
from tunefarm.compiler.gpu.emulator import Traffic
from tunefarm.compiler.gpu.ptxas import assemble
from tunefarm.compiler.ir import Constant, Function, IRModule, TensorType, Var
from tunefarm.compiler.ops import call
from tunefarm.compiler.space import Config, config_space
from tunefarm.compiler.target import Target
from tunefarm.compiler.tir.interpreter import interpret
from tunefarm.compiler.workload import Workload

HALF, BRAIN, F32 = "float16", "bfloat16", "float32"
ROUNDING = Target("cuda -arch=sm_90a -precision=tf32")


def number(value: float, dtype: str) -> Constant:
    return Constant(np.full((1,), value, numpy_dtype(dtype)))


def plain(a: Any, b: Any, c: Any) -> Any:
    scores = call("multiply", call("matmul", a, b, transpose_b=True), number(0.25, a.type.dtype))
    return call("matmul", call("softmax", scores, axis=-1), c)


def masked(a: Any, b: Any, c: Any, mask: Any) -> Any:
    scores = call("add", call("matmul", a, b, transpose_b=True), mask)
    return call("matmul", call("softmax", scores, axis=-1), c)


def chosen(a: Any, b: Any, c: Any, mask: Any) -> Any:
    scores = call("matmul", a, b, transpose_b=True)
    scores = call("where", mask, scores, number(-np.inf, a.type.dtype))
    return call("matmul", call("softmax", scores, axis=-1), c)


def keys_turned(a: Any, b: Any, c: Any) -> Any:
    return call("matmul", call("softmax", call("matmul", a, b), axis=-1), c)


def heads_inside(a: Any, b: Any, c: Any) -> Any:
    scores = call("einsum", a, b, equation="bqhd,bkhd->bhqk")
    return call("einsum", call("softmax", scores, axis=-1), c, equation="bhqk,bkhd->bqhd")


def operands(
    h: int, q: int, n: int, d: int, e: int, dtype: str = HALF
) -> list[tuple[tuple[int, ...], str]]:
    return [((h, q, d), dtype), ((h, n, d), dtype), ((h, n, e), dtype)]


CASES: dict[str, tuple[Function, Config]] = {
    "odd lengths": (
        function_of(plain, *operands(2, 19, 37, 16, 16)),
        {"warps": 1, "mi": 1, "keys": 16, "stages": 1},
    ),
    "odd heads": (
        function_of(plain, *operands(1, 17, 21, 13, 7)),
        {"warps": 2, "mi": 1, "keys": 16, "stages": 2},
    ),
    "whole tiles of bfloats": (
        function_of(plain, *operands(1, 32, 64, 32, 16, BRAIN)),
        {"warps": 1, "mi": 2, "keys": 16, "stages": 3},
    ),
    "one step": (
        function_of(plain, *operands(1, 16, 11, 16, 24)),
        {"warps": 1, "mi": 1, "keys": 16, "stages": 4},
    ),
    "an added mask": (
        function_of(masked, *operands(1, 19, 38, 24, 8, BRAIN), ((19, 38), BRAIN)),
        {"warps": 1, "mi": 1, "keys": 32, "stages": 2},
    ),
    "an added mask of an odd row": (
        function_of(masked, *operands(1, 18, 37, 8, 16), ((1, 37), HALF)),
        {"warps": 2, "mi": 1, "keys": 16, "stages": 4},
    ),
    "a causal choice": (
        function_of(chosen, *operands(1, 35, 35, 16, 16), ((35, 35), "bool")),
        {"warps": 1, "mi": 2, "keys": 16, "stages": 2},
    ),
    "a causal choice, steps left out": (
        function_of(chosen, *operands(1, 35, 53, 16, 16), ((35, 53), "bool")),
        {"warps": 2, "mi": 1, "keys": 16, "stages": 3, "skip": 1},
    ),
    "an added mask of -inf, steps left out": (
        function_of(masked, *operands(1, 35, 50, 16, 16), ((35, 50), HALF)),
        {"warps": 1, "mi": 1, "keys": 16, "stages": 2, "skip": 2},
    ),
    "a query of a long context": (
        function_of(plain, *operands(1, 1, 70, 16, 8)),
        {"split": 2, "warps": 1, "mi": 1, "keys": 16, "stages": 2},
    ),
    "keys by columns": (
        function_of(keys_turned, ((1, 9, 16), HALF), ((1, 16, 40), HALF), ((1, 40, 16), HALF)),
        {"warps": 1, "mi": 1, "keys": 32, "stages": 2},
    ),
    "heads inside": (
        function_of(heads_inside, *[((2, 17, 2, 16), HALF)] * 3),
        {"warps": 1, "mi": 1, "keys": 16, "stages": 3},
    ),
}


SINGLES: dict[str, tuple[Function, Config]] = {
    "odd lengths": (
        function_of(plain, *operands(2, 19, 37, 16, 16, F32)),
        {"warps": 1, "mi": 1, "keys": 16, "stages": 1},
    ),
    "a causal choice, steps left out": (
        function_of(chosen, *operands(1, 35, 35, 12, 20, F32), ((35, 35), "bool")),
        {"warps": 1, "mi": 2, "keys": 16, "stages": 3, "skip": 2},
    ),
    "keys by columns": (
        function_of(keys_turned, ((1, 9, 16), F32), ((1, 16, 40), F32), ((1, 40, 24), F32)),
        {"warps": 2, "mi": 1, "keys": 16, "stages": 1},
    ),
}


def drawn(workload: Workload) -> list[Array]:
    """Random operands; a mask chooses the keys up to a query's own, but none of the first 17 for
    the last query."""
    arrays = inputs_of(workload)
    for n, a in enumerate(arrays):
        if a.dtype == np.bool_:
            arrays[n] = np.tri(*a.shape, dtype=np.bool_)
            arrays[n][-1, :17] = False
        elif n == 3 and a.shape[0] > 1 and a.shape[1] == 50:
            arrays[n] = np.where(np.tri(*a.shape, dtype=np.bool_), a, -np.inf).astype(a.dtype)
    return arrays


def exact(workload: Workload, arrays: list[Array]) -> NDArray[np.float64]:
    """The attention of the operands in float64."""
    q, k, v, *mask = (a if a.dtype == np.bool_ else a.astype(np.float64) for a in arrays)
    inside, turned = q.ndim == 4, k.shape[-1] != q.shape[-1]
    if inside:
        q, k, v = (a.transpose(0, 2, 1, 3) for a in (q, k, v))
    scores = q @ (k if turned else k.swapaxes(-1, -2))
    if mask and mask[0].dtype == np.bool_:
        scores = np.where(mask[0], scores, -np.inf)
    else:
        scores = scores + mask[0] if mask else scores * (1.0 if inside or turned else 0.25)
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    out = powers / powers.sum(-1, keepdims=True) @ v
    return out.transpose(0, 2, 1, 3) if inside else out


def near(got: Array, want: NDArray[np.float64], dtype: str) -> None:
    """Weights and results are rounded to 16 bits, nothing else is; operands to TF32, cut off."""
    unit = {HALF: 2.0**-11, BRAIN: 2.0**-8, F32: 2.0**-21, "tf32": 2.0**-9}[dtype]
    np.testing.assert_allclose(
        got.astype(np.float64).reshape(want.shape), want, 0, 4 * unit * np.abs(want).max()
    )


@pytest.mark.parametrize("name", CASES)
def test_an_attention_agrees(name: str) -> None:
    function, knobs = CASES[name]
    workload = Workload.from_function(function)
    agrees(workload, {"sketch": "gpu_attention", "split": 1, "skip": 0, **knobs}, HOPPER)


@pytest.mark.parametrize("name", SINGLES)
@pytest.mark.parametrize("target", [HOPPER, ROUNDING, Target("cuda -arch=sm_75")])
def test_an_attention_of_float32_agrees(name: str, target: Target) -> None:
    function, knobs = SINGLES[name]
    workload = Workload.from_function(function)
    agrees(workload, {"sketch": "gpu_attention", "split": 1, "skip": 0, **knobs}, target)


def agrees(workload: Workload, config: Config, target: Target) -> None:
    """Interpreter and emulator agree with the attention in float64."""
    space = config_space(workload, target)
    assert space.default["sketch"] == "gpu_attention"
    assert space.valid(space.encode(config)[None])[0]
    arrays, program = drawn(workload), lowered(workload, config, target)
    out = np.full(program.params[-1].shape, 77, numpy_dtype(program.params[-1].dtype))
    flat = [a.reshape(p.shape) for a, p in zip(arrays, program.params, strict=False)]
    interpret(program, [*flat, out])
    want = exact(workload, arrays)
    dtype = program.params[0].dtype
    near(out, want, dtype)
    near(run_program(program, arrays, target)[0], want, "tf32" if target is ROUNDING else dtype)


@pytest.mark.parametrize(("split", "warps", "keys", "stages", "skip"), [
    (4, 2, 16, 4, 2), (2, 1, 32, 1, 0), (8, 1, 16, 3, 1), (4, 1, 64, 2, 2), (1, 2, 32, 1, 2),
])  # fmt: skip
def test_keys_that_are_shared_out_agree(
    split: int, warps: int, keys: int, stages: int, skip: int
) -> None:
    """Parts without keys, some of which a mask hides from all queries, and those of one part."""
    types = (*operands(2, 21, 257, 16, 7, BRAIN), ((21, 257), "bool"))
    workload = Workload.from_function(function_of(chosen, *types))
    knobs = {"split": split, "warps": warps, "mi": 1, "keys": keys, "stages": stages, "skip": skip}
    arrays = drawn(workload)
    program = lowered(workload, {"sketch": "gpu_attention", **knobs})
    near(run_program(program, arrays)[0], exact(workload, arrays), BRAIN)


LARGE = {
    "causal": function_of(chosen, *operands(12, 384, 384, 64, 64), ((384, 384), "bool")),
    "vision": function_of(plain, *operands(12, 197, 197, 64, 64)),
    "long": function_of(plain, *operands(8, 1000, 4096, 128, 128, BRAIN)),
    "masked": function_of(masked, *operands(12, 384, 384, 64, 64), ((1, 384, 384), HALF)),
    "turned": function_of(
        keys_turned, ((4, 64, 40), HALF), ((4, 40, 96), HALF), ((4, 96, 40), HALF)
    ),
}


@needs_ptxas
@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("name", ["vision", "long"])
def test_kernels_assemble_without_spills(name: str, arch: str) -> None:
    workload = Workload.from_function(LARGE[name])
    target = Target(f"cuda -arch={arch}")
    made = assembled(lowered(workload, target=target), arch)
    assert all(0 < usage.registers <= 255 for usage in made.kernels.values())


@needs_ptxas
@pytest.mark.parametrize("target", [HOPPER, ROUNDING])
def test_kernels_of_float32_assemble_without_spills(target: Target) -> None:
    workload = Workload.from_function(function_of(plain, *operands(12, 197, 197, 64, 64, F32)))
    _, ptx = emitted(lowered(workload, target=target), target)
    made = assemble(ptx, "sm_90a")
    assert not made.warnings
    assert all(usage.spilled_bytes == 0 for usage in made.kernels.values())
    rounds = "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32" in ptx
    assert rounds == (target is ROUNDING)
    assert rounds != ("shfl.sync.idx.b32" in ptx)


def test_what_a_mask_hides_is_left_out() -> None:
    """Of the steps of a causal mask each warp computes those that it sees: fewer products."""
    workload = Workload.from_function(LARGE["causal"])
    space = config_space(workload, HOPPER)
    assert space.default["skip"] == 2
    assert config_space(Workload.from_function(LARGE["vision"]), HOPPER).default["skip"] == 0
    _, ptx = emitted(lowered(workload, space.default))
    assert "shfl.sync.bfly.b32" in ptx


@needs_ptxas
@pytest.mark.parametrize("name", ["masked", "turned", "causal"])
def test_the_largest_configs_of_a_space_do_not_spill(name: str) -> None:
    workload = Workload.from_function(LARGE[name])
    space = config_space(workload, HOPPER)
    rows = space.sample(np.random.default_rng(0), 400)
    rows = rows[space.valid(rows)]
    mine = [c for c in map(space.decode, rows) if c["sketch"] == "gpu_attention"]
    largest = sorted(mine, key=lambda c: int(c["mi"]) * (100 + int(c["keys"])))[-1]
    assembled(lowered(workload, largest), "sm_90a")


def test_tiles_that_a_mask_hides_are_not_copied() -> None:
    """Of a causal mask nearly half of the copies that there are without."""
    workload = Workload.from_function(
        function_of(chosen, *operands(1, 128, 128, 16, 16), ((128, 128), "bool"))
    )
    arrays = drawn(workload)
    arrays[3] = np.tri(128, 128, dtype=np.bool_)
    knobs = {"split": 1, "warps": 1, "mi": 1, "keys": 16, "stages": 3}
    copied = []
    for skip in (1, 2):
        program = lowered(workload, {"sketch": "gpu_attention", **knobs, "skip": skip})
        traffic = Traffic()
        (got,) = run_program(program, arrays, traffic=traffic)
        near(got, exact(workload, arrays), HALF)
        stores = [x for x in traffic.accesses() if "st.global" in x.text]
        assert all(x.text.startswith("st.global.v2") and x.excess == 1 for x in stores)
        copied.append(sum(x.requests for x in traffic.accesses() if "cp.async" in x.text))
    assert copied[1] == copied[0] * 36 // 64  # tiles of 16 × 16 on the diagonal and below


def test_few_queries_of_long_contexts_share_out_their_keys() -> None:
    def split_of(heads: int, queries: int, keys: int) -> int:
        workload = Workload.from_function(
            function_of(plain, *operands(heads, queries, keys, 64, 64))
        )
        return int(config_space(workload, HOPPER).default["split"])

    assert split_of(8, 1, 32768) >= 8
    assert split_of(8, 4, 8192) >= 4
    assert split_of(96, 128, 4096) == 1
    assert split_of(8, 1, 48) == 1


def test_scores_stay_in_registers() -> None:
    knobs = {"warps": 4, "mi": 1, "keys": 64, "stages": 3, "skip": 0}
    program = lowered(Workload.from_function(LARGE["masked"]), {"sketch": "gpu_attention", **knobs})
    code, ptx = emitted(program)
    assert len(code.launches) == 1
    assert code.launches[0].grid == (6, 12, 1)
    assert code.launches[0].block == (32, 4, 1)
    assert ptx.count("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32") == 8 * 4 + 8 * 4
    assert len(re.findall(r"ldmatrix\.sync\.aligned\.m8n8\.x4\.shared", ptx)) == 4 * 4
    assert len(re.findall(r"ldmatrix\.sync\.aligned\.m8n8\.x4\.trans\.shared", ptx)) == 4 * 4
    assert re.search(r"cp\.async\.wait_group\s+1;", ptx)
    assert not re.search(r"[ls][dt]\.(shared|local)", ptx)
    assert "bar.sync" in ptx


def test_only_what_fits_is_tried() -> None:
    space = config_space(Workload.from_function(LARGE["long"]), HOPPER).sketch("gpu_attention")
    names = {c.name: c for c in space.constraints}
    knobs = {"split": 1, "warps": 4, "mi": 2, "keys": 64, "stages": 4, "skip": 0}
    k = {n: np.array([v]) for n, v in knobs.items()}
    assert not names["registers"].holds(k)[0]
    assert names["shared memory"].holds(k)[0]
    assert not names["shared memory"].holds({**k, "keys": np.array([128])})[0]
    wide = Workload.from_function(function_of(plain, *operands(2, 64, 64, 512, 512)))
    assert "gpu_attention" not in [s.sketch for s in config_space(wide, HOPPER).sketches]


def test_what_has_no_such_kernel() -> None:
    double = Workload.from_function(
        function_of(keys_turned, *operands(2, 16, 16, 16, 16, "float64"))
    )
    assert "gpu_attention" not in [s.sketch for s in config_space(double, HOPPER).sketches]
    with pytest.raises(ScheduleError, match="no attention on operands that the target multiplies"):
        lowered(
            double, {"sketch": "gpu_attention", "split": 1, "skip": 0, **CASES["odd lengths"][1]}
        )
    half = Workload.from_function(CASES["odd lengths"][0])
    turing = Target("cuda -arch=sm_75")
    assert "gpu_attention" not in [s.sketch for s in config_space(half, turing).sketches]


def test_the_attention_of_a_graph_is_one_kernel() -> None:
    q, k, v = (Var(n, TensorType((1, 50, 64), HALF)) for n in "qkv")

    def heads(x: Var, axes: tuple[int, ...]) -> Any:
        return call("transpose", call("reshape", x, shape=(1, 50, 4, 16)), axes=axes)

    scores = call("matmul", heads(q, (0, 2, 1, 3)), heads(k, (0, 2, 3, 1)))
    weights = call("softmax", call("multiply", scores, number(0.25, HALF)), axis=-1)
    y = call("transpose", call("matmul", weights, heads(v, (0, 2, 1, 3))), axes=(0, 2, 1, 3))
    module = IRModule({"main": Function((q, k, v), call("reshape", y, shape=(1, 50, 64)))})
    tasks = extract_tasks(module, HOPPER)
    assert [config_space(t.workload, HOPPER).default["sketch"] for t in tasks] == ["gpu_attention"]
