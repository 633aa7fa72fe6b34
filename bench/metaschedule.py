"""TVM's MetaSchedule on one GEMM, in a process of its own: prints JSON for bench/tuning_speed.py.

    python bench/metaschedule.py SIZE TRIALS CORES BATCH SEED

The default settings (XGBoost model, evolutionary search); candidates are built and timed by its own
local builder and runner. Their time limits are raised, because they count the imports of the
workers, which alone can take 30 s on a busy machine. It checks no answers. Exit status 3 if TVM
cannot be imported.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from typing import Any

WORKER_LIMIT_S = 300.0


def product(size: int) -> Any:
    """C[i, j] = sum over k of A[i, k] B[k, j], in float32."""
    from tvm import te

    a = te.placeholder((size, size), "float32", name="A")
    b = te.placeholder((size, size), "float32", name="B")
    k = te.reduce_axis((0, size), name="k")
    c = te.compute((size, size), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="C")
    return te.create_prim_func([a, b, c])


def tune(size: int, trials: int, cores: int, batch: int, seed: int) -> dict[str, Any]:
    """Wall seconds of the tuning; seconds of each trial as measured, and the errors of the rest."""
    import tvm
    from tunefarm.compiler.target import Target
    from tvm.ir.utils import derived_object
    from tvm.s_tir import meta_schedule
    from tvm.s_tir.meta_schedule.builder import LocalBuilder
    from tvm.s_tir.meta_schedule.measure_callback import MeasureCallback, PyMeasureCallback
    from tvm.s_tir.meta_schedule.runner import LocalRunner

    seconds: list[float | None] = []
    ends: list[float] = []
    errors: list[str] = []
    start = time.perf_counter()

    @derived_object
    class Watch(PyMeasureCallback):  # type: ignore[misc]
        def apply(self, scheduler: Any, task: int, candidates: Any, builds: Any, runs: Any) -> None:
            for built, result in zip(builds, runs, strict=True):
                times = [] if result.run_secs is None else [float(s) for s in result.run_secs]
                seconds.append(sum(times) / len(times) if times else None)
                ends.append(time.perf_counter() - start)
                message = built.error_msg or result.error_msg
                if message:
                    errors.append(str(message).strip().splitlines()[-1])

    target = {"kind": "llvm", "mcpu": Target.host().mcpu, "num-cores": cores}
    with tempfile.TemporaryDirectory(prefix="tunefarm-bench-") as folder:
        meta_schedule.tune_tir(
            product(size), tvm.target.Target(target), folder, trials,
            num_trials_per_iter=batch, num_tuning_cores=cores, seed=seed,
            builder=LocalBuilder(max_workers=cores, timeout_sec=WORKER_LIMIT_S),
            runner=LocalRunner(timeout_sec=WORKER_LIMIT_S),
            measure_callbacks=[*MeasureCallback.create("default"), Watch()],
        )  # fmt: skip
    wall_s = time.perf_counter() - start
    return {"wall_s": wall_s, "seconds": seconds, "ends_s": ends, "errors": errors}


def main() -> None:
    try:
        import tvm.s_tir.meta_schedule  # noqa: F401
    except ImportError as error:
        print(f"TVM's MetaSchedule cannot be imported: {error}", file=sys.stderr)
        sys.exit(3)
    size, trials, cores, batch, seed = map(int, sys.argv[1:6])
    stdout, sys.stdout = sys.stdout, sys.stderr  # its log goes where ours does
    result = tune(size, trials, cores, batch, seed)
    print(json.dumps(result), file=stdout)


if __name__ == "__main__":
    main()
