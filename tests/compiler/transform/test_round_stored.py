"""What waits in memory in models of 16-bit floats: rounded where nobody needs more."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from pass_harness import calls, module_of, operators, var
from tunefarm.compiler.build import build_module
from tunefarm.compiler.dtypes import numpy_dtype
from tunefarm.compiler.evaluate import evaluate
from tunefarm.compiler.extract import kernels_of
from tunefarm.compiler.ir import Constant, Expr, IRModule, Tuple, Var, tensor_type
from tunefarm.compiler.ops import call
from tunefarm.compiler.summary import summarize
from tunefarm.compiler.target import Target
from tunefarm.compiler.transform import optimize
from tunefarm.compiler.transform.lower_precision import allow_precision, lower_precision
from tunefarm.compiler.transform.round_stored import round_stored

ROWS, WIDTH = 32, 64
BF16 = "bfloat16"
ZEN5 = Target("llvm -mcpu=znver5")


def weights(seed: int) -> Constant:
    rng = np.random.default_rng(seed)
    return Constant(rng.standard_normal((WIDTH, WIDTH)).astype(numpy_dtype(BF16)))


def product(x: Expr, seed: int = 0, dtype: str = BF16) -> Expr:
    return call("matmul", call("cast", x, dtype=dtype), weights(seed), out_dtype="float32")


def rounded(body: Expr, x: Var) -> list[str]:
    """The operators after the rule, which must change no result by more than its rounding: half a
    step of 8 bits of a sum of products below 128."""
    after = round_stored(body, ZEN5)
    values = np.random.default_rng(1).standard_normal((ROWS, WIDTH)).astype(np.float32)
    (exact,) = evaluate(module_of([x], body), [values])
    (found,) = evaluate(module_of([x], after), [values])
    most = 2**-9 * max(np.abs(exact).max(), np.abs(values).max())
    assert np.abs(found - exact).max() <= 2 * most
    return operators(after)


def test_what_is_stored_for_a_product_is_read_rounded_by_a_sum() -> None:
    x = var("x", ROWS, WIDTH)
    value = call("relu", x)
    body = call("add", product(value), value)
    assert rounded(body, x) == ["relu", "cast", "matmul", "cast", "add"]


@pytest.mark.parametrize(
    "other",
    [
        lambda v: call("softmax", v, axis=-1),
        lambda v: call("transpose", v, axes=(1, 0)),
        lambda v: call("cast", v, dtype="int32"),
        lambda v: call("exp", v),
        lambda v: Tuple((v,)),
    ],
    ids=["softmax", "transpose", "integers", "exp", "result"],
)
def test_where_others_need_float32_sums_read_it_too(other: Callable[[Expr], Expr]) -> None:
    value = call("relu", var("x", ROWS, WIDTH))
    body = Tuple((call("add", product(value), value), other(value)))
    assert operators(round_stored(body, ZEN5)) == operators(body)


def test_a_cast_of_the_user_s_own_rounds_nothing_else() -> None:
    value = call("relu", var("x", ROWS, WIDTH))
    body = Tuple((call("cast", value, dtype=BF16), call("add", value, value)))
    assert operators(round_stored(body, ZEN5)) == operators(body)
    module = module_of([var("x", ROWS, WIDTH)], body)
    allowed = allow_precision(module, "bf16")
    assert lower_precision(allowed, ZEN5) is allowed


def test_float16_has_too_short_a_range_for_sums() -> None:
    x = var("x", ROWS, WIDTH)
    w = [Constant(np.full((WIDTH, WIDTH), sign * 30, np.float32)) for sign in (1, -1)]
    body = call("add", *(call("matmul", x, each) for each in w))
    module = allow_precision(module_of([x], body), "fp16")
    target = Target("llvm -mcpu=sapphirerapids")
    lowered = lower_precision(module, target)
    assert "float16" in {
        tensor_type(n.args[1]).dtype for n in calls(lowered.main.body) if n.op == "matmul"
    }
    (found,) = evaluate(lowered, [np.full((ROWS, WIDTH), 100, np.float32)])
    assert not found.any()


def test_long_chains_are_no_recursion() -> None:
    x = var("x", ROWS, WIDTH)
    first, second = product(x, 0), product(x, 1)
    for _ in range(3000):
        first = call("negative", first)
    assert operators(round_stored(call("add", first, second), ZEN5))[-1] == "add"


def test_inputs_stay_as_they_are() -> None:
    x = var("x", ROWS, WIDTH)
    body = call("add", product(x), x)
    assert rounded(body, x) == operators(body)


def test_of_two_products_the_one_that_waits_for_the_sum_is_stored_rounded() -> None:
    x = var("x", ROWS, WIDTH)
    first = call("relu", product(x, 0))
    second = call("add", product(x, 1), Constant(np.ones(WIDTH, np.float32)))
    made = rounded(call("add", first, second), x)
    assert made == ["cast", "matmul", "relu", "cast", "matmul", "add", "cast", "cast", "add"]
    unrounded = call("matmul", x, Constant(np.ones((WIDTH, WIDTH), np.float32)))
    body = call("add", product(x, 0), unrounded)
    assert operators(round_stored(body, ZEN5)) == operators(body)


LAYOUT = {"data_layout": "NSC", "kernel_layout": "SIO", "out_layout": "NSC"}


def convolution(x: Expr, outputs: int, kernel: int = 1, groups: int = 1) -> Expr:
    inputs, pad = tensor_type(x).shape[-1], kernel // 2
    rng = np.random.default_rng(kernel)
    w = rng.standard_normal((kernel, kernel, inputs // groups, outputs)).astype("float32")
    padding = ((pad, pad), (pad, pad))
    return call("conv", x, Constant(w), padding=padding, groups=groups, **LAYOUT)


def lowered(x: Var, body: Expr) -> list[tuple[str, str]]:
    """The kernels of a model that may compute in bfloat16, and the dtype of what each stores."""
    module = optimize(allow_precision(module_of([x], body), "bf16"), ZEN5)
    return [(summarize(k), tensor_type(k.body).dtype) for k in kernels_of(module)]


@pytest.mark.parametrize("size, dtype", [(48, BF16), (14, "float32")])
def test_a_depthwise_convolution_reads_large_results_rounded(size: int, dtype: str) -> None:
    x = var("x", 1, size, size, WIDTH)
    inner = call("relu", convolution(x, 2 * WIDTH))
    body = convolution(call("relu", convolution(inner, 2 * WIDTH, 3, 2 * WIDTH)), WIDTH)
    kernels = [k for k in lowered(x, body) if "conv" in k[0]]
    (_, stored), (depthwise, read), _ = kernels
    assert (stored, read) == (dtype, BF16)
    assert depthwise.startswith("cast+ conv") == (dtype == BF16)


def test_averages_read_what_is_stored_for_products() -> None:
    x = var("x", 1, 9, 9, WIDTH)
    value = call("relu", convolution(x, WIDTH))
    mean = call("avg_pool", value, kernel=(3, 3), padding=((1, 1), (1, 1)), data_layout="NSC")
    body = Tuple((convolution(value, WIDTH), convolution(mean, WIDTH)))
    dtypes = {k: dtype for k, dtype in lowered(x, body) if "relu" in k or "avg_pool" in k}
    assert set(dtypes.values()) == {BF16}
    assert any(k.startswith("cast+ avg_pool") for k in dtypes)


@pytest.mark.parametrize("pooled", [False, True])
def test_parts_of_a_concatenation_are_rounded_where_they_are_made(pooled: bool) -> None:
    x = var("x", 1, 8, 8, WIDTH)
    parts = [call("relu", convolution(x, WIDTH, kernel)) for kernel in (1, 3)]
    whole = call("concat", *parts, axis=3)
    readers = [convolution(whole, WIDTH)]
    if pooled:
        largest = call(
            "max_pool", whole, kernel=(3, 3), padding=((1, 1), (1, 1)), data_layout="NSC"
        )
        readers.append(convolution(largest, WIDTH))
    kernels = lowered(x, Tuple(tuple(readers)))
    assert ("concat 1x8x8x64→1x8x8x128", BF16) in kernels
    assert sum(name.endswith("+relu +cast") for name, _ in kernels) == 2


def test_a_concatenation_that_others_read_stays_as_it_is() -> None:
    x = var("x", 1, 8, 8, WIDTH)
    whole = call("concat", *(call("relu", convolution(x, WIDTH, n)) for n in (1, 3)), axis=3)
    kernels = lowered(x, Tuple((convolution(whole, WIDTH), call("softmax", whole, axis=-1))))
    assert not any(name.endswith("+relu +cast") for name, _ in kernels)


def squeezed(x: Var, last: Callable[[Expr], Expr]) -> Expr:
    """A large activation, scaled by what is made of its mean, and what comes of that."""
    value = call("relu", convolution(x, 2 * WIDTH))
    mean = call("mean", value, axes=(1, 2), keepdims=True)
    return last(call("multiply", value, call("sigmoid", mean)))


def test_means_and_scales_read_large_results_rounded_where_a_product_follows() -> None:
    x = var("x", 1, 48, 48, WIDTH)
    lasts: dict[str, Callable[[Expr], Expr]] = {
        BF16: lambda scaled: convolution(scaled, WIDTH),
        "float32": lambda scaled: call("add", scaled, scaled),
    }
    for dtype, last in lasts.items():
        stored = [kind for name, kind in lowered(x, squeezed(x, last)) if "conv" in name]
        assert stored[0] == dtype


def test_products_of_the_user_s_own_bfloat16_are_no_residuals() -> None:
    x = var("x", ROWS, WIDTH)
    narrow = call("cast", x, dtype=BF16)
    both = call("add", call("matmul", narrow, weights(0)), call("matmul", narrow, weights(1)))
    body = Tuple((both, product(x, 2)))
    assert operators(round_stored(body, ZEN5)) == operators(body)


def test_constants_in_a_concatenation_are_rounded_at_once() -> None:
    x = var("x", ROWS, WIDTH)
    token = Constant(np.ones((1, WIDTH), np.float32))
    whole = call("concat", call("relu", x), token, axis=0)
    w = Constant(np.random.default_rng(0).standard_normal((WIDTH, WIDTH)).astype(np.float32))
    kernels = lowered(x, call("matmul", whole, w))
    assert [name.split()[0] for name, _ in kernels] == ["relu", "concat", "matmul"]


def residual_block() -> IRModule:
    """x + f(x) twice, and the mean of it: as in a residual network."""
    x = var("x", 1, 7, 7, WIDTH)
    value: Expr = call("relu", x)
    for seed in range(2):
        rng = np.random.default_rng(seed)
        w = [Constant(rng.standard_normal((1, 1, WIDTH, WIDTH)).astype("float32")) for _ in "ab"]
        inner = call("relu", call("conv", value, w[0], **LAYOUT))
        value = call("relu", call("add", call("conv", inner, w[1], **LAYOUT), value))
    return module_of([x], call("mean", value, axes=(1, 2), keepdims=False))


def test_nothing_between_the_kernels_of_residual_blocks_is_float32() -> None:
    kernels = kernels_of(optimize(allow_precision(residual_block(), "bf16"), ZEN5))
    *stored, last, mean = [(summarize(k), tensor_type(k.body).dtype) for k in kernels]
    assert [dtype for _, dtype in stored] == [BF16] * 4
    assert stored[2][0].endswith("+cast +add +relu +cast")
    assert last[0].endswith("+cast +add +relu")
    assert mean[1] == "float32"


def test_a_residual_network_is_off_by_its_rounding_alone() -> None:
    module = residual_block()
    (name,) = (p.name for p in module.main.params)
    x = np.random.default_rng(2).standard_normal((1, 7, 7, WIDTH)).astype(np.float32)
    (exact,) = evaluate(module, [x])
    built = build_module(allow_precision(module, "bf16"), Target.host(1))
    (found,) = built.run({name: x}).values()
    assert np.abs(found - exact).max() < 0.02 * np.abs(exact).max()
