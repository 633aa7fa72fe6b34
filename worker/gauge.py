"""The gauge child: ``python -m tunefarm.worker.gauge``, measures the device itself.

warm           {}             ->  {sandbox}
drift          {mcpu, count}  ->  {seconds}, a list
together       {count}        ->  {seconds}, a list: on all cores at once, of the slowest
peaks          {mcpu, cores}  ->  {peaks, noise}
compute_peaks  {mcpu, cores}  ->  {peaks}

No candidate runs in it: what is known of a device cannot be falsified by what is measured there.
"""

from __future__ import annotations

from functools import partial

from tunefarm.worker.child import Reply, Service, serve
from tunefarm.worker.wire import Frame


def load(target: str) -> Service:
    import numpy.random  # noqa: F401
    from tunefarm.compiler.target import Target
    from tunefarm.worker import peaks
    from tunefarm.worker.beats import Beats

    machine = Target(target)
    peaks.reference_s(machine.mcpu)  # imports and links what the others need too
    beats = Beats(partial(peaks.reference_s, machine.mcpu), machine.num_cores)

    def drift(frame: Frame) -> Reply:
        mcpu, count = frame.header["mcpu"], frame.header["count"]
        return {"seconds": [peaks.reference_s(mcpu) for _ in range(count)]}, ()

    def together(frame: Frame) -> Reply:
        return {"seconds": [beats.slowest() for _ in range(frame.header["count"])]}, ()

    def compute_peaks(frame: Frame) -> Reply:
        found = peaks.compute_peaks(frame.header["mcpu"], frame.header["cores"])
        return {"peaks": found}, ()

    def all_peaks(frame: Frame) -> Reply:
        mcpu, cores = frame.header["mcpu"], frame.header["cores"]
        found = peaks.measure_peaks(mcpu, cores)
        return {"peaks": found, "noise": peaks.noise_floor(mcpu)}, ()

    handlers = {
        "drift": drift,
        "together": together,
        "compute_peaks": compute_peaks,
        "peaks": all_peaks,
    }
    return Service(handlers, threads=True)


if __name__ == "__main__":
    serve(load, "device_lost")
