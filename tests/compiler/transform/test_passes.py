"""Each pass by itself: what it rewrites to, and that the meaning stays."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from pass_harness import agree, module_of, number, operators, var
from tunefarm.compiler.errors import TunefarmError
from tunefarm.compiler.extract import extract_tasks
from tunefarm.compiler.ir import (
    Call,
    Constant,
    Expr,
    Function,
    IRModule,
    TensorType,
    Tuple,
    TupleGetItem,
    Var,
)
from tunefarm.compiler.ops import call
from tunefarm.compiler.target import Target
from tunefarm.compiler.transform import PassContext, optimize
from tunefarm.compiler.transform.canonicalize_ops import canonicalize_ops
from tunefarm.compiler.transform.combine_parallel import combine_parallel
from tunefarm.compiler.transform.eliminate_common_subexpressions import (
    eliminate_common_subexpressions,
)
from tunefarm.compiler.transform.eliminate_dead_code import eliminate_dead_code
from tunefarm.compiler.transform.fold_constants import fold_constants
from tunefarm.compiler.transform.fold_scale_axis import fold_scale_axis
from tunefarm.compiler.transform.infer_types import infer_types
from tunefarm.compiler.transform.legalize import legalize
from tunefarm.compiler.transform.simplify_inference import simplify_inference

TARGET = Target("llvm")
RNG = np.random.default_rng(11)


def const(*shape: int) -> Constant:
    return Constant(RNG.standard_normal(shape).astype(np.float32))


def apply(step: Callable[[IRModule, Target], IRModule], x: Var | Sequence[Var], body: Expr) -> Expr:
    """The body after the pass, which must not change the result."""
    params = (x,) if isinstance(x, Var) else tuple(x)
    module = module_of(params, body)
    after = step(module, TARGET)
    infer_types(after, TARGET)
    inputs = [np.abs(RNG.standard_normal(p.type.shape)).astype(p.type.dtype) for p in params]
    agree(after, module, inputs)
    return after.main.body


def test_batch_norm_becomes_scale_and_shift() -> None:
    x = var("x", 2, 3, 4, 4)
    variance = Constant(RNG.random(3).astype(np.float32) + 1)
    y = call("batch_norm", x, const(3), const(3), const(3), variance, epsilon=1e-3)
    assert operators(apply(simplify_inference, x, y)) == ["multiply", "add"]


def test_batch_norm_with_variable_statistics() -> None:
    x, variance = var("x", 2, 4, 3), Var("v", TensorType((3,), "float32"))
    y = call("batch_norm", x, const(3), const(3), const(3), variance, axis=-1)
    assert "batch_norm" not in operators(apply(simplify_inference, [x, variance], y))


def test_constants_fold_unless_the_result_is_large() -> None:
    x = var("x", 3)
    y = call("add", x, call("multiply", const(3), const(3)))
    assert operators(apply(fold_constants, x, y)) == ["add"]
    large = call("broadcast_to", const(1), shape=(1 << 20,))
    z = call("add", x, call("mean", large, axes=(0,)))
    assert operators(apply(fold_constants, x, z)) == ["broadcast_to", "mean", "add"]


@pytest.mark.parametrize("chosen", [True, False])
def test_a_condition_that_is_the_same_everywhere_chooses_when_the_model_is_built(
    chosen: bool,
) -> None:
    x, y = var("x", 4, 3), var("y", 3)
    condition = Constant(np.full((4, 1), chosen))
    found = apply(fold_constants, (x, y), call("relu", call("where", condition, x, y)))
    assert operators(found) == (["relu"] if chosen else ["broadcast_to", "relu"])
    either = Constant(np.array([[True], [True], [False], [True]]))
    assert operators(apply(fold_constants, (x, y), call("where", either, x, y))) == ["where"]


@pytest.mark.parametrize("layout", [("NCS", "OIS"), ("NSC", "SIO")])
def test_scales_fold_into_convolutions_from_both_sides(layout: tuple[str, str]) -> None:
    last = layout[0] == "NSC"
    x = var("x", 1, 5, 5, 3) if last else var("x", 1, 3, 5, 5)
    w = const(3, 3, 3, 6) if last else const(6, 3, 3, 3)
    before = const(3) if last else const(3, 1, 1)
    after = const(6) if last else const(6, 1, 1)
    y = call(
        "conv", call("multiply", x, before), w, padding=((1, 1), (1, 1)),
        data_layout=layout[0], kernel_layout=layout[1],
    )  # fmt: skip
    y = call("multiply", call("add", y, after), after)
    assert operators(apply(fold_scale_axis, x, y)) == ["conv", "add"]


def test_chained_scales_and_shifts_become_one() -> None:
    x = var("x", 1, 4, 5, 5)
    y: Expr = x
    for _ in range(3):
        y = call("add", call("multiply", y, const(4, 1, 1)), const(4, 1, 1))
    assert operators(apply(fold_scale_axis, x, call("relu", y))) == ["multiply", "add", "relu"]


@pytest.mark.parametrize("transpose_b", [False, True])
def test_scales_fold_into_matrix_products(transpose_b: bool) -> None:
    x = var("x", 4, 6)
    w = const(5, 6) if transpose_b else const(6, 5)
    y = call("matmul", call("multiply", x, const(6)), w, transpose_b=transpose_b)
    assert operators(apply(fold_scale_axis, x, call("multiply", y, const(5)))) == ["matmul"]


def test_scales_stay_where_folding_would_be_wrong() -> None:
    x = var("x", 1, 4, 5, 5)
    y = call("conv", x, const(4, 4, 1, 1))
    both = call("add", call("multiply", y, const(4, 1, 1)), y)
    assert "multiply" in operators(apply(fold_scale_axis, x, both))
    grouped = call("conv", call("multiply", x, const(4, 1, 1)), const(4, 2, 1, 1), groups=2)
    assert "multiply" in operators(apply(fold_scale_axis, x, grouped))
    rows = call("multiply", y, const(5, 1))
    assert "multiply" in operators(apply(fold_scale_axis, x, rows))


def gelu(x: Expr) -> Expr:
    inner = call("erf", call("divide", x, number(2**0.5)))
    gate = call("add", inner, number(1))
    return call("multiply", call("multiply", x, gate), number(0.5))


@pytest.mark.parametrize(
    "build, expected",
    [
        (lambda x: call("divide", x, number(4)), ["multiply"]),
        (lambda x: call("subtract", x, number(4)), ["add"]),
        (lambda x: call("add", number(4), x), ["add"]),
        (lambda x: call("multiply", call("add", x, number(0)), number(1)), []),
        (lambda x: call("multiply", call("multiply", x, number(3)), const(5)), ["multiply"]),
        (lambda x: call("power", x, number(2)), ["multiply"]),
        (lambda x: call("power", x, number(0.5)), ["sqrt"]),
        (lambda x: call("maximum", x, number(0)), ["relu"]),
        (lambda x: call("clip", x, min=0.0), ["relu"]),
        (lambda x: call("clip", x, min=0.0, max=6.0), ["clip"]),
        (lambda x: call("multiply", x, call("sigmoid", x)), ["silu"]),
        (gelu, ["gelu"]),
        (lambda x: call("cast", call("cast", x, dtype="float64"), dtype="float32"), []),
        (lambda x: call("cast", call("cast", x, dtype="int32"), dtype="float32"), ["cast"] * 2),
        (lambda x: call("reshape", call("reshape", x, shape=(20,)), shape=(5, 4)), ["reshape"]),
        (lambda x: call("transpose", call("transpose", x, axes=(1, 0)), axes=(1, 0)), []),
        (lambda x: call("add", x, const(1, 5)), ["add"]),
        (lambda x: call("slice", x, begin=(0, 0), size=(4, 5), strides=(1, 1)), []),
    ],
)
def test_canonical_spelling(build: Callable[[Expr], Expr], expected: list[str]) -> None:
    x = var("x", 4, 5)
    assert operators(apply(canonicalize_ops, x, build(x))) == expected


def test_reversal_by_slice_is_no_identity() -> None:
    x = var("x", 4)
    y = call("slice", x, begin=(3,), size=(4,), strides=(-1,))
    assert operators(apply(canonicalize_ops, x, y)) == ["slice"]


def test_padding_moves_into_convolutions() -> None:
    x = var("x", 1, 2, 4, 4)
    padded = call("pad", x, padding=((0, 0), (0, 0), (1, 0), (2, 1)))
    y = call("conv", padded, const(3, 2, 3, 3), padding=((0, 1), (0, 0)))
    after = apply(canonicalize_ops, x, y)
    assert isinstance(after, Call)
    assert after.attrs["padding"] == ((1, 1), (2, 1))
    channels = call("pad", x, padding=((0, 0), (1, 0), (0, 0), (0, 0)))
    y = call("conv", channels, const(3, 3, 3, 3))
    assert operators(apply(canonicalize_ops, x, y)) == ["pad", "conv"]


@pytest.mark.parametrize("pool, reduction", [("avg_pool", "mean"), ("max_pool", "max")])
def test_a_window_of_the_whole_map_is_a_reduction(pool: str, reduction: str) -> None:
    x = var("x", 1, 3, 4, 5)
    y = call(pool, x, kernel=(4, 5))
    assert operators(apply(canonicalize_ops, x, y)) == [reduction]


def test_rows_of_batched_products_and_row_operators_are_joined() -> None:
    x = var("x", 2, 3, 8)
    y = call("add", call("matmul", x, const(8, 5)), const(5))
    y = call("layer_norm", call("softmax", y, axis=-1), const(5), const(5))
    after = apply(legalize, x, y)
    assert operators(after) == ["reshape", "matmul", "add", "softmax", "layer_norm", "reshape"]


def test_convolution_in_one_dimension_becomes_two() -> None:
    x = var("x", 1, 9, 4)
    y = call(
        "conv", x, const(3, 4, 6), strides=(2,), padding=((1, 1),), dilations=(1,),
        data_layout="NSC", kernel_layout="SIO",
    )  # fmt: skip
    after = apply(legalize, x, call("relu", call("add", y, const(6))))
    assert operators(after) == ["reshape", "conv", "add", "relu", "reshape"]


def test_empty_results_are_constants() -> None:
    x = var("x", 0, 4)
    assert isinstance(apply(legalize, x, call("relu", x)), Constant)


def test_common_subexpressions_are_computed_once() -> None:
    x = var("x", 4)
    y = call("add", call("exp", call("add", x, number(2))), call("exp", call("add", x, number(2))))
    assert operators(apply(eliminate_common_subexpressions, x, y)) == ["add", "exp", "add"]


def test_dead_code_goes() -> None:
    x = var("x", 4)
    y = TupleGetItem(Tuple((call("exp", x), call("relu", x))), 1)
    assert operators(apply(eliminate_dead_code, x, call("add", y, y))) == ["relu", "add"]
    unused = Function((x,), x)
    module = IRModule({"main": Function((x,), call("relu", x)), "unused": unused})
    assert list(eliminate_dead_code(module, TARGET).functions) == ["main"]


@pytest.mark.parametrize("biased", [False, True])
def test_parallel_products_combine(biased: bool) -> None:
    x = var("x", 3, 8)
    parts: list[Expr] = []
    for width in (4, 6, 4):
        y = call("matmul", x, const(8, width))
        parts.append(call("relu", call("add", y, const(width)) if biased else y))
    after = apply(combine_parallel, x, Tuple(tuple(parts)))
    assert operators(after).count("matmul") == 1
    assert operators(after).count("add") == int(biased)


def test_parallel_convolutions_combine_if_their_attributes_agree() -> None:
    x = var("x", 1, 6, 6, 4)
    nsc = {"data_layout": "NSC", "kernel_layout": "SIO"}
    same = [call("conv", x, const(1, 1, 4, n), **nsc) for n in (2, 3)]  # type: ignore[arg-type]
    other = call("conv", x, const(1, 1, 4, 2), strides=(2, 2), **nsc)  # type: ignore[arg-type]
    assert operators(apply(combine_parallel, x, Tuple((*same, other)))).count("conv") == 2


def test_infer_types_finds_a_wrong_type() -> None:
    x = var("x", 4)
    wrong = Call("relu", (x,), {}, TensorType((5,), "float32"))
    with pytest.raises(AssertionError, match=r"relu .* is float32\[5\], not float32\[4\]"):
        infer_types(IRModule({"main": Function((x,), wrong)}), TARGET)


class Recorder:
    def __init__(self) -> None:
        self.names: list[str] = []

    def before(self, name: str, module: IRModule) -> None:
        self.names.append(name)

    def after(self, name: str, module: IRModule, seconds: float) -> None:
        assert seconds >= 0


def test_pass_context_chooses_and_shows_the_passes() -> None:
    x = var("x", 4)
    module = IRModule({"main": Function((x,), call("relu", x))})

    def names(**options: object) -> list[str]:
        recorder = Recorder()
        with PassContext(instruments=(recorder,), **options):  # type: ignore[arg-type]
            optimize(module, TARGET)
        return recorder.names

    assert "fold_scale_axis" in names()
    assert "fold_scale_axis" not in names(opt_level=1)
    assert "fold_scale_axis" in names(opt_level=0, required_pass=("fold_scale_axis",))
    assert "convert_layout" not in names(disabled_pass=("convert_layout",))
    assert "combine_parallel" not in names()
    with pytest.raises(TunefarmError, match="no pass 'vectorise'"):
        names(disabled_pass=("vectorise",))
    assert PassContext.current() == PassContext()


def test_fusion_can_be_limited() -> None:
    x = var("x", 4, 4)
    y: Expr = call("matmul", x, const(4, 4))
    for _ in range(6):
        y = call("tanh", y)
    module = IRModule({"main": Function((x,), y)})
    with PassContext(config={"fuse_ops.max_nodes": 3}):
        limited = optimize(module, TARGET)
    assert operators(limited.main.body) != operators(optimize(module, TARGET).main.body)
    with PassContext(config={"fuse_ops.max_nodes": "many"}), pytest.raises(TunefarmError):
        optimize(module, TARGET)


def test_tasks_leave_out_what_is_not_worth_tuning() -> None:
    x = var("x", 1, 3, 8, 8)
    y = call("relu", call("conv", x, const(4, 3, 3, 3)))
    y = call("add", call("matmul", call("reshape", y, shape=(1, 144)), const(144, 5)), const(5))
    tasks = extract_tasks(IRModule({"main": Function((x,), y)}), TARGET)
    names = [t.name for t in tasks]
    assert names == ["conv 3x3 s1 1x3x8x8→4 +relu", "matmul 1x144 @ 144x5 +add"]
    assert tasks[0].workload.flops > 2 * 36 * 4 * 27
