"""A sketch for the ``sim`` target, registered as a user would: seven knobs, one constraint.

A workload with an extent of 666 gets the knob by which the simulated device fails.
"""

from __future__ import annotations

import numpy as np
from tunefarm.compiler.ir import Function, tensor_type
from tunefarm.compiler.space import Config, Knob, Nest, Sketch, SketchSpace, register_sketch
from tunefarm.compiler.space.config import Columns, Constraint
from tunefarm.compiler.target import Target
from tunefarm.compiler.tir import PrimFunc

POWERS = (1, 2, 4, 8, 16, 32, 64)


def space(function: Function, target: Target) -> SketchSpace | None:
    if target.kind != "sim":
        return None
    shape = tensor_type(function.params[0]).shape
    knobs = [Knob(f"tile{i}", POWERS) for i in range(4)]
    knobs += [
        Knob("order", ("ab", "ba", "cab")),
        Knob("unroll", (0, 1, 2, 3)),
        Knob("pack", (0, 1)),
    ]
    if 666 in shape:
        knobs.append(Knob("fail", ("wrong_answer",)))
    default = {"sketch": "simulated", **{k.name: k.choices[0] for k in knobs}}
    rule = Constraint("small", lambda c: c["tile0"] * c["tile1"] <= 1024)

    def nest(columns: Columns) -> Nest:
        count = len(columns["tile0"])
        tiles = {"i": np.minimum(columns["tile0"], shape[0]).astype(np.int64)}
        levels = dict.fromkeys(("vector", "register", "l1", "l2", "core"), tiles)
        ones = np.ones(count, np.int64)
        return Nest({"i": shape[0]}, frozenset(), (), levels, ones, ones * float(np.prod(shape)))

    return SketchSpace("simulated", 1, tuple(knobs), (rule,), default, nest)


def schedule(function: Function, target: Target, config: Config) -> PrimFunc:
    raise NotImplementedError("a simulated device builds no code")


register_sketch(Sketch("simulated", space, schedule), first=True)
