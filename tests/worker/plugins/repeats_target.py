"""A target kind of true differences: each call runs a kernel of this machine several times.

The config is that of the kind ``llvm``, and a knob ``runs``: a config of 103 runs takes 3% longer
than the same with 100.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tunefarm.worker.backend import Array, Built, Problem, TargetPlugin
from tunefarm.worker.host import HostDevice
from tunefarm.worker.llvm import LlvmBackend, NativeKernel


class RepeatedKernel:
    """A kernel whose every call is so many of another's."""

    def __init__(self, kernel: NativeKernel, runs: int) -> None:
        self._kernel = kernel
        self._runs = runs

    @property
    def outputs(self) -> Sequence[Array]:
        return self._kernel.outputs

    def repeat(self, number: int) -> float:
        return self._kernel.repeat(number * self._runs)


class RepeatsBackend:
    """Kernels of the kind ``llvm``, several runs a call."""

    def __init__(self) -> None:
        self._native = LlvmBackend()

    def build(self, workload: str, target: str, config: Mapping[str, int | str]) -> Built:
        plain = {name: value for name, value in config.items() if name != "runs"}
        built = self._native.build(workload, _native(target), plain)
        return replace(built, metadata={**built.metadata, "runs": config["runs"]})

    def problem(self, workload: str, seed: int) -> Problem:
        return self._native.problem(workload, seed)

    def start(self, target: str) -> None:
        import numpy.random  # noqa: F401

        self._native.start(_native(target))

    def load(
        self, built: Built, inputs: Sequence[Array], constant: Sequence[bool]
    ) -> RepeatedKernel:
        kernel = self._native.load(built, inputs, constant)
        return RepeatedKernel(kernel, int(built.metadata["runs"]))


def _native(target: str) -> str:
    return target.replace("repeats", "llvm", 1)


PLUGIN = TargetPlugin(HostDevice, RepeatsBackend)
