"""The builder child: ``python -m tunefarm.worker.builder``, code and reference answers.

warm     {}                                    ->  {sandbox}
build    {workload, target, config, plugins}   ->  Built's fields; blob: the code
together {workload, target, configs, plugins}  ->  Built's fields of each config, or null; a blob
                                                   for each that is built: the code
problem  {workload, seed}                      ->  types; blobs: inputs, outputs, bounds
"""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

from tunefarm.worker.child import Reply, Service, serve
from tunefarm.worker.wire import Frame, Header

if TYPE_CHECKING:
    from tunefarm.worker.backend import Built


def load(target: str) -> Service:
    import numpy as np
    import numpy.random
    from tunefarm.compiler import plugins
    from tunefarm.compiler.errors import TargetError
    from tunefarm.compiler.target import Target
    from tunefarm.worker.backend import Joining, Preparing, load_backend

    plugins.loaded()
    backend = load_backend(Target(target).kind)
    if isinstance(backend, Preparing):
        backend.prepare_builds()
    gc.freeze()
    # A candidate leaves next to nothing in cycles, and a child is replaced after some thousand of
    # them; to look for cycles among all that is kept of programs took a fifteenth of the time.
    gc.disable()

    def build(frame: Frame) -> Reply:
        request = frame.header
        with plugins.using(request["plugins"]):
            built = backend.build(request["workload"], request["target"], request["config"])
        return _told_of(built), (built.code,)

    def together(frame: Frame) -> Reply:
        request = frame.header
        if not isinstance(backend, Joining):
            raise TargetError(f"a backend of {target} builds no candidates together")
        with plugins.using(request["plugins"]):
            each = backend.build_together(
                request["workload"], request["target"], request["configs"]
            )
        told = [None if built is None else _told_of(built) for built in each]
        return {"each": told}, [built.code for built in each if built is not None]

    def problem(frame: Frame) -> Reply:
        request = frame.header
        gc.collect()  # arrays of an earlier problem may be among what cycles hold
        posed = backend.problem(request["workload"], request["seed"])
        header = {
            "inputs": [[list(a.shape), a.dtype.name] for a in posed.inputs],
            "constant": list(posed.constant),
            "outputs": [[list(a.shape), a.dtype.name] for a in posed.outputs],
        }
        bounds = [np.asarray(bound, np.float32) for bound in posed.bounds]
        arrays = [*posed.inputs, *posed.outputs, *bounds]
        return header, [np.ascontiguousarray(a).reshape(-1).view(np.uint8).data for a in arrays]

    return Service({"build": build, "together": together, "problem": problem})


def _told_of(built: Built) -> Header:
    """All of a candidate but its code."""
    return {
        "metadata": dict(built.metadata),
        "code_hash": built.code_hash,
        "space_fingerprint": built.space_fingerprint,
        "operations": built.operations,
        "traffic_bytes": built.traffic_bytes,
    }


if __name__ == "__main__":
    serve(load, "build_error")
