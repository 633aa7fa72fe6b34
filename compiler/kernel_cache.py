"""Built kernels kept on disk, under the hash of everything that decides them.

The key holds the workload, the target, the config, LLVM's version and the source of the compiler
itself, so that a changed emitter never meets an old kernel. An entry is a line of JSON (all but
the code) and the object code.
"""

from __future__ import annotations

import functools
import hashlib
import json
from dataclasses import replace
from pathlib import Path

from tunefarm.compiler.codegen import object_cache
from tunefarm.compiler.codegen.llvm_compile import features, llvm_version
from tunefarm.compiler.kernel import Kernel, kernel_of, told_of
from tunefarm.compiler.row_pitch import RowPitch
from tunefarm.compiler.space import Config
from tunefarm.compiler.target import Target
from tunefarm.compiler.workload import Workload


def load(
    workload: Workload, target: Target, config: Config, form: RowPitch | None = None
) -> Kernel | None:
    """The kernel of an earlier build, or None."""
    entry = object_cache.load(_key(workload, target, config, form))
    if entry is None:
        return None
    head, _, code = entry.partition(b"\n")
    told = json.loads(head)
    return kernel_of(told, code, told["text"])


def store(
    workload: Workload,
    target: Target,
    config: Config,
    kernel: Kernel,
    form: RowPitch | None = None,
) -> None:
    """Keep a kernel; a cache that cannot be written is one warning."""
    head = json.dumps({**told_of(replace(kernel, cubin=None)), "text": kernel.text}).encode()
    object_cache.store(_key(workload, target, config, form), head + b"\n" + kernel.object)


def _key(workload: Workload, target: Target, config: Config, form: RowPitch | None) -> str:
    parts = (
        "kernel",
        workload.key,
        target.text,
        features(target),
        json.dumps(sorted(config.items())),
        str(form),
        llvm_version(),
        compiler_hash(),
    )
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


@functools.cache
def compiler_hash() -> str:
    """SHA-256 of the compiler's source."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()
