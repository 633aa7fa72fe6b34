"""The builder child: ``python -m tunefarm.worker.builder``, code and reference answers.

warm    {}                                   ->  {sandbox}
build   {workload, target, config, plugins}  ->  Built's fields; blob: the code
problem {workload, seed}                     ->  types; blobs: inputs, outputs, bounds
"""

from __future__ import annotations

import gc

from tunefarm.worker.child import Reply, Service, serve
from tunefarm.worker.wire import Frame


def load(target: str) -> Service:
    import numpy as np
    import numpy.random
    from tunefarm.compiler import plugins
    from tunefarm.compiler.target import Target
    from tunefarm.worker.backend import Preparing, load_backend

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
        header = {
            "metadata": dict(built.metadata),
            "code_hash": built.code_hash,
            "space_fingerprint": built.space_fingerprint,
            "operations": built.operations,
            "traffic_bytes": built.traffic_bytes,
        }
        return header, (built.code,)

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

    return Service({"build": build, "problem": problem})


if __name__ == "__main__":
    serve(load, "build_error")
