"""The table of sketches, and the two functions that everybody else calls."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace

from tunefarm.compiler import plugins
from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.gpu.space import attention as gpu_attention
from tunefarm.compiler.gpu.space import elements as gpu_elements
from tunefarm.compiler.gpu.space import long_rows as gpu_long_rows
from tunefarm.compiler.gpu.space import mma as gpu_mma
from tunefarm.compiler.gpu.space import rows as gpu_rows
from tunefarm.compiler.gpu.space import simt as gpu_simt
from tunefarm.compiler.gpu.space import split as gpu_split
from tunefarm.compiler.gpu.space import tma as gpu_tma
from tunefarm.compiler.gpu.space import transpose as gpu_transpose
from tunefarm.compiler.gpu.space import wgmma as gpu_wgmma
from tunefarm.compiler.ir import Call, Function, TensorType, post_order
from tunefarm.compiler.ops import OPS, Pattern
from tunefarm.compiler.space import (
    attention,
    attention_dots,
    attention_parts,
    contraction,
    deep,
    depthwise_winograd,
    dot,
    float_parts,
    grouped,
    image_rows,
    image_rows_winograd,
    image_strips,
    injective,
    inverted_residual,
    last_columns,
    matrix_tiles,
    narrow,
    packed_product,
    plain,
    pooled_winograd,
    rows,
    strassen,
    window,
    window_parts,
    window_passes,
    window_strips,
    winograd,
    winograd_1d,
    winograd_online,
)
from tunefarm.compiler.space.config import Config, ConfigSpace, SketchSpace
from tunefarm.compiler.target import Target
from tunefarm.compiler.tir import PrimFunc
from tunefarm.compiler.workload import Workload


@dataclass(frozen=True, slots=True)
class Sketch:
    """One way to schedule workloads.

    ``space(function, target)`` is None where the sketch does not apply; ``schedule`` raises
    ScheduleError for a config that cannot be applied. Of a plug-in's, the ``first`` stand before
    tunefarm's own and give the default config; ``package`` is set where it is loaded.
    """

    name: str
    space: Callable[[Function, Target], SketchSpace | None]
    schedule: Callable[[Function, Target, Config], PrimFunc]
    first: bool = False
    package: str = ""


# In the order of preference: the first that applies, and does not decline, gives a workload's
# default config.
SKETCHES: list[Sketch] = [
    Sketch("attention_parts", attention_parts.space, attention_parts.schedule),
    Sketch("attention_dots", attention_dots.space, attention_dots.schedule),
    Sketch("attention", attention.space, attention.schedule),
    Sketch("float_parts", float_parts.space, float_parts.schedule),
    Sketch("window_parts", window_parts.space, window_parts.schedule),
    Sketch("winograd_online", winograd_online.space, winograd_online.schedule),
    Sketch("winograd_1d", winograd_1d.space, winograd_1d.schedule),
    Sketch("winograd", winograd.space, winograd.schedule),
    Sketch("pooled_winograd", pooled_winograd.space, pooled_winograd.schedule),
    Sketch("deep", deep.space, deep.schedule),
    *(
        Sketch(
            name,
            functools.partial(strassen.space, levels=levels),
            functools.partial(strassen.schedule, levels=levels),
        )
        for name, levels in reversed(strassen.LEVELS.items())
    ),
    Sketch("matrix_tiles", matrix_tiles.space, matrix_tiles.schedule),
    Sketch("dot", dot.space, dot.schedule),
    Sketch("packed_product", packed_product.space, packed_product.schedule),
    Sketch("last_columns", last_columns.space, last_columns.schedule),
    Sketch("narrow", narrow.space, narrow.schedule),
    Sketch("depthwise_winograd", depthwise_winograd.space, depthwise_winograd.schedule),
    Sketch("image_rows_winograd", image_rows_winograd.space, image_rows_winograd.schedule),
    Sketch("image_strips", image_strips.space, image_strips.schedule),
    Sketch("image_rows", image_rows.space, image_rows.schedule),
    Sketch("grouped", grouped.space, grouped.schedule),
    Sketch("contraction", contraction.space, contraction.schedule),
    Sketch("inverted_residual", inverted_residual.space, inverted_residual.schedule),
    Sketch("injective", injective.space, injective.schedule),
    Sketch("window_strips", window_strips.space, window_strips.schedule),
    Sketch("window_passes", window_passes.space, window_passes.schedule),
    Sketch("window", window.space, window.schedule),
    Sketch("rows", rows.space, rows.schedule),
    Sketch("plain", plain.space, plain.schedule),
    Sketch("gpu_attention", gpu_attention.space, gpu_attention.schedule),
    Sketch("gpu_tma", gpu_tma.space, gpu_tma.schedule),
    Sketch("gpu_wgmma", gpu_wgmma.space, gpu_wgmma.schedule),
    Sketch("gpu_mma", gpu_mma.space, gpu_mma.schedule),
    Sketch("gpu_simt", gpu_simt.space, gpu_simt.schedule),
    Sketch("gpu_split", gpu_split.space, gpu_split.schedule),
    Sketch("gpu_long_rows", gpu_long_rows.space, gpu_long_rows.schedule),
    Sketch("gpu_rows", gpu_rows.space, gpu_rows.schedule),
    Sketch("gpu_transpose", gpu_transpose.space, gpu_transpose.schedule),
    Sketch("gpu_elements", gpu_elements.space, gpu_elements.schedule),
]
LAST_RESORTS = ("plain", "gpu_elements")  # of CPUs and of GPUs: whatever there is to compute


def register_sketch(sketch: Sketch, first: bool = False) -> None:
    """Add a sketch of your own; ``first`` makes its default the workload's default."""
    if any(s.name == sketch.name for s in SKETCHES):
        raise ValueError(f"a sketch named {sketch.name!r} is already registered")
    SKETCHES.insert(0 if first else len(SKETCHES), sketch)
    _space_with.cache_clear()


def config_space(workload: Workload, target: Target, from_memory: bool = False) -> ConfigSpace:
    """All sketches that apply to a workload on a target; of plug-ins those in use.

    Which config is the default, and nothing else, may differ for a task whose weights come
    ``from_memory``.
    """
    plugins.loaded()
    asked = replace(target, weights_in_memory=True) if from_memory else target
    return _space_with(workload, asked, plugins.active())


@functools.lru_cache(maxsize=1024)
def _space_with(workload: Workload, target: Target, packages: frozenset[str] | None) -> ConfigSpace:
    """The space with the sketches of these plug-ins; None is all that are loaded."""
    if _is_empty(workload) or _is_opaque(workload):
        sketches = [s for s in SKETCHES if s.name in LAST_RESORTS]
    else:
        sketches = [
            s for s in SKETCHES if not s.package or packages is None or s.package in packages
        ]
    spaces = [s.space(workload.function, target) for s in sketches]
    found = tuple(s for s in spaces if s is not None)
    if len(found) > 1:
        # The plain loops are the last resort, for what no other sketch covers.
        found = tuple(s for s in found if s.sketch != "plain")
    return ConfigSpace(tuple(sorted(found, key=lambda s: not s.preferred)))


def plugins_of(workload: Workload, target: Target) -> tuple[str, ...]:
    """The plug-ins (``package==version``) that the code of a task is made with: those that have one
    of its operators, a sketch in its space, or its target kind."""
    known = plugins.loaded()
    if not known:
        return ()
    calls = (v for v in post_order(workload.function.body) if isinstance(v, Call))
    found = {plugins.package_of_operator(str(c.op)) for c in calls}
    found |= {s.plugin.partition("==")[0] for s in config_space(workload, target).sketches}
    found.add(plugins.package_of_kind(target.kind))
    return tuple(sorted(str(known[package]) for package in found if package in known))


def _is_empty(workload: Workload) -> bool:
    """True if some tensor of the workload has no elements: there is nothing to schedule."""
    values = post_order(workload.function.body)
    types = [v.type for v in values if isinstance(v.type, TensorType)]
    return any(t.size == 0 for t in types)


def _is_opaque(workload: Workload) -> bool:
    """True if some operator is loops of its own (a scan, a sort), which no primitive changes."""
    calls = [v for v in post_order(workload.function.body) if isinstance(v, Call)]
    return any(isinstance(c.op, str) and OPS[c.op].pattern is Pattern.OPAQUE for c in calls)


def schedule_workload(workload: Workload, target: Target, config: Config) -> PrimFunc:
    """The program that a config makes of a workload (with blocks: not lowered yet).

    Raises ScheduleError if the config names no sketch, or its knobs do not fit.
    """
    plugins.loaded()
    for sketch in SKETCHES:
        if sketch.name == config.get("sketch"):
            return sketch.schedule(workload.function, target, config)
    known = ", ".join(s.name for s in SKETCHES)
    raise ScheduleError(f"no sketch {config.get('sketch')!r}; sketches: {known}")
