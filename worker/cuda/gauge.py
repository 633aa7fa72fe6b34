"""The gauge child of a GPU: ``python -m tunefarm.worker.cuda.gauge``, measures the device itself.

warm           {}       ->  {sandbox}
about          {}       ->  {name, arch, multiprocessors, …}: what the driver says of it
drift          {count}  ->  {seconds}, a list
peaks          {}       ->  {peaks, noise}

No candidate runs in it, and it has a context of its own.
"""

from __future__ import annotations

from dataclasses import asdict

from tunefarm.worker.child import Reply, Service, serve
from tunefarm.worker.wire import Frame


def load(target: str) -> Service:
    import numpy.random  # noqa: F401
    from tunefarm.compiler.runtime.cuda.driver import open_device
    from tunefarm.compiler.target import Target
    from tunefarm.worker.cuda import reference
    from tunefarm.worker.cuda.policy import GPU
    from tunefarm.worker.peaks import noise_of

    def about(frame: Frame) -> Reply:
        return asdict(open_device().properties), ()

    def drift(frame: Frame) -> Reply:
        loop = reference.reference_loop(open_device())
        loop.warm_up()
        return {"seconds": [loop.seconds() for _ in range(frame.header["count"])]}, ()

    def peaks(frame: Frame) -> Reply:
        device = open_device()
        found = reference.peaks(device, Target(target))
        return {"peaks": found, "noise": noise_of(reference.reference_loop(device).seconds)}, ()

    handlers = {"about": about, "drift": drift, "peaks": peaks}
    return Service(handlers, start=_open, threads=True, policy=GPU)


def _open() -> None:
    """Open the device, and have its driver compile the loop."""
    from tunefarm.compiler.runtime.cuda.driver import open_device
    from tunefarm.worker.cuda.reference import reference_loop

    reference_loop(open_device()).seconds()


if __name__ == "__main__":
    serve(load, "device_lost")
