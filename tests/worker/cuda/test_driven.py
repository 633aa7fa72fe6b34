"""A device by NVIDIA's driver, as a worker has it: cuda-bindings, NVML, runners that are shut in.

The driver in the children is the one that runs kernels on the emulator of PTX and holds each call
to NVIDIA's documents; what the management library says is a script's. Loops are cut short.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest
from tunefarm.compiler.errors import BuildError
from tunefarm.compiler.gpu.cubin import Cubin
from tunefarm.compiler.gpu.ptxas import Usage, find_ptxas, ptxas_version
from tunefarm.compiler.space import config_space
from tunefarm.compiler.target import Target
from tunefarm.db.records import Trial
from tunefarm.worker.cuda import backend, discovery
from tunefarm.worker.cuda import device as device_module
from tunefarm.worker.cuda.device import CudaDevice
from tunefarm.worker.device import DeviceOptions, open_device
from tunefarm.worker.main import named_devices

from tests.patience import LOOK_S, turns
from tests.worker.cuda.nvml_library import ScriptedGpu, ScriptedNvml
from tests.worker.cuda.test_emulated import measured, request_of, sum_of

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("cuda") is None, reason="no cuda-bindings: pip install tunefarm[cuda]"
)
DRIVER = Path(__file__).parents[2] / "compiler" / "runtime" / "cuda"
HEAT = 0x20
IN_CHILDREN = """
import dataclasses
import tempfile
from pathlib import Path

from fake_driver import SOURCES, FakeDriver
from tunefarm.worker import peaks
from tunefarm.worker.cuda import backend, reference

FakeDriver().install(Path(tempfile.mkdtemp()))
peaks._NOISE_REPEATS = 2 * peaks._NOISE_GROUP
reference._ITERATIONS, reference._BLOCKS_EACH, reference._THREADS = 2, 1, 32
reference._PRODUCT, reference._COPY_BYTES, reference._WARM_SECONDS = 32, 1 << 20, 0.001
reference._WINDOW_S, reference._BEST_OF = 0.001, 1
kernel_of = backend.kernel_of


def known(built):
    kernel = kernel_of(built)
    if kernel.cubin is not None:
        SOURCES[kernel.cubin.code] = kernel.object
        kernel = dataclasses.replace(kernel, object=b"the driver would compile this")
    return kernel


backend.kernel_of = known
"""


@pytest.fixture(scope="module")
def gpu() -> ScriptedGpu:
    return ScriptedGpu()


@pytest.fixture(scope="module")
def device(gpu: ScriptedGpu, tmp_path_factory: pytest.TempPathFactory) -> Iterator[CudaDevice]:
    folder = tmp_path_factory.mktemp("children")
    (folder / "sitecustomize.py").write_text(IN_CHILDREN)
    nvml = ScriptedNvml([gpu])
    plugin = dataclasses.replace(backend.PLUGIN, checks=lambda _: ())
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("TUNEFARM_CUDA", raising=False)
        patch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        patch.setattr(tempfile, "tempdir", str(tmp_path_factory.mktemp("tmp")))
        patch.setattr(backend, "PLUGIN", plugin)
        patch.setattr(discovery, "open_nvml", lambda: nvml)
        patch.setattr(device_module, "open_nvml", lambda: nvml)
        ((target, name),) = named_devices(["cuda"])
        path = os.pathsep.join([str(folder), str(DRIVER)])
        opened = open_device(
            DeviceOptions(target, 1, name=name, environment={"PYTHONPATH": path}, max_drift=0)
        )
        yield cast(CudaDevice, opened)
        opened.close()


def timed(device: CudaDevice) -> list[Trial]:
    """What is told of a candidate: a sum with its default config."""
    task, target = sum_of(64), Target(device.device.target)
    return measured(device, request_of(task, config_space(task, target).default, target))


def test_a_gpu_is_offered_under_its_own_name(device: CudaDevice) -> None:
    told = device.device
    assert told.model == "cuda/sm_90a/NVIDIA H200"
    assert told.target == "cuda -arch=sm_90a -num-cores=132"
    assert told.attributes["driver"] == "570.124.06"
    assert told.attributes["uuid"] == "GPU-aaaa"
    assert min(told.peaks.values()) > 0
    assert told.health.trouble == ""


def test_a_trial_has_the_state_of_its_gpu(device: CudaDevice) -> None:
    (trial,) = timed(device)
    assert (trial.error, trial.message) == (None, "")
    assert len(trial.times_s) >= 3
    state = trial.device_state
    assert (state["sm_mhz"], state["celsius"], state["watts"]) == (1980.0, 41.0, 121.5)
    assert (state["rejected"], state["clock_reasons"], state["power_capped"]) == (0.0, 0.0, 0.0)


@pytest.mark.skipif(find_ptxas() is None, reason="no ptxas here: pip install tunefarm[ptxas]")
def test_builders_make_the_machine_code_and_tell_what_it_takes(device: CudaDevice) -> None:
    assert device.device.attributes["assembler"] == ptxas_version()
    (trial,) = timed(device)
    assert (trial.error, trial.message) == (None, "")
    assert 8 <= trial.device_state["registers"] <= 64
    assert trial.device_state["spilled_bytes"] == trial.device_state["stack_bytes"] == 0.0


def test_code_that_spills_much_is_not_tried() -> None:
    usage = {"k": Usage(255, 300, 304, 0), "l": Usage(32, 0, 0, 0)}
    with pytest.raises(BuildError, match="k spills 300 bytes a thread beside 255 registers; at m"):
        backend.refuse_spills(Cubin("sm_90a", b"", usage, "ptxas"))
    backend.refuse_spills(Cubin("sm_90a", b"", {"k": Usage(255, 256, 256, 0)}, "ptxas"))
    backend.refuse_spills(None)


def test_what_is_timed_while_the_gpu_is_hot_is_timed_again(
    device: CudaDevice, gpu: ScriptedGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A look before the batch, one as the trial begins, then two a repeat: the first ones are hot.
    monkeypatch.setattr(gpu, "reasons", [0, 0, HEAT, HEAT, HEAT, 0])
    (trial,) = timed(device)
    assert trial.ok
    assert 1 <= trial.device_state["rejected"] <= 3


def test_a_gpu_that_stays_hot_is_in_trouble_and_tells_no_time(
    device: CudaDevice, gpu: ScriptedGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu, "reasons", [HEAT])
    device._pulse.at = float("-inf")
    assert timed(device) == []
    assert device.device.health.trouble == "its GPU is slowed: it is too hot"
    gpu.reasons = [0]
    recover(device)


def test_a_neighbour_that_computes_is_trouble_until_it_stops(
    device: CudaDevice, gpu: ScriptedGpu
) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as stranger:
        gpu.samples.append((stranger.pid, 1 << 40, 37))
        device._pulse.at = float("-inf")
        assert timed(device) == []
        trouble = device.device.health.trouble
        assert trouble.startswith("others compute on its GPU: ")
        assert f"({stranger.pid}, 37% of its time)" in trouble
        stranger.kill()
    recover(device)
    (trial,) = timed(device)
    assert trial.ok


def recover(device: CudaDevice) -> None:
    """Look after a device that is in trouble until it is well."""
    for _ in turns("its recovery"):
        if not device.device.health.trouble:
            return
        device.tend()
        time.sleep(LOOK_S)
