"""Which GPUs a worker's targets mean, on machines that a script describes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tunefarm.compiler.errors import TargetError
from tunefarm.compiler.runtime.cuda.driver import model_name
from tunefarm.compiler.target import Target
from tunefarm.worker import main
from tunefarm.worker.cuda import discovery
from tunefarm.worker.cuda.device import environment_of, places
from tunefarm.worker.cuda.discovery import Gpu, arch_here, find_gpus, offers, require
from tunefarm.worker.cuda.limits import limits

from tests.worker.cuda.nvml_library import ScriptedGpu, ScriptedNvml

Machine = Callable[..., None]
H200 = ScriptedGpu()
A100 = ScriptedGpu("NVIDIA A100-SXM4-80GB", "GPU-bbbb", (8, 0), 80 << 30)
HOPPER = "cuda -arch=sm_90a"


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    """Puts GPUs into this machine."""

    def give(*gpus: ScriptedGpu, visible: str | None = None) -> None:
        monkeypatch.delenv("TUNEFARM_CUDA", raising=False)
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        if visible is not None:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        monkeypatch.setattr(discovery, "open_nvml", lambda: ScriptedNvml(gpus))

    return give


def test_a_gpu_is_known_by_what_the_driver_says(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine(H200, A100)
    monkeypatch.setenv("CUDA_HOME", "/opt/cuda")
    first, second = find_gpus()
    assert first == Gpu(0, "NVIDIA H200", "sm_90a", "GPU-aaaa", 141 << 30, "570.124.06")
    assert model_name(first.arch, first.name) == "cuda/sm_90a/NVIDIA H200"
    assert (second.arch, second.ordinal) == ("sm_80", 1)
    told = environment_of(second)
    assert (told["CUDA_VISIBLE_DEVICES"], told["CUDA_HOME"]) == ("GPU-bbbb", "/opt/cuda")


@pytest.mark.parametrize(
    ("capability", "arch"),
    [
        ((7, 5), "sm_75"), ((8, 0), "sm_80"), ((8, 7), "sm_86"), ((8, 9), "sm_89"),
        ((9, 0), "sm_90a"), ((10, 0), "sm_100a"), ((10, 3), "sm_100"), ((12, 1), "sm_120"),
    ],
)  # fmt: skip
def test_code_is_made_for_what_the_gpu_runs(capability: tuple[int, int], arch: str) -> None:
    assert arch_here(*capability) == arch


def test_a_gpu_that_is_too_old_is_refused() -> None:
    with pytest.raises(TargetError, match=r"compute capability 7\.0 are too old"):
        arch_here(7, 0)


@pytest.mark.parametrize(
    ("visible", "ordinals"),
    [(None, [0, 1]), ("", []), ("1", [1]), ("1,0", [1, 0]), ("GPU-bb", [1]), ("0,7,1", [0])],
)
def test_the_drivers_variable_hides_gpus(visible: str | None, ordinals: list[int]) -> None:
    known = [Gpu(0, "a", "sm_80", "GPU-aaaa"), Gpu(1, "b", "sm_80", "GPU-bbbb")]
    assert [gpu.ordinal for gpu in discovery.visible_of(known, visible)] == ordinals


def test_a_host_whose_gpus_are_all_hidden_says_so(machine: Machine) -> None:
    machine(H200, visible="-1")
    with pytest.raises(TargetError, match="shows no GPU; look at nvidia-smi and CUDA_VISIBLE_DEV"):
        find_gpus()


@pytest.mark.parametrize(
    ("text", "offered"),
    [
        ("cuda", [(HOPPER, 0), ("cuda -arch=sm_80", 1)]),
        ("cuda:1", [("cuda -arch=sm_80", 1)]),
        ("cuda -arch=sm_80", [("cuda -arch=sm_80", 1)]),
        ("cuda:0 -arch=sm_80", [("cuda -arch=sm_80", 0)]),
        ("cuda:1 -arch=sm_80", [("cuda -arch=sm_80", 1)]),
        ("cuda:0 -precision=tf32 -arch=sm_90a", [(f"{HOPPER} -precision=tf32", 0)]),
    ],
)
def test_targets_of_a_worker_name_gpus(
    machine: Machine, text: str, offered: list[tuple[str, int]]
) -> None:
    machine(H200, A100)
    assert offers(text) == offered


def test_what_there_is_not_is_refused_in_one_sentence(machine: Machine) -> None:
    machine(A100)
    with pytest.raises(TargetError, match="there is no GPU 3 here; there are 0"):
        offers("cuda:3")
    with pytest.raises(TargetError, match=r"no GPU here runs code for cuda -arch=sm_90a; .*A100"):
        require(Target(HOPPER))
    with pytest.raises(TargetError, match="offered already"):
        offers("cuda -arch=sm_80", {0})


def test_a_target_that_is_given_twice_means_two_gpus(machine: Machine) -> None:
    machine(A100, H200)
    named = main.named_devices(["cuda -arch=sm_80", "cuda -arch=sm_80", "sim", "sim"])
    assert named == [("cuda -arch=sm_80", "0"), ("cuda -arch=sm_80", "1"), ("sim", ""),
                     ("sim", "1")]  # fmt: skip


def test_a_worker_offers_its_processor_and_all_its_gpus(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    host = (Target.host().text, "")
    machine(H200)
    monkeypatch.setattr(discovery, "has_driver", lambda: True)
    assert main.named_devices([]) == [host, (HOPPER, "0")]
    machine(H200, visible="")
    assert main.named_devices([]) == [host]
    assert "the GPUs of this machine are not offered: the NVIDIA driver shows no GPU" in caplog.text
    monkeypatch.setattr(discovery, "has_driver", lambda: False)
    assert main.named_devices([]) == [host]


@pytest.mark.parametrize(
    ("cores", "position", "gpus", "timed", "spare", "builders"),
    [
        (range(16), 0, 1, (15,), tuple(range(15)), 15),
        (range(16), 1, 2, (14,), tuple(range(14)), 14),
        (range(64), 0, 8, (63,), tuple(range(56)), 16),
        (range(1), 0, 1, (0,), (), 1),
        (range(2), 3, 4, (0,), (), 1),
    ],
)
def test_each_gpu_has_a_core_that_launches_and_the_rest_build(
    monkeypatch: pytest.MonkeyPatch, cores: range, position: int, gpus: int,
    timed: tuple[int, ...], spare: tuple[int, ...], builders: int,
) -> None:  # fmt: skip
    monkeypatch.setattr("tunefarm.worker.cores.physical_core", lambda core: core)
    found = places(tuple(cores), position, gpus, 0)
    assert (found.timed, found.spare, found.builders) == (timed, spare, builders)
    assert places(tuple(cores), position, gpus, 3).builders == 3


def test_limits_are_those_of_the_data_sheet() -> None:
    h100 = {"clock_hz": 1.83e9, "multiprocessors": 132}
    halves = limits(h100, Target(HOPPER), [((8, 8), "float16"), ((8, 8), "float32")])
    assert halves["flops_n"] == pytest.approx(989e12, rel=0.01)
    plain = limits(h100, Target(HOPPER), [((8, 8), "float32")])
    assert plain["flops_n"] == pytest.approx(62e12, rel=0.01)
    tf32 = limits(h100, Target(f"{HOPPER} -precision=tf32"), [((8, 8), "float32")])
    assert tf32["flops_n"] == pytest.approx(495e12, rel=0.01)
    assert limits({"clock_hz": 0, "multiprocessors": 132}, Target(HOPPER), []) == {}
