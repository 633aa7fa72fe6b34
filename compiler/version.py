"""The compiler's version, which changes when the code that it generates may change."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterable, Iterator
from importlib.metadata import version
from pathlib import Path

RELEASE = "0.1.0"
# What turns (workload, target, config) into machine code: sketches, lowering, emission, the loops
# of operators, and what kernels call. The graph passes before it only choose which workloads are.
_FOLDERS = ("codegen", "ops", "space", "tir")
_MORE_FOLDERS = {"cuda": ("gpu",)}  # of the code of a kind of targets alone
_FILES = ("overwrite.py", "runtime/native.ll", "runtime/pool.ll", "te.py")
_APART = frozenset({
    "codegen/c.py", "codegen/c_model.py", "codegen/object_cache.py", "gpu/traffic.py",
    "tir/interpreter.py", "tir/printer.py", "tir/threads.py", "tir/verifier.py",
})  # fmt: skip
_FOLDERS_APART = ("gpu/emulator/",)


@functools.cache
def compiler_version(kind: str = "llvm") -> str:
    """``0.1.0+1f2e3d4c``: the release, and a hash of LLVM's version and of the source of kernels
    for targets of a kind.

    Times of two versions are never compared; a few milliseconds for the first call.
    """
    return f"{RELEASE}+{source_hash(Path(__file__).parent, version('llvmlite'), kind)}"


def version_with(version: str, plugins: Iterable[str]) -> str:
    """What makes the code of a task: ``0.1.0+1f2e3d4c toy-ops==0.1+5a6b7c8d``, a compiler's version
    and the plug-ins that it makes the task with."""
    return " ".join([version, *plugins])


def source_hash(folder: Path, llvm: str, kind: str = "llvm") -> str:
    """8 hexadecimal digits over the names and contents of the sources in the compiler's folder
    that make code for a kind of targets."""
    digest = hashlib.sha256(llvm.encode())
    for name in sorted(_sources(folder, kind)):
        digest.update(b"\0%b\0" % name.encode())
        digest.update((folder / name).read_bytes())
    return digest.hexdigest()[:8]


def _sources(folder: Path, kind: str) -> Iterator[str]:
    yield from (name for name in _FILES if (folder / name).is_file())
    for part in (*_FOLDERS, *_MORE_FOLDERS.get(kind, ())):
        for path in (folder / part).rglob("*.py"):
            name = path.relative_to(folder).as_posix()
            if name not in _APART and not name.startswith(_FOLDERS_APART):
                yield name
