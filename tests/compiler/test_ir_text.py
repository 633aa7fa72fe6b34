"""Printing and parsing modules, and structural hash and equality."""

import time

import numpy as np
import pytest
from tunefarm.compiler.errors import ModelError
from tunefarm.compiler.ir import (
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
from tunefarm.compiler.parser import parse_module
from tunefarm.compiler.printer import module_text
from tunefarm.compiler.structural import structural_equal, structural_hash
from tunefarm.compiler.target import Target
from tunefarm.compiler.transform import optimize


def small_network(scale: float = 0.5, seed: int = 0) -> IRModule:
    rng = np.random.default_rng(seed)
    x = Var("input.1", TensorType((1, 4, 6, 6), "float32"))
    s = Var("s", TensorType((), "float32"))
    w = Constant(rng.standard_normal((8, 4, 3, 3)).astype(np.float32), "conv.weight")
    y: Expr = call("conv", x, w, name="/layer/conv")
    y = call("relu", call("multiply", y, Constant(np.array(scale, np.float32))))
    y = call("clip", call("multiply", y, s), max=float("inf"))
    body = Tuple((y, call("mean", y, axes=(2, 3))))
    return IRModule({"main": Function((x, s), body)}, ("map", "pooled"))


@pytest.mark.parametrize("optimized", [False, True])
def test_print_and_parse_back(optimized: bool) -> None:
    module = small_network()
    if optimized:
        module = optimize(module, Target("llvm"))
    text, constants = module_text(module)
    again = parse_module(text, constants)
    assert structural_equal(again.main, module.main)
    assert again.output_names == ("map", "pooled")
    assert [p.name for p in again.main.params] == ["input.1", "s"]
    assert module_text(again)[0] == text


def test_a_modules_text_and_constants_make_it_again() -> None:
    module = small_network()
    assert list(module.constants) == ["c0"]
    again = parse_module(str(module), module.constants)
    assert structural_equal(again.main, module.main)
    with pytest.raises(ModelError, match=r"constant 'c0' .* pass module\.constants too"):
        parse_module(str(module))
    with pytest.raises(ModelError, match="not IRModule and NoneType; for instance str"):
        parse_module(module)  # type: ignore[arg-type]


def test_text_is_readable() -> None:
    assert str(small_network()) == (
        "output_names = ('map', 'pooled')\n"
        "\n"
        "def main(input_1: float32[1, 4, 6, 6] = 'input.1', s: float32[()] = 's'):\n"
        "    v0 = conv(input_1, const[\"c0\"], name='/layer/conv')  # float32[1, 8, 4, 4]\n"
        '    v1 = multiply(v0, const(0.5, "float32"))  # float32[1, 8, 4, 4]\n'
        "    v2 = relu(v1)  # float32[1, 8, 4, 4]\n"
        "    v3 = multiply(v2, s)  # float32[1, 8, 4, 4]\n"
        "    v4 = clip(v3, max=inf)  # float32[1, 8, 4, 4]\n"
        "    v5 = mean(v4, axes=(2, 3))  # float32[1, 8, 1, 1]\n"
        "    v6 = (v4, v5)  # (float32[1, 8, 4, 4], float32[1, 8, 1, 1])\n"
        "    return v6\n"
    )


def test_special_values_and_empty_constants_survive() -> None:
    data = np.array([np.nan, np.inf, -np.inf, 1e-45], np.float32)
    empty = Constant(np.zeros((0, 3), np.int64), "nothing")
    pair = Tuple((Constant(data), empty, Constant(np.array([True, False]))))
    module = IRModule({"main": Function((), Tuple((TupleGetItem(pair, 0), empty)))})
    again = parse_module(*module_text(module))
    assert structural_equal(again.main, module.main)


@pytest.mark.parametrize(
    "text, message",
    [
        ("def main(x float32):", "line 1 "),
        ("import os", "line 1 of the module's text is not understood: import os"),
        ("def main():\n    v0 = (1).__class__\n    return v0", "line 2 .*not understood"),
        ("def main():\n    return const['c7']", "'c7' .* not in the table"),
        ("def main(x: float32[2]):\n    return nothing(x)", "line 2 .*no operator 'nothing'"),
        (
            "def main(x: float32[2]):\n    return add(x, const([1.0, 2.0, 3.0], 'float32'))",
            "line 2",
        ),
        ("def other(x: float32[2]):\n    return x", "no function 'main'"),
        ("def main(x: thing[2]):\n    return x", "line 1"),
        ("def main(x: float32[2]):\n    v0 = relu(x)", "returns nothing"),
    ],
)
def test_bad_text_is_refused_with_its_line(text: str, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        parse_module(text)


def chain(length: int, last: str = "relu") -> Function:
    x = Var("x", TensorType((4,), "float32"))
    y: Expr = x
    for _ in range(length):
        y = call("relu", y)
    return Function((x,), call(last, y))


def residual(depth: int) -> Function:
    x = Var("x", TensorType((4,), "float32"))
    y: Expr = x
    for _ in range(depth):
        y = call("add", call("relu", y), y)
    return Function((x,), y)


def test_a_chain_of_5000_nodes() -> None:
    assert structural_hash(chain(5000)) == structural_hash(chain(5000))
    assert structural_equal(chain(5000), chain(5000))
    assert not structural_equal(chain(5000), chain(5000, "exp"))
    assert structural_hash(chain(5000)) != structural_hash(chain(5000, "exp"))
    parsed = parse_module(str(IRModule({"main": chain(5000)})))
    assert structural_equal(parsed.main, chain(5000))


def test_a_residual_network_takes_linear_time() -> None:
    started = time.process_time()
    assert structural_hash(residual(60)) == structural_hash(residual(60))
    assert structural_equal(residual(60), residual(60))
    assert not structural_equal(residual(60), residual(59))
    assert time.process_time() - started < 5  # exponential time would be 2**60 steps


def test_names_do_not_matter_and_values_do() -> None:
    assert structural_equal(small_network().main, small_network().main)
    assert not structural_equal(small_network(0.5).main, small_network(0.6).main)
    assert not structural_equal(small_network(seed=0).main, small_network(seed=1).main)
    assert structural_hash(small_network(seed=0).main) != structural_hash(
        small_network(seed=1).main
    )


def test_which_parameter_is_used_matters() -> None:
    a, b = (Var(n, TensorType((4,), "float32")) for n in "ab")
    first, second = Function((a, b), call("relu", a)), Function((a, b), call("relu", b))
    assert not structural_equal(first, second)
    assert structural_hash(first) != structural_hash(second)


def test_sharing_does_not_matter() -> None:
    x = Var("x", TensorType((4,), "float32"))
    shared = call("exp", x)
    once = Function((x,), call("add", shared, shared))
    twice = Function((x,), call("add", call("exp", x), call("exp", x)))
    assert structural_equal(once, twice)
    assert structural_hash(once) == structural_hash(twice)
