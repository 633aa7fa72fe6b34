"""How the model of a seed is built: for which processor, at which level, with which configs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import onnx
import pytest
from tunefarm.compiler import build as building
from tunefarm.compiler.codegen.llvm_compile import features
from tunefarm.compiler.runtime.cpu import missing_features, required_features
from tunefarm.compiler.runtime.module import Module
from tunefarm.compiler.space import config_space
from tunefarm.compiler.space.config import Config
from tunefarm.compiler.target import Target
from tunefarm.compiler.transform.context import PassContext
from tunefarm.compiler.workload import Workload

import tunefarm

Chooser = Callable[[Mapping[Workload, int], Target], dict[Workload, Config]]
OTHERS = (
    "llvm -mcpu=x86-64",
    "llvm -mcpu=haswell",
    "llvm -mcpu=alderlake",
    "llvm -mcpu=znver3",
    "llvm -mcpu=skylake-avx512",
    "llvm -mcpu=cascadelake",
    "llvm -mcpu=icelake-server",
    "llvm -mcpu=znver4",
    "llvm -mcpu=znver5 -mattr=-avx512vp2intersect",
    "llvm -mcpu=sapphirerapids -mattr=-amx-tile",
    "llvm -mtriple=aarch64-linux-gnu -mcpu=generic",
    "llvm -mtriple=aarch64-linux-gnu -mcpu=neoverse-n1",
    "llvm -mtriple=aarch64-linux-gnu -mcpu=neoverse-v1",
)
"""Processors with other sketches, registers, caches and instructions than this host's."""


@dataclass(frozen=True, slots=True)
class Build:
    """How the model of a seed is built. ``configs`` tells whether they are random rather than
    the defaults, ``exported`` whether the module is also written to a library and read again."""

    target: Target
    level: int
    precision: str
    configs: bool
    exported: bool

    def __str__(self) -> str:
        configs = "random configs" if self.configs else "default configs"
        return f"{self.target}, level {self.level}, {self.precision or 'float32'}, {configs}"


def choose_build(seed: int, model: onnx.ModelProto) -> Build:
    """The build of the model of this seed, for a processor whose code this host can run."""
    rng = np.random.default_rng((seed, 1))
    halves = has_halves(model)
    host = rng.random() < 0.4
    precisions = ("", "", "", "bf16", "fp16", "tf32") if host else ("",)
    return Build(
        target=_host_target(rng) if host else _other_target(seed, rng, halves),
        level=int(rng.choice([3, 3, 3, 3, 3, 2, 1, 0])),
        precision=str(rng.choice(precisions)),
        configs=bool(rng.random() < 0.75),
        exported=bool(rng.random() < 0.15),
    )


def has_halves(model: onnx.ModelProto) -> bool:
    """Whether a part of the model is of float16."""
    casts = (node for node in model.graph.node if node.op_type == "Cast")
    half = onnx.TensorProto.FLOAT16
    return any(onnx.helper.get_node_attr_value(node, "to") == half for node in casts)


def _host_target(rng: np.random.Generator) -> Target:
    return Target.host(int(rng.choice([1, 2, 2, 2, 4])))


def _other_target(seed: int, rng: np.random.Generator, halves: bool) -> Target:
    """Another processor, or this one without methods that change how sums round, in turn; for a
    model with ``halves`` one that has code for float16."""
    cores = int(rng.choice([1, 2, 4, 8]))
    texts = [f"{text} -num-cores={cores}" for text in OTHERS]
    able = [target for target in map(Target, texts) if _runs_here(target)]
    able.append(Target(f"{Target.host(cores)} -precision=strict"))
    fit = [target for target in able if target.has_float16 or not halves]
    return fit[seed % len(fit)]


def _runs_here(target: Target) -> bool:
    """True if this host has the instructions of a target's code."""
    same = target.isa is Target.host(1).isa
    return same and not missing_features(required_features(target, features(target)))


def build(model: onnx.ModelProto, how: Build, seed: int) -> Module:
    """Our build of a model; its random configs are those of the seed."""
    module = tunefarm.from_onnx(model)
    with pytest.MonkeyPatch.context() as patch, PassContext(opt_level=how.level):
        if how.configs:
            chooser = _at_random(np.random.default_rng((seed, 2)), building.choose_configs)
            patch.setattr(building, "choose_configs", chooser)
        return tunefarm.build(module, how.target, precision=how.precision)


def _at_random(rng: np.random.Generator, default: Chooser) -> Chooser:
    """A chooser of one of the configs that a search might try for each workload.

    Records under ``apply_history_best`` would reach only the workloads that are worth tuning.
    """

    def choose(counts: Mapping[Workload, int], target: Target) -> dict[Workload, Config]:
        chosen = default(counts, target)
        for workload in chosen:
            space = config_space(workload, target)
            rows = space.sample(rng, 6)
            rows = rows[space.valid(rows)]
            if len(rows):
                chosen[workload] = space.decode(rows[0])
        return chosen

    return choose
