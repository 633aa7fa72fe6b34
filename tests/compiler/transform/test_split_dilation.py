"""Dilated convolutions as plain ones of the image's phases: the same meaning, where it pays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from pass_harness import agree, calls, kernels_in, module_of, var
from tunefarm.compiler.evaluate import evaluate
from tunefarm.compiler.ir import Call, Constant, IRModule
from tunefarm.compiler.ops import call
from tunefarm.compiler.target import Target
from tunefarm.compiler.transform import optimize, split_dilation
from tunefarm.compiler.transform.legalize import legalize

import tunefarm

TARGET = Target("llvm -mcpu=znver4 -num-cores=1")


def dilated(
    shape: tuple[int, ...],
    outputs: int,
    steps: tuple[int, int],
    padding: Any = None,
    taps: tuple[int, int] = (3, 3),
    **attrs: Any,
) -> IRModule:
    x, groups = var("x", *shape), attrs.get("groups", 1)
    weights = np.random.default_rng(2).standard_normal((*taps, shape[-1] // groups, outputs))
    body = call(
        "conv",
        x,
        Constant((0.1 * weights).astype(np.float32)),
        data_layout="NSC",
        kernel_layout="SIO",
        strides=attrs.pop("strides", (1, 1)),
        dilations=steps,
        padding=padding or tuple((d, d) for d in steps),
        **attrs,
    )
    return module_of([x], body)


def dilations(module: IRModule) -> list[Any]:
    return [n.attrs["dilations"] for n in calls(module.main.body) if n.op == "conv"]


def test_random_ones_keep_their_meaning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(split_dilation, "_pays", lambda *_: True)
    rng, split = np.random.default_rng(0), 0
    for _ in range(60):
        steps = tuple(int(d) for d in rng.integers(1, 5, 2))
        shape = (int(rng.integers(1, 3)), *(int(e) for e in rng.integers(17, 24, 2)), 3)
        taps = ((3, 3), (1, 3), (5, 1), (5, 3))[int(rng.integers(4))]
        apart = [d if k > 1 else 1 for d, k in zip(steps, taps, strict=True)]
        padding = tuple(
            (d * int(rng.integers(0, 3)), int(rng.integers(0, 2 * d + 1))) for d in apart
        )
        module = dilated(shape, 5, steps, padding, taps)  # type: ignore[arg-type]
        after = legalize(module, TARGET)
        inputs = [rng.standard_normal(shape).astype(np.float32)]
        agree(after, module, inputs, atol=1e-5)
        split += max(apart) > 1 and dilations(after) == [(1, 1)]
    assert split > 30


def test_pixels_that_read_another_residue_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(split_dilation, "_pays", lambda *_: True)
    module = dilated((1, 9, 9, 4), 4, (2, 2), ((1, 3), (2, 2)))
    assert dilations(legalize(module, TARGET)) == [(2, 2)]


@pytest.mark.parametrize(
    "shape, outputs, steps, attrs",
    [
        ((1, 28, 28, 256), 256, (2, 2), {"strides": (2, 2)}),
        ((1, 28, 28, 256), 256, (2, 2), {"groups": 256}),
        ((1, 28, 28, 256), 256, (2, 2), {"taps": (2, 2)}),
        ((1, 8, 8, 512), 512, (4, 4), {}),  # 16 images of 2², whose weights are all of the time
        ((1, 16, 16, 256), 64, (12, 12), {}),
    ],
)
def test_what_would_not_gain_stays(
    shape: tuple[int, ...], outputs: int, steps: tuple[int, int], attrs: dict[str, Any]
) -> None:
    assert dilations(legalize(dilated(shape, outputs, steps, **attrs), TARGET)) == [steps]


@pytest.mark.parametrize(
    "image, steps, taps",
    [
        ((28, 28), (2, 2), (3, 3)),
        ((33, 30), (2, 4), (3, 3)),
        ((1, 400), (1, 3), (1, 7)),
        ((400, 2), (4, 1), (5, 1)),
    ],
)
def test_what_gains_is_built_and_computes_the_same(
    image: tuple[int, int], steps: tuple[int, int], taps: tuple[int, int]
) -> None:
    module = dilated((1, *image, 128), 128, steps, taps=taps)
    assert dilations(legalize(module, TARGET)) == [(1, 1)]
    strict = Target("llvm -mcpu=znver4 -num-cores=1 -precision=strict")
    assert dilations(legalize(module, strict)) == [steps]
    x = np.random.default_rng(0).standard_normal((1, *image, 128)).astype(np.float32)
    (want,) = evaluate(module, {"x": x})
    (got,) = tunefarm.build(module).run({"x": x}).values()
    assert np.max(np.abs(got - want)) <= 1e-5 * np.max(np.abs(want))


def test_many_inputs_are_split_in_the_model_that_decides() -> None:
    """Of 2048 no block of the phases' tiles fits the second cache; of 256 it does."""
    target = Target("llvm -mcpu=znver5 -num-cores=1")
    module = dilated((1, 32, 32, 2048), 256, (6, 6))
    assert dilations(legalize(module, target)) == [(1, 1)]
    kernels = kernels_in(optimize(module, target))
    assert [k for k in kernels if "conv" in k] == ["conv", *["conv add"] * 7]


def test_what_follows_is_computed_with_the_copy() -> None:
    module = dilated((1, 28, 28, 128), 128, (2, 2))
    body = call("relu", call("add", module.main.body, Constant(np.ones(128, np.float32))))
    fused = optimize(module_of(module.main.params, body), TARGET)
    kernels = [n.op for n in calls(fused.main.body) if not isinstance(n.op, str)]
    names = [[str(c.op) for c in calls(k.body)] for k in kernels if isinstance(k.body, Call)]
    assert ["transpose", "add", "relu"] in names
