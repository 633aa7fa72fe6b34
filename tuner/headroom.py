"""How far a task's default config is from the roofline, before anything is measured."""

from __future__ import annotations

from tunefarm.compiler.space import config_space
from tunefarm.compiler.target import Target
from tunefarm.compiler.workload import Workload
from tunefarm.tuner.draft import draft, with_all_levels


def headroom(workload: Workload, target: Target, from_memory: bool = False) -> tuple[float, float]:
    """Seconds that the analytic draft expects of the config that is the default where weights come
    ``from_memory`` or do not, and of peak compute or streaming on all cores, whichever takes
    longer."""
    space = config_space(workload, target, from_memory)
    row = space.encode(space.default)[None, :]
    index = int(row[0, 0])
    nest = with_all_levels(space.sketches[index].nest(space.columns(row, index)))
    expected = draft(nest, target)
    return float(expected.total[0]), float(min(expected.ideal[0], expected.total[0]))
