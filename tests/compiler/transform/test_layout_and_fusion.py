"""Layout conversion and fusion keep the meaning, cancel transposes, and make the wanted groups."""

from collections.abc import Callable

import numpy as np
import pytest
from pass_harness import agree, defused, kernels_in, module_of, var
from tunefarm.compiler.extract import kernels_of, tasks_of
from tunefarm.compiler.ir import (
    Constant,
    Expr,
    IRModule,
    Tuple,
    Var,
)
from tunefarm.compiler.ops import call
from tunefarm.compiler.target import Target
from tunefarm.compiler.transform import optimize
from tunefarm.compiler.transform.fuse_attention import fuse_attention
from tunefarm.compiler.workload import Workload

TARGET = Target("llvm -mcpu=znver5 -num-cores=2")
RNG = np.random.default_rng(7)


def const(*shape: int) -> Constant:
    return Constant(RNG.standard_normal(shape, np.float32) * np.float32(0.3))


def check(module: IRModule) -> IRModule:
    """The optimised module, after comparing its results with the original's."""
    optimized = optimize(module, TARGET)
    inputs = {
        p.name: RNG.standard_normal(p.type.shape).astype(np.float32) for p in module.main.params
    }
    agree(optimized, module, inputs, rtol=2e-4, atol=2e-5)
    return optimized


def batch_norm(x: Expr, channels: int) -> Expr:
    variance = Constant(RNG.random(channels, np.float32) + np.float32(0.5))
    return call("batch_norm", x, const(channels), const(channels), const(channels), variance)


def conv(x: Expr, out: int, k: int = 3, **attrs: object) -> Expr:
    channels = x.type.shape[1]  # type: ignore[union-attr]
    pad = ((k // 2, k // 2), (k // 2, k // 2))
    return call("conv", x, const(out, channels, k, k), padding=pad, **attrs)  # type: ignore[arg-type]


def residual_network() -> IRModule:
    x = var("x", 2, 3, 8, 8)
    y: Expr = call("relu", batch_norm(conv(x, 8), 8))
    for _ in range(2):
        z = call("relu", batch_norm(conv(y, 8), 8))
        y = call("relu", call("add", batch_norm(conv(z, 8), 8), y))
    y = call("max_pool", y, kernel=(3, 3), strides=(2, 2), padding=((1, 1), (1, 1)))
    y = call("mean", y, axes=(2, 3), keepdims=True)
    y = call("reshape", y, shape=(2, 8))
    y = call("add", call("matmul", y, const(8, 10)), const(10))
    return module_of([x], y)


def test_the_planes_of_an_image_are_read_in_place() -> None:
    image, other = var("x", 1, 3, 9, 7), var("x", 1, 16, 9, 7)
    optimized = check(module_of([image], conv(conv(image, 8), 4)))
    assert kernels_in(optimized)[0] == "conv"
    many = check(module_of([other], conv(other, 8)))
    assert kernels_in(many)[0] == "transpose"


@pytest.mark.parametrize("operator", ["max_pool", "group_norm"])
def test_images_that_no_convolution_reads_keep_their_planes(operator: str) -> None:
    x = var("x", 2, 5, 9, 7)
    if operator == "max_pool":
        y = call("max_pool", x, kernel=(3, 3), strides=(2, 2), padding=((1, 1), (1, 1)))
    else:
        y = call("group_norm", x, const(5), const(5), groups=5)
    kernels = kernels_in(check(module_of([x], y)))
    assert not any("transpose" in kernel for kernel in kernels), kernels


def test_residual_network_has_no_transposes() -> None:
    optimized = check(residual_network())
    kernels = kernels_in(optimized)
    assert not any("transpose" in k for k in kernels)
    assert kernels[:3] == ["conv add relu", "conv add relu", "conv add add relu"]
    assert kernels[-1] == "matmul add"


def test_canonical_convolution_group() -> None:
    optimized = check(residual_network())
    function = kernels_of(optimized)[2]
    shapes = [p.type.shape for p in function.params]
    assert shapes == [(2, 8, 8, 8), (3, 3, 8, 8), (8,), (2, 8, 8, 8)]
    assert function.attrs["constants"] == (1, 2)
    assert "conv" in Workload.from_function(function).summary


def test_equal_groups_share_a_function_and_count_as_weight() -> None:
    tasks = tasks_of(optimize(residual_network(), TARGET), TARGET)
    weights = {t.name: t.weight for t in tasks}
    assert weights["conv 3x3 s1 2x8x8x8→8 +add +relu"] == 2
    assert weights["conv 3x3 s1 2x8x8x8→8 +add +add +relu"] == 2


def test_defuse_restores_the_meaning() -> None:
    module = residual_network()
    optimized = defused(optimize(module, TARGET))
    assert kernels_of(optimized) == []
    x = RNG.standard_normal((2, 3, 8, 8)).astype(np.float32)
    agree(optimized, module, [x], rtol=2e-4, atol=2e-5)


def test_flatten_of_a_map_permutes_weight_rows() -> None:
    x = var("x", 2, 3, 4, 5)
    y = call("reshape", call("relu", conv(x, 6)), shape=(2, 120))
    for transpose_b in (False, True):
        w = const(7, 120) if transpose_b else const(120, 7)
        optimized = check(module_of([x], call("matmul", y, w, transpose_b=transpose_b)))
        assert kernels_in(optimized) == ["conv relu", "matmul"]


def test_concat_network_without_inner_transposes() -> None:
    x = var("x", 1, 5, 6, 6)
    y: Expr = conv(x, 4)
    for _ in range(2):
        z = call("relu", batch_norm(y, y.type.shape[1]))  # type: ignore[union-attr]
        y = call("concat", y, conv(z, 4), axis=1)
    y = call("avg_pool", y, kernel=(2, 2), strides=(2, 2))
    optimized = check(module_of([x], call("mean", y, axes=(2, 3), keepdims=False)))
    assert [k for k in kernels_in(optimized) if "transpose" in k] == ["transpose"]


def test_channel_shuffle_keeps_channels_last() -> None:
    x = var("x", 1, 8, 4, 4)
    y: Expr = conv(x, 8, 1)
    y = call("reshape", y, shape=(1, 2, 4, 4, 4))
    y = call("transpose", y, axes=(0, 2, 1, 3, 4))
    y = call("reshape", y, shape=(1, 8, 4, 4))
    y = call("mean", conv(y, 8, 1), axes=(2, 3), keepdims=False)
    optimized = check(module_of([x], y))
    assert [k for k in kernels_in(optimized) if "transpose" in k] == ["transpose", "transpose"]


@pytest.mark.parametrize("width", [7, 8])
def test_a_reshape_between_transposes_stays_a_view(width: int) -> None:
    """A transpose that took it in would divide each index by the rows that the view has."""
    x = var("x", 1, 6, width, 10)
    y = call("transpose", call("relu", x), axes=(0, 3, 1, 2))
    y = call("reshape", y, shape=(1, 5, 12 * width))
    y = call("exp", call("transpose", y, axes=(0, 2, 1)))
    assert kernels_in(check(module_of([x], y))) == ["relu transpose exp", "transpose"]


def test_squeeze_and_excite_has_no_inner_transpose() -> None:
    x = var("x", 1, 5, 6, 6)
    y = conv(x, 8)
    s = call("mean", y, axes=(2, 3), keepdims=True)
    s = call("sigmoid", conv(call("relu", conv(s, 2, 1)), 8, 1))
    y = call("mean", conv(call("multiply", y, s), 8), axes=(2, 3), keepdims=False)
    assert [k for k in kernels_in(check(module_of([x], y))) if "transpose" in k] == ["transpose"]


def enlarged(x: Expr, factor: int) -> Expr:
    """Each pixel repeated along both axes, as ``Resize`` by whole factors is imported."""
    batch, channels, rows, columns = x.type.shape  # type: ignore[union-attr]
    for shape, wide, end in (
        ((rows, 1, columns), (rows, factor, columns), (rows * factor, columns)),
        ((rows * factor, columns, 1), (rows * factor, columns, factor),
         (rows * factor, columns * factor)),
    ):  # fmt: skip
        x = call("reshape", x, shape=(batch, channels, *shape))
        x = call("broadcast_to", x, shape=(batch, channels, *wide))
        x = call("reshape", x, shape=(batch, channels, *end))
    return x


def gated(x: Expr) -> Expr:
    """By one number a channel, spelled out for every pixel (ECA)."""
    shape = x.type.shape  # type: ignore[union-attr]
    row = call("reshape", call("mean", x, axes=(2, 3)), shape=(1, 1, shape[1]))
    row = call("conv", row, const(1, 1, 3), padding=((1, 1),), strides=(1,), dilations=(1,))
    gate = call("reshape", call("sigmoid", row), shape=(1, shape[1], 1, 1))
    return call("multiply", x, call("broadcast_to", gate, shape=shape))


def modulated(x: Expr) -> Expr:
    """By a number a channel times one a pixel (FocalNet)."""
    per_pixel = call("mean", x, axes=(1,), keepdims=True)
    per_channel = call("mean", x, axes=(2, 3), keepdims=True)
    return call("add", x, call("multiply", per_channel, per_pixel))


def resampled(x: Expr) -> Expr:
    rows = Constant(np.array([0, 0, 1, 3, 4, 4, 5], np.int64))
    return call("gather", call("gather", x, rows, axis=2), rows, axis=-1)


@pytest.mark.parametrize("step", [lambda x: enlarged(x, 3), gated, modulated, resampled])
def test_between_convolutions_no_map_is_transposed(step: Callable[[Expr], Expr]) -> None:
    x = var("x", 1, 3, 6, 6)
    y = step(call("relu", conv(x, 24)))
    kernels = kernels_in(check(module_of([x], conv(call("relu", conv(y, 8)), 8))))
    assert sum("transpose" in kernel for kernel in kernels) == 1, "of the result"


def test_heads_that_share_keys_are_repeated_where_they_lie() -> None:
    """Grouped queries: keys of two heads serve eight."""
    q, k, v = var("q", 1, 24, 8, 16), var("k", 1, 24, 2, 16), var("v", 1, 24, 2, 16)
    swapped = [call("transpose", e, axes=(0, 2, 1, 3)) for e in (q, k, v)]
    for n in (1, 2):
        grouped = call("reshape", swapped[n], shape=(1, 2, 1, 24, 16))
        wide = call("broadcast_to", grouped, shape=(1, 2, 4, 24, 16))
        swapped[n] = call("reshape", wide, shape=(1, 8, 24, 16))
    scores = call("matmul", swapped[0], call("transpose", swapped[1], axes=(0, 1, 3, 2)))
    y = call("matmul", call("softmax", scores, axis=-1), swapped[2])
    y = call("reshape", call("transpose", y, axes=(0, 2, 1, 3)), shape=(1, 24, 128))
    kernels = kernels_in(check(module_of([q, k, v], y)))
    assert not any(kernel.startswith("transpose") for kernel in kernels)


def test_streams_that_planes_read_more_often_stay() -> None:
    x = var("x", 1, 16, 6, 10)
    start = call("cumsum", call("reshape", x, shape=(960,)), axis=0)
    start = call("reshape", start, shape=(1, 16, 6, 10))
    y = call("add", start, conv(call("relu", conv(start, 8)), 16))
    rows = [call("cumsum", call("reshape", y, shape=(16, 60)), axis=a) for a in (0, 1)]
    module = module_of([x], Tuple((conv(y, 8), *rows)))
    kernels = kernels_in(check(module))
    assert sum("transpose" in kernel for kernel in kernels) == 4, "of both maps and both results"


def test_residuals_that_begin_in_planes_are_turned_once() -> None:
    x = var("x", 1, 32, 6, 10)
    y: Expr = call("cumsum", call("reshape", x, shape=(1, 1920)), axis=1)
    y = call("reshape", y, shape=(1, 32, 6, 10))
    for _ in range(3):
        y = call("add", y, conv(call("relu", conv(y, 32)), 32))
    kernels = kernels_in(check(module_of([x], y)))
    assert sum("transpose" in kernel for kernel in kernels) == 2, "before the first, and behind"


def test_patch_embedding_cancels_its_transposes() -> None:
    x = var("x", 1, 3, 8, 8)
    y = call("conv", x, const(16, 3, 4, 4), strides=(4, 4))
    y = call("transpose", call("reshape", y, shape=(1, 16, 4)), axes=(0, 2, 1))
    y = call("layer_norm", y, const(16), const(16))
    assert kernels_in(check(module_of([x], y))) == ["conv", "layer_norm"]


def attention(tokens: int, target: Target = TARGET) -> list[str]:
    """The kernels of two heads of 4, with a scale, a mask and all projections."""
    x = var("x", 1, tokens, 8)
    mask = var("mask", 1, 1, 1, tokens)

    def heads(name: str) -> Expr:
        y = call("add", call("matmul", x, const(8, 8)), const(8))
        return call("reshape", y, shape=(1, tokens, 2, 4))

    q = call("transpose", heads("q"), axes=(0, 2, 1, 3))
    k = call("transpose", heads("k"), axes=(0, 2, 3, 1))
    v = call("transpose", heads("v"), axes=(0, 2, 1, 3))
    scores = call("multiply", call("matmul", q, k), Constant(np.array(0.5, np.float32)))
    weights = call("softmax", call("add", scores, mask), axis=-1)
    y = call("transpose", call("matmul", weights, v), axes=(0, 2, 1, 3))
    y = call("add", call("matmul", call("reshape", y, shape=(1, tokens, 8)), const(8, 8)), x)
    kernels = kernels_in(check(module_of([x, mask], y)))
    assert not any("transpose" in k for k in kernels)
    assert kernels[-1] == "matmul add"
    return kernels


def test_attention_is_one_kernel() -> None:
    kernels = attention(19)
    assert "einsum multiply add softmax einsum" in kernels
    assert "softmax" not in kernels


@pytest.mark.parametrize("count, fused", [(20, True), (1500, False)])
def test_attention_with_a_long_chain_stays_apart(count: int, fused: bool) -> None:
    q, k, v = (var(n, 2, 32, 16) for n in "qkv")
    scores = call("matmul", q, k, transpose_b=True)
    for _ in range(count):
        scores = call("tanh", scores)
    body = call("matmul", call("softmax", scores, axis=-1), v)
    module = module_of([q, k, v], body)
    assert (fuse_attention(module, TARGET) is not module) == fused


@pytest.mark.parametrize("batch", [(1,), (1, 2), (1, 1, 3)])
def test_attention_of_batches_of_one_is_one_kernel(batch: tuple[int, ...]) -> None:
    q, k, v = (var(n, *batch, 20, 8) for n in "qkv")
    mask, rows = var("mask", *(1 for _ in batch), 20, 20), var("rows", 20, 1)
    half = Constant(np.full((1,) * (len(batch) + 2), 0.5, np.float32))
    scores = call("multiply", call("matmul", q, k, transpose_b=True), half)
    weights = call("softmax", call("add", call("add", scores, mask), rows), axis=-1)
    module = module_of([q, k, v, mask, rows], call("matmul", weights, v))
    assert kernels_in(check(module)) == ["matmul multiply add add softmax matmul"]


def test_attention_of_fewer_queries_than_lanes_fuses_scale_and_mask() -> None:
    kernels = attention(6)
    assert "einsum multiply add" in kernels
    assert "softmax" in kernels
    assert "einsum" in kernels


def test_attention_whose_scores_are_read_elsewhere_stays_apart() -> None:
    q, k, v = (var(n, 2, 20, 8) for n in "qkv")
    scores = call("matmul", q, k, transpose_b=True)
    weights = call("softmax", scores, axis=-1)
    y = call("matmul", weights, v)
    for shared in (scores, weights):
        kernels = kernels_in(check(module_of([q, k, v], Tuple((y, shared)))))
        assert sorted(kernels) == ["matmul", "matmul", "softmax"]
    assert kernels_in(check(module_of([q, k, v], y))) == ["matmul softmax matmul"]


def test_diamond_of_elementwise_operators_joins_its_contraction() -> None:
    x = var("x", 4, 8)
    y = call("matmul", x, const(8, 8))
    half = call("multiply", y, Constant(np.array(0.5, np.float32)))
    gelu = call("multiply", half, call("add", call("erf", y), Constant(np.array(1, np.float32))))
    assert len(kernels_in(check(module_of([x], gelu)))) == 1


def test_a_value_that_leaves_twice_ends_its_group() -> None:
    x = var("x", 4, 8)
    y = call("matmul", x, const(8, 8))
    z = call("relu", y)
    both = call("add", call("softmax", z, axis=-1), call("softmax", y, axis=-1))
    assert "matmul" in kernels_in(check(module_of([x], both)))


@pytest.mark.parametrize("seed", range(25))
def test_random_transposes_and_reshapes_keep_the_meaning(seed: int) -> None:
    rng = np.random.default_rng(seed)
    x = var("x", 2, 3, 4, 6)
    y: Expr = x
    for _ in range(12):
        y = _random_step(y, x, rng)
    check(module_of([x], y))


def _random_step(y: Expr, x: Var, rng: np.random.Generator) -> Expr:
    shape = y.type.shape  # type: ignore[union-attr]
    rank = len(shape)
    kind = rng.integers(9)
    if kind <= 2 and rank:
        return call("transpose", y, axes=tuple(int(a) for a in rng.permutation(rank)))
    if kind == 3:
        axis = int(rng.integers(rank + 1))
        return call("reshape", y, shape=(*shape[:axis], 1, *shape[axis:]))
    if kind == 4 and rank > 1:
        axis = int(rng.integers(rank - 1))
        joined = shape[axis] * shape[axis + 1]
        return call("reshape", y, shape=(*shape[:axis], joined, *shape[axis + 2 :]))
    if kind == 5 and max(shape) % 2 == 0:
        axis = int(np.argmax(shape))
        return call("reshape", y, shape=(*shape[:axis], 2, shape[axis] // 2, *shape[axis + 1 :]))
    if kind == 6:
        return call("softmax", y, axis=int(rng.integers(-rank, rank)))
    if kind == 7:
        return call("add", y, Constant(rng.standard_normal(shape[-1:]).astype(np.float32)))
    other = call("reshape", x, shape=shape) if y.type.size == x.type.size else y  # type: ignore[union-attr]
    return call("concat", y, other, axis=0) if y.type.size < 1000 else call("relu", y)  # type: ignore[union-attr]
