"""What a config makes of a workload, printed: run as a program of its own by ``code``.

Standard input has JSON of workload, target, config and kind; standard output gets the text.
"""

from __future__ import annotations

import json
import resource
import sys

from tunefarm.compiler.build import build_kernel
from tunefarm.compiler.codegen.llvm_compile import assembly
from tunefarm.compiler.errors import TunefarmError
from tunefarm.compiler.space import schedule_workload
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
        text, code_hash = _made(asked)
    except TunefarmError as error:
        sys.exit(str(error))
    json.dump({"text": text, "code_hash": code_hash, "compiler": compiler_version()}, sys.stdout)


def _made(asked: dict[str, object]) -> tuple[str, str]:
    """The text that was asked for, and the hash of the code where there is code."""
    workload, target = Workload.from_text(str(asked["workload"])), Target(str(asked["target"]))
    config = asked["config"]
    assert isinstance(config, dict)
    if asked["kind"] == "scheduled":
        return str(schedule_workload(workload, target, config)), ""
    kernel = build_kernel(workload, target, config, cache=False)
    is_assembly = asked["kind"] == "assembly"
    return assembly(kernel.text, target) if is_assembly else kernel.text, kernel.code_hash


if __name__ == "__main__":
    main()
