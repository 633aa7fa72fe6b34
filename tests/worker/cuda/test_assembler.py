"""The assembler beside a builder, and what its process may do."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tunefarm.compiler.gpu.ptx import ptx_of
from tunefarm.compiler.gpu.ptxas import find_ptxas, ptxas_version
from tunefarm.worker.cuda.assembler import Assembler, begin_assembler
from tunefarm.worker.cuda.reference import loop_text
from tunefarm.worker.landlock import landlock_version

needs_ptxas = pytest.mark.skipif(
    find_ptxas() is None, reason="no ptxas here: pip install tunefarm[ptxas]"
)
CONFINED = """
import subprocess, sys
from pathlib import Path
from tunefarm.worker import sandbox
from tunefarm.worker.cuda.assembler import _runnable

program, other, folder, outside = map(Path, sys.argv[1:])
sandbox.shut_files(sandbox.HOST, runs=_runnable(program), writes=[folder])
(folder / "made").write_text("x")
(folder / "made").unlink()
print(subprocess.run([program]).returncode)
for refused in (lambda: subprocess.run([other]), lambda: (outside / "made").write_text("x"),
                lambda: (outside / "there").read_text()):
    try:
        refused()
    except PermissionError:
        print("refused")
"""


@needs_ptxas
def test_it_assembles_ptx_and_says_what_the_code_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TUNEFARM_CUDA", raising=False)
    started = begin_assembler()
    assert started is not None
    with started as assembler:
        ptx = ptx_of(loop_text(4), "sm_90a").encode()
        made = assembler.assemble(ptx, "sm_90a")
        assert made is not None
        assert (made.arch, made.assembler, made.code[:4]) == ("sm_90a", ptxas_version(), b"\x7fELF")
        assert made.kernels["tunefarm_reference"].registers >= 9
        assert assembler.assemble(b"not PTX", "sm_90a") is None
        assert assembler.assemble(ptx, "sm_90a") == made  # it goes on
        assembler._process.kill()
        assembler._process.wait()
        assert assembler.assemble(ptx, "sm_90a") is None
    assert not Path(assembler._folder).exists()


def test_none_is_started_for_an_emulator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNEFARM_CUDA", "emulated")
    assert begin_assembler() is None


def test_one_that_does_not_start_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with Assembler() as assembler:
        assert assembler.version == ""
        assert assembler.assemble(b"", "sm_90a") is None


@pytest.mark.skipif(not landlock_version(), reason="this kernel has no Landlock")
def test_its_process_runs_one_program_and_writes_one_folder(tmp_path: Path) -> None:
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    inside.mkdir()
    outside.mkdir()
    (outside / "there").write_text("secret")
    done = subprocess.run(
        [sys.executable, "-c", CONFINED, "/usr/bin/true", "/usr/bin/id", inside, outside],
        capture_output=True,
        text=True,
        env={**os.environ, "TMPDIR": str(inside)},
        timeout=60,
    )
    assert done.stdout.split() == ["0", "refused", "refused", "refused"], done.stderr
    assert list(outside.iterdir()) == [outside / "there"]
