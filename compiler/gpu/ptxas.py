"""NVIDIA's assembler, where it is installed: what a kernel takes of a GPU, known without one.

It comes with the CUDA toolkit, and alone in the package ``nvidia-cuda-nvcc`` on PyPI.
"""

from __future__ import annotations

import functools
import os
import re
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path

from tunefarm.compiler.errors import BuildError

PACKAGES = ("nvidia-cuda-nvcc", "nvidia-cuda-nvcc-cu12")
TIMEOUT_S = 300.0


@dataclass(frozen=True, slots=True)
class Usage:
    """What one kernel takes: registers of a thread, bytes that are spilled to memory and bytes of
    a thread's own array there, shared memory of a block."""

    registers: int
    spilled_bytes: int
    stack_bytes: int
    shared_bytes: int


@dataclass(frozen=True, slots=True)
class Assembled:
    """Machine code of a module, what its kernels take by name, and the assembler's warnings."""

    cubin: bytes
    kernels: dict[str, Usage]
    warnings: tuple[str, ...]


@functools.cache
def find_ptxas() -> Path | None:
    """The assembler of an installed package, the one on the path, or a CUDA toolkit's: the program
    itself, as a builder's confinement (`worker.cuda.assembler`) runs no script that starts it."""
    return next(filter(_is_program, _candidates()), None)


def _candidates() -> Iterator[Path]:
    for package in PACKAGES:
        try:
            listed = files(package) or []
        except PackageNotFoundError:
            continue
        yield from (Path(str(f.locate())) for f in listed if f.name == "ptxas")
    homes = [os.environ[n] for n in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(n)]
    folders = os.get_exec_path() + [f"{home}/bin" for home in (*homes, "/usr/local/cuda")]
    yield from (Path(folder, "ptxas").resolve() for folder in folders)


def _is_program(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(4) == b"\x7fELF" and os.access(path, os.X_OK)
    except OSError:
        return False


@functools.cache
def ptxas_version() -> str:
    """``ptxas 13.0.88``, as it tells it; BuildError if there is none that can be run."""
    told = _run(_tool(), "--version").stdout
    match = re.search(r"\bV(\d+(?:\.\d+)+)", told)
    return f"ptxas {match[1] if match else told.strip()}"


def assemble(ptx: str, arch: str) -> Assembled:
    """The machine code of PTX for an architecture. BuildError if there is no assembler that can be
    run and ends in time, or with its message if it refuses the text."""
    tool = _tool()
    with tempfile.TemporaryDirectory() as folder:
        source, result = Path(folder, "kernel.ptx"), Path(folder, "kernel.cubin")
        source.write_text(ptx)
        run = _run(tool, f"-arch={arch}", "-v", "-o", str(result), str(source))
        if run.returncode:
            raise BuildError(f"ptxas refuses the PTX for {arch}: {run.stderr.strip()}")
        return Assembled(result.read_bytes(), *parse_log(run.stderr))


def _tool() -> Path:
    tool = find_ptxas()
    if tool is None:
        raise BuildError("there is no ptxas here; pip install tunefarm[ptxas] brings it")
    return tool


def _run(tool: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """What the assembler says, whether it succeeds or not. BuildError if it cannot be run, or does
    not end in time."""
    try:
        return subprocess.run(
            [tool, *arguments], capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise BuildError(f"ptxas {arguments[0]} did not end within {TIMEOUT_S:g} s") from None
    except OSError as error:
        raise BuildError(f"{tool} cannot be run: {error.strerror}") from None


def parse_log(log: str) -> tuple[dict[str, Usage], tuple[str, ...]]:
    """Usages and warnings in what ``ptxas -v`` says."""
    kernels: dict[str, Usage] = {}
    name, stack, spilled = "", 0, 0
    warnings = []
    for line in log.splitlines():
        if "warning" in line.lower():
            warnings.append(line.strip())
        elif match := re.search(r"Compiling entry function '(\w+)'", line):
            name, stack, spilled = match[1], 0, 0
        elif match := re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores", line):
            stack, spilled = int(match[1]), int(match[2])
        elif match := re.search(r"Used (\d+) registers", line):
            shared = re.search(r"(\d+) bytes smem", line)
            taken = int(shared[1]) if shared else 0
            kernels[name] = Usage(int(match[1]), spilled, stack, taken)
    return kernels, tuple(warnings)
