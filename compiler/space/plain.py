"""The last resort: plain loops as written, correct for every workload."""

from __future__ import annotations

import numpy as np
from tunefarm.compiler.ir import Function
from tunefarm.compiler.space.config import Columns, Config, Nest, SketchSpace
from tunefarm.compiler.space.nests import inline_all
from tunefarm.compiler.space.program import create_program
from tunefarm.compiler.target import Target
from tunefarm.compiler.tir import PrimFunc


def space(function: Function, target: Target) -> SketchSpace | None:
    """No knobs: one config; None for a GPU, whose last resort is a sketch of its own."""
    if target.kind == "cuda":
        return None
    return SketchSpace("plain", 1, (), (), {"sketch": "plain"}, _nest)


def _nest(columns: Columns) -> Nest:
    return Nest({}, frozenset(), (), {}, np.ones(1, np.int64), np.ones(1))


def schedule(function: Function, target: Target, config: Config) -> PrimFunc:
    """Inline what can be inlined, and leave the loops as they are."""
    return inline_all(create_program(function))
