"""The gauge child: ``python -m tunefarm.worker.gauge``, measures the device itself.

warm           {}             ->  {sandbox}
drift          {mcpu, count}  ->  {seconds}, a list
peaks          {mcpu, cores}  ->  {peaks, noise}
compute_peaks  {mcpu, cores}  ->  {peaks}

No candidate runs in it: what is known of a device cannot be falsified by what is measured there.
"""

from __future__ import annotations

from tunefarm.worker.child import Reply, Service, serve
from tunefarm.worker.wire import Frame


def load(target: str) -> Service:
    import numpy.random  # noqa: F401
    from tunefarm.compiler.target import Target
    from tunefarm.worker import peaks

    peaks.reference_s(Target(target).mcpu)  # imports and links what the others need too

    def drift(frame: Frame) -> Reply:
        mcpu, count = frame.header["mcpu"], frame.header["count"]
        return {"seconds": [peaks.reference_s(mcpu) for _ in range(count)]}, ()

    def compute_peaks(frame: Frame) -> Reply:
        found = peaks.compute_peaks(frame.header["mcpu"], frame.header["cores"])
        return {"peaks": found}, ()

    def all_peaks(frame: Frame) -> Reply:
        mcpu, cores = frame.header["mcpu"], frame.header["cores"]
        found = peaks.measure_peaks(mcpu, cores)
        return {"peaks": found, "noise": peaks.noise_floor(mcpu)}, ()

    handlers = {"drift": drift, "compute_peaks": compute_peaks, "peaks": all_peaks}
    return Service(handlers, threads=True)


if __name__ == "__main__":
    serve(load, "device_lost")
