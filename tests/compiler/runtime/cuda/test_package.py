"""Exported models for GPUs: written, loaded elsewhere, and refused in one sentence."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_networks import attention, branches, dense, inputs_of
from tunefarm.compiler.build import build_module
from tunefarm.compiler.errors import BuildError, TargetError
from tunefarm.compiler.evaluate import evaluate
from tunefarm.compiler.gpu.ptxas import find_ptxas
from tunefarm.compiler.ir import IRModule
from tunefarm.compiler.runtime.cuda import package
from tunefarm.compiler.runtime.cuda.module import CudaModule
from tunefarm.compiler.runtime.module import Module, load_module
from tunefarm.compiler.target import Target

HOPPER = Target("cuda -arch=sm_90a")
OF_FORMAT_1 = Path(__file__).with_name("format-1.zip")
"""``dense()`` for sm_80 with its softmax on the GPU, as format 1 was first written."""
ELSEWHERE = """
import sys
import numpy as np
import tunefarm
lib = tunefarm.load_module(sys.argv[1])
x = np.load(sys.argv[2])
(output,) = lib.run({"x": x}).values()
np.save(sys.argv[3], output)
print(lib)
"""


def exported(network: IRModule, path: Path, target: Target = HOPPER) -> Module:
    built = build_module(network, target)
    built.export_library(path)
    return built


@pytest.mark.parametrize("network", [dense, branches, attention])
def test_what_is_exported_runs_as_what_was_built(network: type[IRModule], tmp_path: Path) -> None:
    path = tmp_path / "model.zip"
    built = exported(network(), path)
    loaded = load_module(path)
    assert isinstance(loaded, CudaModule)
    given = inputs_of(network())
    wanted = built.run(given)
    for name, array in loaded.run(given).items():
        np.testing.assert_array_equal(array, wanted[name])
    assert not loaded.weights.flags.writeable
    assert loaded.get_source("ptx") == built.get_source("ptx")
    with pytest.raises(BuildError, match=r"model.zip holds PTX alone; build the model to see llvm"):
        loaded.get_source("llvm")
    again = tmp_path / "again.zip"
    loaded.export_library(again)
    assert again.read_bytes() == path.read_bytes(), "the same model is the same file"


def test_it_is_loaded_without_a_compiler(tmp_path: Path) -> None:
    for name in ("llvmlite", "onnx", "sqlalchemy", "xgboost", "grpc", "cuda"):
        (tmp_path / f"{name}.py").write_text("raise ImportError('not on this host')\n")
    path, x, y = (tmp_path / name for name in ("model.zip", "x.npy", "y.npy"))
    exported(dense(), path)
    given = inputs_of(dense())
    np.save(x, given["x"])
    done = subprocess.run(
        [sys.executable, "-c", ELSEWHERE, path, x, y],
        env={**os.environ, "TUNEFARM_CUDA": "emulated", "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert "device=0 (emulated sm_90a)" in done.stdout
    np.testing.assert_allclose(np.load(y), evaluate(dense(), given)[0], 1e-4, 1e-5)


def test_kernels_of_the_host_are_in_it(tmp_path: Path) -> None:
    path = tmp_path / "model.zip"
    built = build_module(dense(), HOPPER, ["softmax"])
    built.export_library(path)
    given = inputs_of(dense())
    loaded = load_module(path)
    np.testing.assert_array_equal(loaded.run(given)["output"], built.run(given)["output"])
    rewritten(path, lambda told: told["host"].update(features=["avx1024"]))
    with pytest.raises(TargetError, match=r"model.zip needs a CPU with avx1024, which this machi"):
        load_module(path)


@pytest.mark.skipif(find_ptxas() is None, reason="no ptxas here: pip install tunefarm[ptxas]")
def test_machine_code_is_in_it_where_there_is_an_assembler(tmp_path: Path) -> None:
    path = tmp_path / "model.zip"
    exported(dense(), path)
    loaded = load_module(path)
    assert isinstance(loaded, CudaModule)
    for kernel in loaded.kernels:
        assert kernel.cubin is not None
        assert kernel.cubin.runs_on("sm_90a")
        assert kernel.cubin.code[:4] == b"\x7fELF"
        assert all(usage.registers for usage in kernel.cubin.kernels.values())


def test_a_gpu_of_another_architecture_is_told(tmp_path: Path) -> None:
    newer, older = tmp_path / "newer.zip", tmp_path / "older.zip"
    exported(dense(), newer, Target("cuda -arch=sm_100"))
    lib = load_module(newer)  # which asks no driver
    with pytest.raises(
        TargetError,
        match=r"code for cuda -arch=sm_100 cannot run on device 0, emulated sm_90a, which is "
        r"sm_90a; build it for -arch=sm_90a",
    ):
        lib.run(inputs_of(dense()))
    exported(dense(), older, Target("cuda -arch=sm_80"))  # whose PTX any later driver compiles
    given = inputs_of(dense())
    got = load_module(older).run(given)["output"]
    np.testing.assert_allclose(got, evaluate(dense(), given)[0], 1e-4, 1e-5)


def test_a_file_of_the_first_format_is_read() -> None:
    lib = load_module(OF_FORMAT_1)
    given = inputs_of(dense())
    wanted = evaluate(dense(), given)[0]
    np.testing.assert_allclose(lib.run(given)["output"], wanted, 1e-4, 1e-5)


def test_what_is_no_such_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.zip"
    built = exported(dense(), path)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(BuildError, match=r"model.zip is no module that tunefarm exported, or not"):
        load_module(path)
    with zipfile.ZipFile(path, "w") as other:
        other.writestr("readme", "something else")
    with pytest.raises(BuildError, match=r"is no module that tunefarm exported.*model.json"):
        load_module(path)
    path.write_bytes(whole)
    rewritten(path, lambda told: told.update(format=package.FORMAT + 1))
    with pytest.raises(BuildError, match=r"has format 3, this tunefarm reads up to 2; update it"):
        load_module(path)
    for name in ("model.so", "model.o", "model.a"):
        with pytest.raises(BuildError, match=re.escape(f"no library for C, which {name} would be")):
            built.export_library(tmp_path / name)
    with pytest.raises(BuildError, match=r"without a name"):
        built.export_library(path, name="model")
    with pytest.raises(BuildError, match=r"cannot be written: .* is no folder"):
        built.export_library(tmp_path / "nowhere" / "model.zip")


def rewritten(path: Path, change: Callable[[Any], None]) -> None:
    """The file with a change to what it says of itself."""
    with zipfile.ZipFile(path) as old:
        members = {name: old.read(name) for name in old.namelist()}
    told = json.loads(members["model.json"])
    change(told)
    members["model.json"] = json.dumps(told).encode()
    with zipfile.ZipFile(path, "w") as new:
        for name, data in members.items():
            new.writestr(name, data)
