"""Which assembler is found."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tunefarm.compiler.gpu import ptxas

MakeTool = Callable[[str, bytes], Path]

PROGRAM = b"\x7fELF and what follows"


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MakeTool]:
    """Puts a file named ``ptxas`` in a folder of its own; no package has one, nor any path yet."""
    monkeypatch.setattr(ptxas, "PACKAGES", ())
    monkeypatch.delenv("CUDA_HOME", raising=False)
    monkeypatch.delenv("CUDA_PATH", raising=False)

    def make(folder: str, text: bytes) -> Path:
        made = tmp_path / folder / "ptxas"
        made.parent.mkdir(parents=True)
        made.write_bytes(text)
        made.chmod(0o755)
        return made

    ptxas.find_ptxas.cache_clear()
    yield make
    ptxas.find_ptxas.cache_clear()


def test_a_script_that_starts_it_is_passed_over(
    tool: MakeTool, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tool("scripts", b"#!/bin/sh\nexec elsewhere/ptxas\n")
    program = tool("programs", PROGRAM)
    monkeypatch.setenv("PATH", f"{script.parent}:{program.parent}")
    assert ptxas.find_ptxas() == program


def test_a_link_on_the_path_leads_to_the_program(
    tool: MakeTool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    program = tool("programs", PROGRAM)
    (tmp_path / "ptxas").symlink_to(program)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert ptxas.find_ptxas() == program


def test_a_toolkit_that_is_not_on_the_path_is_found_by_its_home(
    tool: MakeTool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    program = tool("toolkit/bin", PROGRAM)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "toolkit"))
    assert ptxas.find_ptxas() == program
