"""NVIDIA's assembler beside a builder: a process that runs it, as the builder may start none.

with Assembler() as assembler:
    made = assembler.assemble(ptx, "sm_90a")

A builder starts one before it is confined, on its own cores and in its process group, so that what
ends the builder ends both. The process itself reads code alone, writes its own folder, and runs
nothing but the assembler (Landlock); it knows no network and has no capabilities.

    assemble {arch}; blob: the PTX  ->  {kernels, warnings}; blob: the machine code
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tunefarm.worker import sandbox, wire

if TYPE_CHECKING:
    from tunefarm.compiler.gpu.cubin import Cubin

_REPLY_LIMIT_BYTES = 256 << 20
_MEMORY_BYTES = 4 << 30  # the assembler takes some hundred megabytes


class Assembler:
    """The process, and its builder's end of the line to it."""

    def __init__(self) -> None:
        self._line, theirs = socket.socketpair()
        self._folder = tempfile.mkdtemp()
        arguments = [str(theirs.fileno()), str(os.getpid()), self._folder]
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-s", "-m", __name__, *arguments],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )
        frame = wire.receive(self._line, _REPLY_LIMIT_BYTES)
        self.version = str(frame.header["version"]) if frame is not None else ""

    def __enter__(self) -> Assembler:
        return self

    def __exit__(self, *_: object) -> None:
        self._line.close()
        self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)

    def assemble(self, ptx: bytes, arch: str) -> Cubin | None:
        """Machine code of PTX; None if the assembler refuses it, or is gone: the driver will tell
        why, or do without it."""
        from tunefarm.compiler.gpu.cubin import cubin_of

        try:
            wire.send(self._line, {"arch": arch}, (ptx,))
            frame = wire.receive(self._line, _REPLY_LIMIT_BYTES)
        except OSError:
            return None
        if frame is None or "error" in frame.header:
            return None
        told = {**frame.header, "arch": arch, "assembler": self.version}
        return cubin_of(told, bytes(frame.blobs[0]))


def begin_assembler() -> Assembler | None:
    """An assembler for this builder; None if it is not installed, or code is for an emulator."""
    from tunefarm.compiler.gpu.ptxas import find_ptxas
    from tunefarm.compiler.runtime.cuda.driver import is_emulating

    if is_emulating() or find_ptxas() is None:
        return None
    made = Assembler()
    return made if made.version else None


def main() -> None:
    """Assemble what comes until the socket closes."""
    from tunefarm.compiler.errors import BuildError
    from tunefarm.compiler.gpu.ptxas import assemble, find_ptxas, ptxas_version

    handle, parent, folder = sys.argv[1:4]
    sock = socket.socket(fileno=int(handle))
    sandbox.limit(int(parent))
    tool = find_ptxas()
    assert tool is not None
    tempfile.tempdir = os.environ["TMPDIR"] = folder
    sandbox.bound_memory(_MEMORY_BYTES, sandbox.HOST)
    sandbox.shut_files(sandbox.HOST, runs=_runnable(tool), writes=[Path(folder)])
    try:
        wire.send(sock, {"version": ptxas_version()})
    except BuildError as error:
        print(error, file=sys.stderr)
        return
    while (frame := wire.receive(sock, _REPLY_LIMIT_BYTES)) is not None:
        try:
            made = assemble(bytes(frame.blobs[0]).decode(), frame.header["arch"])
        except BuildError as error:
            wire.send(sock, {"error": str(error)})
            continue
        kernels = {name: asdict(usage) for name, usage in made.kernels.items()}
        told: dict[str, Any] = {"kernels": kernels, "warnings": made.warnings}
        wire.send(sock, told, (made.cubin,))


def _runnable(tool: Path) -> Iterator[Path]:
    """The assembler, and the loader that the system starts it by."""
    yield tool
    yield from (p for f in ("/lib64", "/lib") for p in Path(f).glob("ld-*.so*"))


if __name__ == "__main__":
    main()
