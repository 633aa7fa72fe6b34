"""Products by the tiles of a matrix unit: random shapes under random configs agree with NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from narrow_products import drawn, epilogue, workload_of
from sketch_harness import check, configs, features_of_valid
from tunefarm.compiler.codegen.llvm import emit_llvm
from tunefarm.compiler.codegen.llvm_compile import assembly
from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.host import may_use_tiles
from tunefarm.compiler.ops import call
from tunefarm.compiler.space import ConfigSpace, config_space, matrix_tiles, schedule_workload
from tunefarm.compiler.target import Target
from tunefarm.compiler.tir.transform.lower import lower
from tunefarm.compiler.workload import Workload

TARGET = Target("llvm -mcpu=sapphirerapids -num-cores=2")
RUN = "execute" if may_use_tiles() and Target.host().has("amx-int8") else "interpret"
KINDS = {
    "bytes": ("uint8", "int8", "int32"),
    "signed": ("int8", "int8", "int32"),
    "bfloat16": ("bfloat16", "bfloat16", "float32"),
}
KIND = st.sampled_from(list(KINDS))
FLAG, SEED = st.booleans(), st.integers(0, 9999)
bounded = settings(
    max_examples=15 if RUN == "execute" else 4, deadline=None, derandomize=True, database=None
)


def agrees(workload: Workload, seed: int) -> None:
    """The default, which is the sketch's, and two random configs of it."""
    rng = np.random.default_rng(seed)
    arrays = [drawn(p.type.shape, p.type.dtype, rng) for p in workload.function.params]
    space = matrix_tiles.space(workload.function, TARGET)
    assert space is not None
    for config in configs(ConfigSpace((space,)), rng, 2):
        check(workload, TARGET, config, arrays, RUN)


@bounded
@given(KIND, st.integers(4, 70), st.integers(2, 80), st.integers(13, 200), FLAG, FLAG, FLAG, SEED)
def test_matmul(
    kind: str, m: int, n: int, k: int, transposed: bool, bias: bool, narrow: bool, seed: int
) -> None:
    left, right, total = KINDS[kind]
    types = [((m, k), left), ((n, k) if transposed else (k, n), right)]
    types += [((n,), total)] * (bias and narrow)

    def build(a: Any, b: Any, *rest: Any) -> Any:
        made = call("matmul", a, b, transpose_b=transposed, out_dtype=total)
        return epilogue(made, rest, "bytes" if "8" in left else kind) if narrow else made

    agrees(workload_of(build, *types), seed)


@bounded
@given(
    KIND, st.integers(1, 2), st.integers(3, 12), st.sampled_from([4, 5, 7, 8, 14, 17, 18, 28, 35]),
    st.sampled_from([16, 24, 48, 64, 80]), st.integers(2, 70), st.integers(1, 3),
    st.integers(1, 2), FLAG, SEED,
)  # fmt: skip
def test_conv(
    kind: str, n: int, h: int, w: int, inner: int, outputs: int, kernel: int, stride: int,
    residual: bool, seed: int,
) -> None:  # fmt: skip
    left, right, total = KINDS[kind]
    pad = kernel // 2
    rows, columns = ((size + 2 * pad - kernel) // stride + 1 for size in (h, w))
    assume(rows > 0 and columns > 0)
    types = [((n, h, w, inner), left), ((kernel, kernel, inner, outputs), right)]
    types += [((n, rows, columns, outputs), total)] * residual

    def build(x: Any, f: Any, *rest: Any) -> Any:
        made = call(
            "conv", x, f, strides=(stride, stride), padding=((pad, pad), (pad, pad)),
            data_layout="NSC", kernel_layout="SIO", out_dtype=total,
        )  # fmt: skip
        return epilogue(made, rest, "bytes" if "8" in left else kind)

    workload = workload_of(build, *types)
    assume(matrix_tiles.space(workload.function, TARGET) is not None)
    agrees(workload, seed)


@bounded
@given(
    st.sampled_from(["bytes", "bfloat16"]), st.integers(1, 4), st.integers(5, 7),
    st.sampled_from([4, 6, 10, 16, 28]), st.integers(2, 40), st.sampled_from([4, 5, 7]),
    st.integers(1, 2), SEED,
)  # fmt: skip
def test_taps_fill_tiles_where_channels_are_few(
    kind: str, channels: int, h: int, columns: int, outputs: int, kernel: int, stride: int,
    seed: int,
) -> None:  # fmt: skip
    left, right, total = KINDS[kind]
    pad = kernel // 2
    w = (columns - 1) * stride + kernel - 2 * pad
    assume(w > 0)
    workload = workload_of(
        lambda x, f: call(
            "conv", x, f, strides=(stride, stride), padding=((pad, pad), (pad, pad)),
            data_layout="NSC", kernel_layout="SIO", out_dtype=total,
            pad_value=7 if kind == "bytes" else 0,
        ),
        ((1, h, w, channels), left), ((kernel, kernel, channels, outputs), right),
    )  # fmt: skip
    terms = 4 if kind == "bytes" else 2
    assume(channels <= terms)
    agrees(workload, seed)


def product(m: int, k: int, n: int, kind: str = "bytes") -> Workload:
    left, right, total = KINDS[kind]
    return workload_of(
        lambda a, b: call("matmul", a, b, out_dtype=total), ((m, k), left), ((k, n), right)
    )


@pytest.mark.parametrize(
    ("kind", "instruction"),
    [("bytes", "tdpbusd"), ("signed", "tdpbssd"), ("bfloat16", "tdpbf16ps")],
)
def test_the_interpreter_agrees_and_the_assembly_has_the_instruction(
    kind: str, instruction: str
) -> None:
    workload = product(33, 96, 48, kind)
    rng = np.random.default_rng(3)
    arrays = [drawn(p.type.shape, p.type.dtype, rng) for p in workload.function.params]
    space = config_space(workload, TARGET)
    assert space.default["sketch"] == "matrix_tiles"
    check(workload, TARGET, space.default, arrays, "interpret")
    program = lower(schedule_workload(workload, TARGET, space.default), checked=True)
    text = assembly(emit_llvm(program, TARGET).text, TARGET)
    for name in (instruction, "ldtilecfg", "tileloadd", "tilestored", "tilerelease"):
        assert name in text


@pytest.mark.parametrize(
    "target",
    ["llvm -mcpu=icelake-server", "llvm -mcpu=emeraldrapids -mattr=-amx-tile", "llvm -mcpu=znver5"],
)
def test_other_processors_sum_in_vectors(target: str) -> None:
    assert config_space(product(64, 64, 64), Target(target)).default["sketch"] == "dot"


def test_sums_of_few_terms_and_single_rows_stay_with_vectors() -> None:
    for m, k in ((1, 256), (64, 3)):
        assert config_space(product(m, k, 64), TARGET).default["sketch"] == "dot"


def test_a_config_of_another_processor_is_refused() -> None:
    workload = product(64, 64, 64)
    config = config_space(workload, TARGET).default
    with pytest.raises(ScheduleError, match="no matrix unit of llvm -mcpu=znver5"):
        schedule_workload(workload, Target("llvm -mcpu=znver5"), config)


def test_a_last_tile_of_rows_is_copied_with_zeros() -> None:
    """197 rows have no divisor that fills a tile."""
    config = config_space(product(197, 384, 384, "bfloat16"), TARGET).default
    assert (config["rw"], config["pack_lhs"]) == (16, 1)


def convolution(size: int) -> Workload:
    return workload_of(
        lambda x, f: call(
            "conv", x, f, padding=((1, 1), (1, 1)), data_layout="NSC", kernel_layout="SIO",
            out_dtype="float32",
        ),
        ((1, size, size, 64), "bfloat16"), ((3, 3, 64, 64), "bfloat16"),
    )  # fmt: skip


@pytest.mark.parametrize("size, rows", [(17, 9), (35, 12), (28, 14), (71, 15)])
def test_tiles_run_on_beyond_the_rows_of_an_image(size: int, rows: int) -> None:
    """So does a macro tile of several rows of the image: those have no divisor either."""
    config = config_space(convolution(size), TARGET).default
    assert config["sketch"] == "matrix_tiles"
    assert (config["rw"], config["pack_lhs"]) == (rows, 1)
    assert config["rh"] > 1


@pytest.mark.parametrize(
    "size, rows", [(24, (6, 8, 12)), (25, (5,)), (28, (7, 14)), (35, (5, 7))], ids=str
)
def test_what_was_tuned_before_tiles_ran_on_is_in_the_space(
    size: int, rows: tuple[int, ...]
) -> None:
    """Rows that divide those of an image, down to half of the most."""
    space = matrix_tiles.space(convolution(size).function, TARGET)
    assert space is not None
    (knob,) = (k for k in space.knobs if k.name == "rw")
    assert set(rows) <= set(knob.choices)


def test_features_see_every_candidate() -> None:
    types = [((128, 768), "bfloat16"), ((768, 768), "bfloat16")]
    workload = workload_of(lambda a, b: call("matmul", a, b, out_dtype="float32"), *types)
    space = matrix_tiles.space(workload.function, TARGET)
    assert space is not None
    nest = features_of_valid(ConfigSpace((space,)))
    assert (nest.operations >= 2 * 128 * 768 * 768 / 2 / 8).all()
