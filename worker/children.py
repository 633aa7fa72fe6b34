"""The children of a device: builders and one runner, kept warm and replaced in time."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
from tunefarm.db.records import ErrorKind
from tunefarm.worker.backend import Built, Problem, dtype_of
from tunefarm.worker.measure import TrialFailed, raise_reported, run_failure
from tunefarm.worker.process import Child, ChildDied, ChildOptions, Death

_CODE_LIMIT_BYTES = 256 << 20
_PROBLEM_LIMIT_BYTES = 4 << 30
_PROBLEM_CACHE_BYTES = 1 << 30
_CALLS_OF_A_CHILD = 2000
_STARTUP_S = 20.0
_CALLS_BEFORE_CANDIDATES = 2  # to warm up, and to prepare


class WarmChild:
    """A child that is started when it is needed, and replaced when it is old, fat or dead, or has
    spoken unasked."""

    def __init__(self, options: ChildOptions) -> None:
        self._options = options
        self._child: Child | None = None
        self._lock = threading.Lock()
        self._closed = False
        self._doomed = False

    def get(self) -> tuple[Child, bool]:
        """The child, and whether it has just been started."""
        with self._lock:
            if self._closed:
                raise TrialFailed(ErrorKind.DEVICE_LOST, "the device is closed")
            child = self._child
            if child is not None and not self._worn(child):
                return child, False
            if child is not None:
                child.close()
            child = self._child = Child(self._options)
            self._doomed = False
        self._warm_up(child)
        return child, True

    def _warm_up(self, child: Child) -> None:
        """Wait until the child has imported what it needs, on a clock of its own."""
        try:
            frame = child.call({"op": "warm"}, timeout_s=_STARTUP_S)
        except ChildDied as died:
            message = f"a helper process did not start: {died.message}"
            raise TrialFailed(ErrorKind.DEVICE_LOST, message, died.stderr_tail) from None
        raise_reported(frame, child, ErrorKind.DEVICE_LOST)

    def _worn(self, child: Child) -> bool:
        fat = child.resident_bytes > self._options.memory_bytes // 2
        spent = not child.alive or child.calls >= _CALLS_OF_A_CHILD
        return self._doomed or spent or fat or not child.quiet

    @property
    def calls(self) -> int:
        """Requests that the living child has got; 0 if there is none."""
        with self._lock:
            child = self._child
            return child.calls if child is not None and child.alive and not self._doomed else 0

    @property
    def pid(self) -> int:
        """The process of the child; 0 if there is none."""
        with self._lock:
            return self._child.pid if self._child is not None else 0

    def turn_to(self, target: str) -> None:
        """Have a child of this target from now on."""
        if target != self._options.target:
            self.discard()
            self._options = replace(self._options, target=target)

    def kill(self) -> None:
        """Kill the child; a call under way raises ChildDied."""
        with self._lock:
            if self._child is not None:
                self._child.kill()
                self._doomed = True

    def discard(self) -> None:
        """Kill and reap the child between calls; the next ``get`` starts another."""
        with self._lock:
            if self._child is not None:
                self._child.close()
            self._child = None

    def close(self) -> None:
        with self._lock:
            self._closed = True
            if self._child is not None:
                self._child.close()


class Builder:
    """One builder child: candidates become code, workloads become problems."""

    def __init__(self, options: ChildOptions) -> None:
        self._warm = WarmChild(options)
        self.kill = self._warm.kill
        self.close = self._warm.close

    def start(self) -> None:
        """Start the child ahead of its first request, which tells what prevents that."""
        with suppress(TrialFailed, OSError):
            self._warm.get()

    def build(
        self,
        workload: str,
        target: str,
        config: Mapping[str, int | str],
        timeout_s: float,
        plugins: Sequence[str] = (),
    ) -> Built:
        """The candidate's code, made with these plug-ins alone; TrialFailed with what prevents
        it."""
        header = {
            "op": "build",
            "workload": workload,
            "target": target,
            "config": dict(config),
            "plugins": list(plugins),
        }
        child, _ = self._warm.get()
        try:
            frame = child.call(header, timeout_s=timeout_s, reply_limit_bytes=_CODE_LIMIT_BYTES)
        except ChildDied as died:
            raise build_failure(died) from None
        is_lost = frame.header.get("error") == ErrorKind.DEVICE_LOST  # no candidate speaks for it
        raise_reported(frame, child, ErrorKind.DEVICE_LOST if is_lost else ErrorKind.BUILD_ERROR)
        fields = {k: v for k, v in frame.header.items() if k != "blobs"}
        return Built(bytes(frame.blobs[0]), **fields)

    def build_together(
        self,
        workload: str,
        target: str,
        configs: Sequence[Mapping[str, int | str]],
        timeout_s: float,
        plugins: Sequence[str] = (),
    ) -> list[Built | None]:
        """The code of each candidate; None for one that has none in this company, and is to be
        built alone. TrialFailed if there is no child to build them."""
        header = {
            "op": "together",
            "workload": workload,
            "target": target,
            "configs": [dict(config) for config in configs],
            "plugins": list(plugins),
        }
        child, _ = self._warm.get()
        try:
            frame = child.call(header, timeout_s=timeout_s, reply_limit_bytes=_CODE_LIMIT_BYTES)
        except ChildDied:
            return [None] * len(configs)
        if "error" in frame.header:
            return [None] * len(configs)
        codes = iter(frame.blobs)
        return [
            None if told is None else Built(bytes(next(codes)), **told)
            for told in frame.header["each"]
        ]

    def problem(self, workload: str, seed: int, timeout_s: float) -> Problem:
        """The workload's inputs and reference answer; TrialFailed with what prevents them."""
        header = {"op": "problem", "workload": workload, "seed": seed}
        child, _ = self._warm.get()
        try:
            frame = child.call(header, timeout_s=timeout_s, reply_limit_bytes=_PROBLEM_LIMIT_BYTES)
        except ChildDied as died:
            crashed = died.death is Death.CRASH  # or killed from outside: not the workload's fault
            kind = ErrorKind.DEVICE_LOST if crashed else build_failure(died).kind
            message = f"the reference answer: {died.message}"
            raise TrialFailed(kind, message, died.stderr_tail) from None
        raise_reported(frame, child, ErrorKind.BUILD_ERROR)
        return _problem_of(frame.header, frame.blobs)


def build_failure(died: ChildDied) -> TrialFailed:
    """The error of a trial whose builder died."""
    match died.death:
        case Death.TIMEOUT:
            message = f"the build was over its budget: {died.message}"
            return TrialFailed(ErrorKind.BUILD_TIMEOUT, message, died.stderr_tail)
        case Death.MEMORY:
            return TrialFailed(ErrorKind.OUT_OF_MEMORY, died.message, died.stderr_tail)
        case Death.CRASH | Death.PROTOCOL:
            return TrialFailed(ErrorKind.BUILD_ERROR, died.message, died.stderr_tail)


def _problem_of(header: Mapping[str, Any], blobs: Sequence[memoryview]) -> Problem:
    types = [*header["inputs"], *header["outputs"]]
    types += [[shape, "float32"] for shape, _ in header["outputs"]]
    arrays = [
        np.frombuffer(blob, dtype_of(dtype)).reshape(tuple(shape))
        for blob, (shape, dtype) in zip(blobs, types, strict=True)
    ]
    inputs, outputs = len(header["inputs"]), len(header["outputs"])
    return Problem(
        inputs=tuple(arrays[:inputs]),
        constant=tuple(header["constant"]),
        outputs=tuple(arrays[inputs : inputs + outputs]),
        bounds=tuple(arrays[inputs + outputs :]),
    )


class ProblemCache:
    """Problems by workload, up to 1 GiB; the least recently used goes first."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, Problem | TrialFailed] = OrderedDict()

    def get(self, key: str) -> Problem | TrialFailed | None:
        """The problem, or what prevented it; None if neither is kept."""
        found = self._kept.get(key)
        if found is not None:
            self._kept.move_to_end(key)
        return found

    def put(self, key: str, problem: Problem | TrialFailed) -> None:
        self._kept[key] = problem
        while len(self._kept) > 1 and self._bytes() > _PROBLEM_CACHE_BYTES:
            self._kept.popitem(last=False)

    def _bytes(self) -> int:
        problems = [p for p in self._kept.values() if isinstance(p, Problem)]
        return sum(sum(a.nbytes for a in (*p.inputs, *p.outputs, *p.bounds)) for p in problems)


class RunnerChild:
    """The runner child, which remembers the problem it was prepared for."""

    def __init__(self, options: ChildOptions) -> None:
        self._warm = WarmChild(options)
        self._prepared: Problem | None = None
        self.kill = self._warm.kill
        self.discard = self._warm.discard
        self.close = self._warm.close

    @property
    def pid(self) -> int:
        """The process of the child; 0 if there is none."""
        return self._warm.pid

    @property
    def is_used(self) -> bool:
        """Whether the next candidate gets a child that others have used."""
        return self._warm.calls > _CALLS_BEFORE_CANDIDATES

    def prepared_for(self, problem: Problem, target: str) -> Child:
        """A runner of the target with the problem's inputs in place; TrialFailed if they do not
        fit. A target of fewer cores than the device's has a runner of its own threads."""
        self._warm.turn_to(target)
        child, fresh = self._warm.get()
        if self._prepared is problem and not fresh:
            return child
        self._prepared = None
        header = {
            "op": "prepare",
            "inputs": [[list(a.shape), a.dtype.name] for a in problem.inputs],
            "constant": list(problem.constant),
        }
        blobs = [a.reshape(-1).view(np.uint8).data for a in problem.inputs]
        try:
            frame = child.call(header, blobs, timeout_s=_STARTUP_S)
        except ChildDied as died:
            raise run_failure(died) from None
        raise_reported(frame, child, ErrorKind.RUN_ERROR)
        self._prepared = problem
        return child


class Gauge:
    """The gauge child, which measures the device itself."""

    def __init__(self, options: ChildOptions) -> None:
        self._warm = WarmChild(options)
        self.close = self._warm.close

    @property
    def pid(self) -> int:
        """The process of the child; 0 if there is none."""
        return self._warm.pid

    def start(self) -> None:
        """Start the child ahead of its first request, which tells what prevents that."""
        with suppress(TrialFailed, OSError):
            self._warm.get()

    def ask(self, op: str, timeout_s: float = _STARTUP_S, **fields: Any) -> Mapping[str, Any]:
        """A request about the device; DEVICE_LOST if it is not answered."""
        try:
            child, _ = self._warm.get()
            frame = child.call({"op": op, **fields}, timeout_s=timeout_s)
        except ChildDied as died:
            raise TrialFailed(ErrorKind.DEVICE_LOST, died.message, died.stderr_tail) from None
        raise_reported(frame, child, ErrorKind.DEVICE_LOST)
        return frame.header
