"""Fused convolutions, and configs of a sketch for them."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
from sketch_harness import draw, verify
from tunefarm.compiler.ir import Expr, Function, TensorType, Var
from tunefarm.compiler.ops import call
from tunefarm.compiler.space import Config, ConfigSpace
from tunefarm.compiler.target import Target

F32 = "float32"
SAME = ((1, 1), (1, 1))
# Registers for the tiles that tests name; a host of fewer spills them, and is right all the same.
WIDE = Target("llvm -mcpu=znver4 -num-cores=2")


def convolution(
    shape: tuple[int, ...],
    outputs: int,
    padding: Any = SAME,
    bias: bool = True,
    residual: bool = False,
    relu: bool = True,
    constants: tuple[int, ...] = (1,),
    kernel: tuple[int, int] = (3, 3),
    dtype: str = F32,
    **attrs: Any,
) -> Function:
    layouts = {"data_layout": "NSC", "kernel_layout": "SIO"} | attrs
    channels = shape[1 if layouts["data_layout"] == "NCS" else -1]
    inputs = channels // int(attrs.get("groups", 1))
    x = Var("x", TensorType(shape, dtype))
    w = Var("w", TensorType((*kernel, inputs, outputs), dtype))
    body: Expr = call("conv", x, w, padding=padding, **layouts)
    params = [x, w]
    for wanted, kind in ((bias, TensorType((outputs,), dtype)), (residual, body.type)):
        if wanted:
            params.append(Var(f"p{len(params)}", kind))  # type: ignore[arg-type]
            body = call("add", body, params[-1])
    body = call("relu", body) if relu else body
    return Function(tuple(params), body, {"primitive": True, "constants": constants})


def space_by(sketch: ModuleType, function: Function, target: Target) -> ConfigSpace:
    """What a sketch alone offers."""
    space = sketch.space(function, target)
    assert space is not None
    return ConfigSpace((space,))


def default_with(space: ConfigSpace, **knobs: int) -> Config:
    """The default with some knobs otherwise, which the space must allow."""
    config = {**space.default, **knobs}
    assert space.valid(space.encode(config)[None])[0]
    return config


def random_configs(space: ConfigSpace, rng: np.random.Generator, count: int) -> list[Config]:
    rows = space.sample(rng, 200)
    return [space.decode(r) for r in rows[space.valid(rows)][:count]]


def verify_configs(function: Function, target: Target, space: ConfigSpace, seed: int) -> None:
    """The default and two random configs agree with the function, on random operands."""
    rng = np.random.default_rng(seed)
    arrays = draw(function, rng)
    for config in [space.default, *random_configs(space, rng, 2)]:
        verify(function, target, config, arrays)
