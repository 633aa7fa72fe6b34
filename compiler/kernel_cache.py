"""Built kernels kept on disk, under the hash of everything that decides them.

The key holds the workload, the target, the config, LLVM's version and the source of the compiler
itself, so that a changed emitter never meets an old kernel. An entry is a line of JSON (all but
the code) and the object code.
"""

from __future__ import annotations

import functools
import hashlib
import json
from pathlib import Path

from tunefarm.compiler.codegen import object_cache
from tunefarm.compiler.codegen.llvm_compile import features, llvm_version
from tunefarm.compiler.gpu.launches import Launch
from tunefarm.compiler.ir import TensorType
from tunefarm.compiler.kernel import Kernel
from tunefarm.compiler.row_pitch import RowPitch
from tunefarm.compiler.space import Config
from tunefarm.compiler.target import Target
from tunefarm.compiler.tir import PackedLayout
from tunefarm.compiler.workload import Workload


def load(
    workload: Workload, target: Target, config: Config, form: RowPitch | None = None
) -> Kernel | None:
    """The kernel of an earlier build, or None."""
    entry = object_cache.load(_key(workload, target, config, form))
    if entry is None:
        return None
    head, _, code = entry.partition(b"\n")
    return _from_json(json.loads(head), code)


def store(
    workload: Workload,
    target: Target,
    config: Config,
    kernel: Kernel,
    form: RowPitch | None = None,
) -> None:
    """Keep a kernel; a cache that cannot be written is one warning."""
    head = json.dumps(_to_json(kernel)).encode()
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


def _to_json(kernel: Kernel) -> dict[str, object]:
    return {
        "name": kernel.name,
        "text": kernel.text,
        "params": [[list(p.shape), p.dtype] for p in kernel.params],
        "outputs": kernel.outputs,
        "layouts": [
            [i, y.factors, y.order, y.transform, y.shape] for i, y in kernel.layouts.items()
        ],
        "workspace_bytes": kernel.workspace_bytes,
        "parallel": kernel.parallel,
        "launches": [[x.name, x.grid, x.block, x.dynamic_bytes] for x in kernel.launches],
    }


def _from_json(data: dict[str, object], code: bytes) -> Kernel:
    fields = dict(data)
    launches = tuple(
        Launch(name, tuple(grid), tuple(block), size)
        for name, grid, block, size in fields.pop("launches")  # type: ignore[attr-defined]
    )
    params = tuple(TensorType(tuple(s), d) for s, d in fields.pop("params"))  # type: ignore[attr-defined]
    layouts = {
        index: PackedLayout(tuple(map(tuple, factors)), tuple(order), transform, tuple(shape))
        for index, factors, order, transform, shape in fields.pop("layouts")  # type: ignore[attr-defined]
    }
    return Kernel(
        object=code,
        params=params,
        layouts=layouts,
        launches=launches,
        **fields,  # type: ignore[arg-type]
    )
