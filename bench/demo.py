"""``make demo``: tune a real network on this machine, and print its latency before and after, and
that of onnxruntime.

SqueezeNet comes with the onnx package, and gets random weights: with its own, all alike, a Softmax
of a thousand numbers of 1e10 answers as rounding decides. Everything is the real thing: a tracker,
a worker and a tuner on loopback, records in SQLite, and a library written at the end.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

SECONDS = 120.0
TRIALS_PER_TASK = 48
TURNS = 20
MISTAKEN, INTERRUPTED = 2, 130


def demonstrate() -> None:
    import numpy as np
    from rich.console import Console

    import tunefarm
    from tunefarm.benchmark import Subject
    from tunefarm.peers.race import race, race_columns
    from tunefarm.peers.rows import DEFAULT
    from tunefarm.peers.turns import Neighbours
    from tunefarm.progress import showing
    from tunefarm.tables import print_table

    console = Console()
    folder = Path(tempfile.mkdtemp(prefix="tunefarm-demo-"))
    model = squeezenet(folder)
    mod = tunefarm.from_onnx(model)
    target = tunefarm.Target.host()
    tasks = tunefarm.extract_tasks(mod, target)
    console.print(f"SqueezeNet: {len(tasks)} tasks for {target}", highlight=False)
    with tunefarm.apply_history_best((), starter=False):
        default = tunefarm.build(mod, target)

    database = f"sqlite:///{folder / 'tunefarm.db'}"
    started = time.monotonic()
    with showing(console) as show:
        result = tunefarm.tune(
            tasks,
            db=database,
            trials=TRIALS_PER_TASK * len(tasks),
            seconds=SECONDS,
            module=mod,
            watch=show,
        )
        show.conclude(result.outcome)
    if result.closing is not None:
        console.print(result.closing.summary(), highlight=False, soft_wrap=True)
    console.print(f"tuned in {time.monotonic() - started:.0f} s", highlight=False)

    with tunefarm.apply_history_best(database) as history:
        tuned = tunefarm.build(mod, target)
    library = folder / "squeezenet.so"
    tuned.export_library(library)
    loaded = tunefarm.load_module(library)
    feeds = tuned.example_inputs()
    for name, expected in default.run(feeds).items():
        np.testing.assert_allclose(loaded.run(feeds)[name], expected, rtol=1e-3, atol=1e-4)

    more = f"tunefarm tune {model} --db {database}"
    console.print(history.summary(more), highlight=False, soft_wrap=True)
    console.print("timing both builds in turn with onnxruntime …", highlight=False)
    neighbours = Neighbours()
    found = race(Subject(model, {}, database), target, ["onnxruntime"], TURNS)
    before, after = found.row.seconds[DEFAULT], found.row.seconds[found.ours]
    print_table(console, race_columns([found]))
    console.print(f"before (default configs)  {1e3 * before:8.3f} ms", highlight=False)
    console.print(f"after  (best records)     {1e3 * after:8.3f} ms", highlight=False)
    console.print(found.summary(), highlight=False)
    for told in (found.turns.report(), neighbours.report() if neighbours.were_busy else ""):
        if told:
            console.print(told, highlight=False, soft_wrap=True)
    console.print(f"library: {library}\nrecords: {database}", highlight=False, soft_wrap=True)


def squeezenet(folder: Path) -> Path:
    """The network's file, written into a folder."""
    import onnx
    from networks import light, randomized

    path = folder / "squeezenet.onnx"
    onnx.save(randomized(light("squeezenet")), path)
    return path


def main() -> int:
    """The exit code; Ctrl-C is heeded from the first import on."""
    try:
        demonstrate()
    except KeyboardInterrupt:
        print("stopped; `make demo` begins afresh", file=sys.stderr)
        return INTERRUPTED
    except Exception as error:
        from tunefarm.cli.app import message_of

        if (text := message_of(error)) is None:
            raise
        print(f"make demo: {text}", file=sys.stderr)
        return MISTAKEN
    return 0


if __name__ == "__main__":
    sys.exit(main())
