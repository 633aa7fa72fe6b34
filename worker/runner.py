"""The runner child: ``python -m tunefarm.worker.runner``, loads and times one kernel at a time.

warm    {}                                          ->  {sandbox}
prepare {inputs, constant}; blobs: inputs           ->  {}
load    {slot, metadata}; blob: the code            ->  {}
repeat  {slot, number, discard, poison, outputs}    ->  {seconds}; blobs: outputs if asked

After ``warm`` it opens no file for writing and starts no thread: those that kernels need run by
then. Candidates share this process until it is replaced, so it is asked nothing but their times
and answers, which the parent checks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tunefarm.worker.child import Reply, Service, serve
from tunefarm.worker.wire import Blob, Frame

if TYPE_CHECKING:
    from tunefarm.worker.backend import Array, Backend, Loaded


class Runner:
    """The handlers of the runner, over the problem at hand and the kernels in their slots."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._inputs: tuple[Array, ...] = ()
        self._constant: tuple[bool, ...] = ()
        self._slots: dict[int, Loaded] = {}

    def prepare(self, frame: Frame) -> Reply:
        from tunefarm.worker.memory import read_only_array

        self._slots.clear()
        self._inputs = ()
        self._constant = tuple(frame.header["constant"])
        self._inputs = tuple(
            read_only_array(blob, shape, dtype)
            for blob, (shape, dtype) in zip(frame.blobs, frame.header["inputs"], strict=True)
        )
        return {}, ()

    def load(self, frame: Frame) -> Reply:
        from tunefarm.worker.backend import Built

        built = Built(bytes(frame.blobs[0]), frame.header["metadata"])
        if frame.header["slot"] == 0:
            self._slots.clear()
        self._slots[frame.header["slot"]] = self._backend.load(built, self._inputs, self._constant)
        return {}, ()

    def repeat(self, frame: Frame) -> Reply:
        loaded = self._slots[frame.header["slot"]]
        if frame.header["discard"]:
            loaded.repeat(1)
        if frame.header["poison"]:
            poison(loaded)
        seconds = loaded.repeat(frame.header["number"])
        blobs: Sequence[Blob] = ()
        if frame.header["outputs"]:
            blobs = [output.reshape(-1).view("uint8").data for output in loaded.outputs]
        return {"seconds": seconds}, blobs


def poison(loaded: Loaded) -> None:
    """Fill the outputs with ones bits: NaN in every float type, and a value that no answer has."""
    from tunefarm.worker.backend import Remote

    if isinstance(loaded, Remote):
        loaded.poison()
        return
    for output in loaded.outputs:
        output.reshape(-1).view("uint8").fill(0xFF)


def load(target: str) -> Service:
    from tunefarm.compiler.target import Target
    from tunefarm.worker import memory  # noqa: F401  (imported before the process is confined)
    from tunefarm.worker.backend import load_backend, load_plugin

    kind = Target(target).kind
    backend, policy = load_backend(kind), load_plugin(kind).policy
    runner = Runner(backend)
    handlers = {"prepare": runner.prepare, "load": runner.load, "repeat": runner.repeat}
    return Service(handlers, lambda: backend.start(target), candidates=True, policy=policy)


if __name__ == "__main__":
    serve(load, "run_error")
