"""Machine code made ahead of the driver: which devices take it, what is kept, who does without."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from gpu_harness import HOPPER, needs_ptxas
from tunefarm.compiler import te
from tunefarm.compiler.build import build_program
from tunefarm.compiler.gpu import cubin as module
from tunefarm.compiler.gpu.cubin import Cubin, assembled
from tunefarm.compiler.gpu.ptxas import Usage, ptxas_version
from tunefarm.compiler.kernel import Kernel


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Kernel:
    """A small kernel, and an empty cache."""
    monkeypatch.setenv("TUNEFARM_CACHE", str(tmp_path))
    monkeypatch.delenv("TUNEFARM_CACHE_BYTES", raising=False)
    x = te.placeholder((64,), name="x")
    return build_program(te.create_prim_func([x, te.compute((64,), lambda i: x[i] + 1)]), HOPPER)


@pytest.mark.parametrize(
    ("arch", "devices", "others"),
    [
        ("sm_80", ("sm_80", "sm_86", "sm_89"), ("sm_75", "sm_90", "sm_90a", "sm_100")),
        ("sm_90", ("sm_90", "sm_90a"), ("sm_89", "sm_100a")),
        ("sm_90a", ("sm_90a",), ("sm_90", "sm_100")),
        ("sm_100", ("sm_100", "sm_100a"), ("sm_90a", "sm_120")),
    ],
)
def test_which_devices_take_it(
    arch: str, devices: tuple[str, ...], others: tuple[str, ...]
) -> None:
    cubin = Cubin(arch, b"", {}, "")
    assert all(map(cubin.runs_on, devices))
    assert not any(map(cubin.runs_on, others))


@needs_ptxas
def test_it_is_assembled_once_for_each_architecture(
    kernel: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = assembled(kernel, "sm_90a").cubin
    assert made is not None
    assert (made.arch, made.assembler, made.code[:4]) == ("sm_90a", ptxas_version(), b"\x7fELF")
    assert set(made.kernels) == {launch.name for launch in kernel.launches}
    newer = assembled(kernel, "sm_90a")  # from the cache
    monkeypatch.setattr(module, "assemble", None)
    assert newer.cubin == assembled(kernel, "sm_90a").cubin == made
    assert assembled(newer, "sm_90a") is newer
    with pytest.raises(TypeError):  # which the cache has not
        assembled(kernel, "sm_100")
    monkeypatch.setattr(module, "ptxas_version", lambda: "ptxas 0.1")
    with pytest.raises(TypeError):
        assembled(kernel, "sm_90a")


def test_without_an_assembler_or_with_one_that_refuses_the_driver_compiles(
    kernel: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "find_ptxas", lambda: None)
    assert assembled(kernel, "sm_90a") is kernel
    monkeypatch.setattr(module, "find_ptxas", lambda: Path("/bin/false"))
    monkeypatch.setattr("tunefarm.compiler.gpu.ptxas.find_ptxas", lambda: Path("/bin/false"))
    ptxas_version.cache_clear()
    assert assembled(kernel, "sm_90a") is kernel
    ptxas_version.cache_clear()


def test_it_is_told_as_json_values() -> None:
    cubin = Cubin("sm_90a", b"code", {"k": Usage(32, 0, 0, 1024)}, "ptxas 13.0", ("serialised",))
    told = module.told_of(cubin)
    assert module.cubin_of(json.loads(json.dumps(told)), b"code") == cubin
    del told["warnings"]  # as files were before
    assert module.cubin_of(told, b"code").warnings == ()
