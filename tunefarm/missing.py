"""What builds tell a farm of tasks that have no record."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from tunefarm.compiler.errors import TunefarmError

if TYPE_CHECKING:
    from tunefarm.compiler.dispatch import Untuned


def check_reportable(source: object) -> None:
    """TunefarmError unless the source of records is a tracker."""
    if isinstance(source, str | os.PathLike) and str(source).startswith("tracker://"):
        return
    told = source if isinstance(source, str | os.PathLike) else "given records"
    raise TunefarmError(
        f"report_misses needs a farm to report to, and the source is {told}; use tracker://HOST:PORT"
    )


def reporter(client: Any) -> Callable[[Sequence[Untuned]], None]:
    """What tells a tracker, through its client, of a build's untuned tasks."""
    from tunefarm.compiler.space import plugins_of
    from tunefarm.db.records import Miss, WorkloadRecord, plugin_conditions
    from tunefarm.tuner.headroom import headroom

    def report(untuned: Sequence[Untuned]) -> None:
        found = []
        for one in untuned:
            workload = one.workload
            record = WorkloadRecord(workload.key, workload.text, workload.summary, workload.flops)
            default_s, roofline_s = headroom(workload, one.target, one.from_memory)
            selector = plugin_conditions(plugins_of(workload, one.target))
            found.append(
                Miss(record, one.target.text, one.weight, default_s, roofline_s, selector=selector)
            )
        client.report_misses(found)

    return report
