"""Scans, scatters and sorts, compiled, against NumPy; of sizes that no quadratic loop is for."""

import numpy as np
import pytest
from tunefarm.compiler.dtypes import numpy_dtype
from tunefarm.compiler.evaluate import evaluate
from tunefarm.compiler.ir import Function, IRModule, TensorType, Var
from tunefarm.compiler.ops import call
from tunefarm.compiler.ops.selection import list_room, sample_size
from tunefarm.compiler.target import Target

import tunefarm

RNG = np.random.default_rng(8)


def check(op: str, arrays: list[np.ndarray], **attrs: object) -> None:
    """Compare the compiled operator with its meaning."""
    params = [Var(f"x{i}", TensorType(a.shape, a.dtype.name)) for i, a in enumerate(arrays)]
    module = IRModule({"main": Function(tuple(params), call(op, *params, **attrs))})
    built = tunefarm.build(module, Target.host(2))
    feeds = {p.name: a for p, a in zip(params, arrays, strict=True)}
    (got,) = built.run(feeds).values()
    (want,) = evaluate(module, feeds)
    if want.dtype.kind == "f":
        np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-3)
    else:
        np.testing.assert_array_equal(got, want)


def normal(*shape: int, dtype: str = "float32") -> np.ndarray:
    return (3 * RNG.standard_normal(shape)).astype(dtype)


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("reverse", [False, True])
def test_running_sums(axis: int, exclusive: bool, reverse: bool) -> None:
    check("cumsum", [normal(3, 5, 1)], axis=axis, exclusive=exclusive, reverse=reverse)
    check("cumprod", [normal(1, 2, 4)], axis=axis, exclusive=exclusive, reverse=reverse)


@pytest.mark.parametrize("dtype", ["float16", "float64", "int32"])
def test_running_sums_of_other_dtypes(dtype: str) -> None:
    check("cumsum", [normal(2, 9, dtype=dtype)], axis=1)


def test_a_long_running_sum() -> None:
    check("cumsum", [normal(1, 100_000)], axis=1)


@pytest.mark.parametrize("reduction", ["none", "add", "mul", "max", "min"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "int32"])
def test_scatters(reduction: str, dtype: str) -> None:
    x, updates = normal(5, 3, dtype=dtype), normal(4, 2, dtype=dtype)
    for axis in (0, 1):
        places = RNG.integers(-3, 3, (4, 2))
        check("scatter_elements", [x, places, updates], axis=axis, reduction=reduction)
    places = RNG.integers(-5, 5, (4, 1))
    check("scatter_nd", [x, places, normal(4, 3, dtype=dtype)], reduction=reduction)
    places = RNG.integers(0, 3, (2, 2, 2))
    check("scatter_nd", [x, places, normal(2, 2, dtype=dtype)], reduction=reduction)


def test_an_update_outside_of_the_data_is_left_out() -> None:
    x, places = normal(4), np.array([-9, 2, 100])
    params = [Var(n, TensorType(s, d)) for n, s, d in (
        ("x", (4,), "float32"), ("i", (3,), "int64"), ("u", (3,), "float32"))]  # fmt: skip
    module = IRModule({"main": Function(tuple(params), call("scatter_elements", *params))})
    built = tunefarm.build(module, Target.host(1))
    (got,) = built.run({"x": x, "i": places, "u": normal(3)}).values()
    np.testing.assert_array_equal(got[[0, 1, 3]], x[[0, 1, 3]])


def test_a_long_scatter() -> None:
    places = RNG.integers(0, 100_000, (50_000, 1))
    check("scatter_nd", [normal(100_000), places, normal(50_000)], reduction="add")


@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("shape, axis, k", [
    ((3, 7), 1, 3), ((7, 3), 0, 7), ((2, 50, 3), 1, 40), ((5, 33), 1, 33),
    ((2, 300), 1, 37), ((1, 1), 1, 1),
])  # fmt: skip
def test_the_places_of_the_best(shape: tuple[int, ...], axis: int, k: int, largest: bool) -> None:
    """Whole numbers have many ties: the first of equals comes first."""
    for dtype in ("float32", "float16", "int32"):
        check("topk_indices", [np.rint(normal(*shape)).astype(dtype)], axis=axis, k=k,
              largest=largest)  # fmt: skip


@pytest.mark.parametrize("k", [5, 40])
@pytest.mark.parametrize("largest", [True, False])
def test_nan_is_the_largest(k: int, largest: bool) -> None:
    x = normal(2, 50)
    x[0, [3, 17]] = x[1, 49] = np.nan
    check("topk_indices", [x], axis=1, k=k, largest=largest)


@pytest.mark.parametrize("k", [10, 1000])
def test_the_best_of_many(k: int) -> None:
    check("topk_indices", [normal(1, 100_000)], axis=1, k=k)


SELECTED = [
    ((2, 3600), 1, 300), ((3101, 3), 0, 257), ((1, 5003), 1, 401), ((2, 140), 1, 40),
    ((3, 600), 1, 400), ((1, 20000), 1, 1500),
]  # fmt: skip


@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("shape, axis, k", SELECTED)
def test_the_best_by_a_pivot(shape: tuple[int, ...], axis: int, k: int, largest: bool) -> None:
    """Of elements in order, in the worst order, in any order, with many ties and with NaN."""
    assert list_room(shape[axis], k) <= shape[axis]
    random = np.rint(normal(*shape))
    random[0, ::50] = np.nan
    orders = (np.sort(random, axis), -np.sort(-random, axis), np.zeros_like(random))
    for x in (random, normal(*shape), *orders):
        check("topk_indices", [x], axis=axis, k=k, largest=largest)


@pytest.mark.parametrize("k", [300, 40])
def test_the_best_where_the_sample_misleads(k: int) -> None:
    """What is sampled is less than all else, so that all else is ahead of every pivot."""
    x = normal(2, 3600)
    step = 3600 // sample_size(3600)
    x[:, :: step - (step % 2 == 0)] -= 100
    check("topk_indices", [x], axis=1, k=k)
    check("topk_indices", [-x], axis=1, k=k, largest=False)


@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("shape, k", [((3, 500), 480), ((2, 33), 17), ((1, 512), 512)])
def test_the_best_by_counting(shape: tuple[int, ...], k: int, largest: bool) -> None:
    assert list_room(shape[1], k) > shape[1]
    x = np.rint(normal(*shape))
    x[0, ::7] = np.nan
    check("topk_indices", [x], axis=1, k=k, largest=largest)


@pytest.mark.parametrize("k", [5, 40, 190])
@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize(
    "dtype", ["int8", "uint8", "int64", "uint32", "float64", "float16", "bfloat16"]
)
def test_the_best_of_every_dtype(dtype: str, largest: bool, k: int) -> None:
    x = np.abs(normal(2, 203)) if dtype.startswith("u") else normal(2, 203)
    x = x.astype(numpy_dtype(dtype))
    if x.dtype.kind in "iu":
        x[:, 3] = np.iinfo(dtype).min
        x[:, [7, 9]] = np.iinfo(dtype).max
    check("topk_indices", [x], axis=1, k=k, largest=largest)


@pytest.mark.parametrize("k", [10, 60, 150, 203])
@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_what_pads_a_row_is_never_among_the_best(value: float, largest: bool, k: int) -> None:
    x = np.full((1, 203), value, np.float32)
    check("topk_indices", [x], axis=1, k=k, largest=largest)
    x[:, ::3] = normal(1, 68)
    check("topk_indices", [x], axis=1, k=k, largest=largest)
