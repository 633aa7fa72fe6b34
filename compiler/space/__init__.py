"""Spaces: the sketches of a workload on a target, and programs scheduled by a config.

Each sketch is a module or a package: ``space(function, target) -> SketchSpace | None`` says which
knobs it has (None where it does not apply) and ``schedule(function, target, config) -> PrimFunc``
applies them. A space has all that apply, in the order of ``SKETCHES``; the first that does not
decline has the default config. Further ones come through ``register_sketch``.
"""

from tunefarm.compiler.space.config import Config, ConfigSpace, Knob, Nest, SketchSpace
from tunefarm.compiler.space.registry import (
    Sketch,
    config_space,
    plugins_of,
    register_sketch,
    schedule_workload,
)

__all__ = [
    "Config",
    "ConfigSpace",
    "Knob",
    "Nest",
    "Sketch",
    "SketchSpace",
    "config_space",
    "plugins_of",
    "register_sketch",
    "schedule_workload",
]
