"""Builds in other processes, as a worker's builders make them: PTX, and machine code where NVIDIA's
assembler is installed."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context

from tunefarm.worker.backend import Built
from tunefarm.worker.cuda.backend import CudaBackend


@contextmanager
def builders(count: int) -> Iterator[ProcessPoolExecutor]:
    """Processes that build; what they have not begun when the block ends is left."""
    with ProcessPoolExecutor(count, mp_context=get_context("spawn")) as pool:
        try:
            yield pool
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def build(text: str, target: str, config: Mapping[str, int | str]) -> Built:
    """The code of a workload's text; to be called in a builder."""
    return _backend().build(text, target, config)


@functools.cache
def _backend() -> CudaBackend:
    made = CudaBackend()
    made.prepare_builds()
    return made
