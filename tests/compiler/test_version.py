"""The compiler's version follows the source that makes kernels, and nothing else."""

from __future__ import annotations

import shutil
import tomllib
from pathlib import Path

import pytest
from tunefarm.compiler import version

import tunefarm

COMPILER = Path(version.__file__).parent
LLVM = "0.50"


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The compiler as a wheel would install it: other folders, the same sources."""
    folder = tmp_path / "site-packages" / "tunefarm" / "compiler"
    shutil.copytree(COMPILER, folder, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def test_the_same_sources_give_the_same_hash_wherever_they_are(copy: Path) -> None:
    (copy / "codegen" / "__pycache__").mkdir()
    (copy / "codegen" / "__pycache__" / "llvm.cpython-311.pyc").write_bytes(b"\0")
    assert version.source_hash(copy, LLVM) == version.source_hash(COMPILER, LLVM)


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("codegen/llvm.py", True),
        ("space/contraction/knobs.py", True),
        ("tir/transform/lower.py", True),
        ("ops/matmul.py", True),
        ("runtime/pool.ll", True),
        ("te.py", True),
        ("overwrite.py", True),
        ("tir/printer.py", False),
        ("transform/fuse_ops.py", False),
        ("dispatch.py", False),
        ("runtime/executor.py", False),
    ],
)
def test_it_changes_with_what_makes_kernels(copy: Path, name: str, changes: bool) -> None:
    with (copy / name).open("a") as stream:
        stream.write("\n; changed\n")
    assert (version.source_hash(copy, LLVM) != version.source_hash(COMPILER, LLVM)) is changes


@pytest.mark.parametrize(
    ("name", "changes"), [("gpu/emit.py", True), ("gpu/emulator/machine.py", False)]
)
def test_code_for_gpus_has_a_version_of_its_own(copy: Path, name: str, changes: bool) -> None:
    with (copy / name).open("a") as stream:
        stream.write("\n# changed\n")
    assert version.source_hash(copy, LLVM) == version.source_hash(COMPILER, LLVM)
    other = version.source_hash(copy, LLVM, "cuda")
    assert (other != version.source_hash(COMPILER, LLVM, "cuda")) is changes


def test_a_source_under_another_name_is_another_compiler(copy: Path) -> None:
    (copy / "space" / "rows.py").rename(copy / "space" / "lines.py")
    assert version.source_hash(copy, LLVM) != version.source_hash(COMPILER, LLVM)


def test_another_llvm_is_another_compiler() -> None:
    assert version.source_hash(COMPILER, "0.51") != version.source_hash(COMPILER, LLVM)


def test_it_begins_with_the_release() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    release, _, digest = version.compiler_version().partition("+")
    assert release == tunefarm.__version__ == project["version"]
    assert len(digest) == 8
    int(digest, 16)
