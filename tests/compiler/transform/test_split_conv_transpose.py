"""Transposed convolutions as interleaved convolutions: the same meaning, without the zeros."""

import numpy as np
import pytest
from pass_harness import agree, calls
from tunefarm.compiler.evaluate import evaluate
from tunefarm.compiler.ir import Constant, Function, IRModule, TensorType, Var
from tunefarm.compiler.ops import call
from tunefarm.compiler.ops.base import flops_of
from tunefarm.compiler.target import Target
from tunefarm.compiler.transform import optimize
from tunefarm.compiler.transform.convert_layout import convert_layout
from tunefarm.compiler.transform.legalize import legalize

import tunefarm

TARGET = Target.host(1)


def deconvolution(
    data: tuple[int, ...], outputs: int, kernel: tuple[int, ...], stride: int, groups: int = 1,
    padding: tuple[int, int] = (0, 0), dilation: int = 1, output_padding: int = 0,
) -> IRModule:  # fmt: skip
    rng, rank = np.random.default_rng(2), len(kernel)
    x = Var("x", TensorType(data, "float32"))
    shape = (data[1], outputs // groups, *kernel)
    body = call(
        "conv_transpose", x, Constant(rng.standard_normal(shape).astype(np.float32)),
        strides=(stride,) * rank, padding=(padding,) * rank, dilations=(dilation,) * rank,
        groups=groups, output_padding=(output_padding,) * rank,
    )  # fmt: skip
    return IRModule({"main": Function((x,), body)})


def lowered(module: IRModule) -> IRModule:
    """The module after legalisation, which must not change the result."""
    after = legalize(convert_layout(module, TARGET), TARGET)
    (x,) = module.main.params
    inputs = [np.random.default_rng(1).standard_normal(x.type.shape).astype(np.float32)]
    agree(after, module, inputs, atol=1e-4)
    return after


def test_random_ones_keep_their_meaning() -> None:
    rng = np.random.default_rng(0)
    split = 0
    for _ in range(80):
        rank, groups = int(rng.integers(1, 4)), int(rng.choice([1, 1, 2, 3]))
        kernel = tuple(int(k) for k in rng.integers(1, 5, rank))
        stride, dilation = int(rng.integers(1, 4)), int(rng.integers(1, 4))
        data = (int(rng.integers(1, 3)), groups * int(rng.integers(1, 3)),
                *(int(e) for e in rng.integers(3, 7, rank)))  # fmt: skip
        room = dilation * (min(kernel) - 1)
        padding = tuple(int(p) for p in rng.integers(0, min(room, 2) + 1, 2))
        extra = int(rng.integers(0, max(stride, dilation)))
        module = deconvolution(
            data, groups * int(rng.integers(1, 4)), kernel, stride, groups,
            (padding[0], padding[1]), dilation, extra,
        )  # fmt: skip
        split += all(n.op != "conv_transpose" for n in calls(lowered(module).main.body))
    assert split > 70


@pytest.mark.parametrize(
    "kernel, stride, padding, extra, channels, convolutions",
    [
        (2, 2, (0, 0), 0, 16, 1),  # nothing is shared: one product with four times the channels
        (4, 2, (1, 1), 0, 16, 4),  # four windows of 2 × 2
        (3, 2, (1, 1), 1, 16, 4),  # windows of 1, 2, 2 and 4 taps
        (4, 2, (1, 1), 0, 2, 1),  # two channels fill no vector: all classes side by side do
        (3, 1, (1, 1), 0, 16, 1),
    ],
)
def test_how_many_convolutions(
    kernel: int, stride: int, padding: tuple[int, int], extra: int, channels: int, convolutions: int
) -> None:
    module = deconvolution(
        (1, 16, 6, 5), channels, (kernel,) * 2, stride, padding=padding, output_padding=extra
    )
    found = [
        n for n in calls(lowered(module).main.body) if n.op in ("conv", "matmul", "conv_transpose")
    ]
    assert [n.op for n in found] == ["conv"] * convolutions


def test_no_inserted_zero_is_multiplied() -> None:
    module = deconvolution((1, 16, 8, 8), 16, (4, 4), 2, padding=(1, 1))
    before = sum(flops_of(n) for n in calls(module.main.body) if n.op == "conv_transpose")
    after = sum(flops_of(n) for n in calls(lowered(module).main.body) if n.op == "conv")
    assert after == before == 2 * 16 * 16 * 16 * 64


def test_a_variable_kernel_stays() -> None:
    x, w = (Var(n, TensorType((1, 2, 4, 4), "float32")) for n in "xw")
    wide = call("slice", w, begin=(0, 0, 0, 0), size=(1, 2, 3, 3), strides=(1, 1, 1, 1))
    wide = call("concat", wide, wide, axis=0)
    body = call("conv_transpose", x, wide, strides=(2, 2))
    module = IRModule({"main": Function((x, w), body)})
    after = legalize(convert_layout(module, TARGET), TARGET)
    assert [n.op for n in calls(after.main.body)].count("conv_transpose") == 1


@pytest.mark.parametrize("rank, kernel, stride", [(1, 4, 2), (2, 3, 2), (2, 2, 2), (3, 3, 2)])
def test_compiled_with_bias_and_activation(rank: int, kernel: int, stride: int) -> None:
    module = deconvolution((1, 5, *(5, 4, 3)[:rank]), 6, (kernel,) * rank, stride, padding=(1, 0))
    bias = Constant(np.arange(6, dtype=np.float32).reshape(6, *(1,) * rank) / 6)
    main = module.main
    body = call("relu", call("add", main.body, bias))
    module = module.with_main(Function(main.params, body))
    x = np.random.default_rng(4).standard_normal(main.params[0].type.shape).astype(np.float32)
    (got,) = tunefarm.build(module, TARGET).run({"x": x}).values()
    np.testing.assert_allclose(got, evaluate(module, [x])[0], rtol=1e-4, atol=1e-5)
    assert "conv_transpose" not in str(optimize(module, TARGET))
