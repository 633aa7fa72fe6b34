"""NVIDIA's driver: what is said where something is missing, and what is asked of it."""

from __future__ import annotations

import ctypes
import importlib.util
import platform
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tunefarm.compiler.errors import TargetError
from tunefarm.compiler.runtime.cuda import bindings, driver, nvidia
from tunefarm.compiler.runtime.cuda.driver import DeviceProperties, check_device, open_device
from tunefarm.compiler.target import Target

HERE = Path(__file__).parent
needs_bindings = pytest.mark.skipif(
    importlib.util.find_spec("cuda") is None, reason="no cuda-bindings: pip install tunefarm[cuda]"
)


def has_driver() -> bool:
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


@pytest.fixture(autouse=True)
def _real(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TUNEFARM_CUDA")
    bindings.bindings.cache_clear()


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    with pytest.raises(
        TargetError,
        match=r"cuda-bindings, which is not installed; pip install 'tunefarm\[cuda\]', or set "
        "TUNEFARM_CUDA=emulated",
    ):
        open_device()


@needs_bindings
@pytest.mark.skipif(has_driver(), reason="there is a driver here")
def test_without_a_driver() -> None:
    with pytest.raises(TargetError, match=r"no NVIDIA driver here \(libcuda.so.1\); install it"):
        driver.device_count()


@needs_bindings
def test_every_function_and_constant_is_in_the_package() -> None:
    from cuda.bindings import driver as cuda

    source = "".join(Path(part.__file__).read_text() for part in (bindings, nvidia))
    functions = set(re.findall(r"\b(cu[A-Z]\w+)", source))
    assert len(functions) > 30
    assert all(callable(getattr(cuda, name)) for name in functions)
    for kind, member in re.findall(r"\b(CU\w+_\w+|CU[a-z]\w+)\.(CU\w+)", source):
        assert hasattr(getattr(cuda, kind), member), member
    attributes = re.findall(r'attribute\("(\w+)"\)', source)
    assert len(attributes) == 7
    for name in attributes:
        assert hasattr(cuda.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
    assert {code for code in bindings._FATAL if not hasattr(cuda.CUresult, code)} == set()


@needs_bindings
@pytest.mark.skipif(has_driver(), reason="there is a driver here")
@pytest.mark.skipif(platform.machine() != "x86_64", reason="the library is made for x86-64")
def test_what_is_asked_of_the_driver() -> None:
    """In a process of its own, whose libcuda.so.1 is ours."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, str(HERE / "on_fake_driver.py")],
        capture_output=True,
        text=True,
        timeout=600,
        cwd=HERE.parents[3],
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("arch", "target", "fits"),
    [
        ("sm_90a", "sm_90a", True),
        ("sm_90a", "sm_80", True),
        ("sm_90a", "sm_90", True),
        ("sm_100a", "sm_90a", False),
        ("sm_80", "sm_90", False),
        ("sm_121", "sm_120", True),
    ],
)
def test_what_a_device_can_run(arch: str, target: str, fits: bool) -> None:
    device = DeviceProperties(1, "X", arch, 1, 1, 1, 1, 1, 1, "", "")
    if fits:
        check_device(device, Target(f"cuda -arch={target}"))
        return
    with pytest.raises(
        TargetError,
        match=f"code for cuda -arch={target} cannot run on device 1, X, which is {arch}; build it "
        f"for -arch={arch}",
    ):
        check_device(device, Target(f"cuda -arch={target}"))
