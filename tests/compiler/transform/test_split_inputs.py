"""Convolutions of many inputs as sums of ones of some: the same meaning, where it pays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from pass_harness import agree, calls, module_of, var
from tunefarm.compiler.evaluate import evaluate
from tunefarm.compiler.ir import Call, Constant, Expr, IRModule, tensor_type
from tunefarm.compiler.ops import call
from tunefarm.compiler.space.winograd import parts
from tunefarm.compiler.target import Target
from tunefarm.compiler.transform import optimize, split_inputs

import tunefarm

TARGET = Target("llvm -mcpu=znver5 -num-cores=1")
VOLUME = {"taps": (3, 3, 3), "strides": (1, 1, 1), "dilations": (1, 1, 1)}


def convolved(x: Expr, outputs: int, taps: tuple[int, ...] = (3, 3), **attrs: Any) -> Expr:
    inputs = tensor_type(x).shape[-1] // attrs.get("groups", 1)
    weights = np.random.default_rng(2).standard_normal((*taps, inputs, outputs))
    padding = tuple((k // 2, k // 2) for k in taps)
    return call(
        "conv",
        x,
        Constant((0.1 * weights).astype(np.float32)),
        **{"data_layout": "NSC", "kernel_layout": "SIO", "padding": padding, **attrs},
    )


def module(shape: tuple[int, ...], outputs: int, **attrs: Any) -> IRModule:
    x = var("x", *shape)
    return module_of([x], convolved(x, outputs, **attrs))


def inputs_of(module: IRModule) -> list[int]:
    """Of each convolution."""
    convolutions = [n for n in calls(module.main.body) if n.op == "conv"]
    return [tensor_type(n.args[0]).shape[-1] for n in convolutions]


def forced(monkeypatch: pytest.MonkeyPatch, least: int = 16, most: int = 32) -> None:
    """Every convolution splits that can be split."""
    monkeypatch.setattr(parts, "LEAST", least)
    monkeypatch.setattr(parts, "MOST", most)
    monkeypatch.setattr(split_inputs, "WORTH", 1e-3)
    monkeypatch.setattr(split_inputs, "METHODS", ())  # whichever sketch computes the parts


def test_random_ones_keep_their_meaning(monkeypatch: pytest.MonkeyPatch) -> None:
    forced(monkeypatch)
    rng, split = np.random.default_rng(0), 0
    for _ in range(30):
        shape = (int(rng.integers(1, 3)), *(int(e) for e in rng.integers(4, 9, 2)))
        channels = int(rng.choice([33, 48, 64, 80, 96]))
        taps = ((3, 3), (1, 3), (5, 1), (7, 7))[int(rng.integers(4))]
        before = module((*shape, channels), 17, taps=taps)
        after = split_inputs.split_inputs(before, TARGET)
        agree(
            after, before, [rng.standard_normal((*shape, channels)).astype(np.float32)], atol=1e-4
        )
        split += len(inputs_of(after)) > 1
    assert split > 15


def test_volumes_count_the_inputs_of_all_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    before = module((1, 2, 14, 14, 256), 256, **VOLUME)
    assert inputs_of(split_inputs.split_inputs(before, TARGET)) == [64] * 4
    forced(monkeypatch, least=48, most=64)
    before = module((2, 3, 6, 5, 64), 17, **VOLUME)
    after = split_inputs.split_inputs(before, TARGET)
    assert inputs_of(after) == [16] * 4
    x = np.random.default_rng(0).standard_normal((2, 3, 6, 5, 64)).astype(np.float32)
    agree(after, before, [x], atol=1e-4)


def test_concatenations_of_whole_parts_are_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    forced(monkeypatch, least=32)
    a, b, c = (var(name, 1, 5, 6, n) for name, n in (("a", 32), ("b", 64), ("c", 32)))
    joined = call("concat", a, b, c, axis=3)
    before = module_of([a, b, c], convolved(joined, 16))
    after = split_inputs.split_inputs(before, TARGET)
    assert inputs_of(after) == [32] * 4
    names = [str(n.op) for n in calls(after.main.body)]
    assert "concat" not in names
    assert names.count("slice") == 2
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(tensor_type(p).shape).astype(np.float32) for p in (a, b, c)]
    agree(after, before, arrays, atol=1e-4)


def test_concatenations_across_a_cut_are_read_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    forced(monkeypatch, least=32)
    a, b = var("a", 1, 5, 6, 24), var("b", 1, 5, 6, 40)
    before = module_of([a, b], convolved(call("concat", a, b, axis=3), 16))
    after = split_inputs.split_inputs(before, TARGET)
    assert inputs_of(after) == [32, 32]
    assert [str(n.op) for n in calls(after.main.body)].count("concat") == 1
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(tensor_type(p).shape).astype(np.float32) for p in (a, b)]
    agree(after, before, arrays, atol=1e-4)


@pytest.mark.parametrize(
    "shape, outputs, attrs",
    [
        ((1, 7, 7, 512), 512, {}),  # waits for its weights, whichever way
        ((1, 28, 28, 256), 256, {}),
        ((1, 28, 28, 512), 512, {"taps": (1, 1)}),
        ((1, 28, 28, 512), 512, {"groups": 2}),
        ((1, 28, 28, 512), 512, {"dilations": (3, 2)}),
        ((1, 4, 4, 2048), 64, {"strides": (3, 3)}),  # parts that sum directly
        ((1, 4, 5, 5, 2048), 16, VOLUME),
    ],
)
def test_what_would_not_gain_stays(
    shape: tuple[int, ...], outputs: int, attrs: dict[str, Any]
) -> None:
    before = module(shape, outputs, **attrs)
    assert split_inputs.split_inputs(before, TARGET).main.body is before.main.body


def test_strict_targets_and_others_keep_theirs() -> None:
    before = module((1, 32, 32, 2048), 64)
    for target in ("llvm -mcpu=znver5 -num-cores=1 -precision=strict", "cuda -arch=sm_90a"):
        assert split_inputs.split_inputs(before, Target(target)) is before


def test_readers_share_the_parts_of_what_they_read() -> None:
    x = var("x", 1, 14, 14, 512)
    body = call("add", convolved(x, 512), convolved(x, 512))
    after = split_inputs.split_inputs(module_of([x], body), TARGET)
    assert inputs_of(after) == [256] * 4
    assert [str(n.op) for n in calls(after.main.body)].count("slice") == 2


def test_what_gains_is_built_and_computes_the_same() -> None:
    before = module((1, 13, 14, 1024), 64)
    assert inputs_of(split_inputs.split_inputs(before, TARGET)) == [256] * 4
    x = np.random.default_rng(0).standard_normal((1, 13, 14, 1024)).astype(np.float32)
    (want,) = evaluate(before, {"x": x})
    (got,) = tunefarm.build(before, target=Target.host(1)).run({"x": x}).values()
    assert np.max(np.abs(got - want)) <= 5e-6 * np.max(np.abs(want))


def test_sums_are_added_where_they_are_made() -> None:
    x = var("x", 1, 14, 14, 512)
    body = call("relu", call("add", convolved(x, 256), Constant(np.ones(256, np.float32))))
    fused = optimize(module_of([x], body), TARGET)
    kernels = [n.op for n in calls(fused.main.body) if not isinstance(n.op, str)]
    names = [[str(c.op) for c in calls(k.body)] for k in kernels if isinstance(k.body, Call)]
    assert ["conv", "add", "add", "relu"] in names
    assert not any(n[0] == "add" for n in names)
