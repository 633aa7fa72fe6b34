"""What the compiler knows, printed: run as a program of its own by ``code`` and ``spaces``.

Standard input has JSON. Of workload, target, config and kind standard output gets the text that the
config makes; of workloads and target (kind "spaces") the fingerprints of their spaces, or (kind
"plugins") what they are made with beside the compiler.
"""

from __future__ import annotations

import json
import resource
import sys
from typing import Any

from tunefarm.compiler.build import build_kernel
from tunefarm.compiler.codegen.llvm_compile import assembly
from tunefarm.compiler.errors import TunefarmError
from tunefarm.compiler.space import config_space, plugins_of, schedule_workload
from tunefarm.compiler.target import Target
from tunefarm.compiler.version import compiler_version
from tunefarm.compiler.workload import Workload

MEMORY_BYTES = 8 << 30
CPU_S = 60


def main() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S))
    asked = json.load(sys.stdin)
    try:
        told = _ANSWERS.get(asked["kind"], _made)(asked)
    except TunefarmError as error:
        sys.exit(str(error))
    json.dump({**told, "compiler": compiler_version()}, sys.stdout)


def _spaces(asked: dict[str, Any]) -> dict[str, object]:
    """The fingerprint of each workload's space, by the workloads' texts."""
    target = Target(asked["target"])
    texts = asked["workloads"]
    return {"spaces": {t: config_space(Workload.from_text(t), target).fingerprint for t in texts}}


def _plugins(asked: dict[str, Any]) -> dict[str, object]:
    """The plug-ins (``package==version``) that each workload is made with, by their texts."""
    target = Target(asked["target"])
    texts = asked["workloads"]
    return {"plugins": {t: plugins_of(Workload.from_text(t), target) for t in texts}}


def _made(asked: dict[str, Any]) -> dict[str, object]:
    """The text that was asked for, and the hash of the code where there is code."""
    workload, target = Workload.from_text(asked["workload"]), Target(asked["target"])
    config = asked["config"]
    if asked["kind"] == "scheduled":
        return {"text": str(schedule_workload(workload, target, config)), "code_hash": ""}
    kernel = build_kernel(workload, target, config, cache=False)
    is_assembly = asked["kind"] == "assembly"
    text = assembly(kernel.text, target) if is_assembly else kernel.text
    return {"text": text, "code_hash": kernel.code_hash}


_ANSWERS = {"spaces": _spaces, "plugins": _plugins}

if __name__ == "__main__":
    main()
