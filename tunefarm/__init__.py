"""tunefarm: an autotuning service with a measurement farm.

    mod = tunefarm.from_onnx("model.onnx", shapes={"x": (1, 3, 224, 224)})
    tasks = tunefarm.extract_tasks(mod)
    tunefarm.tune(tasks, trials=1000, module=mod)
    with tunefarm.apply_history_best(tunefarm.default_database()):
        lib = tunefarm.build(mod)
    outputs = lib.run({"x": x})

Names are loaded when they are first used, so that importing the package is quick.
"""

from __future__ import annotations

import importlib

TYPE_CHECKING = False  # as typing's, whose import is most of the time before Ctrl-C is heeded

__version__ = "0.1.0"

_HOME = {
    "Target": "tunefarm.compiler.target",
    "Task": "tunefarm.compiler.workload",
    "Workload": "tunefarm.compiler.workload",
    "Trials": "tunefarm.trials",
    "TuningJob": "tunefarm.trials",
    "IRModule": "tunefarm.compiler.ir",
    "PassContext": "tunefarm.compiler.transform",
    "TunefarmError": "tunefarm.compiler.errors",
    "apply_history_best": "tunefarm.api",
    "build": "tunefarm.api",
    "default_database": "tunefarm.api",
    "allow_precision": "tunefarm.api",
    "extract_tasks": "tunefarm.api",
    "from_onnx": "tunefarm.api",
    "from_torch": "tunefarm.api",
    "list_jobs": "tunefarm.trials",
    "load_job": "tunefarm.trials",
    "load_module": "tunefarm.api",
    "lower": "tunefarm.api",
    "parse_module": "tunefarm.compiler.parser",
    "register_sketch": "tunefarm.compiler.space",
    "tune": "tunefarm.tuning",
}
_MODULES = {"te": "tunefarm.compiler.te", "schedule": "tunefarm.compiler.tir.schedule"}

__all__ = ["__version__", *_HOME, *_MODULES]

if TYPE_CHECKING:
    from typing import Any

    from tunefarm.api import allow_precision as allow_precision
    from tunefarm.api import apply_history_best as apply_history_best
    from tunefarm.api import build as build
    from tunefarm.api import default_database as default_database
    from tunefarm.api import extract_tasks as extract_tasks
    from tunefarm.api import from_onnx as from_onnx
    from tunefarm.api import from_torch as from_torch
    from tunefarm.api import load_module as load_module
    from tunefarm.api import lower as lower
    from tunefarm.compiler import te as te
    from tunefarm.compiler.errors import TunefarmError as TunefarmError
    from tunefarm.compiler.ir import IRModule as IRModule
    from tunefarm.compiler.parser import parse_module as parse_module
    from tunefarm.compiler.space import register_sketch as register_sketch
    from tunefarm.compiler.target import Target as Target
    from tunefarm.compiler.tir import schedule as schedule
    from tunefarm.compiler.transform import PassContext as PassContext
    from tunefarm.compiler.workload import Task as Task
    from tunefarm.compiler.workload import Workload as Workload
    from tunefarm.trials import Trials as Trials
    from tunefarm.trials import TuningJob as TuningJob
    from tunefarm.trials import list_jobs as list_jobs
    from tunefarm.trials import load_job as load_job
    from tunefarm.tuning import tune as tune


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(_MODULES[name])
    if name in _HOME:
        return getattr(importlib.import_module(_HOME[name]), name)
    raise AttributeError(f"module 'tunefarm' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
