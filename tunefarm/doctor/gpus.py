"""The doctor's look at GPUs."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

from tunefarm.compiler import settings
from tunefarm.compiler.errors import TunefarmError
from tunefarm.doctor.findings import Finding, State, gigabytes


def examine_gpus() -> Iterator[Finding]:
    """NVIDIA's driver and GPUs, and the two packages by which a worker comes to them."""
    from tunefarm.compiler.runtime.cuda.driver import is_emulating
    from tunefarm.worker.cuda.discovery import has_driver

    if is_emulating():
        told = "an emulator stands in for GPUs: its times say nothing of any"
        yield Finding("gpu", State.NOTE, told, f"unset {settings.CUDA.name} to use real ones")
        return
    version = _cuda_version()
    if version is None:
        if has_driver():
            remedy = "nvidia-smi says what is wrong with it; in a container, run it with --gpus all"
            yield Finding("gpu", State.FIX, "the NVIDIA driver does not start", remedy)
        else:
            told = "no NVIDIA driver; processors are tuned all the same"
            yield Finding("gpu", State.NOTE, told)
        return
    yield from _gpus(version)
    yield _bindings(version)


def _cuda_version() -> int | None:
    """The version of CUDA that the driver speaks (12080), None if there is none that starts."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    version = ctypes.c_int()
    if driver.cuInit(0) or driver.cuDriverGetVersion(ctypes.byref(version)):
        return None
    return version.value


def _gpus(version: int) -> Iterator[Finding]:
    from tunefarm.worker.cuda.discovery import find_gpus
    from tunefarm.worker.cuda.nvml import Monitor, open_nvml

    try:
        nvml = open_nvml()
        gpus = find_gpus(nvml)
    except TunefarmError as error:
        yield Finding("gpu", State.FIX, "GPUs cannot be offered", str(error))
        return
    for gpu in gpus:
        subject = f"gpu {gpu.ordinal}"
        memory = gigabytes(gpu.memory_bytes)
        told = f"{gpu.name} ({gpu.arch}), {memory}, driver {gpu.driver}, CUDA {_dotted(version)}"
        yield Finding(subject, State.OK, told)
        monitor = Monitor(nvml, gpu.uuid)
        busy = ", ".join(map(str, monitor.neighbours(())))
        if busy:
            told, remedy = f"others compute on it: {busy}", "stop them while it is tuned"
            yield Finding(subject, State.FIX, told, remedy)
        if fault := monitor.glance().fault:
            remedy = "see to its cooling and power; nvidia-smi -q -d PERFORMANCE tells more"
            yield Finding(subject, State.FIX, f"its clock is held down: {fault}", remedy)


def _bindings(version: int) -> Finding:
    """Whether the package is there that calls the driver, and is not of a later CUDA than it."""
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as version_of

    try:
        found = version_of("cuda-bindings")
    except PackageNotFoundError:
        remedy = "pip install 'tunefarm[cuda]'"
        return Finding("cuda", State.FIX, "cuda-bindings is not installed", remedy)
    told = f"cuda-bindings {found}"
    if int(found.partition(".")[0]) > version // 1000:
        major = version // 1000
        remedy = f"pip install 'cuda-bindings<{major + 1}', or a newer driver"
        told += f" is made for a later CUDA than the driver's {_dotted(version)}"
        return Finding("cuda", State.FIX, told, remedy)
    return Finding("cuda", State.OK, told)


def _dotted(version: int) -> str:
    return f"{version // 1000}.{version % 1000 // 10}"
