"""Sums of dot products by one instruction: random shapes under random configs agree with NumPy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from narrow_products import drawn, epilogue, workload_of
from sketch_harness import check, configs
from tunefarm.compiler.codegen.llvm import emit_llvm
from tunefarm.compiler.codegen.llvm_compile import assembly
from tunefarm.compiler.ops import call
from tunefarm.compiler.space import config_space, schedule_workload
from tunefarm.compiler.target import Target
from tunefarm.compiler.tir.transform.lower import lower
from tunefarm.compiler.workload import Workload

CPUINFO = Path("/proc/cpuinfo")
CPU_FLAGS = CPUINFO.read_text().split() if CPUINFO.exists() else []
HAS_TILES = Target.host().has("amx-int8")
HOST = Target(f"{Target.host(2)} -mattr=-amx-tile") if HAS_TILES else Target.host(2)
EXTENT = st.integers(1, 40)
LONG = st.integers(3, 70)
FLAG = st.booleans()
SEED = st.integers(0, 9999)
WORDS = Target("llvm -mcpu=haswell -num-cores=2")  # multiplies bytes as 16 bits
KINDS = {
    "bytes": ("uint8", "int8", "int32", "avx2"),
    "bfloat16": ("bfloat16", "bfloat16", "float32", "avx512bf16"),
    "float16": ("float16", "float16", "float32", "avx512fp16"),
}
KIND = st.sampled_from([k for k, v in KINDS.items() if HOST.has(v[3])] or ["bytes"])
bounded = settings(max_examples=15, deadline=None, derandomize=True, database=None)
has_any = pytest.mark.skipif(
    not any(HOST.has(v[3]) for v in KINDS.values()), reason="this CPU has no such instruction"
)


def agrees(workload: Workload, seed: int) -> None:
    """The default, which is the sketch's, and two random configs; of bytes also without VNNI."""
    rng = np.random.default_rng(seed)
    arrays = [drawn(p.type.shape, p.type.dtype, rng) for p in workload.function.params]
    bytes_by_words = arrays[0].dtype == np.uint8 and HOST.has("avx512vnni")
    for target in (HOST, WORDS) if bytes_by_words else (HOST,):
        space = config_space(workload, target)
        assert space.default["sketch"] == "dot"
        for config in configs(space, rng, 2):
            check(workload, target, config, arrays, "execute")


@has_any
@bounded
@given(KIND, EXTENT, LONG, LONG, FLAG, FLAG, FLAG, FLAG, SEED)
def test_matmul(
    kind: str, m: int, n: int, k: int, ta: bool, tb: bool, bias: bool, narrow: bool, seed: int
) -> None:
    left, right, total, _ = KINDS[kind]
    types = [((k, m) if ta else (m, k), left), ((n, k) if tb else (k, n), right)]
    types += [((n,), total)] * bias

    def build(a: Any, b: Any, *rest: Any) -> Any:
        made = call("matmul", a, b, transpose_a=ta, transpose_b=tb, out_dtype=total)
        return epilogue(made, rest, kind) if narrow else made

    if bias and not narrow:
        types.pop()
    agrees(workload_of(build, *types), seed)


WINDOW = st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(1, 2), st.integers(1, 2))


@pytest.mark.skipif(not HOST.has("avx2"), reason="this CPU multiplies no bytes")
@pytest.mark.parametrize("shape", [(3, 3, 24, 1), (1, 5, 7, 1), (2, 2, 64, 1)])
def test_a_window_with_a_single_output(shape: tuple[int, ...]) -> None:
    """Depth maps and masks of bytes: their sums are the first lane of a vector."""
    kind = "bytes"
    left, right, total, _ = KINDS[kind]
    types = [((2, 9, 28, shape[2]), left), (shape, right), ((1,), total)]

    def build(x: Any, f: Any, *rest: Any) -> Any:
        layout = {"data_layout": "NSC", "kernel_layout": "SIO", "out_dtype": total}
        return epilogue(call("conv", x, f, padding=((1, 1), (1, 1)), **layout), rest, kind)

    agrees(workload_of(build, *types), 5)


@has_any
@bounded
@given(
    KIND, st.integers(1, 2), st.integers(3, 11), st.integers(3, 11), st.integers(3, 19),
    st.integers(1, 40), st.sampled_from([1, 1, 2, 3]), WINDOW,
    st.tuples(*[st.integers(0, 2)] * 4), st.sampled_from([0, 0, 7]), FLAG, SEED,
)  # fmt: skip
def test_conv(
    kind: str, n: int, h: int, w: int, inner: int, outputs: int, groups: int,
    window: tuple[int, int, int, int], pads: tuple[int, int, int, int], pad_value: int,
    residual: bool, seed: int,
) -> None:  # fmt: skip
    kh, kw, stride, dilation = window
    rows = (h + pads[0] + pads[1] - dilation * (kh - 1) - 1) // stride + 1
    columns = (w + pads[2] + pads[3] - dilation * (kw - 1) - 1) // stride + 1
    assume(rows > 0 and columns > 0 and (outputs > 1 or (kh * kw > 1 and kind == "bytes")))
    left, right, total, _ = KINDS[kind]
    outputs *= groups
    types = [((n, h, w, inner * groups), left), ((kh, kw, inner, outputs), right)]
    types += [((n, rows, columns, outputs), total)] * residual

    def build(x: Any, f: Any, *rest: Any) -> Any:
        made = call(
            "conv", x, f, strides=(stride, stride), padding=(pads[:2], pads[2:]),
            dilations=(dilation, dilation), groups=groups, data_layout="NSC",
            kernel_layout="SIO", out_dtype=total, pad_value=pad_value,
        )  # fmt: skip
        return epilogue(made, rest, kind)

    agrees(workload_of(build, *types), seed)


@pytest.mark.parametrize("cpu", ["cascadelake", "skylake-avx512"])
def test_the_interpreter_agrees(cpu: str) -> None:
    """Without machine code, the instruction taken by its meaning."""
    rng = np.random.default_rng(5)
    left, right, total, _ = KINDS["bytes"]
    workload = workload_of(
        lambda x, f: call(
            "conv", x, f, padding=((1, 1), (0, 1)), strides=(2, 1), data_layout="NSC",
            kernel_layout="SIO", out_dtype=total,
        ),
        ((1, 6, 5, 6), left), ((3, 2, 6, 20), right),
    )  # fmt: skip
    target = Target(f"llvm -mcpu={cpu}")
    arrays = [drawn(p.type.shape, p.type.dtype, rng) for p in workload.function.params]
    for config in configs(config_space(workload, target), rng, 2):
        check(workload, target, config, arrays, "interpret")


def test_whole_groups_are_read_where_they_stand() -> None:
    left, right, total, _ = KINDS["bytes"]
    target = Target("llvm -mcpu=cascadelake")

    def program(depth: int) -> str:
        workload = workload_of(
            lambda a, b: call("matmul", a, b, out_dtype=total),
            ((8, depth), left), ((depth, 32), right),
        )  # fmt: skip
        config = config_space(workload, target).default
        return str(lower(schedule_workload(workload, target, config)))

    assert "in local" not in program(64)
    assert "in local" in program(63)


@pytest.mark.skipif(not HOST.has("avx2"), reason="this CPU lacks avx2")
@pytest.mark.parametrize("depth", [63, 64])
def test_signed_bytes_are_widened_too(depth: int) -> None:
    workload = workload_of(
        lambda a, b: call("matmul", a, b, out_dtype="int32"),
        ((21, depth), "int8"), ((depth, 37), "int8"),
    )  # fmt: skip
    agrees(workload, depth)


def test_bytes_are_widened_once_for_all_panels() -> None:
    left, right, total, _ = KINDS["bytes"]
    workload = workload_of(
        lambda a, b: call("matmul", a, b, out_dtype=total), ((12, 1024), left), ((1024, 256), right)
    )
    orders = {
        cpu: config_space(workload, Target(f"llvm -mcpu={cpu}")).default["order"]
        for cpu in ("haswell", "alderlake")
    }
    assert orders == {"haswell": "mn", "alderlake": "nm"}


def test_other_processors_tile_bytes_as_they_tile_floats() -> None:
    """Without an instruction, and for depthwise convolutions, which have no terms to sum."""
    left, right, total, _ = KINDS["bytes"]
    product = workload_of(
        lambda a, b: call("matmul", a, b, out_dtype=total), ((8, 64), left), ((64, 32), right)
    )
    old = Target("llvm -mcpu=x86-64-v2")
    assert config_space(product, old).default["sketch"] == "contraction"
    depthwise = workload_of(
        lambda x, f: call(
            "conv", x, f, groups=20, padding=((1, 1), (1, 1)), data_layout="NSC",
            kernel_layout="SIO", out_dtype=total, pad_value=5,
        ),
        ((1, 6, 5, 20), left), ((3, 3, 1, 20), right),
    )  # fmt: skip
    space = config_space(depthwise, HOST)
    assert space.default["sketch"] == "contraction"
    rng = np.random.default_rng(2)
    arrays = [drawn(p.type.shape, p.type.dtype, rng) for p in depthwise.function.params]
    for config in configs(space, rng, 2):
        check(depthwise, HOST, config, arrays, "execute")


@pytest.mark.skipif("avx_vnni" not in CPU_FLAGS, reason="this CPU lacks avx_vnni")
def test_vectors_of_256_bits() -> None:
    """Processors with AVX2 alone may have the instruction too, in its other encoding."""
    left, right, total, _ = KINDS["bytes"]
    target = Target("llvm -mcpu=alderlake")
    workload = workload_of(
        lambda a, b: call("matmul", a, b, out_dtype=total), ((21, 50), left), ((50, 37), right)
    )
    space = config_space(workload, target)
    assert space.default["sketch"] == "dot"
    rng = np.random.default_rng(4)
    arrays = [drawn(p.type.shape, p.type.dtype, rng) for p in workload.function.params]
    for config in configs(space, rng, 4):
        check(workload, target, config, arrays, "execute")
    program = lower(schedule_workload(workload, target, space.default))
    assert "vpdpbusd" in assembly(emit_llvm(program, target).text, target)
